"""Imports, composition, refs, and archives that mean harm."""
import io
import json
import os
import pathlib
import subprocess
import tarfile
import threading

import pytest

from support import images
from support.api import Box
from support.archives import file, special, tree
from support.server import Server


@pytest.fixture
def box_of(api, tiny):
    made = []

    def make(**environment):
        box = Box(api, api.must("POST", "/v1/sandboxes", {"environment": {"base": tiny, **environment}}))
        made.append(box)
        return box
    yield make
    for box in made:
        box.delete()


def test_base_workspace_and_toolkits_compose_in_order(api, box_of):
    images.import_tar(api, "ws-compose:1", tree(file("file", b"workspace\n")), what="layers", kind="workspace", at="/work/project")
    images.import_tar(api, "tk-a:1", tree(file("canary", b"toolkit a\n"), file("only-a", b"a\n")), what="layers", kind="toolkit")
    images.import_tar(api, "tk-b:1", tree(file("canary", b"toolkit b\n")), what="layers", kind="toolkit", at="/")

    box = box_of(workspace="ws-compose:1", toolkits=["tk-a:1", "tk-b:1"])

    assert box.sh("cat /canary /only-a /work/project/file").out == "toolkit b\na\nworkspace\n"


def test_the_same_content_is_the_same_digest(api):
    data = tree(file("same", b"content\n"))

    first = images.import_tar(api, "same:1", data, what="layers", kind="toolkit")
    second = images.import_tar(api, "same:2", data, what="layers", kind="toolkit")

    assert first["digest"] == second["digest"]
    assert first["digest"].startswith("sha256:") and len(first["digest"]) == 71


def test_the_record_lists_files_with_set_id_bits_and_capabilities(api):
    ping = tarfile.TarInfo("bin/ping")
    ping.size, ping.mode = 2, 0o755
    ping.pax_headers = {"SCHILY.xattr.security.capability": "\x01\0\0\2\0\x20" + "\0" * 14}
    data = tree(file("bin/su", mode=0o4755), file("bin/plain"), lambda archive: archive.addfile(ping, io.BytesIO(b"x\n")))

    images.import_tar(api, "privileged:1", data, what="layers", kind="toolkit")

    layer = api.must("GET", "/v1/layers/privileged:1")
    assert (layer["setuid_files"], layer["capability_files"]) == (1, 1)
    assert layer["privileged_files"] == [{"path": "/bin/ping", "mode": "0755", "capability": "cap_net_raw=ep"},
                                         {"path": "/bin/su", "mode": "4755", "capability": ""}]


@pytest.mark.parametrize("profile", ["plain", "lz4"])
def test_content_is_stored_in_the_profile_that_was_asked_for(api, box_of, profile):
    name = f"profile-{profile}:1"
    images.import_tar(api, name, tree(file("big", b"y" * 200_000)), what="layers", kind="toolkit", profile=profile)

    layer = api.must("GET", f"/v1/layers/{name}")
    assert layer["profile"] == profile
    assert (layer["size_bytes"] > 200_000) == (profile == "plain")
    assert box_of(toolkits=[name]).sh("cat /big").out == "y" * 200_000


def test_a_ref_can_move_and_a_live_sandbox_keeps_its_layer(api, box_of):
    images.import_tar(api, "moving:1", tree(file("version", b"1\n")), what="layers", kind="toolkit")
    old = box_of(toolkits=["moving:1"])
    images.import_tar(api, "moving:1", tree(file("version", b"2\n")), what="layers", kind="toolkit")
    new = box_of(toolkits=["moving:1"])

    assert old.sh("cat /version").out == "1\n"
    assert new.sh("cat /version").out == "2\n"


def test_layers_are_listed_and_removed_but_not_while_used(api, box_of):
    images.import_tar(api, "used:1", tree(file("used-file")), what="layers", kind="toolkit")
    box = box_of(toolkits=["used:1"])

    names = str(api.must("GET", "/v1/layers"))
    refused = api.call("DELETE", "/v1/layers/used:1")
    box.delete()
    removed = api.call("DELETE", "/v1/layers/used:1")

    assert "used" in names
    assert refused.status == 409, refused
    assert removed.status in (200, 204), removed


@pytest.mark.parametrize("compression", ["gz", "xz", "zst"])
def test_compressed_archives_are_told_by_their_bytes(api, compression, tmp_path):
    data = tree(file("packed", b"packed\n"))
    packed = subprocess.run({"gz": ["gzip", "-c"], "xz": ["xz", "-c"], "zst": ["zstd", "-qc"]}[compression], input=data,
                            capture_output=True, check=True).stdout

    layer = images.import_tar(api, f"packed-{compression}:1", packed, what="layers", kind="toolkit")

    assert layer["digest"].startswith("sha256:")


