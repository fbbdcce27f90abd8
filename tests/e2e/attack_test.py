"""Rows of the abuse catalogue, run as root inside. Each block of refusals has its negative control.

The probe carries no exploit: it asks whether the precondition of an attack is
gone. On the host, unconfined, the same probe must find the precondition there,
or the row would prove nothing.
"""
import base64
import io
import os
import pathlib
import re
import signal
import subprocess
import tarfile
import time

import pytest

from support import images
from support.api import wait_until

REFUSED = {"EPERM", "EACCES", "ENOSYS", "ESRCH", "ENOENT", "EROFS", "ENOSPC", "EUSERS"}

# A-28, C-06, F-06, F-12 to F-16, F-19, F-21 to F-25: calls that never reach the kernel's code.
CALLS = ["io_uring_setup", "io_uring_enter", "io_uring_register", "unshare_user", "unshare_mount", "unshare_net", "unshare_pid",
         "unshare_cgroup", "clone_user", "clone3_user", "clone3_mount", "setns", "mount", "mount_tmpfs", "umount2", "pivot_root",
         "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "bpf", "perf_event_open", "add_key",
         "request_key", "keyctl", "userfaultfd", "clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "kcmp", "init_module",
         "finit_module", "delete_module", "kexec_load", "reboot", "swapon", "swapoff", "quotactl", "acct", "iopl", "ioperm",
         "open_by_handle_at", "fanotify_init", "swap_extents", "tiocsti", "suspend_seccomp", "mknod_block", "mknod_char", "scheduler_rt",
         "rlimit_raise"]
# Answers that this host's kernel gives without any filter, because the call is not built in or the limit is the host's own.
NOT_ON_THIS_HOST = {"init_module", "finit_module", "delete_module", "kexec_load", "iopl", "ioperm", "rlimit_raise"}


@pytest.fixture(scope="module")
def calls(shared_box):
    return shared_box.run("/probe", "calls", timeout=60).values()


@pytest.fixture(scope="module")
def host_calls(host_probe):
    out = subprocess.run(["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", host_probe, "calls"],
                         capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True).stdout
    return dict(line.split(" ", 1) for line in out.splitlines())


@pytest.mark.parametrize("call", CALLS)
def test_a_call_outside_the_profile_is_refused(calls, host_calls, call):
    assert calls.get(call) in REFUSED, f"{call}: {calls.get(call)}"
    if call not in NOT_ON_THIS_HOST:
        assert host_calls[call] not in ("EPERM", "ENOSYS"), f"negative control: unconfined, {call} must reach the kernel"


def test_the_same_profile_holds_for_a_session_a_user_and_a_background_command(shared_box, calls):
    # F-30: whatever the way in.
    for options in ({"session": "probe"}, {"user": "alice"}):
        values = shared_box.sh("/probe calls", timeout=60, **options).values()
        for call in CALLS:
            assert values.get(call) in REFUSED, f"{options}: {call}: {values.get(call)}"
    exec_id = shared_box.start(argv=["/probe", "calls"])
    shared_box.wait(exec_id)
    lines = shared_box.read_all(exec_id).decode().splitlines()
    assert dict(line.split(" ", 1) for line in lines) == calls


def test_the_start_command_is_confined_like_an_exec(boxes, calls):
    box = boxes(start={"argv": ["/bin/sh", "-c", "/probe calls > /tmp/calls; /probe fds > /tmp/fds; sleep 1000"]})
    wait_until(lambda: b"2 " in (box.api.raw("GET", box.path + "/files", query={"path": "/tmp/fds"}).body), 20, "the start command's report")

    values = dict(line.split(" ", 1) for line in box.read_file("/tmp/calls").decode().splitlines())

    assert values == calls


def test_unknown_numbers_answer_like_an_old_kernel_F23(calls):
    assert calls["unknown_600"] == calls["unknown_4000"] == "ENOSYS"


