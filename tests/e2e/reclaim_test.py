"""The memory of paused sandboxes: it goes to swap of the node's own, and every byte of it comes back."""
import pathlib

import pytest

from support import images
from support.api import Box, wait_until
from support.server import Server

RESOURCES = {"memory_mb": 256, "disk_mb": 64, "max_processes": 64}
# Holds some 27 MiB in a variable and says its digest each time that it is asked.
HOLDER = 'x=$(head -c 20000000 /dev/urandom | base64); echo full; while read line; do printf %s "$x" | md5sum; done'


def swaps():
    return [line.split()[0] for line in pathlib.Path("/proc/swaps").read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def node():
    before = swaps()
    server = Server(name="reclaim", arguments=["--swap-zram-mb", "256"]).start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    assert len(swaps()) == len(before) + 1, server.log_tail()
    yield server
    if server.child.poll() is not None:
        server.start()
    complaints = server.close()
    assert not complaints, complaints
    assert swaps() == before, "the node's swap went with it"


@pytest.fixture
def box(node):
    made = node.api.create("tiny:1", resources=RESOURCES)
    yield made
    node.api.call("DELETE", made.path)


def reclaimed(box):
    """The sandbox, paused, once its memory has gone."""
    box.api.must("POST", box.path + "/pause", {})
    wait_until(lambda: "reclaimed_bytes" in box.refresh(), 30, f"memory to be given back: {box.api.must('GET', box.path + '/events')}")
    return box.info


def ask(box, exec_id, seen):
    """One more digest of what the holder holds; all that it has printed."""
    box.api.must("POST", f"{box.path}/exec/{exec_id}/stdin", {"data": "\n"})
    return wait_until(lambda: (lambda text: text if text.count("\n") > seen.count("\n") else None)(box.output(exec_id)[0].decode()), 30, "a digest")


def memory_of(box):
    return box.api.must("GET", box.path + "/stats")["memory_bytes"]


def test_all_of_it_goes_and_comes_back_whole_again_and_again(box):
    box.write_file("/dev/shm/kept", b"k" * 4096)
    holder = box.start(shell=HOLDER, open_stdin=True)
    box.until_output(holder, b"full\n")
    seen = ask(box, holder, "full\n")
    for _ in range(5):
        before = memory_of(box)
        info = reclaimed(box)
        assert info["reclaimed_bytes"] >= 0.9 * before and info["swapped_bytes"] > 15_000_000, (before, info)
        assert memory_of(box) <= 0.1 * before
        seen = ask(box, holder, seen)  # resumes it
        assert box.refresh()["state"] == "running"
    digests = seen.split("\n")[1:-1]
    assert len(digests) == 6 and len(set(digests)) == 1, digests
    assert box.read_file("/dev/shm/kept") == b"k" * 4096


def test_a_resume_in_the_middle_of_it_waits_for_nothing_and_loses_nothing(box):
    holder = box.start(shell=HOLDER, open_stdin=True)
    box.until_output(holder, b"full\n")
    seen = ask(box, holder, "full\n")
    for _ in range(20):
        box.api.must("POST", box.path + "/pause", {})
        box.api.must("POST", box.path + "/resume", {})
        assert box.sh("echo here").out == "here\n"
    digests = ask(box, holder, seen).split("\n")[1:-1]
    assert len(set(digests)) == 1, digests


def test_a_paused_sandbox_whose_memory_is_in_swap_is_deleted(node):
    box = node.api.create("tiny:1", resources=RESOURCES)
    box.until_output(box.start(shell=HOLDER, open_stdin=True), b"full\n")
    reclaimed(box)
    assert node.api.must("DELETE", box.path)["state"] == "ended"


def test_what_is_in_swap_counts_towards_the_limit_of_memory(node):
    box = node.api.create("tiny:1", resources={"memory_mb": 64, "disk_mb": 16, "max_processes": 64})
    holder = box.start(shell="x=$(head -c 30000000 /dev/urandom | base64); echo full; sleep 600")
    result = box.wait(holder, 60) if b"full" not in box.output(holder, wait_ms=3000)[0] else None
    assert result is None or result["status"] in ("oom", "signaled", "killed"), result
    reclaimed(box)
    more = box.sh("x=$(head -c 30000000 /dev/urandom | base64); y=$x$x; echo ${#y}", expect=(200, 201, 202))
    assert more.code != 0, "more than its limit, memory and swap together"
    node.api.call("DELETE", box.path)


def test_a_node_that_is_killed_finds_its_swap_and_what_is_in_it(node):
    box = node.api.create("tiny:1", resources=RESOURCES)
    holder = box.start(shell=HOLDER, open_stdin=True)
    box.until_output(holder, b"full\n")
    seen = ask(box, holder, "full\n")
    reclaimed(box)
    count = len(swaps())
    node.restart()
    assert len(swaps()) == count
    box = Box(node.api, box.info)
    wait_until(lambda: box.state == "paused", 30, "its adoption")
    digests = ask(box, holder, seen).split("\n")[1:-1]
    assert len(digests) == 2 and len(set(digests)) == 1
    node.api.call("DELETE", box.path)
