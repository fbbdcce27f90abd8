"""Pause and resume: nothing is lost over any number of cycles, crashes included, and the clocks stand still."""
import asyncio
import contextlib
import http.client
import json
import os
import signal
import threading
import time

import aiohttp
import pytest

from support import images, leftovers
from support.api import Box, wait_until
from support.server import Server

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"
SMALL = {"memory_mb": 64, "disk_mb": 64, "max_processes": 32}


def pause(box, expect=200, headers=None, **body):
    answer = box.api.call("POST", box.path + "/pause", body, headers=headers)
    assert answer.status == expect, answer
    return answer.json if expect == 200 else answer.error


def resume(box, expect=200, headers=None, **body):
    answer = box.api.call("POST", box.path + "/resume", body, headers=headers)
    assert answer.status == expect, answer
    return answer.json if expect == 200 else answer.error


def bulk(api, verb, selector=None, expect=200, headers=None, **body):
    if selector is not None:
        body["selector"] = selector
    answer = api.call("POST", f"/v1/sandboxes:{verb}", body, headers=headers, timeout=120)
    assert answer.status == expect, answer
    return answer.json["results"] if expect == 200 else answer.error


def holds(api):
    return api.must("GET", "/v1/sandboxes:holds")["items"]


def numbers(data):
    return [int(n) for n in data.split(b"\n")[:-1]]


def stands(box, exec_id, seconds=0.3):
    """Whether the counter prints nothing meanwhile."""
    before = len(box.output(exec_id)[0])
    time.sleep(0.1)  # what was on its way
    settled = len(box.output(exec_id)[0])
    time.sleep(seconds)
    return len(box.output(exec_id)[0]) == settled and before <= settled


class Follower:
    """Follows a command over one WebSocket, in a thread of its own."""

    def __init__(self, box, exec_id):
        self.seen = b""
        self.error = None
        self._box, self._exec = box, exec_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.new_event_loop().run_until_complete(self._follow()))
        self._thread.start()

    async def _follow(self):
        try:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._box.api.key}"}) as session:
                async with session.ws_connect(self._box.api.url + self._box.path + "/exec/stream", heartbeat=None) as socket:
                    await socket.send_str(json.dumps({"type": "attach", "id": 1, "exec_id": self._exec, "stdout_offset": 0, "stderr_offset": 0}))
                    while not self._stop.is_set():
                        with contextlib.suppress(asyncio.TimeoutError):
                            message = await socket.receive(timeout=0.2)
                            if message.type == aiohttp.WSMsgType.BINARY and message.data[0] == 1:
                                self.seen += message.data[5:]
                            elif message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.ERROR):
                                self.error = repr(message)
                                return
        except Exception as error:  # told to the test, which looks
            self.error = repr(error)

    def close(self):
        self._stop.set()
        self._thread.join(20)


# --- cycles -----------------------------------------------------------------------------------------------------------------

def test_fifty_cycles_lose_nothing(api, boxes):
    box = boxes(labels={"kept": "yes"})
    counter = box.start(shell=COUNTER)
    background = box.start(argv=["sleep", "1000"])
    box.sh("mkdir -p /srv && echo page > /srv/index.html && n=0", session="s")
    box.start(argv=["httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv"])
    wait_until(lambda: api.raw("GET", box.path + "/ports/8080/index.html").status == 200, 10, "the server inside")
    follower = Follower(box, counter)
    wakes = [lambda: resume(box), lambda: box.sh("true"), lambda: box.read_file("/srv/index.html"),
             lambda: api.raw("GET", box.path + "/ports/8080/index.html")]

    for cycle in range(50):
        assert pause(box)["state"] == "paused"
        assert box.state == "paused"
        wakes[cycle % 4]()
        assert box.state == "running", f"cycle {cycle}"
        assert box.sh("n=$((n+1)); echo $n", session="s").out == f"{cycle + 1}\n"
    last = len(box.output(counter)[0])
    wait_until(lambda: len(follower.seen) >= last or follower.error, 10, "the open stream to catch up")
    follower.close()

    assert follower.error is None
    assert numbers(follower.seen) == list(range(1, len(numbers(follower.seen)) + 1)), "the open stream, without a gap"
    assert box.get_exec(background)["state"] == "running"
    assert api.raw("GET", box.path + "/ports/8080/index.html").body == b"page\n"
    assert box.info["labels"] == {"kept": "yes"}
    box.signal(counter, 9)
    everything = box.read_all(counter)
    assert numbers(everything) == list(range(1, len(numbers(everything)) + 1))