def test_modes_owners_links_and_times_come_through(api, box_of):
    images.import_tar(api, "attributes:1", tree(
        file("t/setuid", b"#!/bin/sh\n", mode=0o4755), file("t/owned", uid=1000, gid=50, mode=0o640),
        special("t/link", tarfile.SYMTYPE, "owned"), special("t/hard", tarfile.LNKTYPE, "t/owned"),
        lambda a: images.add_directory(a, "t/dir", 0o1777)), what="layers", kind="toolkit")

    out = box_of(toolkits=["attributes:1"]).sh("stat -c '%a %u %g' /t/setuid /t/owned /t/dir; readlink /t/link; stat -c %h /t/owned").out

    assert out == "4755 0 0\n640 1000 50\n1777 0 0\nowned\n2\n"


HOSTILE = {
    "parent": [file("../escape-a")],
    "parent inside": [file("a/../../escape-b")],
    "absolute": [file("/escape-c")],
    "link then write": [special("l", tarfile.SYMTYPE, "/tmp"), file("l/dsec-escape-d")],
    "relative link then write": [special("l", tarfile.SYMTYPE, "../../../../../../tmp"), file("l/dsec-escape-e")],
    "hard link outside": [special("h", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link to parent": [special("h", tarfile.LNKTYPE, "../../../../etc/passwd")],
    "block device": [special("dev-b", tarfile.BLKTYPE, device=(7, 0))],
    "character device": [special("dev-c", tarfile.CHRTYPE, device=(1, 1))],
    "pax path": [special("ordinary", tarfile.REGTYPE, pax={"path": "../../escape-f"})],
    "overlay redirect": [special("d", tarfile.DIRTYPE, pax={"SCHILY.xattr.trusted.overlay.redirect": "/etc"})],
    "overlay opaque": [special("d", tarfile.DIRTYPE, pax={"SCHILY.xattr.user.overlay.opaque": "y"})],
    "whiteout device": [special("etc", tarfile.CHRTYPE, device=(0, 0))],
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_archive_is_refused_or_tamed(api, box_of, case):
    name = "hostile-" + case.replace(" ", "-") + ":1"
    answer = api.raw("POST", "/v1/layers", tree(*HOSTILE[case], file("innocent")), headers={"Content-Type": "application/x-tar"},
                     query={"name": name, "kind": "toolkit"}, timeout=60)

    assert not list(pathlib.Path("/tmp").glob("dsec-escape-*")) and not pathlib.Path("/escape-c").exists()
    try:
        layer = images.finish_operation(api, answer.json) if answer.status in (200, 201, 202) else None
    except AssertionError:
        layer = None
    if layer is None:
        return
    box = box_of(toolkits=[name])
    assert box.sh("head -1 /etc/passwd").out.startswith("root:"), "the base's own files show through"
    assert box.sh("find / -xdev \\( -type b -o -type c \\) 2>/dev/null | grep -v ^/dev").out == ""
    hard = box.sh("cat /h 2>/dev/null").out
    assert hard == "" or "Alice" in hard or "alice" in hard, "a hard link may only lead to the archive's own files"
    assert "nobody-on-host" not in hard


@pytest.mark.parametrize("junk", [b"", b"junk" * 1000, b"\x1f\x8b\x08\x00garbage", b"\x28\xb5\x2f\xfd" + b"\0" * 100, os.urandom(100000)])
def test_an_archive_that_is_none_is_refused_and_leaves_nothing(api, server, junk):
    before = {p.name for p in (server.data / "layers").glob("*")} if (server.data / "layers").exists() else set()

    answer = api.raw("POST", "/v1/layers", junk, headers={"Content-Type": "application/x-tar"}, query={"name": "junk:1", "kind": "toolkit"})

    if answer.status == 202:
        with pytest.raises(AssertionError):
            images.finish_operation(api, answer.json)
    else:
        assert answer.status in (400, 413, 422), answer
        assert answer.error["infra"] is False
    assert {p.name for p in (server.data / "layers").glob("*")} == before


def test_a_decompression_bomb_is_stopped(api, server):
    import gzip
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        info = tarfile.TarInfo("bomb")
        info.size = 70 << 30
        packed.write(info.tobuf())
        block = bytes(1 << 24)
        for _ in range(16):
            packed.write(block)
    answer = api.raw("POST", "/v1/layers", out.getvalue(), headers={"Content-Type": "application/x-tar"},
                     query={"name": "bomb:1", "kind": "toolkit"}, timeout=120)

    assert answer.status in (202, 400, 413), answer
    if answer.status == 202:
        with pytest.raises(AssertionError):
            images.finish_operation(api, answer.json)


def test_an_import_that_is_cut_off_leaves_nothing(api, server):
    import http.client
    connection = http.client.HTTPConnection(api.host, api.port, timeout=10)
    connection.putrequest("POST", "/v1/layers?name=cut:1&kind=toolkit")
    connection.putheader("Authorization", "Bearer " + api.key)
    connection.putheader("Content-Length", str(10 << 20))
    connection.endheaders()
    connection.send(tree(file("half", b"y" * 100000))[:60000])
    connection.close()

    assert api.call("GET", "/v1/layers/cut:1").status == 404
    assert api.raw("GET", "/healthz", keyed=False).status == 200


@pytest.mark.parametrize("query", [{"name": "UPPER:1", "kind": "toolkit"}, {"name": "ok:1", "kind": "magic"}, {"kind": "toolkit"},
                                   {"name": "ok:1", "kind": "toolkit", "at": "relative"}, {"name": "ok:1", "kind": "toolkit", "at": "/a/../b"},
                                   {"name": "../../x:1", "kind": "toolkit"}, {"name": "ok:1", "kind": "toolkit", "profile": "zip"}, {"name": "ok:1", "kind": "toolkit", "unknown": "1"}])
def test_a_wrong_import_request_is_a_400(api, query):
    answer = api.raw("POST", "/v1/layers", tree(file("a")), headers={"Content-Type": "application/x-tar"}, query=query)

    assert answer.status == 400, answer


def events_of(api, path):
    """(event, data) of a stream of server-sent events, as they come."""
    connection = api.connection(timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {api.key}"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    event = None
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
    connection.close()


def test_an_operation_is_followed_to_its_end_and_a_delete_cancels_it(api, server):
    started = api.must("POST", "/v1/images", query={"name": "followed:1", "source": "debian:bookworm"}, expect=202)["operation_id"]
    path = f"/v1/operations/{started}"
    following = events_of(api, path + "/events")
    first = next(following)

    cancelled = api.call("DELETE", path)
    events = [first, *following]

    assert cancelled.status == 202
    assert all(name == data["state"] and data["id"] == started for name, data in events)
    assert all(set(data["progress"]) == {"stage", "done_bytes", "total_bytes"} for _, data in events)
    assert events[0][0] == "running" and events[-1][0] == "cancelled"
    assert [name for name, _ in events_of(api, path + "/events")] == ["cancelled"], "what is over is told at once"
    assert api.call("GET", "/v1/images/followed:1").status == 404
    assert not list((server.data / "import").iterdir())
    assert api.call("GET", "/v1/operations/op-none/events").status == 404
    assert api.call("GET", path + "/events", query={"after": 1}).status == 400


def test_a_stop_of_the_server_ends_the_events_of_an_operation():
    running = Server(name="operations").start()
    try:
        started = running.api.must("POST", "/v1/images", query={"name": "built:1", "source": "debian:bookworm"}, expect=202)["operation_id"]
        following = events_of(running.api, f"/v1/operations/{started}/events")
        next(following)
        running.child.terminate()
        states = [name for name, _ in following]
        assert running.child.wait(20) == 0
        assert "succeeded" not in states
        running.start()
    finally:
        complaints = running.close()
    assert not complaints, complaints


def test_an_operation_that_a_restart_interrupts_is_a_typed_failure_and_stays_one():
    running = Server(name="operations").start()
    try:
        started = running.api.must("POST", "/v1/images", query={"name": "built:1", "source": "debian:bookworm"}, expect=202)["operation_id"]
        for _ in range(2):
            running.restart()
            operation = running.api.must("GET", f"/v1/operations/{started}", query={"wait_ms": 1000})

            assert operation["state"] == "failed", operation
            assert (operation["error"]["code"], operation["error"]["infra"], operation["error"]["retryable"]) == ("unavailable", True, True)
        assert running.api.call("GET", "/v1/images/built:1").status == 404
        assert not list((running.data / "import").iterdir())
    finally:
        complaints = running.close()
    assert not complaints, complaints


def test_one_superblock_serves_every_sandbox_of_a_layer(api, tiny, boxes):
    first, second = boxes(), boxes()

    devices = {b.sh("stat -c %d /bin/busybox").out for b in (first, second)}

    assert all(devices), devices


def test_eight_concurrent_imports_of_one_archive_agree(api):
    data = tree(file("concurrent", b"c" * 100000))
    digests, errors = [], []

    def run(i):
        try:
            digests.append(images.import_tar(api, f"concurrent-{i}:1", data, what="layers", kind="toolkit")["digest"])
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]

    assert not errors, errors[0]
    assert len(set(digests)) == 1


def test_a_layer_is_read_only_on_the_host_and_its_setuid_files_are_inert(server, boxes):
    boxes()
    mounts = [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(server.data) in line]

    assert not mounts, "layers stand in no namespace that a host process sees"