def test_foreign_abis_are_killed_F22(calls, host_calls):
    assert calls["int80"] == f"SIG{int(signal.SIGSYS)}"
    assert calls["x32_getpid"] == f"SIG{int(signal.SIGSYS)}"
    assert host_calls["int80"] == "0"


def test_ordinary_calls_work(calls):
    assert calls["getpid"] == "0"
    assert calls["clone3_plain"] in ("0", "ENOSYS")


def test_only_unix_inet_and_route_netlink_sockets_C06(shared_box, host_probe):
    values = shared_box.run("/probe", "families").values()
    host = dict(line.split(" ", 1) for line in subprocess.run([host_probe, "families"], capture_output=True, text=True, check=True).stdout.splitlines())

    allowed = {name for name, value in values.items() if value == "0"}
    assert allowed <= {"family_1", "family_2", "family_10", "family_16", "netlink_0"}, allowed
    assert {"family_1", "family_2"} <= allowed
    beyond = {name for name, value in host.items() if value == "0"} - allowed
    assert beyond, "negative control: the host itself offers more families than the sandbox"


def test_no_raw_and_no_packet_socket_can_be_opened_C05(shared_box, host_probe):
    inside = shared_box.run("/probe", "raw-sockets").values()
    host = dict(line.split(" ", 1) for line in subprocess.run([host_probe, "raw-sockets"], capture_output=True, text=True, check=True).stdout.splitlines())

    assert set(inside) == set(host) and set(inside.values()) <= {"EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT"}, inside
    assert set(host.values()) == {"0"}, f"negative control: root of the host opens them all: {host}"


# --- the platform's processes inside, B-01, B-04, B-05, F-01, F-03 --------------------------------------------

PROCESS_PROBES = ["mem", "mem_read", "environ", "exe_write", "exe_read", "exe_link", "fd_list", "fd_0", "fd_3", "maps", "root", "cwd",
                  "ns_mnt", "ns_user", "ptrace_attach", "ptrace_seize", "vm_readv", "pidfd_getfd", "prlimit", "setpriority",
                  "sched_setscheduler", "sched_setaffinity", "oom_score_adj"]


def foreign_pids(box):
    return [int(line.split()[0]) for line in box.run("/probe", "foreign").out.splitlines()]


def test_pid_1_is_foreign_to_root_inside(shared_box):
    assert 1 in foreign_pids(shared_box)


@pytest.mark.parametrize("probe", PROCESS_PROBES)
def test_no_platform_process_can_be_read_or_touched(shared_box, probe):
    pids = foreign_pids(shared_box)
    assert pids
    for pid in pids:
        values = shared_box.run("/probe", "process", str(pid)).values()
        assert values[probe] in {"EPERM", "EACCES", "ENOENT", "ESRCH", "ENOSYS", "EIO", "ENOTDIR"}, f"pid {pid}: {probe} {values[probe]}"


def test_negative_control_an_ordinary_process_can_be_read_and_touched(host_probe):
    script = f"sleep 100 & victim=$!; {host_probe} process $victim; kill -9 $victim"
    out = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script], capture_output=True, text=True,
                         stdin=subprocess.DEVNULL).stdout
    values = dict(line.split(" ", 1) for line in out.splitlines())

    for probe in PROCESS_PROBES:
        if probe not in ("exe_write", "oom_score_adj", "fd_3"):
            assert values[probe] == "0", f"{probe}: {values[probe]}"


