"""Kills at named steps and at random: nothing is lost, nothing is left, nothing half confined ran."""
import contextlib
import http.client
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
import uuid

import pytest

from support import images, leftovers
from support.api import Api, Box, wait_until
from support.payload import ancestors_in_sandbox, payload_pids
from support.server import BIN, ROOT, Server, rows_of

RANDOM_KILLS = int(os.environ.get("DSEC_KILLS", "20"))
SEED = int(os.environ.get("DSEC_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


def fail_points(*folders):
    """Every name that the source passes to fail_point(), so that a new step is tested without being listed here."""
    found = set()
    for folder in folders:
        for path in (ROOT / "src" / folder).rglob("*.cc"):
            if not path.name.endswith("_test.cc"):
                found |= set(re.findall(r'(?:fail_point|passes)\("([a-z0-9_.]+)"\)', path.read_text()))
    return sorted(found)


@pytest.fixture
def crash_server():
    server = Server(name="crash").start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    if server.child.poll() is not None:
        server.start()
    complaints = server.close()
    assert not complaints, complaints


def live(server):
    return {i["id"] for i in server.api.list_all()}


# --- re-adoption ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("hard", [True, False], ids=["kill -9", "SIGTERM"])
def test_a_restart_takes_every_sandbox_back(crash_server, hard):
    server = crash_server
    box = server.api.create("tiny:1", name="kept", labels={"a": "b"})
    box.sh("cd /tmp; export K=kept; echo data > file", session="s")
    running = box.start(shell="i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
    box.until_output(running, b"\n20\n")
    finished = box.start(shell="echo done; exit 7")
    box.wait(finished)
    pids = box.sh("ps -o pid,args | grep -v ps").out

    server.restart(hard=hard)
    again = Box(server.api, server.api.must("GET", "/v1/sandboxes/kept"))

    assert again.id == box.id
    assert again.info["state"] == "running" and again.info["labels"] == {"a": "b"}
    assert again.sh("echo $K; pwd; cat file", session="s").out == "kept\n/tmp\ndata\n"
    seen = again.until_output(running, b"\n60\n")
    numbers = [int(n) for n in seen.split(b"\n")[:60]]
    assert numbers == list(range(1, 61)), "output before, during and after the restart, without a gap"
    result = again.wait(finished)
    assert result.code == 7 and again.read_all(finished) == b"done\n"
    after = again.sh("ps -o pid,args | grep -v ps").out
    # [exe]: the loop's next sleep, which has executed nothing yet.
    lasting = {line for line in pids.splitlines() if not re.match(r"\s*\d+ sleep", line) and "[exe]" not in line}
    assert lasting <= {line for line in after.splitlines()} | {""}


def story(server, box):
    return [(event["sequence"], event["at"], event["type"], event["detail"]) for event in server.api.must("GET", box.path + "/events")["items"]]


def test_the_story_of_a_sandbox_goes_on_after_a_kill(crash_server):
    server = crash_server
    box = server.api.create("tiny:1")
    made = server.api.must("POST", box.path + "/checkpoints", {})["checkpoint_id"]
    for _ in range(2):
        server.api.must("POST", box.path + "/pause", {"reason": "turn"})
        server.api.must("POST", box.path + "/resume", {})
    server.api.must("POST", box.path + "/rollback", {"checkpoint_id": made})
    other = server.api.create("tiny:1", lifetime={"max_seconds": 1})
    other.wait_ended(10)
    before, ended = story(server, box), story(server, other)

    server.restart()
    wait_until(lambda: any(kind == "adopted" for _, _, kind, _ in story(server, box)), 10, "the sandbox to be taken up")
    after = story(server, box)

    assert [kind for _, _, kind, _ in before if kind in ("paused", "resumed", "checkpoint", "rolled_back")] == ["checkpoint", "paused", "resumed", "paused", "resumed", "rolled_back"]
    assert after[:len(before)] == before and [kind for _, _, kind, _ in after[len(before):]] == ["adopted"]
    assert after[-1][0] > max(before[-1][0], ended[-1][0]), "a client's place in the stream stays its place"
    assert story(server, other) == ended and ended[-1][2] == "ended"
    server.api.must("DELETE", box.path)
    server.restart()
    assert [kind for _, _, kind, _ in story(server, box)] == ["ended"], "who deletes a sandbox has its story forgotten, but for that"


def test_a_key_holds_across_a_restart(crash_server):
    server = crash_server
    box = server.api.create("tiny:1", headers={"Idempotency-Key": "create-key"})
    first = box.sh("echo x >> /tmp/n; wc -l < /tmp/n", key="exec-key")

    server.restart()
    same = server.api.create("tiny:1", headers={"Idempotency-Key": "create-key"})
    again = same.sh("echo x >> /tmp/n; wc -l < /tmp/n", key="exec-key")

    assert same.id == box.id
    assert again.out == first.out == "1\n"


def test_a_command_that_ends_while_serve_is_dead_is_reported_with_its_status(crash_server):
    server = crash_server
    box = server.api.create("tiny:1")
    exec_id = box.start(shell="sleep 0.7; seq 1 5000; exit 9")
    server.kill()
    time.sleep(1.5)

    server.start()
    result = Box(server.api, box.info).wait(exec_id)

    assert result.code == 9
    assert Box(server.api, box.info).read_all(exec_id).endswith(b"4999\n5000\n")


def test_a_sandbox_destroyed_while_serve_is_dead_is_known_as_destroyed(crash_server):
    server = crash_server
    box = server.api.create("tiny:1", resources={"memory_mb": 64})
    other = server.api.create("tiny:1")
    marker = f"8{os.getpid()}"
    box.start(shell=f"sleep {marker}; true")
    wait_until(lambda: payload_pids(marker), 5, "the marker process")
    server.kill()
    for pid in payload_pids(marker):
        for ancestor in ancestors_in_sandbox(pid):
            with contextlib.suppress(ProcessLookupError):  # gone with its child
                os.kill(ancestor, signal.SIGKILL)

    server.start()

    info = wait_until(lambda: (lambda i: i if i["state"] == "ended" else None)(server.api.must("GET", box.path)), 15, "ended")
    assert info["cause"] in ("env_destroyed", "agent_lost"), info
    assert Box(server.api, other.info).sh("echo alive").out == "alive\n"


@pytest.mark.parametrize("hard, outcome", [(False, "running"), (True, "RemoteDisconnected")])
def test_a_stop_answers_who_waits_and_a_kill_cuts_them_off(crash_server, hard, outcome):
    api, box = crash_server.api, crash_server.api.create("tiny:1")
    outcomes = []

    def wait():
        try:
            outcomes.append(api.must("GET", f"{box.path}?wait_ms=60000&for=ended")["state"])
        except (OSError, http.client.HTTPException) as cut:
            outcomes.append(type(cut).__name__)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: crash_server.connections() == 1, 10, "the waiting connection")
    crash_server.restart(hard=hard)
    waiting.join(20)

    assert outcomes == [outcome]
    assert crash_server.api.must("DELETE", box.path)["state"] == "ended"


@pytest.mark.parametrize("hard", [False, True])
def test_the_command_line_waits_on_through_a_restart(crash_server, hard):
    api, box = crash_server.api, crash_server.api.create("tiny:1")
    waiting = subprocess.Popen([BIN / "dsec", "wait", box.id], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "DSEC_URL": api.url, "DSEC_API_KEY": api.key})
    time.sleep(1)  # it has had an answer and waits for the next

    crash_server.restart(hard=hard, listen=api.url.removeprefix("http://"))
    time.sleep(0.5)
    still_waiting = waiting.poll() is None
    crash_server.api.must("DELETE", box.path)

    out, errors = waiting.communicate(timeout=30)
    assert still_waiting, errors
    assert (waiting.returncode, out) == (0, "user\n"), errors


def test_two_servers_on_one_data_directory_are_refused(crash_server):
    second = subprocess.run([crash_server.child.args[0], "serve", "--listen", "127.0.0.1:0", "--data-dir", crash_server.data],
                            capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)

    assert second.returncode != 0
    assert crash_server.api.raw("GET", "/healthz", keyed=False).status == 200


def test_a_clean_shutdown_ends_with_0_and_keeps_sandboxes(crash_server):
    box = crash_server.api.create("tiny:1")
    exec_id = box.start(argv=["sleep", "1000"])

    assert crash_server.stop() == 0
    assert crash_server.pid_of("dsec-keeper")
    crash_server.start()

    assert Box(crash_server.api, box.info).get_exec(exec_id)["state"] == "running"


def test_stop_sandboxes_leaves_nothing(tmp_path):
    server = Server(arguments=["--stop-sandboxes"], name="stopall").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        server.api.create("tiny:1").start(argv=["sleep", "1000"])

        assert server.stop() == 0
        wait_until(lambda: not leftovers.processes_of(server.directory), 15, "every process gone")
    finally:
        server.close()


# --- single programs --------------------------------------------------------------------------------------------------------

def test_a_killed_spawner_loses_no_sandbox_and_creates_go_on(crash_server):
    server = crash_server
    box = server.api.create("tiny:1")
    exec_id = box.start(argv=["sleep", "1000"])
    server.kill_helper("dsec-spawner")

    second = wait_until(lambda: (lambda a: a.json if a.status == 201 else None)(server.api.call("POST", "/v1/sandboxes", {"image": "tiny:1"})), 15, "a create")

    assert box.get_exec(exec_id)["state"] == "running"
    assert box.sh("echo ok").out == "ok\n"
    assert Box(server.api, second).sh("echo ok").out == "ok\n"


def test_a_killed_keeper_loses_no_sandbox_while_serve_lives(crash_server):
    server = crash_server
    box = server.api.create("tiny:1")
    exec_id = box.start(argv=["sleep", "1000"])
    server.kill_helper("dsec-keeper")

    wait_until(lambda: server.api.call("POST", "/v1/sandboxes", {"image": "tiny:1"}).status == 201, 20, "a create after the keeper's death")

    assert box.get_exec(exec_id)["state"] == "running"
    assert box.sh("echo ok").out == "ok\n"


def test_all_three_programs_killed_at_once(crash_server):
    server = crash_server
    box = server.api.create("tiny:1")
    exec_id = box.start(shell="while :; do echo tick; sleep 0.05; done")
    for program in ("dsec-spawner", "dsec-keeper"):
        server.kill_helper(program)

    server.restart()
    info = server.api.must("GET", box.path)

    if info["state"] == "running":
        assert Box(server.api, info).sh("echo ok").out == "ok\n"
    else:
        # Losing keeper and serve together may lose the sandbox, never silently and never its cleanup.
        assert info["cause"] in ("agent_lost", "node_lost"), info
        assert info["infra"] is True
    assert server.api.create("tiny:1").sh("echo new").out == "new\n"


@pytest.mark.parametrize("point", ["edge.forget", "edge.forgotten", "edge.erase"])
def test_a_kill_while_a_sandbox_is_forgotten_leaves_it_whole_or_nowhere(crash_server, point):
    server = crash_server
    server.kill()
    server.start(fail_point=f"{point}=kill:1")
    box = server.api.create("tiny:1", name="half", lifetime={"max_seconds": 2})
    box.sh("head -c 2000000 /dev/zero")
    box.wait_ended(15)
    assert (server.data / "edge" / "sandboxes" / box.id).exists(), "its output is kept"
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.api.call("DELETE", box.path, query={"forget": True})
    server.child.wait(20)

    server.start()

    found = server.api.call("GET", box.path)
    listed = [i["id"] for i in server.api.list_all(state="all")]
    if point == "edge.forget":
        assert found.status == 200 and box.id in listed
        assert server.api.must("DELETE", box.path, query={"forget": True})["state"] == "ended"
    assert server.api.call("GET", box.path).status == 404
    assert server.api.call("GET", "/v1/sandboxes/half").status == 404
    assert point == "edge.forget" or box.id not in listed
    wait_until(lambda: rows_of(server, box.id) == 0, 10, "the history to have lost it")
    assert not (server.data / "edge" / "sandboxes" / box.id).exists()


# --- fail points --------------------------------------------------------------------------------------------------------------

EDGE_POINTS = fail_points("edge", "image", "store", "apiserver", "backend")
HELPER_POINTS = fail_points("spawner", "keeper", "sys")
AGENT_POINTS = fail_points("agent")


@pytest.mark.parametrize("point", EDGE_POINTS)
def test_a_kill_at_a_step_of_serve_loses_and_leaves_nothing(crash_server, point):
    server = crash_server
    kept = server.api.create("tiny:1", name="kept")
    exec_id = kept.start(argv=["sleep", "1000"])
    server.kill()
    server.start(fail_point=f"{point}=kill:1", wait=False)
    drive(server)
    if server.child.poll() is None:
        server.kill()

    server.start()

    assert Box(server.api, kept.info).get_exec(exec_id)["state"] == "running"
    settle(server)
    check_every_sandbox_works(server)


@pytest.mark.parametrize("point", EDGE_POINTS)
def test_an_error_at_a_step_of_serve_is_typed_and_leaves_nothing(crash_server, point):
    server = crash_server
    kept = server.api.create("tiny:1", name="kept")
    server.kill()
    server.start(fail_point=f"{point}=error", wait=False)
    drive(server)
    if server.child.poll() is None:
        server.kill()

    server.start()

    assert Box(server.api, kept.info).sh("echo ok").out == "ok\n"
    settle(server)
    check_every_sandbox_works(server)


@pytest.mark.parametrize("how", ["kill:1", "error"])
@pytest.mark.parametrize("point", HELPER_POINTS)
def test_a_failed_step_of_a_helper_means_that_nothing_ran(point, how):
    server = Server(name="point")
    try:
        server.start(fail_point=f"{point}={how}", wait=False)
        try:
            server.wait_ready(15)
        except AssertionError:
            return  # refused to start: fail closed
        before = live(server)
        try:
            images.import_tar(server.api, "tiny:1", images.tiny_tar())
        except (AssertionError, OSError):
            return
        answer = server.api.call("POST", "/v1/sandboxes", {"image": "tiny:1", "wait_ms": 15000}, timeout=40)
        if answer.status == 201:
            # kill:1 hits once; the retry behind it may well succeed, and then it must be a whole sandbox.
            box = Box(server.api, answer.json)
            values = box.run("/probe", "calls", timeout=60).values()
            assert values["mount"] in ("EPERM", "ENOSYS") and values["unshare_user"] in ("EPERM", "ENOSYS", "ENOSPC")
        elif answer.status != 202:
            # The refusal does not wait for the removal of what had begun.
            wait_until(lambda: live(server) == before, 15, "nothing is left of the refused one")
    finally:
        complaints = server.close()
    assert not complaints, complaints


@pytest.mark.parametrize("how", ["kill:1", "error"])
@pytest.mark.parametrize("point", AGENT_POINTS)
def test_a_failed_step_of_the_agent_costs_its_sandbox_at_most(point, how):
    server = Server(name="agent").start(fail_point=f"{point}={how}")
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        answer = server.api.call("POST", "/v1/sandboxes", {"image": "tiny:1", "wait_ms": 15000}, timeout=40)
        if answer.status != 201:
            assert point in ("agent.start", "agent.welcome") and answer.status == 503, answer
            wait_until(lambda: not live(server), 15, "the failed one is over")
            return
        box = Box(server.api, answer.json)
        run = server.api.call("POST", box.path + "/exec", {"shell": "echo ran; sleep 0.2", "wait_ms": 15000}, timeout=40)
        write = server.api.raw("PUT", box.path + "/files", b"data", query={"path": "/tmp/f"}, timeout=40)
        info = box.refresh()
        if how == "error" and point != "agent.exec.exited":
            assert info["state"] == "running", info
            failed = write.status >= 500 if point == "agent.file.start" else run.json.get("status") == "failed"
            assert failed, (run, write)
        else:
            # Nothing but the sandbox's own processes died: that is no fault of the platform.
            info = box.wait_ended()
            assert info["cause"] == "env_destroyed" and not info["infra"], info
            assert run.status >= 400 or point == "agent.file.start" or run.json["status"] in ("lost", "killed"), run
        assert server.api.call("GET", "/readyz").status == 200
    finally:
        complaints = server.close()
    assert not complaints, complaints


def drive(server):
    """Does a little of everything against a server that may die at any moment."""
    try:
        api = server.wait_ready(15)
    except AssertionError:
        return
    steps = [
        lambda: images.import_tar(api, "driven:1", b"\0" * 1024, what="layers", kind="toolkit"),
        lambda: api.create("tiny:1", timeout=15).sh("echo one; exit 3", timeout=10),
        lambda: api.create("tiny:1", timeout=15).delete(),
        lambda: api.call("DELETE", api.create("tiny:1", timeout=15).path, query={"forget": True}),
        lambda: Box(api, api.must("GET", "/v1/sandboxes/kept")).sh("echo two", timeout=10, key="driven"),
        lambda: api.call("POST", "/v1/sandboxes/kept/pause", {}, timeout=10),
        lambda: api.call("POST", "/v1/sandboxes/kept/resume", {}, timeout=10),
        lambda: api.call("PATCH", "/v1/sandboxes/kept", {"labels": {"x": "y"}}, timeout=10),
    ]
    for step in steps:
        if server.child.poll() is not None:
            return
        try:
            step()
        except (AssertionError, OSError, KeyError, ValueError):
            continue
        except Exception as error:  # http.client's own kinds
            if "http" not in type(error).__module__:
                raise


def settle(server):
    """Waits until no sandbox is between two states."""
    wait_until(lambda: all(i["state"] in ("running", "paused", "ended") for i in server.api.list_all()), 30, "no sandbox between states")


def check_every_sandbox_works(server):
    items = server.api.list_all()
    for item in items:
        if item["state"] in ("running", "paused"):
            assert Box(server.api, item).sh("echo alive", timeout=20).out == "alive\n", item
        assert not item["infra"] or item["cause"] in ("agent_lost", "node_lost", "start_failed"), item
    # No container without a sandbox: as many PID 1 processes as live sandboxes.
    wait_until(lambda: count_inits(server) <= len([i for i in items if i["state"] != "ended"]), 15,
               f"{count_inits(server)} containers for {len(items)} sandboxes")


def count_inits(server):
    """How many sandboxes the kernel knows below this server."""
    count = 0
    for pid in leftovers.processes_of(server.directory):
        try:
            nspid = re.search(r"NSpid:\s+(.*)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1).split()
        except (OSError, AttributeError):
            continue
        if len(nspid) == 2 and nspid[-1] == "1" and not leftovers.is_skeleton(pid):
            count += 1
    return count


# --- random kills ----------------------------------------------------------------------------------------------------------------

def test_random_kills_under_fifty_concurrent_creates(crash_server):
    """kill -9 of serve, spawner or keeper at random moments; every sandbox that was acknowledged and not deleted runs on."""
    server = crash_server
    rng = random.Random(SEED)
    print(f"seed {SEED}, {RANDOM_KILLS} kills")
    # A delete that was sent counts whether or not its answer came.
    acknowledged, mutex, stop = set(), threading.Lock(), threading.Event()
    problems = []

    def until_answered(call):
        """What a careful client does: the same request, the same key, until an answer says how it ended. None: told to stop."""
        while not stop.is_set():
            try:
                answer = call(Api(server.api.url, server.api.key))
            except Exception:  # the server died under the call
                time.sleep(0.05)
                continue
            if answer.status not in (202, 429, 500, 503, 504) or (answer.json or {}).get("error", {}).get("retry") in ("new_key", "never"):
                return answer
            time.sleep(0.05)
        return None

    def worker(number):
        while not stop.is_set():
            key = uuid.uuid4().hex
            answer = until_answered(lambda api: api.call(
                "POST", "/v1/sandboxes", {"image": "tiny:1", "resources": {"memory_mb": 32, "disk_mb": 16}},
                headers={"Idempotency-Key": key}, timeout=20))
            if answer is None:
                return
            if answer.status != 201:
                if answer.status not in (500, 503, 504):
                    problems.append(answer)
                continue
            # A launch that a kill cut short is over, with the node's fault written down; another key makes another.
            if answer.json["state"] != "running":
                if answer.json["state"] not in ("ending", "ended") or (answer.json["cause"], answer.json["infra"]) != ("start_failed", True):
                    problems.append(answer.json)
                continue
            box = Box(Api(server.api.url, server.api.key), answer.json)
            with mutex:
                acknowledged.add(box.id)
                full = len(acknowledged) > 60
            if number % 2 == 0:
                try:
                    result = box.sh("echo ok", timeout=10)
                    if result.out != "ok\n":
                        problems.append(dict(result))
                except Exception:  # the server died under the call
                    pass
            if number % 2 == 0 or full:
                with mutex:
                    acknowledged.discard(box.id)
                answer = until_answered(lambda api: api.call("DELETE", f"/v1/sandboxes/{box.id}", timeout=20))
                if answer is not None and answer.status not in (200, 204, 404):
                    problems.append(answer)

    def look():
        """Every sandbox that is acknowledged and not deleted, before the listing and after it, must be in it."""
        with mutex:
            before = set(acknowledged)
        there = {i["id"] for i in server.api.list_all()}
        with mutex:
            lost = (before & acknowledged) - there
        problems.extend(server.api.must("GET", f"/v1/sandboxes/{sandbox}") for sandbox in lost)

    port = server.api.port
    server.kill()
    server.start(listen=f"127.0.0.1:{port}")
    threads = [threading.Thread(target=worker, args=(n,), daemon=True) for n in range(50)]
    [t.start() for t in threads]
    try:
        for number in range(RANDOM_KILLS):
            if number % 5 == 0:
                look()
                assert not problems, f"seed {SEED}, kill {number}: {problems[:3]}"
            time.sleep(rng.uniform(0.05, 0.6))
            victim = rng.choice(["serve", "serve", "serve", "dsec-spawner", "dsec-keeper"])
            if victim == "serve":
                server.kill()
                server.start(listen=f"127.0.0.1:{port}")
            else:
                server.kill_helper(victim)
    finally:
        stop.set()
        [t.join(timeout=60) for t in threads]

    settle(server)
    assert not problems, f"seed {SEED}: {len(problems)}: " + "\n".join(repr(p) for p in problems[:3])
    known = {i["id"]: i for i in server.api.list_all()}
    # One create or delete of each worker may have had no answer yet: a key that made two sandboxes would show here.
    living = sum(i["state"] not in ("ending", "ended") for i in known.values())
    assert living <= len(acknowledged) + len(threads), f"seed {SEED}: {living} sandboxes live, {len(acknowledged)} acknowledged"
    for sandbox in acknowledged:
        answer = server.api.call("GET", f"/v1/sandboxes/{sandbox}")
        assert answer.status == 200, f"seed {SEED}: {sandbox} was acknowledged and is forgotten"
        assert answer.json["state"] == "running", f"seed {SEED}: {answer.json}"
        assert Box(server.api, answer.json).sh("echo alive", timeout=20).out == "alive\n", f"seed {SEED}: {answer.json}"
    wait_until(lambda: count_inits(server) <= len(known), 20, f"seed {SEED}: {count_inits(server)} containers, {len(known)} sandboxes")
    server.delete_all()
    wait_until(lambda: count_inits(server) == 0, 30, f"seed {SEED}: {count_inits(server)} containers left after deleting all")
