"""Checkpoints: what a sandbox's files were, to go back to, to start from, to fan out from."""
import concurrent.futures
import os
import subprocess

import pytest

from support import images
from support.api import Api, Box, wait_until
from support.server import BIN, Server

IN_MEMORY = {"memory_mb": 512, "disk_mb": 128, "max_processes": 128}
ON_DISK = {"memory_mb": 256, "disk_mb": 1024, "max_processes": 128}
PLACES = pytest.mark.parametrize("resources", [IN_MEMORY, ON_DISK], ids=["in memory", "on disk"])


@pytest.fixture
def boxes(api, tiny):
    made = []

    def make(image="tiny:1", **spec):
        made.append(api.create(image, **spec))
        return made[-1]

    def keep(info):
        made.append(Box(api, info))
        return made[-1]
    make.keep = keep
    yield make
    for box in made:
        box.delete()


def checkpoint(box, **options):
    return box.api.must("POST", box.path + "/checkpoints", options, expect=201)


def rollback(box, ref, expect=200):
    answer = box.api.call("POST", box.path + "/rollback", {"checkpoint_id": ref})
    assert answer.status == expect, answer
    return answer.json if expect == 200 else answer.error


def fork(box, headers=None, **options):
    return box.api.must("POST", box.path + "/fork", options, headers=headers, expect=200)


def shell(box, line):
    result = box.sh(line)
    assert result.code == 0, result
    return result.out.strip()


def events_of(box):
    return [event["type"] for event in box.api.must("GET", box.path + "/events")["items"]]


@PLACES
def test_a_rollback_brings_the_files_back_and_nothing_else_changes(boxes, resources):
    box = boxes(resources=resources, name="back", labels={"job": "j"}, hostname="here")
    shell(box, "mkdir -p /a/b; echo one > /a/b/f; ln -s b /a/l; chmod 640 /a/b/f; rm /etc/motd 2>/dev/null; echo x > /gone")
    before = box.refresh()
    made = checkpoint(box)
    shell(box, "echo two > /a/b/f; rm /gone; echo later > /later; rm -rf /a/l; mkdir /a/l")
    running = box.start(argv=["sleep", "600"])

    after = rollback(box, made["checkpoint_id"])

    assert after["state"] == "running" and after["id"] == box.id and after["name"] == "back" and after["labels"] == {"job": "j"}
    assert after["started_at"] == before["started_at"] and after["expires_at"] == before["expires_at"]
    assert shell(box, "cat /a/b/f /gone; readlink /a/l; stat -c %a /a/b/f; ls /later 2>/dev/null; hostname") == "one\nx\nb\n640\nhere"
    ended = box.wait(running)
    assert ended["status"] == "killed" and not ended["infra"], ended
    assert "rolled_back" in events_of(box)


def packed_layers(box):
    return [event["detail"] for event in box.api.must("GET", box.path + "/events")["items"] if event["type"] == "checkpoint"]


def test_a_turn_that_changed_nothing_packs_nothing_and_stops_nobody(boxes):
    box = boxes(resources=ON_DISK)
    shell(box, "echo one > /f; dd if=/dev/urandom of=/big bs=1M count=4 2>/dev/null")
    stopped = box.start(argv=["sleep", "600"])
    first = checkpoint(box)
    never_stopped = box.start(argv=["sleep", "600"])
    again = [checkpoint(box) for _ in range(3)]
    for exec_id in (stopped, never_stopped):
        box.signal(exec_id, 9)

    assert len(set(packed_layers(box))) == 1 and len(packed_layers(box)) == 4
    assert box.wait(stopped).get("frozen_ms", 0) > 0 and box.wait(never_stopped).get("frozen_ms", 0) == 0
    assert [made["parent"] for made in again] == [first["checkpoint_id"], *(made["checkpoint_id"] for made in again[:2])]
    assert len({made["checkpoint_id"] for made in [first, *again]}) == 4
    shell(box, "echo two > /f")
    changed = checkpoint(box)
    assert len(set(packed_layers(box))) == 2
    rollback(box, again[1]["checkpoint_id"])
    assert shell(box, "cat /f") == "one"
    checkpoint(box)
    assert len(set(packed_layers(box))) == 3, "another container, over other layers: what the last one held is not its"
    rollback(box, changed["checkpoint_id"])
    assert shell(box, "cat /f") == "two"