@pytest.mark.parametrize("name", ["KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "ABRT", "QUIT", "ILL", "BUS", "FPE", "TSTP", "CHLD", "USR1", "PIPE", "SYS", "TRAP"])
def test_no_signal_from_inside_reaches_the_platform(boxes, name):
    box = boxes()
    box.sh("cd /tmp; export K=kept", session="s")
    for pid in foreign_pids(box):
        box.sh(f"/probe kill {pid} {int(getattr(signal, 'SIG' + name))}")
    box.sh(f"kill -{name} 1")

    assert box.sh("echo $K; pwd", session="s", timeout=15).out == "kept\n/tmp\n"


def test_negative_control_an_ordinary_process_inside_is_reached_by_a_signal(boxes):
    box = boxes()
    victim = box.start(argv=["sleep", "1000"])

    assert box.sh("/probe kill $(pidof sleep) 15").out == "kill 0\n"

    assert box.wait(victim, 10)["state"] == "ended"


def test_kill_minus_nine_minus_one_leaves_everything_working_B05(boxes):
    box = boxes()
    box.sh("cd /tmp; export K=kept", session="s")
    victim = box.start(argv=["sleep", "1000"])

    box.sh("kill -9 -1")
    box.run("/probe", "kill-all", "9")

    assert box.wait(victim, 10)["state"] == "ended", "negative control: the signal reaches what the sandbox runs"
    assert box.sh("echo ok", timeout=15).out == "ok\n"
    assert box.sh("echo $K; pwd", session="s").out == "kept\n/tmp\n"
    assert box.read_file("/canary") == b"base\n"
    assert box.state == "running"


def test_neighbours_are_not_reached_by_kill_B06(boxes):
    a, b = boxes(), boxes()
    near, far = a.start(argv=["sleep", "1000"]), b.start(argv=["sleep", "1000"])

    a.sh("killall -9 sleep; pkill -9 sleep; kill -9 -1")

    assert a.wait(near, 10)["state"] == "ended", "negative control: its own is killed"
    assert b.get_exec(far)["state"] == "running"
    assert b.sh("pidof sleep").code == 0


def test_no_socket_can_be_reached_A18_B01(shared_box):
    values = shared_box.run("/probe", "unix").values()
    ports = shared_box.run("/probe", "ports", timeout=60)

    assert values["unix_connected"] == "0", values
    assert ports.out == "tcp done\n", ports


def test_negative_control_a_listener_inside_is_found(boxes):
    box = boxes()
    listener = box.start(argv=["/probe", "listen-abstract", "canary"])
    box.until_output(listener, b"listening")
    box.start(argv=["nc", "-l", "-p", "4444"])
    wait_until(lambda: "115C" in box.sh("cat /proc/net/tcp /proc/net/tcp6").out, 10, "the listener")

    assert box.run("/probe", "unix").values()["unix_connected"] == "1"
    assert box.run("/probe", "ports", timeout=60).out == "tcp 4444\ntcp done\n"


def test_an_abstract_socket_of_the_host_is_not_reached_B02(shared_box, host_probe):
    import socket
    name = f"dsec-canary-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen(4)
        inside = shared_box.run("/probe", "abstract", name).values()
        control = subprocess.run([host_probe, "abstract", name], capture_output=True, text=True).stdout

    assert inside["abstract"] == "ECONNREFUSED"
    assert control == "abstract 0\n"


def test_the_platforms_sockets_are_on_no_path_inside(shared_box, server):
    found = shared_box.sh("find / -xdev -type s 2>/dev/null; find / -name '*.sock' 2>/dev/null; ls -d " + str(server.data)).out

    assert found.strip() == "", found


def test_no_secret_stands_in_arguments_environment_or_files_A20(shared_box, server):
    texts = shared_box.sh("for d in /proc/[0-9]*; do tr '\\0' ' ' < $d/cmdline; echo; cat $d/environ 2>/dev/null; done").out
    mounts = shared_box.sh("cat /proc/self/mountinfo").out

    assert server.api.key not in texts
    assert str(server.directory) not in texts
    assert str(server.data) not in mounts, mounts


def test_the_scan_for_secrets_finds_one_and_pid_1_shows_nothing_but_its_name_A20(boxes):
    box = boxes()
    box.start(argv=["sleep", "1000"], env={"CANARY": "planted-secret"})

    assert "planted-secret" in box.sh("cat /proc/[0-9]*/environ 2>/dev/null").out, "negative control: an ordinary environment can be read"
    assert box.sh("tr '\\0' ' ' < /proc/1/cmdline").out.strip() == "aether"
    assert box.sh("cat /proc/1/environ").code != 0
    assert box.sh("cat /proc/1/maps | wc -c").out.strip() == "0"


def test_nothing_of_the_platform_is_a_file_inside_A19(shared_box):
    found = shared_box.sh("find / \\( -name '*dsec*' -o -name '*aether*' -o -name '*chronus*' -o -name 'canary' \\) 2>/dev/null").out

    assert found == "/canary\n", "the canary is the negative control"


def test_no_log_of_the_platform_can_be_read_through_its_processes_A19(shared_box):
    # Where a log would be: what the platform's processes have open, and their own files.
    for pid in foreign_pids(shared_box):
        for name in ("fd", "cwd", "root", "fdinfo", "task"):
            result = shared_box.sh(f"ls /proc/{pid}/{name}/ /proc/{pid}/task/{pid}/fd/")
            assert result.code != 0, (pid, name, result.out)
        assert shared_box.sh(f"cat /proc/{pid}/fd/* /proc/{pid}/io /proc/{pid}/stack /proc/{pid}/syscall /proc/{pid}/auxv").out == ""
    assert shared_box.sh("ls /proc/self/fd/ /proc/self/fdinfo/ && cat /proc/self/io").code == 0, "negative control: a process sees its own"


REPLACED = ("cp /bin/busybox /tmp/busybox; for f in sh ls cat tar stat env true; do rm /bin/$f; "
            "printf '#!/tmp/busybox sh\n/tmp/busybox echo marker >> /tmp/marker\nexec /tmp/busybox %s \"$@\"\n' $f > /bin/$f; /tmp/busybox chmod 755 /bin/$f; done")


def test_replacing_the_shell_and_every_tool_changes_nothing_for_the_platform_A11(boxes):
    box = boxes()
    box.sh("cd /tmp; export K=1", session="s")

    box.sh(REPLACED)

    assert box.read_file("/etc/passwd").startswith(b"root:")
    box.write_file("/tmp/new", b"data")
    assert box.read_file("/tmp/new") == b"data"
    entries = box.api.must("GET", box.path + "/files/list", query={"path": "/tmp"})
    assert "new" in str(entries)
    assert box.api.raw("GET", box.path + "/files/archive", query={"path": "/tmp"}).status == 200
    assert box.run("/tmp/busybox", "echo", "ok").out == "ok\n"
    assert box.state == "running"
    answer = box.api.raw("GET", box.path + "/files", query={"path": "/tmp/marker"})
    assert answer.status == 404, "a platform operation ran a program of the sandbox"

    result = box.sh("echo $K; pwd", session="s")
    assert result.out == "1\n/tmp\n", "an open session goes on"
    assert result["shell_modified"] is True
    assert box.read_file("/tmp/marker") == b"marker\n", "negative control: a command of the user's runs the sandbox's shell, and is seen"


def test_a_shell_that_is_as_it_was_is_not_called_modified_A11(boxes):
    box = boxes()
    assert box.sh("true")["shell_modified"] is False

    box.sh("cp /bin/busybox /tmp/busybox; echo >> /tmp/busybox; mv /tmp/busybox /bin/busybox")

    assert box.sh("true")["shell_modified"] is True


def test_replacing_bash_and_the_loader_leaves_sessions_files_and_health_working_A11(api, debian):
    box = api.create(debian, resources={"memory_mb": 512, "disk_mb": 512, "max_processes": 128})
    try:
        box.write_file("/probe", pathlib.Path(images.build_probe()).read_bytes(), mode=0o755)
        box.sh("cd /tmp; K=kept; f() { echo function; }", session="s")
        box.sh("cp /bin/bash /bin/bash.real; printf '#!/bin/bash.real\\necho marker >> /tmp/marker; exec /bin/bash.real \"$@\"\\n' > /tmp/b; chmod 755 /tmp/b; mv /tmp/b /bin/bash")

        box.write_file("/tmp/new", b"data")
        assert box.read_file("/tmp/new") == b"data" and box.state == "running"
        assert box.api.raw("GET", box.path + "/files", query={"path": "/tmp/marker"}).status == 404, "a platform operation ran the sandbox's bash"
        result = box.sh("echo $K; pwd; f", session="s")
        assert (result.out, result["shell_modified"]) == ("kept\n/tmp\nfunction\n", True)
        assert box.read_file("/tmp/marker").startswith(b"marker\n"), "negative control"

        box.sh("for f in /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6; do echo junk > /tmp/junk; mv /tmp/junk $(readlink -f $f); done")
        assert box.sh("true").code != 0, "negative control: no program that needs the loader starts"
        box.write_file("/tmp/after", b"data")
        assert box.read_file("/tmp/after") == b"data"
        assert box.run("/probe", "write", "/tmp/after").out == "write 0\n"
        assert box.state == "running"
    finally:
        box.delete()


def test_removing_every_program_leaves_files_and_health_working(boxes):
    box = boxes()
    box.sh("cp /bin/busybox /tmp/busybox; /tmp/busybox rm -rf /bin /usr /etc")

    assert box.read_file("/canary") == b"base\n"
    assert box.run("/tmp/busybox", "echo", "ok", user="0:0").out == "ok\n"
    assert box.state == "running"


def test_platform_binaries_are_unchanged_on_the_host_F01(boxes):
    from support.server import BIN
    import hashlib
    box = boxes()
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in BIN.glob("dsec*")}

    pids = foreign_pids(box)
    answers = {box.run("/probe", "write", f"/proc/{pid}/exe").out for pid in pids}
    box.sh("for p in /proc/[0-9]*; do echo x > $p/exe; done", timeout=60)

    assert pids and answers == {"write EACCES\n"}, answers
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in BIN.glob("dsec*")} == before
    box.sh("cp /bin/busybox /tmp/sleep")
    box.start(argv=["/tmp/sleep", "1000"])
    assert box.sh("p=$(pidof sleep); rm /tmp/sleep; /probe write /proc/$p/exe").out == "write ETXTBSY\n", "negative control: an ordinary program is reached, and busy"
    assert box.run("/probe", "write", "/canary").out == "write 0\n"


