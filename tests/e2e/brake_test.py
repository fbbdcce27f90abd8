"""The memory brake on real sandboxes: the node's numbers are the test's, what is done is real."""
import time

import pytest

from support import images
from support.api import Box, wait_until
from support.server import Server

SMALL = {"memory_mb": 256, "disk_mb": 16, "max_processes": 32}
TOTAL_MB = 1024
RESERVE_MB = 200


class Node:
    """A server that believes what this says of the node's memory."""

    def __init__(self, directory, *arguments):
        self.proc = directory
        (directory / "pressure").mkdir()
        self.tell(TOTAL_MB)
        self.server = Server(["--proc", str(directory), "--memory-reserve-mb", str(RESERVE_MB), *arguments], name="brake").start()
        images.import_tar(self.server.api, "tiny:1", images.tiny_tar())
        self.api = self.server.api

    def tell(self, available_mb, stalled=0.0):
        for path, text in ((self.proc / "pressure" / "memory", f"some avg10={stalled:.2f} avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
                           (self.proc / "meminfo", f"MemTotal: {TOTAL_MB << 10} kB\nMemAvailable: {available_mb << 10} kB\nSwapFree: 0 kB\n")):
            partial = path.with_name(path.name + ".new")
            partial.write_text(text)
            partial.rename(path)

    @property
    def memory(self):
        return self.api.must("GET", "/v1/nodes")["items"][0]["memory"]

    def until_step(self, *steps, seconds=20):
        wait_until(lambda: self.memory["brake"] in steps, seconds, f"the brake to be at {steps}: {self.memory}")

    def create(self, **spec):
        return self.api.create("tiny:1", **{"resources": SMALL, **spec})


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    complaints = made.server.close()
    assert not complaints, complaints


def events_of(box):
    return [(event["type"], event["detail"]) for event in box.api.must("GET", box.path + "/events")["items"]]


def test_nothing_new_is_taken_in_while_memory_is_short(node):
    box = node.create()
    node.tell(150)
    node.until_step("no_admission", "trim")

    refused = node.api.call("POST", "/v1/sandboxes", {"image": "tiny:1"})
    forked = node.api.call("POST", box.path + "/fork", {})

    assert refused.status == 429 and refused.headers["Retry-After"] and "150 MiB available, 200 MiB" in refused.error["message"], refused
    assert "sandbox" not in forked.json.get("sandboxes", [{}])[0], forked
    assert box.sh("echo works").out == "works\n", "who is there goes on"
    node.tell(210)
    time.sleep(2)
    assert node.api.call("POST", "/v1/sandboxes", {"image": "tiny:1"}).status == 429, "not enough to begin again"
    node.tell(300)
    node.until_step("off")
    node.create().delete()


def test_waiting_for_memory_counts_only_near_the_reserve(node):
    node.tell(900, stalled=90)
    time.sleep(2.5)
    assert node.memory["brake"] == "off"

    node.tell(390, stalled=30)

    node.until_step("no_admission")


def test_who_runs_nothing_is_paused_batch_first_and_comes_back_with_the_next_request(node):
    batch, busy = node.create(priority="batch"), node.create(priority="batch")
    running = busy.start(argv=["sleep", "1000"])
    late = node.create()
    node.tell(190)

    wait_until(lambda: batch.state == "paused", 30, "the batch sandbox to be paused")
    assert busy.state == "running" and late.state == "running"
    info = batch.refresh()
    node.tell(TOTAL_MB)
    node.until_step("off")

    assert info["pause_reason"] == "pressure"
    assert batch.sh("echo back").out == "back\n" and batch.state == "running"
    assert busy.get_exec(running)["state"] == "running" and late.state == "running"
    assert node.memory["pauses"] == 1 and node.memory["ends"] == 0


def test_the_newest_batch_sandbox_ends_when_nothing_else_is_left_and_it_is_infra(node):
    older, newer, late = node.create(priority="batch"), node.create(priority="batch"), node.create()
    for box in (older, newer, late):
        box.start(argv=["sleep", "1000"])
    node.tell(190)

    ended = newer.wait_ended(40)
    node.tell(TOTAL_MB)

    assert (ended["cause"], ended["infra"]) == ("pressure", True) and "190 MiB available" in ended["end_detail"], ended
    node.until_step("off")
    assert older.state == "running" and late.state == "running"


def test_who_takes_the_memory_ends_for_it_and_its_neighbour_does_not(node):
    neighbour, greedy = node.create(priority="batch"), node.create(resources={**SMALL, "memory_mb": 1024, "disk_mb": 500})
    neighbour.start(argv=["sleep", "1000"])
    greedy.start(argv=["sleep", "1000"])
    time.sleep(6)  # a first sample of each
    greedy.sh("dd if=/dev/zero of=/dev/shm/f bs=1M count=480 2>/dev/null")
    node.tell(190)

    ended = greedy.wait_ended(40)
    node.tell(TOTAL_MB)

    assert (ended["cause"], ended["infra"]) == ("oom", False) and "within a minute" in ended["end_detail"], ended
    assert neighbour.state == "running"
    node.until_step("off")


def test_the_idle_give_memory_back_and_are_not_stopped(tmp_path):
    node = Node(tmp_path, "--trim-idle-s", "2")
    try:
        box = node.create(resources={**SMALL, "disk_mb": 128})
        ticking = box.start(shell="while :; do echo x; sleep 0.1; done")
        time.sleep(4)
        assert not [event for event in events_of(box) if event[0] == "trimmed"], "it runs a command"
        box.signal(ticking, 9)
        box.wait(ticking)
        cache = box.sh("dd if=/dev/urandom of=/tmp/f bs=1M count=1 2>/dev/null; md5sum < /tmp/f").out

        wait_until(lambda: [event for event in events_of(box) if event[0] == "trimmed" and event[1].endswith("idle")], 15, f"a trim: {events_of(box)}")

        assert box.state == "running" and box.sh("md5sum < /tmp/f").out == cache
        stats = box.api.must("GET", box.path + "/stats")
        assert stats["swapped_bytes"] >= 0 and stats["memory_stalled_usec"] >= 0
    finally:
        complaints = node.server.close()
    assert not complaints, complaints
