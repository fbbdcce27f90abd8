"""Files in and out: exact, any size, resolved inside."""
import hashlib
import io
import os
import pathlib
import tarfile
import threading
import time

import pytest

from support.api import wait_until


def test_what_is_written_is_read(shared_box):
    for data in (b"", b"x", bytes(range(256)) * 1000):
        shared_box.write_file("/tmp/f", data)

        assert shared_box.read_file("/tmp/f") == data


def test_parents_are_made_and_modes_kept(shared_box):
    shared_box.write_file("/tmp/a/b/c/file", b"deep", mode=0o640)

    assert shared_box.sh("stat -c %a /tmp/a/b/c/file; cat /tmp/a/b/c/file").out == "640\ndeep"


def test_a_hundred_megabytes_go_in_and_out_unchanged(boxes):
    box = boxes(resources={"memory_mb": 512, "disk_mb": 512, "max_processes": 64})
    data = os.urandom(1 << 20) * 100

    box.write_file("/big", data)
    back = box.read_file("/big")

    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


def test_a_range_is_read(shared_box):
    shared_box.write_file("/tmp/range", b"0123456789")

    assert shared_box.read_file("/tmp/range", offset=3, length=4) == b"3456"


def test_stat_list_mkdir_move_remove(api, shared_box):
    path = shared_box.path + "/files"
    api.must("POST", path + "/mkdir", {"path": "/tmp/dir/sub", "parents": True})
    shared_box.write_file("/tmp/dir/file", b"12345")
    api.must("POST", path + "/move", {"path": "/tmp/dir/file", "target": "/tmp/dir/renamed"})

    stat = api.must("GET", path + "/stat", query={"path": "/tmp/dir/renamed"})
    entries = api.must("GET", path + "/list", query={"path": "/tmp/dir"})
    removed = api.call("DELETE", path, query={"path": "/tmp/dir", "recursive": True})

    assert stat["size"] == 5 and stat["type"] == "file"
    assert {e["path"].rsplit("/", 1)[-1] for e in entries["entries" if "entries" in entries else "items"]} == {"sub", "renamed"}
    assert removed.status in (200, 204)
    assert api.call("GET", path + "/stat", query={"path": "/tmp/dir"}).status == 404


@pytest.mark.parametrize("method, tail, query, body, status", [
    ("GET", "", {"path": "/no/such"}, None, 404), ("GET", "/stat", {"path": "/no/such"}, None, 404),
    ("GET", "/list", {"path": "/etc/passwd"}, None, 400), ("DELETE", "", {"path": "/no/such"}, None, 404),
    ("GET", "", {}, None, 400), ("GET", "", {"path": "/x", "nonsense": "1"}, None, 400),
    ("POST", "/mkdir", None, {"path": "/tmp/m", "x": 1}, 400), ("DELETE", "", {"path": "/etc"}, None, (400, 409)),
    ("GET", "", {"path": "/etc/passwd\0x"}, None, 400), ("GET", "", {"path": "/" + "a/" * 3000}, None, (400, 404)),
])
def test_what_cannot_be_is_a_typed_error(api, shared_box, method, tail, query, body, status):
    answer = api.call(method, shared_box.path + "/files" + tail, body, query=query)

    assert answer.status in (status if isinstance(status, tuple) else (status,)), answer
    assert answer.error["infra"] is False


def test_rights_are_those_of_the_user(api, shared_box):
    shared_box.write_file("/root/secret", b"s", mode=0o600)

    answer = api.raw("GET", shared_box.path + "/files", query={"path": "/root/secret", "user": "alice"})
    shared_box.write_file("/home/alice/mine", b"m", user="alice")

    assert answer.status == 403, answer
    assert shared_box.sh("stat -c %U /home/alice/mine").out == "alice\n"