def test_every_exec_starts_with_three_descriptors_F02(shared_box):
    for options in ({}, {"session": "fds"}, {"user": "alice"}, {"stdin": "x"}):
        lines = shared_box.sh("/probe fds", **options).out.splitlines()
        extra = [line for line in lines if int(line.split()[0]) > 2]
        assert not extra, (options, extra)
    lines = shared_box.sh("exec 7</canary; /probe fds").out.splitlines()
    assert "7 /canary" in lines, "negative control: the list shows one that is there"


def hunted(box, work):
    """What the probe found in processes that came by while `work` ran, and how many it looked into."""
    hunter = box.start(argv=["/probe", "hunt", "6000"])
    while box.get_exec(hunter)["state"] == "running":
        work()
    box.wait(hunter, 60)
    lines = box.read_all(hunter).decode().splitlines()
    return [line for line in lines if line.startswith("HIT")], int(next(line for line in lines if line.startswith("seen")).split()[1])


def test_an_attacker_that_races_each_exec_finds_nothing_F03(boxes):
    box = boxes()
    def work():
        assert box.run("true").code == 0
        assert box.run("true", user="alice").code == 0

    hits, seen = hunted(box, work)

    assert not hits, hits[:10]
    assert seen > 50, "the hunter met too few of the processes to have proved anything"