def test_what_was_packed_last_and_removed_is_packed_anew(tmp_path):
    server = Server(name="unchanged").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        box = server.api.create("tiny:1", resources=ON_DISK)
        shell(box, "echo one > /f")
        gone = checkpoint(box)
        server.api.must("DELETE", "/v1/snapshots/" + gone["checkpoint_id"])
        for _ in range(3):
            server.api.must("POST", "/v1/layers:gc", {"condemn_after_seconds": 0, "delete_after_seconds": 0})
        made = checkpoint(box)
        shell(box, "echo two > /f")
        rollback(box, made["checkpoint_id"])
        assert shell(box, "cat /f") == "one"
    finally:
        complaints = server.close()
    assert not complaints, complaints


@PLACES
def test_checkpoints_form_a_tree(boxes, resources):
    box = boxes(resources=resources)
    made = {}
    for name, parent in (("a", None), ("b", "a")):
        shell(box, f"echo {name} > /which; echo {name} > /only-{name}")
        made[name] = checkpoint(box)
        assert made[name]["parent"] == (made[parent]["checkpoint_id"] if parent else None)
    rollback(box, made["a"]["checkpoint_id"])
    shell(box, "echo c > /which")
    made["c"] = checkpoint(box)
    assert made["c"]["parent"] == made["a"]["checkpoint_id"], "not b: it was left behind"

    for name, files in (("b", "/only-a /only-b"), ("c", "/only-a"), ("a", "/only-a"), ("c", "/only-a")):
        rollback(box, made[name]["checkpoint_id"])
        assert shell(box, "cat /which; echo /only-*") == f"{name}\n{files}"
    listed = box.api.must("GET", box.path + "/checkpoints")["items"]
    assert [item["checkpoint_id"] for item in listed] == [made[name]["checkpoint_id"] for name in "abc"]


def test_a_snapshot_outlives_its_sandbox_and_has_its_limits(boxes, api):
    box = boxes(resources=IN_MEMORY)
    shell(box, "echo kept > /kept")
    api.must("POST", box.path + "/snapshot", {"name": "snap-1"}, expect=201)
    assert api.call("POST", box.path + "/snapshot", {"name": "snap-1"}).error["code"] == "conflict"
    box.delete()

    child = boxes.keep(api.must("POST", "/v1/sandboxes", {"snapshot": "snap-1"}, expect=201))

    assert shell(child, "cat /kept") == "kept"
    assert child.info["resources"] == box.info["resources"] and child.info["snapshot"] == "snap-1"
    assert [item["name"] for item in api.must("GET", "/v1/snapshots", query={"named": "true"})["items"]] == ["snap-1"]
    assert api.call("DELETE", "/v1/snapshots/snap-1").status == 204
    assert shell(child, "cat /kept") == "kept", "what was made of it runs on"
    assert api.call("POST", "/v1/sandboxes", {"snapshot": "snap-1"}).error["code"] == "not_found"


def test_children_of_a_fork_have_the_files_and_an_identity_of_their_own(boxes):
    box = boxes(resources=IN_MEMORY, labels={"job": "f"}, env={"SAID": "yes"})
    shell(box, "echo shared > /shared; echo parent > /etc/machine-id")
    holds = box.start(argv=["sleep", "600"])

    answer = fork(box, count=4, names=["kid-0", "kid-1", "kid-2", "kid-3"])
    children = [boxes.keep(item["sandbox"]) for item in answer["sandboxes"]]

    seen = [shell(child, "cat /shared; echo $SAID; hostname; cat /etc/machine-id; head -c8 /dev/urandom | od -An -tx1; pgrep sleep || echo none").split("\n") for child in children]
    assert all(lines[0] == "shared" and lines[1] == "yes" and lines[-1] == "none" for lines in seen), seen
    for field in (2, 3, 4):
        assert len({lines[field] for lines in seen}) == 4, "each has its own"
    assert "parent" not in {lines[3] for lines in seen}
    shell(children[0], "echo changed > /shared")
    assert shell(children[1], "cat /shared") == "shared" and shell(box, "cat /shared") == "shared"
    assert [child.info["name"] for child in children] == ["kid-0", "kid-1", "kid-2", "kid-3"]
    assert box.get_exec(holds)["state"] == "running", "the parent ran on"


