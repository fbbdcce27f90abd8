"""Which layers go, which stay, and what keeps them."""
import io
import json
import os
import subprocess
import tarfile
import time

import pytest

from support import images
from support.api import wait_until
from support.server import BIN, Server


@pytest.fixture(scope="module")
def server():
    running = Server(["--stop-sandboxes"], name="garbage").start()
    images.import_tar(running.api, "tiny:1", images.tiny_tar())
    yield running
    complaints = running.close()
    assert not complaints, "; ".join(complaints)


def archive(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            images.add_file(tar, name, content.encode())
    return out.getvalue()


def layer(server, name, **files):
    return images.import_tar(server.api, name, archive(**files), what="layers", kind="workspace")["digest"]


def collect(server, condemn=0, delete=0, dry_run=False):
    answer = server.api.must("POST", "/v1/layers:gc", {"condemn_after_seconds": condemn, "delete_after_seconds": delete, "dry_run": dry_run})
    return answer, {one["digest"]: one for one in answer["layers"]}


def forget_name(server, name):
    """Moves the ref away: the layer stays and nothing names it."""
    layer(server, name, f="something else " + name)


def cli(server, *arguments):
    done = subprocess.run([BIN / "dsec", *arguments], timeout=60, capture_output=True, text=True, check=False,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})
    return done.returncode, done.stdout, done.stderr


def test_what_nothing_holds_goes_at_the_second_look_and_what_is_named_stays(server):
    kept, lost = layer(server, "kept:1", f="kept"), layer(server, "lost:1", f="lost" * 5000)
    forget_name(server, "lost:1")

    _, first = collect(server)
    assert first[kept]["fate"] == "held" and first[kept]["held_by"] == ["ref default/kept:1"]
    assert first[lost]["fate"] == "condemned" and first[lost]["held_by"] == []
    answer, second = collect(server)

    assert second[lost]["fate"] == "removed"
    assert answer["removed"] >= 1 and answer["freed_bytes"] >= second[lost]["frees_bytes"] >= 4096
    _, third = collect(server)
    assert lost not in third and third[kept]["fate"] == "held"
    left = [path.name for path in (server.data / "layers").iterdir() if path.name.startswith(lost.removeprefix("sha256:"))]
    assert left == []


def test_a_dry_run_changes_nothing_however_often_it_is_made(server):
    lost = layer(server, "dry:1", f="dry")
    forget_name(server, "dry:1")

    for _ in range(3):
        answer, seen = collect(server, dry_run=True)
        assert seen[lost]["fate"] == "condemned" and answer["removed"] == 0
    collect(server)
    answer, seen = collect(server, dry_run=True)
    assert seen[lost]["fate"] == "due" and answer["freed_bytes"] >= seen[lost]["frees_bytes"] > 0
    _, seen = collect(server)
    assert seen[lost]["fate"] == "removed"


def test_a_sandbox_keeps_its_layers_until_it_is_over(server):
    lost = layer(server, "used:1", f="used")
    box = server.api.create("tiny:1", environment={"workspace": "used:1"})
    forget_name(server, "used:1")

    for _ in range(2):
        _, seen = collect(server)
        assert seen[lost]["held_by"] == [f"sandbox {box.id}"]
    assert box.sh("cat /f").out == "used"
    box.delete()
    collect(server)
    _, seen = collect(server)
    assert seen[lost]["fate"] == "removed"


def test_a_pin_keeps_a_layer_and_ends_with_its_time(server):
    lost = layer(server, "pinned:1", f="pinned")
    assert cli(server, "layer", "pin", "pinned:1", "--reason", "compare with it", "--for", "2s") == (0, lost + "\n", "")
    forget_name(server, "pinned:1")

    _, seen = collect(server)
    assert seen[lost]["held_by"] == ["pin of default: compare with it"]
    listed = json.loads(cli(server, "layer", "pins", "--json")[1])
    assert [pin["digest"] for pin in listed] == [lost]
    time.sleep(2.1)
    collect(server)
    _, seen = collect(server)
    assert seen[lost]["fate"] == "removed"
    assert cli(server, "layer", "unpin", lost)[0] == 0
    assert cli(server, "layer", "unpin", lost)[0] == 1


def test_a_new_name_forgives_all(server):
    lost = layer(server, "again:1", f="again")
    forget_name(server, "again:1")
    _, seen = collect(server)
    assert seen[lost]["fate"] == "condemned"

    assert layer(server, "again:2", f="again") == lost

    _, seen = collect(server)
    assert seen[lost]["fate"] == "held"
    forget_name(server, "again:2")
    _, seen = collect(server)
    assert seen[lost]["fate"] == "condemned", "from the beginning"


def test_what_was_published_a_moment_ago_is_held(server):
    lost = layer(server, "fresh:1", f="fresh")
    forget_name(server, "fresh:1")

    for _ in range(3):
        _, seen = collect(server, condemn=0, delete=3600)
        assert seen[lost]["held_by"] == ["published just now"]