def test_who_waits_for_a_command_is_answered_after_the_resume(api, boxes):
    box = boxes()
    exec_id = box.start(shell="sleep 1; echo done")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(box.wait(exec_id, 30)))
    waiting.start()
    pause(box)
    time.sleep(1.5)
    still = box.get_exec(exec_id)["state"]
    resume(box)
    waiting.join(20)

    assert still == "running"
    assert answers[0].out == "done\n" and answers[0]["frozen_ms"] >= 1000
    assert answers[0]["active_ms"] < answers[0]["duration_ms"] - 1000


def test_a_timeout_counts_across_several_pauses(api, boxes):
    box = boxes()
    exec_id = box.start(shell="sleep 100", timeout_ms=1500)
    for _ in range(3):
        pause(box)
        time.sleep(0.8)
        resume(box)
        time.sleep(0.1)
    alive = box.get_exec(exec_id)["state"]
    result = box.wait(exec_id, 10)

    assert alive == "running"
    assert result["timed_out"] and result["frozen_ms"] >= 2000, result


# --- who wakes it -----------------------------------------------------------------------------------------------------------

def test_to_look_and_to_change_and_to_end_a_command_wake_nothing(api, boxes):
    box = boxes(network={"mode": "proxy"})
    counter = box.start(shell=COUNTER)
    box.until_output(counter, b"\n3\n")
    pause(box)
    for path in ("", "/stats", "/events", "/exec", f"/exec/{counter}", f"/exec/{counter}/output"):
        api.must("GET", box.path + path) if path != f"/exec/{counter}/output" else box.output(counter)
    api.must("PATCH", box.path, {"labels": {"a": "b"}, "lifetime": {"idle_seconds": 60}})
    api.must("PATCH", box.path, {"network": {"mode": "proxy", "rules": [{"domain": "example.org"}]}})
    assert stands(box, counter)

    api.must("DELETE", f"{box.path}/exec/{counter}")
    killed = box.wait(counter, 10)

    assert killed["status"] == "killed", killed
    assert box.refresh()["state"] == "paused" and box.info["labels"] == {"a": "b"}


@pytest.mark.parametrize("what", ["stdin", "signal", "write", "session", "stream"])
def test_what_needs_the_payload_wakes_it(api, boxes, what):
    box = boxes()
    reader = box.start(shell="trap 'echo got' USR1; cat; while :; do sleep 0.02; done", open_stdin=True)
    box.sh("true", session="s")
    pause(box)

    if what == "stdin":
        api.must("POST", f"{box.path}/exec/{reader}/stdin", {"data": "hello\n"})
        box.until_output(reader, b"hello\n")
    elif what == "signal":
        api.must("POST", f"{box.path}/exec/{reader}/signal", {"signal": "SIGUSR1"})
    elif what == "write":
        box.write_file("/tmp/f", b"x")
    elif what == "session":
        api.must("DELETE", f"{box.path}/sessions/s")
    else:
        follower = Follower(box, reader)
        time.sleep(0.5)
        assert box.state == "paused", "an open stream alone wakes nothing"
        follower.close()

        async def ask():
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api.key}"}) as session:
                async with session.ws_connect(api.url + box.path + "/exec/stream") as socket:
                    await socket.send_str(json.dumps({"type": "start", "id": 1, "exec": {"argv": ["echo", "streamed"]}}))
                    return [json.loads((await socket.receive(timeout=10)).data)["type"]]
        assert asyncio.new_event_loop().run_until_complete(ask()) == ["started"]

    assert box.state == "running"


def test_a_request_to_a_port_by_host_name_wakes_it_and_never_for_the_holder(api, boxes):
    box = boxes()
    box.sh("mkdir -p /srv && echo page > /srv/index.html")
    box.start(argv=["httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv"])
    wait_until(lambda: api.raw("GET", box.path + "/ports/8080/index.html").status == 200, 10, "the server inside")
    host = {"Host": f"8080-{box.id}.localhost:{api.port}"}
    pause(box, wake="holder", headers={"X-Dsec-Fence": "2"})
    refused = api.raw("GET", "/index.html", headers=host, keyed=False)
    resume(box, headers={"X-Dsec-Fence": "2"})
    pause(box)

    page = api.raw("GET", "/index.html", headers=host, keyed=False)

    assert refused.status == 409
    assert (page.status, page.body) == (200, b"page\n")
    assert box.state == "running"