def test_a_fork_that_is_asked_for_again_gives_the_same_children(boxes, api):
    box = boxes(resources=IN_MEMORY)
    first = fork(box, {"Idempotency-Key": "again"}, count=2)
    second = fork(box, {"Idempotency-Key": "again"}, count=2)
    ids = [item["sandbox"]["id"] for item in first["sandboxes"]]
    for item in first["sandboxes"]:
        boxes.keep(item["sandbox"])
    assert ids == [item["sandbox"]["id"] for item in second["sandboxes"]] and len(set(ids)) == 2


def test_one_child_that_cannot_be_made_is_told_of_beside_the_others(boxes):
    box = boxes(resources=IN_MEMORY)
    boxes(resources=IN_MEMORY, name="taken")
    answer = fork(box, names=["free", "taken"])
    boxes.keep(answer["sandboxes"][0]["sandbox"])
    assert answer["sandboxes"][1]["error"]["code"] == "conflict"


def test_what_was_revoked_stays_revoked_after_a_rollback_and_in_a_fork(boxes, api):
    open_rules = {"mode": "proxy", "rules": [{"domain": "allowed.example.org"}]}
    box = boxes(resources=IN_MEMORY, network=open_rules)
    made = checkpoint(box)
    api.must("PATCH", box.path, {"network": {"rules": []}})

    assert rollback(box, made["checkpoint_id"])["network"]["rules"] == []
    child = boxes.keep(fork(box)["sandboxes"][0]["sandbox"])
    assert child.info["network"] == {"mode": "proxy", "services": [], "rules": []}


def test_a_file_in_use_does_not_change_what_was_kept(boxes):
    """By a descriptor that was open before."""
    box = boxes(resources=ON_DISK)
    shell(box, "dd if=/dev/zero of=/big bs=4096 count=64 2>/dev/null")
    writer = box.start(shell="exec 3<>/big; while :; do printf XXXX >&3; sleep 0.05; done")
    wait_until(lambda: shell(box, "tr -d '\\0' < /big | wc -c") != "0", 10, "the first write")
    made = checkpoint(box)
    then = None
    for _ in range(3):
        child = boxes.keep(box.api.must("POST", "/v1/sandboxes", {"snapshot": made["checkpoint_id"]}, expect=201))
        seen = shell(child, "md5sum < /big")
        assert then in (None, seen)
        then = seen
        shell(box, "sleep 0.2")
    assert box.get_exec(writer)["state"] == "running"


def test_a_checkpoint_is_its_projects_own_and_expires(boxes, api):
    box = boxes(resources=IN_MEMORY)
    made = checkpoint(box, expires_seconds=2)
    api.must("POST", "/v1/projects", {"name": "else-where"})
    other = Api(api.url, api.must("POST", "/v1/projects/else-where/keys", {"name": "k", "role": "runtime"})["key"])
    assert other.call("POST", "/v1/sandboxes", {"snapshot": made["checkpoint_id"]}).error["code"] == "not_found"
    assert other.call("GET", "/v1/snapshots/" + made["checkpoint_id"]).status == 404
    wait_until(lambda: api.call("GET", "/v1/snapshots/" + made["checkpoint_id"]).status == 404, 10, "its expiry")
    assert rollback(box, made["checkpoint_id"], expect=404)["code"] == "not_found"


@pytest.mark.parametrize("body, field", [({"snapshot": "x", "image": "tiny:1"}, "snapshot"), ({"snapshot": "../x"}, "snapshot"), ({"snapshot": "none-such"}, "none-such")])
def test_a_wrong_snapshot_is_refused_by_name(api, tiny, body, field):
    answer = api.call("POST", "/v1/sandboxes", body)
    assert answer.status in (400, 404) and field in answer.error["message"], answer


@pytest.mark.parametrize("call, body", [("fork", {"count": 0}), ("fork", {"count": 257}), ("fork", {"count": 2, "names": ["a"]}), ("fork", {"what": 1}),
                                        ("snapshot", {}), ("snapshot", {"name": "ckpt_x"}), ("rollback", {}), ("checkpoints", {"expires_seconds": -1})])
