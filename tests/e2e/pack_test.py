"""pack_diff: what a sandbox has written becomes a layer, and a sandbox with the layer is the first one again."""
import json
import os
import pathlib
import threading

import pytest

from support import images
from support.api import Box, end_of, wait_until
from support.archives import file, tree
from support.server import ROOT, Server

SEED = int(os.environ.get("DSEC_SEED", "0")) or int.from_bytes(os.urandom(3), "big")
# Where a sandbox's files lie follows from its limits: small ones in memory.
IN_MEMORY = {"memory_mb": 1024, "disk_mb": 256, "max_processes": 128}
ON_DISK = {"memory_mb": 512, "disk_mb": 2048, "max_processes": 128}
PLACES = pytest.mark.parametrize("resources", [IN_MEMORY, ON_DISK], ids=["in memory", "on disk"])


def pack(box, name, expect=202, **options):
    answer = box.api.call("POST", box.path + "/pack", {"name": name, **options})
    assert answer.status == expect, answer
    return images.finish_operation(box.api, answer.json) if expect == 202 else answer.error


def restored(boxes, box, *diffs, **spec):
    environment = dict(box.info.get("environment") or {"base": box.info["image"]})
    environment["diffs"] = list(environment.get("diffs", [])) + list(diffs)
    return Box(box.api, box.api.must("POST", "/v1/sandboxes", {"environment": environment, "resources": box.info["resources"], **spec}, expect=201))


@pytest.fixture
def boxes(api, tiny):
    made = []

    def make(image="tiny:1", **spec):
        made.append(api.create(image, **spec))
        return made[-1]
    make.keep = made.append
    yield make
    for box in made:
        box.delete()


@pytest.fixture(scope="module")
def layered(api, debian):
    """An environment of three layers with something to change in the upper two."""
    lower = [file(f"d{i % 4}/{'e/' if i % 3 else ''}f{i}", os.urandom(1 + i * 700), mode=0o644, uid=i % 2 * 1000) for i in range(40)]
    images.import_tar(api, "pack-work:1", tree(*lower), what="layers", kind="workspace", at="/work/project")
    images.import_tar(api, "pack-kit:1", tree(*lower[:20]), what="layers", kind="toolkit", at="/opt/kit")
    return {"base": debian, "workspace": "pack-work:1", "toolkits": ["pack-kit:1"]}


def describe(box):
    result = box.run("python3", "/tree_script.py", "describe", timeout=120, output_limit_bytes=64 << 20)
    assert result.code == 0, result
    return json.loads(result.bytes_of("stdout"))


def differences(before, after):
    paths = sorted(path for path in before["entries"].keys() | after["entries"].keys() if before["entries"].get(path) != after["entries"].get(path))
    return [(path, before["entries"].get(path), after["entries"].get(path)) for path in paths[:10]]


@PLACES
def test_a_restored_sandbox_shows_the_same_tree_byte_for_byte(api, layered, resources):
    script = (ROOT / "tests" / "support" / "tree_script.py").read_bytes()
    made = []

    def make(environment):
        box = Box(api, api.must("POST", "/v1/sandboxes", {"environment": environment, "resources": resources}, expect=201))
        made.append(box)
        box.write_file("/tree_script.py", script)
        return box

    try:
        environment = dict(layered, diffs=[])
        box = make(environment)
        for generation in (1, 2):
            seed = SEED + generation
            changed = box.run("python3", "/tree_script.py", "change", str(seed), "150", "/work/project", "/opt/kit", "/srv", timeout=120)
            assert changed.code == 0, (seed, changed)
            name = f"tree-{len(made)}-{resources['disk_mb']}:1"
            layer = pack(box, name, remove=["/tree_script.py"])
            before = describe(box)
            environment["diffs"] = environment["diffs"] + [name]
            box = make(environment)
            after = describe(box)

            assert not differences(before, after), f"seed {seed}: {differences(before, after)}"
            assert before["links"] == after["links"], f"seed {seed}"
            assert layer["provenance"]["parents"] == box.info["layers"][:-1] and layer["digest"] == box.info["layers"][-1]
    finally:
        for box in made:
            box.delete()