def test_a_pack_wakes_it_first(api, boxes):
    box = boxes()
    box.sh("echo data > /root-file")
    pause(box)

    layer = images.finish_operation(api, api.must("POST", box.path + "/pack", {"name": f"paused-pack-{os.urandom(3).hex()}:1"}))

    assert layer and box.state == "running"


def test_only_the_holder_wakes_it_and_an_old_fence_never_does(api, boxes):
    box = boxes()
    pause(box, wake="holder", headers={"X-Dsec-Fence": "5"})

    for headers in ({}, {"X-Dsec-Fence": "4"}):
        for method, path, body in (("POST", "/exec", {"argv": ["true"]}), ("POST", "/resume", {}), ("GET", "/files?path=/etc/passwd", None)):
            assert api.call(method, box.path + path, body, headers=headers).status == 409, (headers, path)
    fenced = api.call("GET", box.path, headers={"X-Dsec-Fence": "4"})
    assert box.state == "paused"
    woken = api.call("POST", box.path + "/exec", {"argv": ["true"]}, headers={"X-Dsec-Fence": "5"})

    assert fenced.status == 409 and fenced.error["details"]["current_fence"] == "5"
    assert woken.status == 200
    assert box.refresh()["fence"] == 5


# --- clocks -----------------------------------------------------------------------------------------------------------------

def test_an_idle_sandbox_pauses_and_tells_why(api, boxes):
    box = boxes(lifetime={"idle_seconds": 1, "on_timeout": "pause"})

    wait_until(lambda: box.state == "paused", 15, "paused")

    assert box.info["pause_reason"] == "idle"
    assert box.sh("echo back").out == "back\n"
    types = [e["type"] for e in api.must("GET", box.path + "/events")["items"]]
    assert types.index("paused") < types.index("resumed")


def test_a_lifetime_stands_still_and_is_given_anew_when_it_was_used_up(api, boxes):
    box = boxes(lifetime={"max_seconds": 4, "on_timeout": "pause"})
    left = pause(box)["lifetime_left_ms"]
    time.sleep(5)
    assert box.info["expires_at"] is not None and box.refresh()["expires_at"] is None and box.info["lifetime_left_ms"] == left
    resume(box)

    wait_until(lambda: box.state == "paused", 15, "paused by its lifetime")

    assert box.info["pause_reason"] == "ttl"
    assert resume(box)["expires_at"] is not None
    assert box.sh("echo anew").out == "anew\n"


def test_a_lifetime_that_is_changed_meanwhile_counts_from_the_resume(api, boxes):
    box = boxes(lifetime={"max_seconds": 3600})
    pause(box)

    changed = api.must("PATCH", box.path, {"lifetime": {"max_seconds": 2}})
    time.sleep(2.5)
    assert changed["lifetime_left_ms"] == 2000 and box.state == "paused"
    resume(box)

    assert box.wait_ended(15)["cause"] == "ttl"


# --- crashes ----------------------------------------------------------------------------------------------------------------

@pytest.fixture
def own():
    server = Server(name="pause").start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    if server.child.poll() is not None:
        server.start()
    complaints = server.close()
    assert not complaints, complaints


@pytest.mark.parametrize("point, call, after", [("edge.pause.logged", pause, "paused"), ("edge.pause.frozen", pause, "paused"),
                                                ("edge.pause.reclaim", pause, "paused"),
                                                ("edge.resume.logged", resume, "running"), ("edge.resume.thawed", resume, "running")])
def test_a_kill_at_any_step_leaves_it_paused_or_running(own, point, call, after):
    box = own.api.create("tiny:1", resources=SMALL, lifetime={"max_seconds": 3600})
    counter = box.start(shell=COUNTER)
    box.until_output(counter, b"\n3\n")
    if call is resume:
        pause(box)
    own.kill()
    own.start(fail_point=f"{point}=kill:1")
    box.api = own.api
    wait_until(lambda: own.child.poll() is not None or box.state in ("running", "paused"), 10, "it to be taken up") if point != "edge.pause.reclaim" else None
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        call(box)
    own.child.wait(20)

    own.start()
    box.api = own.api

    wait_until(lambda: box.state == after, 10, f"{after}, not {box.state}")
    if after == "paused":
        assert stands(box, counter)
        assert box.info["expires_at"] is None
        resume(box)
    seen = len(box.output(counter)[0])
    wait_until(lambda: len(box.output(counter)[0]) > seen, 10, "the counter to go on")
    box.signal(counter, 9)
    everything = numbers(box.read_all(counter))
    assert everything == list(range(1, len(everything) + 1))
    assert box.refresh()["expires_at"] is not None