def test_wrong_requests_change_nothing(boxes, call, body):
    box = boxes(resources=IN_MEMORY)
    answer = box.api.call("POST", box.path + "/" + call, body)
    assert answer.status == 400, answer
    assert shell(box, "echo here") == "here" and box.api.must("GET", box.path + "/checkpoints")["items"] == []


@pytest.fixture
def own_server():
    server = Server(name="checkpoint").start()
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    if server.child.poll() is not None:
        server.start()
    complaints = server.close()
    assert not complaints, complaints


@pytest.mark.parametrize("point", ["edge.rollback.logged", "edge.destroy", "edge.destroyed", "edge.rollback.empty", "edge.launch", "edge.launched", "edge.started"])
@PLACES
def test_a_rollback_that_is_killed_goes_on_at_the_next_start(own_server, resources, point):
    box = own_server.api.create("tiny:1", resources=resources, start={"argv": ["sh", "-c", "echo began >> /began; sleep 600"]})
    wait_until(lambda: box.sh("cat /began").out == "began\n", 10, "the start command")
    shell(box, "echo one > /f")
    made = checkpoint(box)
    shell(box, "echo two > /f")
    own_server.restart(fail_point=f"{point}=kill")
    box = Box(own_server.api, box.info)
    wait_until(lambda: box.state == "running", 30, "its adoption")
    with pytest.raises(OSError):
        rollback(box, made["checkpoint_id"])
    assert own_server.child.wait(timeout=10) == -9

    own_server.start()

    box = Box(own_server.api, box.info)
    wait_until(lambda: box.state == "running", 30, "the sandbox to come back")
    assert shell(box, "cat /f") == "one"
    wait_until(lambda: box.sh("cat /began").out == "began\nbegan\n", 10, "the start command to run once more")
    box.delete()


def test_a_failed_step_of_a_rollback_ends_the_sandbox_as_the_platforms_fault(own_server):
    box = own_server.api.create("tiny:1", resources=IN_MEMORY)
    made = checkpoint(box)
    own_server.restart(fail_point="edge.rollback.empty=error")
    box = Box(own_server.api, box.info)
    wait_until(lambda: box.state == "running", 30, "its adoption")
    assert rollback(box, made["checkpoint_id"], expect=503)["infra"]
    info = box.wait_ended()
    assert info["cause"] == "start_failed" and info["infra"], info


def test_many_forks_at_once(boxes):
    box = boxes(resources={"memory_mb": 64, "disk_mb": 16, "max_processes": 32})
    shell(box, "echo x > /x")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: fork(box, count=8), range(4)))
    children = [boxes.keep(item["sandbox"]) for answer in answers for item in answer["sandboxes"]]
    assert len({child.id for child in children}) == 32
    assert all(shell(child, "cat /x") == "x" for child in children[::8])


@pytest.fixture
def dsec(api, tmp_path):
    def run(*arguments):
        return subprocess.run([BIN / "dsec", *arguments], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "HOME": str(tmp_path), "DSEC_URL": api.url, "DSEC_API_KEY": api.key})
    return run


def test_the_command_line_keeps_goes_back_and_forks(boxes, dsec):
    box = boxes(resources=IN_MEMORY)
    shell(box, "echo one > /f")
    kept = dsec("checkpoint", box.id).stdout.strip()
    named = dsec("snapshot", box.id, "by-cli").stdout.strip()
    shell(box, "echo two > /f")
    assert dsec("rollback", box.id, kept).stdout.strip() == box.id
    assert shell(box, "cat /f") == "one"
    children = dsec("fork", box.id, "-n", "2").stdout.split()
    for child in children:
        boxes.keep({"id": child})
    assert len(children) == 2
    listing = dsec("checkpoints", "ls").stdout
    assert kept in listing and named in listing and "by-cli" in listing
    assert dsec("checkpoints", "rm", "by-cli", kept).returncode == 0
    gone = dsec("checkpoints", "rm", "by-cli")
    assert gone.returncode == 1 and "by-cli" in gone.stderr