def test_negative_control_the_race_finds_a_process_that_hides_nothing_F03(boxes):
    box = boxes()

    hits, _ = hunted(box, lambda: box.sh("exec 7</canary; exec sleep 0.2", env={"DSEC_CANARY": "1"}))

    assert any("HIT environ" in hit for hit in hits)
    assert any("/canary" in hit for hit in hits)


# --- /proc and /sys: F-04 to F-09, F-27, D-25 -----------------------------------------------------------------------------

@pytest.mark.parametrize("path", ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
                                  "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/hotplug", "/sys/kernel/uevent_helper", "/proc/irq/0/smp_affinity",
                                  "/proc/sys/kernel/poweroff_cmd", "/proc/1/oom_score_adj", "/sys/power/state", "/proc/sys/kernel/threads-max",
                                  "/sys/fs/cgroup/cgroup.procs", "/proc/mtrr", "/proc/acpi/wakeup"])
def test_no_host_control_file_can_be_written(shared_box, path):
    value = shared_box.sh(f"/probe write {path}").values()["write"]

    assert value in ("EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "EISDIR"), value


# Limits of the sandbox's own System V and POSIX queues: its IPC namespace's. The others open for everybody and refuse
# the write: labels of another task, and what asks for a capability.
WRITABLE = re.compile(r"/proc/sys/fs/mqueue/\w+|/proc/sys/kernel/(auto_msgmni|msg\w+|sem|shm\w+|ns_last_pid)|/proc/1/(task/\d+/)?attr/\w+|/proc/1/timerslack_ns")


def test_root_inside_can_write_nothing_of_proc_and_sys_but_what_is_its_own(shared_box):
    found = shared_box.run("/probe", "writable", "/proc/sys", "/proc/1", "/proc", "/sys", timeout=120).out.splitlines()

    assert int(found[-1].split()[1]) > 1000, "the walk saw too little to prove anything"
    assert "/proc/sys/kernel/shmmax" in found, "negative control: what is its own is found"
    assert not [path for path in found[:-1] if not WRITABLE.fullmatch(path)]
    for path, text in (("/proc/sys/kernel/ns_last_pid", "1"), ("/proc/1/timerslack_ns", "1"), ("/proc/1/attr/exec", "x")):
        assert shared_box.sh(f"echo {text} > {path}").code != 0, path


def test_no_number_is_left_to_root_inside_that_aether_needs_B07(boxes):
    # Since Linux 6.14 a pid namespace has its own pid_max: lowered and used up, it would keep the agent from making workers.
    box = boxes(resources={"memory_mb": 256, "disk_mb": 64, "max_processes": 400})
    before = box.read_file("/proc/sys/kernel/pid_max")

    assert box.run("/probe", "write", "/proc/sys/kernel/pid_max").out == "write EROFS\n"
    bomb = box.start(shell="echo 301 > /proc/sys/kernel/pid_max; /probe forkbomb 1000; sleep 60")
    box.until_output(bomb, b"refused")

    assert box.read_file("/proc/sys/kernel/pid_max") == before
    assert box.read_file("/canary") == b"base\n"


def test_negative_control_the_host_can_write_core_pattern(host_probe):
    out = subprocess.run([host_probe, "write", "/proc/sys/kernel/core_pattern"], capture_output=True, text=True).stdout

    assert out == "write 0\n"


@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup",
                                  "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/sys/firmware/acpi", "/dev/kmsg", "/dev/mem",
                                  "/sys/kernel/debug/sched", "/sys/kernel/tracing/trace", "/sys/kernel/security/lsm"])