@pytest.mark.parametrize("point, state", [("edge.pause.logged", "running"), ("edge.pause.frozen", "running"), ("container.freeze", "running"),
                                          ("edge.resume.logged", "paused")])
def test_a_step_that_fails_leaves_a_state_that_works(own, point, state):
    own.restart(fail_point=f"{point}=error")
    box = own.api.create("tiny:1", resources=SMALL)
    counter = box.start(shell=COUNTER)
    box.until_output(counter, b"\n3\n")

    first = own.api.call("POST", box.path + "/pause", {})
    second = own.api.call("POST", box.path + "/resume", {})

    failed = first if state == "running" else second
    assert failed.status == 500 and failed.error["code"] == "internal", failed
    assert box.state == state
    own.restart()
    box.api = own.api
    wait_until(lambda: box.state == state, 10, state)
    assert box.sh("echo works").out == "works\n"
    seen = len(box.output(counter)[0])
    wait_until(lambda: len(box.output(counter)[0]) > seen, 10, "the counter to go on")


@pytest.mark.parametrize("hard", [True, False], ids=["kill -9", "SIGTERM"])
def test_a_restart_finds_it_paused(own, hard):
    box = own.api.create("tiny:1", resources=SMALL, lifetime={"max_seconds": 3600})
    counter = box.start(shell=COUNTER)
    box.until_output(counter, b"\n3\n")
    left = pause(box, reason="waits", wake="holder", headers={"X-Dsec-Fence": "9"})["lifetime_left_ms"]

    own.restart(hard=hard)
    box.api = own.api

    wait_until(lambda: box.state == "paused", 10, "paused")
    assert (box.info["pause_reason"], box.info["wake"], box.info["lifetime_left_ms"], box.info["fence"]) == ("waits", "holder", left, 9)
    assert stands(box, counter)
    resume(box, expect=409)
    resume(box, headers={"X-Dsec-Fence": "9"})
    wait_until(lambda: not stands(box, counter), 10, "the counter to go on")


@pytest.mark.parametrize("programs", [["dsec-spawner"], ["dsec-keeper"], ["dsec-spawner", "dsec-keeper"]], ids="+".join)
def test_a_program_that_dies_meanwhile_changes_nothing(own, programs):
    box = own.api.create("tiny:1", resources=SMALL)
    counter = box.start(shell=COUNTER)
    box.until_output(counter, b"\n3\n")
    pause(box)
    for program in programs:
        own.kill_helper(program)

    wait_until(lambda: own.api.call("POST", "/v1/sandboxes", {"image": "tiny:1"}).status == 201, 20, "a create")

    assert box.state == "paused" and stands(box, counter)
    assert box.sh("echo back").out == "back\n"


def test_a_paused_sandbox_that_is_deleted_leaves_no_process(own):
    box = own.api.create("tiny:1", resources=SMALL)
    marker = f"7{os.getpid()}"
    box.start(shell=f"sleep {marker}; true")
    pause(box)

    assert box.delete().json["state"] == "ended"

    def left():
        for pid in leftovers.processes_of(own.directory):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as text:
                    if marker.encode() in text.read():
                        return True
        return False
    wait_until(lambda: not left(), 5, "its processes to be gone")


def test_a_sandbox_that_is_killed_while_paused_ends_as_destroyed(own):
    box = own.api.create("tiny:1", resources=SMALL)
    marker = f"6{os.getpid()}"
    box.start(shell=f"sleep {marker}; true")
    pause(box)
    inits = []
    for pid in leftovers.processes_of(own.directory):
        with contextlib.suppress(OSError):
            status = open(f"/proc/{pid}/status").read()
            nspid = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")][0]
            if len(nspid) == 2 and nspid[-1] == "1" and not leftovers.is_skeleton(pid):
                inits.append(pid)
    for pid in inits:
        os.kill(pid, signal.SIGKILL)

    assert box.wait_ended(20)["cause"] in ("env_destroyed", "agent_lost")


# --- many at once -----------------------------------------------------------------------------------------------------------

def test_a_hundred_pause_and_resume_by_label(own):
    api = own.api
    made = [api.create("tiny:1", resources=SMALL, labels={"job": "j1", "n": str(i)}) for i in range(100)]
    other = api.create("tiny:1", resources=SMALL, labels={"job": "j2"})

    first = bulk(api, "pause", "job=j1", reason="step")
    again = bulk(api, "pause", "job=j1", reason="step")
    back = bulk(api, "resume", "job=j1")

    assert {r["id"] for r in first} == {b.id for b in made}
    assert all(r["state"] == "paused" and "error" not in r for r in first + again), first
    assert other.state == "running"
    assert all(r["state"] == "running" and "error" not in r for r in back), back
    assert made[50].sh("echo alive").out == "alive\n"
    ended = bulk(api, "stop", "job=j1")
    assert len(ended) == 100 and all(r["state"] == "ended" for r in ended)
    assert bulk(api, "stop", "job=j1") == []


