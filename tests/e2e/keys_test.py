"""Keys and who they stand for: stored as hashes, told once, and a project's key reaches its own project alone."""
import stat
import subprocess

import pytest

from support.api import key_of
from support.server import BIN


def test_a_key_is_told_once_and_stored_as_a_hash(server, api):
    name, builder = key_of(api)

    assert builder.call("GET", "/v1/sandboxes").status == 200
    assert builder.key not in str(api.must("GET", f"/v1/projects/{name}/keys"))
    stored = b"".join(path.read_bytes() for path in server.data.glob("dsec.db*"))
    assert name.encode() in stored, "negative control: what is stored of the key is in these files"
    assert builder.key.encode() not in stored and api.key.encode() not in stored
    assert builder.key not in server.log_file.read_text(errors="replace")
    assert api.key not in server.log_file.read_text(errors="replace")


def test_the_first_key_lies_in_a_file_for_root_alone(server, api):
    path = server.data / "admin.key"

    assert path.read_text().strip() == api.key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(server.data.stat().st_mode) == 0o700


def test_a_revoked_key_is_none(api):
    name, builder = key_of(api)
    record = next(item for item in api.must("GET", f"/v1/projects/{name}/keys")["items"] if item["name"] == "builder")

    assert builder.call("GET", "/v1/whoami").status == 200
    api.must("DELETE", f"/v1/projects/{name}/keys/{record['id']}")

    assert builder.call("GET", "/v1/whoami").status == 401


def test_a_projects_key_sees_and_touches_nothing_of_another(api, boxes):
    box = boxes()
    _, stranger = key_of(api, "admin")

    for method, tail, body in (("GET", "", None), ("DELETE", "", None), ("PATCH", "", {"labels": {}}), ("POST", "/exec", {"argv": ["true"]}),
                               ("GET", "/files?path=/canary", None), ("GET", "/ports/8000/", None)):
        answer = stranger.call(method, box.path + tail, body)
        assert answer.status == 404, (method, tail, answer)
    assert stranger.list_all() == []
    assert box.sh("echo here").out == "here\n", "negative control: its own project's key reaches it"


def test_a_viewer_looks_and_does_not_act(api, boxes):
    box = boxes()
    _, viewer = key_of(api, "viewer", "default")

    assert viewer.call("GET", box.path).status == 200
    assert viewer.call("POST", box.path + "/exec", {"argv": ["true"]}).status == 403
    assert viewer.call("POST", "/v1/sandboxes", {"image": "tiny:1"}).status == 403
    assert viewer.call("DELETE", box.path).status == 403


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_no_address_beyond_loopback_is_served_without_a_word(tmp_path, address):
    refused = subprocess.run([BIN / "dsec", "serve", "--listen", address, "--data-dir", tmp_path / "data"], capture_output=True, text=True, timeout=20,
                             stdin=subprocess.DEVNULL)

    assert refused.returncode == 2 and "--insecure" in refused.stderr, refused
    assert not (tmp_path / "data").exists()