def test_kernel_memory_and_logs_cannot_be_read(shared_box, path):
    result = shared_box.sh(f"head -c 64 {path} | wc -c")

    assert result.out.strip() == "0", f"{path}: {result.out}"


def test_negative_control_the_host_reads_kernel_symbols_and_pages_and_the_sandbox_what_is_its_own(shared_box):
    for path in ("/proc/kallsyms", "/proc/kpagecount", "/proc/keys"):
        with open(path, "rb") as file:
            assert file.read(64), path
    assert shared_box.sh("head -c 64 /proc/self/status | wc -c").out.strip() == "64"


@pytest.fixture(scope="module")
def toolkit(api):
    """Imports a toolkit layer that `fill(archive)` made; its name."""
    made = []

    def make(fill):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            fill(archive)
        name = f"odd{len(made)}:1"
        answer = api.raw("POST", "/v1/layers", out.getvalue(), headers={"Content-Type": "application/x-tar"}, query={"name": name, "kind": "toolkit"})
        assert answer.status in (200, 201, 202), answer
        images.finish_operation(api, answer.json)
        made.append(name)
        return name

    return make


@pytest.mark.parametrize("place", ["dev", "sys", "proc"])
@pytest.mark.parametrize("what", ["a link", "a link to itself", "a file"])
def test_an_image_with_something_else_at_a_mount_point_is_refused_as_its_own_fault_F04(api, tiny, toolkit, place, what):
    def fill(archive):
        if what == "a file":
            images.add_file(archive, place, b"")
        else:
            images.add_symlink(archive, place, "/etc" if what == "a link" else place)

    made = api.call("POST", "/v1/sandboxes", {"environment": {"base": tiny, "toolkits": [toolkit(fill)]}})

    assert made.status == 400 and made.error["code"] == "invalid_argument" and made.error["infra"] is False, made
    identifier = re.search(r"sandbox ([a-z2-7]{26}) ", made.error["message"])[1]
    ended = wait_until(lambda: (lambda item: item if item["state"] == "ended" else None)(api.must("GET", f"/v1/sandboxes/{identifier}")), 10, "its end")
    assert ended["infra"] is False and ended["cause"] == "exit", ended


