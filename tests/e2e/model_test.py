"""A day of random use beside a model: operations, crashes of every program, hours that pass; nothing is stuck, lost or wrong.

The server's clocks run ahead of the machine's (support/moved_clock.py), so a day passes in a minute. A step that a crash
cuts off is asked again with its key, as a careful client does. DSEC_SEED repeats a run, DSEC_MODEL_DAYS makes more of them.
"""
import collections
import contextlib
import os
import random
import threading
import time
import uuid

import pytest

from support import images
from support.api import Api, Box, wait_until
from support.moved_clock import MovedClock
from support.payload import ancestors_in_sandbox, payload_pids
from support.sandbox_model import INFRA, KINDLY, SLACK, Expected
from support.server import Server

DAYS = int(os.environ.get("DSEC_MODEL_DAYS", "1"))
SEED = int(os.environ.get("DSEC_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
DAY = 24 * 3600
MOST_ALIVE = 10
GROUPS = ("red", "green", "blue")
PLACES = {"memory": {"memory_mb": 64, "disk_mb": 32, "max_processes": 32}, "disk": {"memory_mb": 64, "disk_mb": 256, "max_processes": 32}}
LASTING = ("running", "paused", "queued", "ended")
AGAIN = (429, 500, 502, 503, 504)


class Day:
    """One seed: the server, the model, and what can happen to both."""

    def __init__(self, seed, directory):
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = MovedClock(directory / f"shift-{seed}")
        self.server = Server(name="model", environment=self.clock.environment).start()
        images.import_tar(self.server.api, "tiny:1", images.tiny_tar())
        self.server.restart(listen=f"127.0.0.1:{self.server.api.port}")  # the same address after each crash
        self.known = {}
        self.holds = set()
        self.steps = 0
        self.crashes = 0
        self.timed_pauses = 0
        self.killed_at = 0.0
        self.story = []

    # --- asking ---

    @property
    def now(self):
        return self.clock.now()

    @property
    def api(self):
        return Api(self.server.api.url, self.server.api.key)

    def alive(self, *states):
        return [e for e in self.known.values() if e.alive and (not states or e.state in states)]

    def ask(self, method, path, body=None, key=None, expect=(200, 201, 202, 204), seconds=60):
        """The same request until an answer says how it ended: the server may die under it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = self.api.call(method, path, body, headers={"Idempotency-Key": key} if key else None, timeout=30)
                if answer.status not in AGAIN:
                    assert answer.status in expect, f"{self.told()}: {method} {path} {body}: {answer}"
                    return answer
                last = answer
            except OSError as error:
                last = error
            except Exception as error:  # http.client's own kinds: cut off
                if "http" not in type(error).__module__:
                    raise
                last = error
            assert time.monotonic() < deadline, f"{self.told()}: {method} {path}: {last!r}"
            time.sleep(0.03)

    def shell(self, expected, line, key=None, session=None):
        """A command to its end, once, whatever dies meanwhile; None when the platform says that it lost it."""
        key = key or uuid.uuid4().hex
        body = {"shell": line, "wait_ms": 20000, "key": key, **({"session": session} if session else {})}
        answer = self.ask("POST", f"/v1/sandboxes/{expected.id}/exec", body)
        result = answer.json
        if answer.status == 202 or result["state"] in ("running", "starting", "queued"):
            result = Box(self.api, {"id": expected.id}).wait(result["exec_id"], 30)
        expected.use(self.now)
        if result.get("status") == "lost" and result.get("infra"):
            return None
        assert result.get("exit_code") == 0, f"{self.told()}: {line}: {result}"
        return result["stdout"]

    def told(self):
        return f"seed {self.seed}, step {self.steps}: " + " | ".join(self.story[-12:])

    # --- steps ---

    def create(self):
        if len(self.alive()) >= MOST_ALIVE:
            return self.delete()
        lifetime = self.rng.choice([0, 0, 1800, 3 * 3600, 8 * 3600])
        idle = self.rng.choice([0, 0, 900, 2 * 3600])
        group = self.rng.choice(GROUPS)
        spec = {"image": "tiny:1", "labels": {"group": group}, "resources": PLACES[self.rng.choice(list(PLACES))],
                "lifetime": {"idle_seconds": idle, "max_seconds": lifetime, "on_timeout": self.rng.choice(["stop", "pause"])}}
        if group in self.holds:
            spec["wait_ms"] = 0
        info = self.ask("POST", "/v1/sandboxes", spec, key=uuid.uuid4().hex).json
        self.take_in(info, spec["labels"], spec["lifetime"], {})

    def take_in(self, info, labels, lifetime, files):
        info = self.lasting(info["id"])
        made = Expected(id=info["id"], labels=labels, idle=lifetime["idle_seconds"], lifetime=lifetime["max_seconds"], on_timeout=lifetime["on_timeout"], files=dict(files))
        made.begin(self.now)
        self.known[made.id] = made
        if self.note_cut_launch(made, info):
            return None
        if labels["group"] in self.holds:
            made.state = "queued"
        return made

    def note_cut_launch(self, box, info):
        """Whether a kill cut its launch short: the platform's fault, and it says so."""
        if info["state"] == "ended":
            assert (info["cause"], info["infra"]) == ("start_failed", True), f"{self.told()}: {info}"
            box.end("start_failed")
        return not box.alive

    def pick(self, *states):
        found = self.alive(*(states or ("running", "paused")))
        return self.rng.choice(found) if found else None

    def write(self, box):
        name, value = self.rng.choice("abcde"), str(self.rng.randrange(1000))
        how = self.rng.choice([f"echo {value} > /{name}", f"echo {value} > /{name}.new && mv /{name}.new /{name}", f"rm -f /{name}"])
        before = dict(box.files)
        done = self.shell(box, how)
        if how.startswith("rm"):
            box.files.pop(name, None)
        else:
            box.files[name] = value
        if done is None:  # lost with the platform's fault: it ran, or it did not
            there = self.read(box)
            assert there in (before, box.files), f"{self.told()}: {there}, expected {before} or {box.files}"
            box.files = there

    def read(self, box):
        """Each file and its content."""
        out = self.shell(box, "for f in a b c d e; do [ -e /$f ] && echo $f $(cat /$f); done; true")
        return dict(line.split(" ") for line in out.splitlines()) if out is not None else self.read(box)

    def check(self, box):
        files = self.read(box)
        assert files == box.files, f"{self.told()}: {box.id} holds {files}, expected {box.files}"
        if box.background:
            found = self.ask("GET", f"/v1/sandboxes/{box.id}/exec/{box.background}").json
            assert found["state"] == "running", f"{self.told()}: {found}"

    def remember(self, box):
        value = str(self.rng.randrange(1000))
        done = self.shell(box, f"echo was $said; said={value}", session="s")
        if done is not None:
            assert done == f"was {box.said}".rstrip() + "\n", f"{self.told()}: {done!r}, expected {box.said!r}"
        box.said = value if done is not None else box.said

    def work_on(self, box):
        if box.background or box.idle:
            return self.check(box)
        box.background = self.ask("POST", f"/v1/sandboxes/{box.id}/exec", {"argv": ["sleep", "10000000"], "background": True, "key": uuid.uuid4().hex}).json["exec_id"]
        box.use(self.now)

    def pause(self, box):
        self.ask("POST", f"/v1/sandboxes/{box.id}/pause", {})
        if box.state == "running":
            box.pause(self.now)

    def resume(self, box):
        self.ask("POST", f"/v1/sandboxes/{box.id}/resume", {})
        box.resume(self.now)

    def delete(self):
        box = self.pick("running", "paused", "queued")
        if box is None:
            return
        self.ask("DELETE", f"/v1/sandboxes/{box.id}")
        box.end("user")

    def pause_group(self):
        group = self.rng.choice(GROUPS)
        self.ask("POST", "/v1/sandboxes:pause", {"selector": f"group={group}"})
        self.holds.add(group)
        for box in self.alive("running"):
            if box.labels["group"] == group:
                box.pause(self.now)

    def resume_group(self):
        group = self.rng.choice(sorted(self.holds) or GROUPS)
        self.ask("POST", "/v1/sandboxes:resume", {"selector": f"group={group}"})
        self.holds.discard(group)
        for box in self.alive("paused", "queued"):
            if box.labels["group"] != group:
                continue
            if box.state == "queued":
                box.begin(self.now)
                self.note_cut_launch(box, self.lasting(box.id))
            else:
                box.resume(self.now)

    def checkpoint(self, box):
        made = self.ask("POST", f"/v1/sandboxes/{box.id}/checkpoints", {}, expect=(201,)).json
        box.use(self.now)
        box.checkpoints[made["checkpoint_id"]] = (dict(box.files), self.now + DAY)

    def roll_back(self, box):
        valid = [ref for ref, (_, until) in box.checkpoints.items() if self.now < until - 60]
        if not valid:
            return self.checkpoint(box)
        ref = self.rng.choice(valid)
        self.ask("POST", f"/v1/sandboxes/{box.id}/rollback", {"checkpoint_id": ref})
        box.rolled_back(box.checkpoints[ref][0], self.now)
        self.check(box)

    def fork(self, box):
        if len(self.alive()) + 2 > MOST_ALIVE:
            return self.delete()
        answer = self.ask("POST", f"/v1/sandboxes/{box.id}/fork", {"count": 2}, key=uuid.uuid4().hex, expect=(200,)).json
        box.use(self.now)
        for item in answer["sandboxes"]:
            if "sandbox" not in item:  # a kill took the answer: what it says has to be the platform's
                assert item["error"]["code"] in ("unavailable", "internal"), f"{self.told()}: {item}"
                continue
            lifetime = {"idle_seconds": box.idle, "max_seconds": box.lifetime, "on_timeout": box.on_timeout}
            child = self.take_in(item["sandbox"], box.labels, lifetime, box.files)
            if child and child.state == "running":
                self.check(child)

    def pass_time(self):
        self.look()
        self.advance(self.rng.choice([60, 600, 3600, 3600, 3 * 3600]) * self.rng.uniform(0.8, 1.2))
        self.look()

    def advance(self, seconds):
        """Not while the agents are being connected again: they live on real time, and would come too late."""
        time.sleep(max(0.0, self.killed_at + 1.5 - time.monotonic()))
        self.clock.advance(seconds)

    def let_timeouts_come(self):
        """What would end during the next step ends before it."""
        soon = self.now + 3 * SLACK
        while any(any(box.due(soon)) for box in self.alive("running")):
            self.advance(5 * SLACK)
            self.look()
            soon = self.now + 3 * SLACK

    # --- crashes ---

    def kill(self):
        """Some of the programs, at once; serve is started again."""
        what = self.rng.choice([["serve"], ["serve"], ["serve", "dsec-spawner"], ["serve", "dsec-spawner", "dsec-keeper"], ["dsec-spawner"], ["dsec-keeper"]])
        self.story.append("kill " + " ".join(what))
        self.crashes += 1
        for program in what:
            if program == "serve":
                self.server.kill()
            else:
                self.server.kill_helper(program)
        if "serve" in what:
            self.server.start(listen=f"127.0.0.1:{self.server.api.port}")
            for box in self.alive():
                box.restart_seen(self.now)
        self.killed_at = time.monotonic()

    def kill_agent(self):
        box = self.pick("running")
        if box is None:
            return
        marker = f"9{self.rng.randrange(10 ** 7)}"
        Box(self.api, {"id": box.id}).start(argv=["sleep", marker])
        wait_until(lambda: payload_pids(marker), 10, "the marker")
        for pid in payload_pids(marker):
            for ancestor in ancestors_in_sandbox(pid):
                with contextlib.suppress(ProcessLookupError):  # gone with its child
                    os.kill(ancestor, 9)
        self.crashes += 1
        box.end("env_destroyed", "agent_lost")

    def during_a_crash(self, step):
        """`step` runs while programs are killed."""
        errors = []

        def run():
            try:
                step()
            except BaseException as error:  # told to the test, which looks
                errors.append(error)
        worker = threading.Thread(target=run)
        worker.start()
        time.sleep(self.rng.random() * 0.03)
        self.kill()
        worker.join(90)
        assert not worker.is_alive(), f"{self.told()}: a step is stuck"
        if errors:
            raise errors[0]

    # --- looking ---

    def lasting(self, sandbox):
        """A sandbox in a state that may last."""
        seen = {}

        def there():
            seen["info"] = self.ask("GET", f"/v1/sandboxes/{sandbox}").json
            return seen["info"]["state"] in LASTING
        wait_until(there, 40, f"{self.told()}: {sandbox} stays {seen}")
        return seen["info"]

    def look(self):
        """Every sandbox is what the model says."""
        for box in self.known.values():
            deadline = time.monotonic() + 15
            while True:  # timeouts are looked at each second
                ran = box.state == "running"
                wrong = box.settle(self.now, self.lasting(box.id))
                self.timed_pauses += ran and box.state == "paused"
                if wrong is None:
                    break
                assert time.monotonic() < deadline, f"{self.told()}: {box.id} {wrong}"
                time.sleep(0.1)

    STEPS = {"create": 6, "write": 8, "check": 3, "remember": 3, "work_on": 2, "pause": 4, "resume": 3, "delete": 1, "pause_group": 1, "resume_group": 2,
             "checkpoint": 3, "roll_back": 3, "fork": 1, "pass_time": 5, "kill": 2, "kill_agent": 1}
    OF_ONE = ("write", "check", "remember", "work_on", "pause", "resume", "checkpoint", "roll_back", "fork")
    THROUGH_A_CRASH = ("create", "write", "pause", "resume", "checkpoint", "roll_back", "delete", "pause_group", "resume_group")

    def step(self):
        self.steps += 1
        self.let_timeouts_come()
        name = self.rng.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        box = self.pick() if name in self.OF_ONE else None
        if name in self.OF_ONE and box is None:
            name = "create"
        act = getattr(self, name)
        self.story.append(name + (" " + box.id[-6:] if box else ""))
        run = (lambda: act(box)) if box else act
        if name in self.THROUGH_A_CRASH and self.rng.random() < 0.15:
            self.during_a_crash(run)
        else:
            run()
        if box and box.alive:
            wrong = box.settle(self.now, self.lasting(box.id))
            assert wrong is None, f"{self.told()}: {box.id} {wrong}"

    def run(self):
        started = self.now
        while self.now < started + DAY:
            self.step()
        self.look()
        for box in self.alive("running", "paused"):
            self.check(box)
        for box in self.known.values():
            info = self.ask("GET", f"/v1/sandboxes/{box.id}").json
            assert box.alive or info["cause"] in INFRA | KINDLY, info
        ends = collections.Counter(self.ask("GET", f"/v1/sandboxes/{box.id}").json["cause"] for box in self.known.values() if not box.alive)
        return {"steps": self.steps, "crashes": self.crashes, "sandboxes": len(self.known), "ends": dict(ends), "timed_pauses": self.timed_pauses}


@pytest.mark.parametrize("number", range(DAYS))
def test_a_day_of_random_use_leaves_nothing_stuck_lost_or_wrong(tmp_path, number):
    day = Day(SEED + number, tmp_path)
    print(f"seed {day.seed}")
    try:
        print(day.run())
    finally:
        if day.server.child.poll() is not None:
            day.server.start()
        complaints = day.server.close()
    assert not complaints, f"{day.told()}: {complaints}"