def test_a_symlink_never_leads_out_of_the_sandbox_E01(api, boxes, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("host")
    box = boxes()
    box.sh(f"mkdir -p {tmp_path.parent}; ln -s {canary} /tmp/x; ln -s /proc/1/root/tmp /tmp/r; ln -s / /tmp/up; ln -s /tmp/loop /tmp/loop")

    for path in ("/tmp/x", "/tmp/r" + str(canary), "/../../../.." + str(canary), "/tmp/up/../../.." + str(canary), "/tmp/loop"):
        api.raw("PUT", box.path + "/files", b"overwritten", query={"path": path, "parents": True})
        answer = api.raw("GET", box.path + "/files", query={"path": path})
        assert b"host" not in answer.body, path

    assert canary.read_text() == "host"


def test_a_race_of_renames_never_leads_out_E02(api, boxes, tmp_path):
    canary = tmp_path / "secret"
    canary.write_text("host secret")
    box = boxes()
    box.sh(f"mkdir -p /tmp/a /tmp/b; echo inside > /tmp/a/secret; ln -s {tmp_path} /tmp/link; mkdir -p {tmp_path}; echo inside > {canary}")
    racer = box.start(shell="while :; do mv -T /tmp/a /tmp/c; mv -T /tmp/link /tmp/a; mv -T /tmp/a /tmp/link; mv -T /tmp/c /tmp/a; done 2>/dev/null")

    end = time.monotonic() + 4
    while time.monotonic() < end:
        body = api.raw("GET", box.path + "/files", query={"path": "/tmp/a/secret"}).body
        assert b"host secret" not in body
        api.raw("PUT", box.path + "/files", b"written", query={"path": "/tmp/a/secret"})
    box.signal(racer, 9)

    assert canary.read_text() == "host secret"


def test_tar_out_and_in_are_each_others_inverse(api, shared_box):
    shared_box.sh("rm -rf /tmp/tree; mkdir -p /tmp/tree/d; echo 1 > /tmp/tree/a; echo 2 > /tmp/tree/d/b; ln -s a /tmp/tree/l; chmod 751 /tmp/tree/d")
    archive = api.raw("GET", shared_box.path + "/files/archive", query={"path": "/tmp/tree"}).body

    answer = api.raw("PUT", shared_box.path + "/files/archive", archive, query={"path": "/tmp/copy"}, headers={"Content-Type": "application/x-tar"})

    assert answer.status in (200, 201, 204), answer
    assert shared_box.sh("cd /tmp/copy; cat a d/b; readlink l; stat -c %a d").out == "1\n2\na\n751\n"


@pytest.mark.parametrize("name, link", [("../escape", None), ("/abs-escape", None), ("l/x", "/tmp/elsewhere"), ("a/../../escape", None)])
def test_a_hostile_tar_stays_below_its_place_E04(api, boxes, name, link):
    box = boxes()
    box.sh("mkdir -p /tmp/elsewhere /tmp/place")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        if link:
            info = tarfile.TarInfo("l")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
        info = tarfile.TarInfo(name)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"bad"))

    answer = api.raw("PUT", box.path + "/files/archive", out.getvalue(), query={"path": "/tmp/place"}, headers={"Content-Type": "application/x-tar"})

    assert answer.status in (200, 201, 204, 400), answer
    assert box.sh("ls /escape /tmp/escape /abs-escape /tmp/elsewhere/x 2>/dev/null").out == ""
    assert box.state == "running"


def test_a_cut_off_upload_does_not_leave_a_half_file_under_the_name(api, shared_box):
    import http.client
    shared_box.write_file("/tmp/whole", b"old")
    connection = http.client.HTTPConnection(api.host, api.port, timeout=10)
    connection.putrequest("PUT", shared_box.path + "/files?path=/tmp/whole")
    connection.putheader("Authorization", "Bearer " + api.key)
    connection.putheader("Content-Length", "1000000")
    connection.endheaders()
    connection.send(b"n" * 200000)
    connection.close()
    time.sleep(0.5)

    assert shared_box.read_file("/tmp/whole") == b"old"


def test_a_sparse_terabyte_is_not_read_into_memory_D18(server, api, boxes):
    box = boxes()
    box.sh("truncate -s 1T /tmp/sparse || dd if=/dev/zero of=/tmp/sparse bs=1 count=0 seek=1T")
    before = rss(server)
    connection = api.connection(timeout=10)
    connection.request("GET", box.path + "/files?path=/tmp/sparse", headers={"Authorization": "Bearer " + api.key})
    response = connection.getresponse()
    if response.status == 200:
        response.read(64 << 20)
    connection.close()

    assert rss(server) - before < 64 << 20
    assert box.sh("echo fine").out == "fine\n"


def rss(server):
    for line in pathlib.Path(f"/proc/{server.child.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10


def test_a_watch_tells_of_changes(api, boxes):
    box = boxes()
    box.sh("mkdir /tmp/watched")
    connection = api.connection(timeout=15)
    connection.request("GET", box.path + "/files/watch?path=/tmp/watched&recursive=true", headers={"Authorization": "Bearer " + api.key})
    seen = []

    def read():
        try:
            response = connection.getresponse()
            while len(seen) < 200:
                line = response.readline()
                if not line:
                    return
                seen.append(line.decode(errors="replace"))
        except OSError:
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: (box.sh("date +%N > /tmp/watched/file"), any("file" in line for line in seen))[1], 10, "an event about the file")
    connection.close()


def test_two_hundred_thousand_entries_are_listed_up_to_a_limit(api, boxes):
    box = boxes(resources={"memory_mb": 512, "disk_mb": 256, "max_processes": 64})
    box.sh("mkdir /many; /probe inodes /many 30000", timeout=60)

    answer = api.must("GET", box.path + "/files/list", query={"path": "/many", "limit": 1000})

    assert len(answer["entries" if "entries" in answer else "items"]) == 1000
    assert answer["truncated"] is True