def test_links_below_the_mount_points_are_hidden_not_followed_F04(api, tiny, toolkit):
    def fill(archive):
        for place in ("proc/sys", "proc/kallsyms", "sys/kernel", "dev/shm", "dev/null", "dev/pts", "dev/ptmx"):
            images.add_symlink(archive, place, "/etc")
        for name in ("hosts", "resolv.conf", "hostname"):
            images.add_symlink(archive, "etc/" + name, "/canary")

    box = api.create(None, environment={"base": tiny, "toolkits": [toolkit(fill)]})
    try:
        assert box.sh("head -c 64 /proc/kallsyms | wc -c").out.strip() == "0"
        assert box.sh("touch /dev/shm/here && ls /etc/here").code != 0
        assert box.sh("readlink /dev/null /dev/pts /proc/sys").code != 0
        assert box.read_file("/canary") == b"base\n" and b"localhost" in box.read_file("/etc/hosts")
        assert box.run("/probe", "calls").values()["mount"] in REFUSED
    finally:
        box.delete()


def test_reading_all_of_proc_and_sys_ends_and_tells_no_host_path_D25(shared_box, server):
    values = shared_box.run("/probe", "walk", timeout=120).values()

    assert int(values["files"]) > 50
    assert str(server.directory) not in shared_box.sh("cat /proc/self/mountinfo /proc/self/cgroup").out


def test_the_cgroup_shown_is_the_sandboxs_own_root(shared_box):
    lines = shared_box.sh("cat /proc/self/cgroup").out.splitlines()

    assert lines and all(".." not in line for line in lines), lines
    assert all("dsec" not in line for line in lines), lines
    own = re.compile(r"\d+:[^:]*:/(op-[a-z0-9]+)?")
    assert all(own.fullmatch(line) for line in lines), lines
    assert re.search(r"[1-9]", "".join(pathlib.Path("/proc/self/cgroup").read_text())), "the host has cgroups to show"


def test_no_cgroup_file_system_is_there_F06(shared_box):
    assert "cgroup" not in shared_box.sh("cat /proc/mounts").out
    assert shared_box.sh("mkdir -p /tmp/cg && mount -t cgroup -o memory none /tmp/cg").code != 0


def test_devices_are_the_short_list_F11(shared_box):
    devices = set(shared_box.sh("find /dev -type c -o -type b | sort").out.split())

    assert "/dev/null" in devices, "negative control"
    assert devices <= {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts/ptmx"} | {
        d for d in devices if re.fullmatch(r"/dev/pts/\d+", d)}, devices


def test_dev_cannot_be_written(shared_box):
    assert shared_box.sh("touch /dev/x").code != 0
    assert shared_box.sh("touch /dev/shm/x && rm /dev/shm/x").code == 0


