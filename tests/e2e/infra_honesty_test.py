"""No act of root inside earns an infra ending: one test each.

`infra` masks a rollout from training. An agent that could cause it could buy
itself a masked ending, so it rests on evidence from outside the sandbox alone.
"""
import time

import pytest

from support.api import wait_until

SMALL = {"memory_mb": 96, "disk_mb": 64, "max_processes": 96, "cpu_cores": 1}

ACTS = {
    "kills everything": "kill -9 -1",
    "kills PID 1": "kill -9 1; kill -11 1; kill -6 1; kill -15 1",
    "stops everything": "kill -STOP -1",
    "stops PID 1": "kill -STOP 1",
    "exhausts memory": "/probe memory 4096",
    "exhausts memory from many processes": "for i in 1 2 3 4 5 6 7 8; do /probe memory 4096 & done; wait",
    "exhausts memory through tmpfs": "/probe fill /dev/shm/f 4096; /probe fill /tmp/f 4096",
    "exhausts processes": "/probe forkbomb 10000; sleep 2",
    "exhausts processes by a fork bomb": "f() { f | f & }; f; sleep 2",
    "exhausts the disk": "/probe fill /f 4096; cp /bin/busybox /g",
    "exhausts inodes": "mkdir /i; /probe inodes /i 200000",
    "exhausts descriptors": "for i in 1 2 3 4; do /probe open 10000000 & done; wait",
    "removes every file": "cp /bin/busybox /dev/shm/bb; /dev/shm/bb rm -rf /bin /etc /usr /var /home /root /work /probe /tmp /run",
    "removes the shell": "rm -f /bin/sh /bin/bash",
    "breaks the loader and every program": "for f in /bin/*; do echo junk > $f; done",
    "breaks passwd": "echo ::::: > /etc/passwd; rm /etc/group",
    "makes the root unreadable": "chmod 000 / /bin /etc /tmp",
    "reboots": "reboot -f; halt -f; poweroff -f; echo b > /proc/sysrq-trigger",
    "stalls on a pipe": "mkfifo /tmp/p; for i in 1 2 3 4 5 6; do cat /tmp/p & done; sleep 1",
    "stalls file operations with a fifo in the way": "rm -rf /tmp/x; mkfifo /tmp/x; sleep 1",
    "burns all CPU": "for i in 1 2 3 4 5 6; do while :; do :; done & done; sleep 3",
    "floods output": "yes & yes >&2 & sleep 2; kill %1 %2",
    "floods the log": "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); /probe kill 1 11 >/dev/null; done",
    "makes deep directories": "d=/deep; i=0; mkdir $d; cd $d; while [ $i -lt 900 ]; do mkdir d 2>/dev/null; cd d || break; i=$((i+1)); done",
    "freezes by signals in a loop": "i=0; while [ $i -lt 300 ]; do kill -STOP -1; kill -CONT -1; i=$((i+1)); done",
    "makes zombies": "/probe zombies 2000",
    "uses up terminals": "i=0; while [ $i -lt 100 ]; do (exec 9<>/dev/ptmx; sleep 3) & i=$((i+1)); done; wait",
}


@pytest.mark.parametrize("act", sorted(ACTS))
def test_an_act_of_root_inside_is_never_infra(api, boxes, act):
    box = boxes(resources=SMALL)

    answer = api.call("POST", box.path + "/exec", {"shell": ACTS[act], "timeout_ms": 8000, "wait_ms": 20000}, timeout=40)
    follow = api.call("POST", box.path + "/exec", {"shell": "true", "timeout_ms": 5000, "wait_ms": 10000}, timeout=30)
    info = box.refresh()

    for got in (answer, follow):
        if got.status in (200, 201, 202):
            assert not got.json.get("infra"), got
            assert got.json.get("status") != "infra", got
        else:
            assert got.error["infra"] is False, got
    assert info["infra"] is False, info
    if info["state"] == "ended":
        assert info["cause"] in ("env_destroyed", "oom", "exit"), info


@pytest.mark.parametrize("act", ["kills everything", "exhausts memory", "exhausts processes", "exhausts the disk", "exhausts descriptors",
                                 "burns all CPU", "floods output", "makes zombies"])
def test_after_the_act_the_next_exec_answers(boxes, act):
    box = boxes(resources=SMALL)
    box.sh(ACTS[act], timeout_ms=8000, timeout=40)

    assert box.sh("echo next", timeout=20).out == "next\n"
    assert box.state == "running"


def test_delete_works_after_every_act(boxes):
    made = []
    for act in sorted(ACTS):
        box = boxes(resources=SMALL)
        box.start(shell=ACTS[act], timeout_ms=8000)
        made.append((act, box))
    time.sleep(2)

    for act, box in made:
        started = time.monotonic()
        answer = box.delete()
        assert answer.status in (200, 202, 204, 404), (act, answer)
        assert time.monotonic() - started < 15, act


def test_a_kill_of_aether_from_outside_is_told_as_what_it_is(server, boxes):
    # The host's root kills PID 1: evidence that no sandbox can produce is absent, so it stays trainable.
    import os
    import signal
    from support import leftovers
    box = boxes()
    marker = f"sleep 7{os.getpid()}"
    box.start(shell=f"exec {marker}")
    pids = [p for p in leftovers.processes_of(server.directory)
            if marker.encode() in open(f"/proc/{p}/cmdline", "rb").read().replace(b"\0", b" ")]
    assert pids
    import pathlib
    parent = int(pathlib.Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)

    info = box.wait_ended(15)

    assert info["cause"] in ("env_destroyed", "agent_lost"), info
    assert info["infra"] == (info["cause"] == "agent_lost")