def test_who_comes_during_a_bulk_pause_is_held_until_its_resume(own):
    api = own.api
    bulk(api, "pause", "job=h")
    held = api.call("POST", "/v1/sandboxes", {"image": "tiny:1", "labels": {"job": "h"}, "resources": SMALL, "wait_ms": 0})
    free = api.create("tiny:1", resources=SMALL)

    assert held.status == 202 and held.json["state"] == "queued"
    box = Box(api, held.json)
    assert [(h["selector"], h["queued"]) for h in holds(api)] == [("job=h", 1)]
    assert free.state == "running"
    assert api.call("POST", box.path + "/exec", {"argv": ["true"]}).status == 409
    own.restart()
    api = box.api = own.api
    assert box.state == "queued", "a hold outlives a restart"
    assert bulk(api, "resume", "job in (h)")[0]["error"]["code"] == "conflict", "another selector is another hold"
    assert box.state == "queued"
    released = bulk(api, "resume", "job=h")

    assert [(r["id"], r["state"]) for r in released] == [(box.id, "running")]
    assert box.sh("echo begun").out == "begun\n"
    assert holds(api) == []


def test_whoever_is_created_beside_a_bulk_pause_does_not_run(own):
    api = own.api
    made, go_on = [], threading.Event()

    def create():
        while not go_on.is_set():
            made.append(api.must("POST", "/v1/sandboxes", {"image": "tiny:1", "resources": SMALL, "labels": {"job": "r"}, "wait_ms": 0})["id"])
    makers = [threading.Thread(target=create) for _ in range(3)]
    for maker in makers:
        maker.start()
    wait_until(lambda: len(made) >= 15, 20, "some creates")
    results = bulk(api, "pause", "job=r")
    wait_until(lambda: len(made) >= len(results) + 10, 20, "some more creates")
    go_on.set()
    for maker in makers:
        maker.join(20)

    states = {i["id"]: i["state"] for i in api.list_all(selector="job=r")}
    assert set(states) == set(made)
    assert set(states.values()) == {"paused", "queued"}, states
    resumed = bulk(api, "resume", "job=r", deadline_ms=60000)
    assert {r["state"] for r in resumed} == {"running"} and len(resumed) == len(made), resumed
    bulk(api, "stop", "job=r", deadline_ms=60000)


def test_a_held_sandbox_can_be_deleted_and_resumed_alone(own):
    api = own.api
    bulk(api, "pause", all=True)
    made = [Box(api, api.must("POST", "/v1/sandboxes", {"image": "tiny:1", "resources": SMALL, "wait_ms": 0})) for _ in range(2)]

    assert made[0].delete().json["state"] == "ended"
    resume(made[1])
    wait_until(lambda: made[1].state == "running", 10, "running")

    assert made[1].sh("echo alone").out == "alone\n"
    bulk(api, "resume", all=True)


def test_a_bulk_pause_for_the_holder_ends_for_the_holder_alone(own):
    api = own.api
    box = api.create("tiny:1", resources=SMALL, labels={"job": "f"})
    bulk(api, "pause", "job=f", wake="holder", headers={"X-Dsec-Fence": "3"})

    assert bulk(api, "resume", "job=f", expect=409)["code"] == "conflict"
    assert bulk(api, "pause", "job=f", headers={"X-Dsec-Fence": "2"})[0]["error"]["code"] == "conflict"
    assert box.state == "paused"
    assert bulk(api, "resume", "job=f", headers={"X-Dsec-Fence": "3"})[0]["state"] == "running"


@pytest.mark.parametrize("verb", ["pause", "resume", "stop"])
@pytest.mark.parametrize("body", [{}, {"selector": ""}, {"selector": "a=b", "all": True}, {"selector": "a in"}, {"selector": "a=b", "deadline_ms": 0},
                                  {"selector": "a=b", "colour": 1}, {"selector": "a=b", "reason": ""}, {"selector": "a=b", "wake": "nobody"}])
def test_a_bulk_call_that_cannot_be_right_is_refused(api, tiny, verb, body):
    assert api.call("POST", f"/v1/sandboxes:{verb}", body).status == 400
    assert holds(api) == []