def test_no_mount_arrives_on_the_host_F19(shared_box):
    before = pathlib.Path("/proc/self/mountinfo").read_text()

    shared_box.sh("mount -t tmpfs none /tmp; mount --bind / /work; umount /proc; umount -l /dev; mount -o remount,rw /dev")

    assert pathlib.Path("/proc/self/mountinfo").read_text() == before
    assert shared_box.sh("ls /dev/null /proc/self/status").code == 0


def test_mounts_of_the_sandbox_are_nodev_and_few(shared_box):
    lines = shared_box.sh("cat /proc/self/mountinfo").out.splitlines()
    root = next(line for line in lines if line.split()[4] == "/")

    assert "nodev" in root.split(" - ")[0]
    assert len(lines) < 40


def test_no_network_device_but_loopback(shared_box):
    assert [line.split(":")[0].strip() for line in shared_box.sh("cat /proc/net/dev").out.splitlines()[2:]] == ["lo"]


def test_tty_escapes_come_back_as_plain_data_B11(shared_box):
    result = shared_box.sh(r"printf '\033]0;title\007\033[2J\x1b[31m'")

    assert result.bytes_of("stdout") == b"\x1b]0;title\x07\x1b[2J\x1b[31m"


def test_reading_odd_files_ends_within_a_deadline_B13(boxes):
    box = boxes()
    box.sh("mkfifo /tmp/fifo; ln -s /dev/zero /tmp/zero")

    for path in ("/tmp/fifo", "/tmp", "/proc/kmsg", "/dev/tty"):
        started = time.monotonic()
        answer = box.api.raw("GET", box.path + "/files", query={"path": path}, timeout=30)
        assert answer.status != 200 or len(answer.body) < 1 << 20, path
        assert time.monotonic() - started < 20, path
    assert box.sh("echo fine").out == "fine\n"


def test_hostile_names_come_through_unharmed_B14(boxes):
    box = boxes()
    for name in ("new\nline", "esc\x1b[31m", "x" * 255, " lead", "-rf", "quote'\"`$(id)", "日本", "\u202eabc"):
        path = "/tmp/" + name
        box.write_file(path, name.encode())
        assert box.read_file(path) == name.encode()
        assert box.api.call("DELETE", box.path + "/files", query={"path": path}).status in (200, 204)


def test_a_name_that_is_no_utf8_comes_through_byte_by_byte_B14(boxes):
    box = boxes()
    box.sh(r"mkdir /tmp/d; touch $(printf '/tmp/d/a\377b')")

    entries = box.api.must("GET", box.path + "/files/list", query={"path": "/tmp/d"})["entries"]
    written = box.api.raw("PUT", box.path + "/files?path=/tmp/d/a%FFb", b"data")

    assert [base64.b64decode(entry["name_base64"]) for entry in entries] == [b"a\xffb"]
    assert written.status == 200 and box.api.raw("GET", box.path + "/files?path=/tmp/d/a%FFb").body == b"data"
    assert box.api.raw("DELETE", box.path + "/files?path=/tmp/d/a%FFb").status == 204
    assert box.api.must("GET", box.path + "/files/list", query={"path": "/tmp/d"})["entries"] == []


def test_a_set_up_step_that_fails_means_that_nothing_ran_A17_F32(boxes, api, tiny):
    # The fail points themselves are in crash_test.py; here: what the host refuses is not run half confined.
    answer = api.call("POST", "/v1/sandboxes", {"image": tiny, "user": "no-such-user", "start": {"argv": ["sh", "-c", "echo ran > /tmp/ran; sleep 100"]}})

    if answer.status in (200, 201, 202):
        path = f"/v1/sandboxes/{answer.json['id']}"
        wait_until(lambda: api.must("GET", path)["state"] == "ended", 15, "ended")
        assert api.must("GET", path)["infra"] is False
    else:
        assert answer.error["infra"] is False
