"""Images pulled from a registry: only what is lacking, from where the operator allows, and nothing kept of a key."""
import base64
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest

from support import images, oci
from support import registry as registries
from support.server import BIN, Server

pytestmark = pytest.mark.skipif(registries.PROGRAM is None or shutil.which("skopeo") is None, reason="docker-registry or skopeo is not installed")
SHARED = oci.layer_tar({"shared": oci.noise(700_000, "shared")})


def own_layer(seed):
    return oci.layer_tar({"own": oci.noise(400_000, seed)})


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory):
    running = registries.Registry(tmp_path_factory.mktemp("registry"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory):
    running = registries.Registry(tmp_path_factory.mktemp("closed"), "reader", "hunter2-secret")
    yield running
    running.close()


class Hanging:
    """Takes connections and says nothing."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.taken = []
        self.met = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                self.taken.append(self.listener.accept()[0])
            except OSError:
                return
            self.met.set()

    @property
    def host(self):
        return "127.0.0.1:%d" % self.listener.getsockname()[1]

    def close(self):
        self.listener.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture(scope="module")
def hanging():
    server = Hanging()
    yield server
    server.close()


@pytest.fixture(scope="module")
def node(open_registry, closed_registry, hanging):
    allowed = [f"--allow-registry=http://{host}" for host in (open_registry.host, closed_registry.host, hanging.host)]
    server = Server(allowed, name="pull").start()
    yield server
    complaints = server.close()
    assert not complaints, complaints


def start_pull(api, name, reference, authfile=None, **query):
    body = json.dumps(authfile).encode() if authfile else b""
    return api.raw("POST", "/v1/images", body, {"Content-Type": "application/json"}, {"name": name, "source": "docker://" + reference, **query})


def finished(api, answer, seconds=60):
    assert answer.status == 202, answer
    deadline = time.monotonic() + seconds
    while True:
        operation = api.must("GET", f"/v1/operations/{answer.json['operation_id']}", query={"wait_ms": 2000})
        if operation["state"] not in ("running", "cancelling"):
            return operation
        assert time.monotonic() < deadline, operation


def pulled(api, name, reference, **options):
    operation = finished(api, start_pull(api, name, reference, **options))
    assert operation["state"] == "succeeded", operation
    return operation["result"]


def refused(api, reference, **options):
    operation = finished(api, start_pull(api, "never:1", reference, **options))
    assert operation["state"] == "failed", operation
    return operation["error"]


def nothing_left(node, kept=()):
    assert list((node.data / "import").iterdir()) == []
    assert node.api.must("GET", "/v1/images")["items"] == [] or kept


def layout_of(*layers, **settings):
    layout = oci.Layout()
    layout.image(list(layers), **settings)
    return layout


def test_a_pull_fetches_the_layers_that_are_not_here(node, open_registry, tmp_path):
    api = node.api
    base = images.tiny_tar()
    first, second = layout_of(base, SHARED, own_layer("one"), config={"WorkingDir": "/work"}), layout_of(base, SHARED, own_layer("two"))
    open_registry.push(first, "team/app:1", tmp_path / "a")
    open_registry.push(second, "team/app:2", tmp_path / "b")

    one = pulled(api, "app:1", f"{open_registry.host}/team/app:1")
    before = len(open_registry.fetched())
    two = pulled(api, "app:2", f"{open_registry.host}/team/app:2")

    assert (one["image_layers"], one["reused_layers"], two["reused_layers"]) == (3, 0, 2)
    assert one["source"] == f"docker://{open_registry.host}/team/app:1"
    shared = {digest for digest in first.blobs if digest in second.blobs}
    fetched = set(open_registry.fetched()[before:])
    assert fetched and not fetched & shared, "layers that are here travel no second time"
    box = api.create("app:1", resources={"memory_mb": 256, "disk_mb": 256})
    assert box.sh("pwd; sha256sum /shared /own | cut -c1-8").out.split()[0] == "/work"
    box.delete()
    for name in ("app:1", "app:2"):
        api.must("DELETE", f"/v1/images/{name}")
    assert list((node.data / "layers").iterdir()) == []


def test_a_docker_manifest_and_an_index_and_a_digest_are_pulled(node, open_registry, tmp_path):
    api = node.api
    layout = layout_of(SHARED, own_layer("v2"))
    open_registry.push(layout, "v2:1", tmp_path / "v2", "--format=v2s2")
    both = layout_of(SHARED)
    both.image([own_layer("arm")], architecture="arm64")
    open_registry.push(both, "multi:1", tmp_path / "multi")

    assert pulled(api, "v2:1", f"{open_registry.host}/v2:1")["image_layers"] == 2
    assert pulled(api, "v2:again", f"{open_registry.host}/v2:1")["reused_layers"] == 2
    assert pulled(api, "multi:1", f"{open_registry.host}/multi:1")["architecture"] == "amd64"
    assert pulled(api, "multi:arm", f"{open_registry.host}/multi:1", architecture="arm64")["architecture"] == "arm64"
    assert refused(api, f"{open_registry.host}/multi:1", architecture="s390x")["code"] == "unsupported"
    digest = both.manifests[0]["digest"]
    assert pulled(api, "multi:pinned", f"{open_registry.host}/multi@{digest}")["digest"]
    for name in ("v2:1", "v2:again", "multi:1", "multi:arm", "multi:pinned"):
        api.must("DELETE", f"/v1/images/{name}")


def test_a_key_is_used_and_neither_kept_nor_told(node, closed_registry, tmp_path):
    api = node.api
    closed_registry.push(layout_of(own_layer("closed")), "closed:1", tmp_path / "closed")
    reference = f"{closed_registry.host}/closed:1"
    secret = base64.b64encode(b"reader:hunter2-secret").decode()
    auth = {"auths": {closed_registry.host: {"auth": secret}}}

    assert refused(api, reference)["code"] == "permission_denied"
    wrong = {"auths": {closed_registry.host: {"auth": base64.b64encode(b"reader:wrong").decode()}}}
    assert refused(api, reference, authfile=wrong)["code"] == "permission_denied"
    assert pulled(api, "closed:1", reference, authfile=auth)["image_layers"] == 1

    for word in (b"hunter2-secret", secret.encode()):
        assert word not in node.log_file.read_bytes()
        for path in node.data.rglob("*"):
            if path.is_file() and path.stat().st_size < 32 << 20:
                assert word not in path.read_bytes(), path
    api.must("DELETE", "/v1/images/closed:1")


def test_only_registries_that_the_operator_allows_are_asked(node, api, open_registry):
    for reference in ("registry.example/x:1", "127.0.0.1:1/x:1", "localhost/x:1"):
        assert refused(node.api, reference)["code"] == "permission_denied", reference
    assert refused(api, f"{open_registry.host}/team/app:1")["code"] == "permission_denied", "a node without --allow-registry"
    for wrong in ("", "debian:12", "A/B", "x y", "-x"):
        assert start_pull(node.api, "x:1", wrong).status == 400, wrong
    assert start_pull(node.api, "x:1", "x", authfile=["no", "authfile"]).status == 400


def test_what_a_registry_gives_wrong_never_becomes_an_image(node, open_registry, tmp_path):
    layout = layout_of(SHARED, own_layer("broken"))
    open_registry.push(layout, "broken:1", tmp_path / "broken")
    blobs = sorted((len(data), digest) for digest, data in layout.blobs.items())
    blob = open_registry.blob_file(blobs[-1][1])
    whole = blob.read_bytes()
    reference = f"{open_registry.host}/broken:1"

    blob.write_bytes(whole[:1000] + b"?" + whole[1001:])
    assert refused(node.api, reference)["code"] in ("data_fault", "unavailable")
    blob.write_bytes(whole[:-100])
    assert refused(node.api, reference)["code"] in ("data_fault", "unavailable")
    blob.unlink()
    assert refused(node.api, reference)["code"] in ("data_fault", "unavailable", "not_found")
    assert refused(node.api, f"{open_registry.host}/broken:none")["code"] == "not_found"
    assert refused(node.api, f"{open_registry.host}/no/such:1")["code"] == "not_found"
    nothing_left(node)
    assert list((node.data / "layers").iterdir()) == []


def test_a_registry_that_hangs_can_be_left(node, hanging):
    answer = start_pull(node.api, "never:1", f"{hanging.host}/x:1")
    assert hanging.met.wait(30)

    node.api.call("DELETE", f"/v1/operations/{answer.json['operation_id']}")
    operation = finished(node.api, answer, seconds=20)

    assert operation["state"] == "cancelled", operation
    nothing_left(node)


def test_the_command_line_pulls(node, open_registry, tmp_path):
    open_registry.push(layout_of(own_layer("cli")), "team/cli:7", tmp_path / "cli")
    environment = {**os.environ, "HOME": str(tmp_path), "DSEC_URL": node.api.url, "DSEC_API_KEY": node.api.key}

    done = subprocess.run([BIN / "dsec", "image", "pull", f"{open_registry.host}/team/cli:7"], capture_output=True, text=True, timeout=90, env=environment)

    assert done.returncode == 0, done
    assert "team/cli:7  sha256:" in done.stdout
    node.api.must("DELETE", "/v1/images/team%2Fcli:7")