def test_the_time_of_disuse_survives_a_restart(server):
    lost = layer(server, "restart:1", f="restart")
    forget_name(server, "restart:1")
    _, seen = collect(server)
    condemned = seen[lost]["condemned_at_ms"]

    server.restart()

    _, seen = collect(server, condemn=0, delete=3600)
    assert (seen[lost]["fate"], seen[lost]["condemned_at_ms"]) == ("condemned", condemned)
    _, seen = collect(server)
    assert seen[lost]["fate"] == "removed"


def test_data_that_another_layer_shares_stays(server):
    first = layer(server, "share:1", big="s" * 300_000)
    second = layer(server, "share:2", big="s" * 300_000, empty="")
    assert first != second
    forget_name(server, "share:1")

    collect(server)
    _, seen = collect(server)

    assert seen[first]["fate"] == "removed" and seen[first]["frees_bytes"] < 300_000
    box = server.api.create("tiny:1", environment={"workspace": "share:2"})
    assert box.sh("wc -c < /big").out == "300000\n"
    box.delete()


def test_a_shared_store_keeps_what_a_node_has_and_loses_what_none_needs(tmp_path):
    server = Server(["--store", str(tmp_path), "--stop-sandboxes"], name="lessee").start()
    try:
        kept = layer(server, "kept:1", f="kept" * 5000)
        lost = layer(server, "lost:1", f="lost" * 5000)
        server.api.must("DELETE", "/v1/layers/lost:1")

        def collect_store(dry_run=False):
            started = server.api.must("POST", "/v1/layers:gc", {"store": True, "dry_run": dry_run, "delete_after_seconds": 0}, expect=202)
            return images.finish_operation(server.api, started)

        first = collect_store()
        fates = {one["digest"]: one["fate"] for one in first["objects"]}
        assert fates[lost] == "condemned" and kept not in fates and len(first["nodes"]) == 1
        assert collect_store(dry_run=True)["freed_bytes"] > 0
        code, out, err = cli(server, "layer", "gc", "--store", "--delete-after", "0", "--json")
        assert code == 0, err
        assert {one["digest"]: one["fate"] for one in json.loads(out)}[lost] == "removed"

        left = {path.name.split(".")[0] for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".lease")}
        assert lost.removeprefix("sha256:") not in left and kept.removeprefix("sha256:") in left
        assert cli(server, "layer", "fetch", lost, "lost:2")[0] == 1
        assert cli(server, "layer", "sync", "kept:1")[0] == 0
    finally:
        complaints = server.close()
    assert not complaints


def test_a_collection_of_the_store_removes_what_a_killed_publisher_left(tmp_path):
    server = Server(["--store", str(tmp_path), "--stop-sandboxes"], name="leftovers").start()
    try:
        kept = layer(server, "kept:1", f="kept" * 5000)
        incoming = tmp_path / ".incoming"
        names = {"dead": "a" * 64 + ".data.0123", "leased": kept.removeprefix("sha256:") + ".meta.0123", "young": "b" * 64 + ".data.0123"}
        for what, name in names.items():
            (incoming / name).write_bytes(b"x" * 1000)
            if what != "young":
                os.utime(incoming / name, (time.time() - 3600,) * 2)

        told = [cli(server, "layer", "gc", "--store", "--delete-after", "0", *more)[2] for more in (["--dry-run"], [], [])]

        assert "3 uploads are under way or were never ended, 1 of them would go now" in told[0], told
        assert "a run now would free" in told[0]
        assert "3 uploads are under way or were never ended, 1 of them went" in told[1], told
        assert "2 uploads are under way or were never ended, 0 of them went" in told[2], told
        assert sorted(path.name for path in incoming.iterdir()) == sorted([names["leased"], names["young"]])
    finally:
        complaints = server.close()
    assert not complaints


def test_a_collection_of_the_store_that_is_killed_leaves_nobody_waiting(tmp_path):
    server = Server(["--store", str(tmp_path), "--stop-sandboxes"], name="cut-off").start(fail_point="origin.collect.marked=kill:1")
    try:
        lost = layer(server, "lost:1", f="lost" * 5000)
        server.api.must("DELETE", "/v1/layers/lost:1")
        body = {"store": True, "delete_after_seconds": 0}
        images.finish_operation(server.api, server.api.must("POST", "/v1/layers:gc", body, expect=202))
        server.api.must("POST", "/v1/layers:gc", body, expect=202)
        wait_until(lambda: server.child.poll() is not None, 20, "the kill")
        assert list(tmp_path.rglob("*.deleting"))

        server.start()

        wait_until(lambda: not list(tmp_path.rglob("*.deleting")), 20, "the end of the run that was cut off")
        assert layer(server, "lost:2", f="lost" * 5000) == lost
        assert cli(server, "layer", "sync", "lost:2")[0] == 0
    finally:
        complaints = server.close()
    assert not complaints


def test_the_command_explains_itself(server):
    lost = layer(server, "told:1", f="told")
    forget_name(server, "told:1")

    code, out, err = cli(server, "layer", "gc", "--dry-run", "--condemn-after", "7d", "--delete-after", "0")

    assert code == 0
    line = next(line for line in out.splitlines() if lost[:19] in line)
    assert "unused" in line and "nothing holds it; condemned from 20" in line
    assert "ref default/tiny:1" in out
    assert "a run now would free" in err
    assert cli(server, "layer", "gc", "--condemn-after", "soon")[0] == 2