@PLACES
def test_a_pack_holds_what_was_written_and_deleted_and_the_sandbox_runs_on(api, boxes, resources):
    box = boxes(resources=resources)
    counter = box.start(shell="i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
    box.sh("echo new > /root/new; rm /canary; rm -r /home/alice; mkdir /home/alice; echo mine > /etc/hosts")

    layer = pack(box, "kept:1")
    again = restored(boxes, box, "kept:1")
    boxes.keep(again)

    assert (layer["kind"], layer["quarantined"], layer["ref"]) == ("diff", True, "kept:1")
    assert layer["provenance"] == {"sandbox": box.id, "generation": layer["provenance"]["generation"], "project": "default",
                                   "by": api.must("GET", "/v1/whoami")["key_id"], "parents": box.info["layers"]}
    assert again.sh("cat /root/new; ls -A /home/alice; ls /canary; grep -c mine /etc/hosts; hostname").out == f"new\n0\n{again.id[:12]}\n"
    names = [item["path"] for item in api.must("GET", "/v1/layers/kept:1/files", query={"recursive": "true"})["items"]]
    assert "/canary" in names and "/root/new" in names and not {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} & set(names)
    box.until_output(counter, b"\n50\n")
    assert "warnings" not in again.info


def test_a_second_pack_is_the_next_generation(boxes):
    box = boxes(resources=IN_MEMORY)
    box.sh("date +%s%N > /root/a")
    first = pack(box, "first:1")
    box.sh("date +%s%N > /root/b")
    second = pack(box, "second:1")

    assert [layer["provenance"]["generation"] for layer in (first, second)] == [1, 2] and first["digest"] != second["digest"]


@PLACES
def test_it_can_be_packed_after_a_restart_of_the_server(resources):
    server = Server(name="pack").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        box = server.api.create("tiny:1", resources=resources)
        box.sh("echo before > /root/before")
        server.restart(hard=True)
        box = Box(server.api, server.api.must("GET", f"/v1/sandboxes/{box.id}"))
        box.sh("echo after > /root/after")

        pack(box, "restarted:1")

        assert server.api.raw("GET", "/v1/layers/restarted:1/content", query={"path": "/root/before"}).body == b"before\n"
        assert server.api.raw("GET", "/v1/layers/restarted:1/content", query={"path": "/root/after"}).body == b"after\n"
    finally:
        complaints = server.close()
    assert not complaints, complaints


# --- while it goes on -----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def slow():
    """A server where each pack holds its sandbox frozen for two seconds."""
    server = Server(name="slowpack").start(fail_point="edge.pack.frozen=delay:2000000")
    images.import_tar(server.api, "tiny:1", images.tiny_tar())
    yield server
    complaints = server.close()
    assert not complaints, complaints


@pytest.fixture
def slow_box(slow):
    box = slow.api.create("tiny:1", resources=ON_DISK)
    yield box
    box.delete()


def start_pack(box, name):
    """An operation that has frozen the sandbox."""
    operation = box.api.must("POST", box.path + "/pack", {"name": name})["operation_id"]
    wait_until(lambda: box.api.must("GET", f"/v1/operations/{operation}")["progress"]["stage"] == "read", 30, "the sandbox is frozen")
    return operation


def test_frozen_time_is_not_the_commands_time(slow_box):
    command = slow_box.start(shell="i=0; while [ ! -e /root/stop ]; do i=$((i+1)); done", timeout_ms=1500)
    operation = start_pack(slow_box, "frozen:1")
    waits = slow_box.sh("touch /root/stop; echo started", timeout=60)
    result = slow_box.wait(command)

    assert end_of(slow_box.api, operation)["state"] == "succeeded"
    assert waits.out == "started\n" and waits["frozen_ms"] == 0, "a command that comes during a pack is started behind it"
    assert result.code == 0 and not result["timed_out"], "two frozen seconds are none of its one and a half"
    assert result["frozen_ms"] > 1900 and abs(result["active_ms"] + result["frozen_ms"] - result["duration_ms"]) < 2, result


def test_files_that_come_during_a_pack_are_written_after_it(slow_box):
    operation = start_pack(slow_box, "written:1")
    slow_box.write_file("/root/late", b"late")

    assert end_of(slow_box.api, operation)["state"] == "succeeded"
    assert slow_box.read_file("/root/late") == b"late"
    assert slow_box.api.call("GET", "/v1/layers/written:1/content", query={"path": "/root/late"}).status == 404


def test_a_sandbox_that_is_deleted_ends_and_takes_its_pack_along(slow_box):
    operation = start_pack(slow_box, "deleted:1")
    assert slow_box.delete().status == 200
    outcome = end_of(slow_box.api, operation)

    assert outcome["error"]["code"] == "conflict" and "ended" in outcome["error"]["message"], outcome
    assert slow_box.api.call("GET", "/v1/layers/deleted:1").status == 404


def test_a_cancelled_pack_leaves_the_sandbox_running_and_nothing_else(slow, slow_box):
    operation = start_pack(slow_box, "cancelled:1")
    slow.api.call("DELETE", f"/v1/operations/{operation}")
    outcome = end_of(slow.api, operation)

    assert outcome["state"] == "cancelled", outcome
    assert slow_box.sh("echo on").out == "on\n" and slow.api.call("GET", "/v1/layers/cancelled:1").status == 404
    assert not list((slow.data / "import").iterdir())


@pytest.mark.parametrize("resources", [IN_MEMORY, ON_DISK], ids=["in memory", "on disk"])
def test_a_crash_over_a_pack_leaves_the_sandbox_thawed_and_nothing_behind(resources):
    server = Server(name="packcrash").start(fail_point="edge.pack.frozen=kill:1")
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        box = server.api.create("tiny:1", resources=resources)
        counter = box.start(shell="i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
        before = sorted(path.name for path in (server.data / "layers").iterdir())
        operation = box.api.must("POST", box.path + "/pack", {"name": "lost:1"})["operation_id"]
        server.child.wait(timeout=30)
        frozen = [path.read_text() for path in pathlib.Path("/sys/fs/cgroup").glob("**/payload/cgroup.freeze")]
        server.start()
        box = Box(server.api, server.api.must("GET", f"/v1/sandboxes/{box.id}"))

        assert "1\n" in frozen, "negative control: the crash left it frozen"
        assert box.sh("echo on").out == "on\n"
        seen = box.until_output(counter, b"\n30\n")
        box.until_output(counter, b"\n%d\n" % (seen.count(b"\n") + 20))
        assert server.api.must("GET", f"/v1/operations/{operation}")["error"]["code"] == "unavailable"
        assert sorted(path.name for path in (server.data / "layers").iterdir()) == before
        assert not list((server.data / "import").iterdir()) and server.api.call("GET", "/v1/layers/lost:1").status == 404
        pack(box, "lost:1")
    finally:
        complaints = server.close()
    assert not complaints, complaints


def test_the_end_of_the_server_while_the_worker_reads_ends_the_worker():
    server = Server(name="packkill").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        box = server.api.create("tiny:1", resources=ON_DISK)
        assert box.sh("dd if=/dev/urandom of=/root/large bs=1M count=400 2>/dev/null", timeout=120).code == 0
        box.api.must("POST", box.path + "/pack", {"name": "killed:1"})
        wait_until(lambda: list((server.data / "import").glob("job-*/layer.data")), 30, "the worker reads")
        server.kill()
        server.start()
        box = Box(server.api, server.api.must("GET", f"/v1/sandboxes/{box.id}"))

        assert box.sh("echo on").out == "on\n" and not list((server.data / "import").iterdir())
        workers = [path for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if b"import-worker" in path.read_bytes()]
        assert not workers
    finally:
        complaints = server.close()
    assert not complaints, complaints


# --- what is refused -------------------------------------------------------------------------------------------------------------

def test_what_cannot_be_packed_is_said(api, boxes):
    box = boxes(resources=IN_MEMORY)
    images.import_tar(api, "taken:1", tree(file("f")), what="layers", kind="toolkit")

    assert pack(box, "x", 400, kind="base")["code"] == pack(box, "x", 400, kind="verifier")["code"] == "invalid_argument"
    assert "remove" in pack(box, "x", 400, remove=[""])["message"] and "at" in pack(box, "x", 400, at="/x")["message"]
    assert pack(box, "taken:1", 409, kind="toolkit")["code"] == "conflict"
    assert api.call("POST", "/v1/sandboxes/nobody-here/pack", {"name": "x"}).status == 404
    box.delete()
    assert "ended" in pack(box, "x", 409)["message"]


def test_hostile_names_attributes_and_odd_files_are_packed_as_they_are(api, boxes):
    box = boxes(resources=IN_MEMORY)
    box.sh("mkfifo /root/fifo; ln -s ../../../etc/shadow /root/link; touch \"/root/$(printf 'a\\nb')\"; "
           "mkdir -p /root/.wh.x; touch /root/.wh..wh..opq; chmod 4755 /bin/busybox")

    layer = pack(box, "odd:1")
    again = restored(boxes, box, "odd:1")
    boxes.keep(again)

    assert again.sh("readlink /root/link; ls -A /root | tr '\\n' ' '; stat -c %a /bin/busybox").out == \
        box.sh("readlink /root/link; ls -A /root | tr '\\n' ' '; stat -c %a /bin/busybox").out
    assert layer["setuid_files"] == 1 and layer["privileged_files"][0]["path"] == "/bin/busybox"


def test_packs_of_many_sandboxes_at_once_do_not_disturb_one_another(api, boxes):
    made = [boxes(resources=IN_MEMORY) for _ in range(4)]
    for number, box in enumerate(made):
        box.sh(f"echo {number} > /root/number")
    outcomes = {}

    def run(number):
        outcomes[number] = pack(made[number], f"many-{number}:1")
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(4):
        assert api.raw("GET", f"/v1/layers/many-{number}:1/content", query={"path": "/root/number"}).body == f"{number}\n".encode(), outcomes
