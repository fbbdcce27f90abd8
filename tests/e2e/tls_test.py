"""Stores and registries behind TLS, vouched for by an authority that only the operator knows."""
import base64
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import threading
import time

import pytest

from support import images, oci
from support import registry as registries
from support.server import BIN, Server
from support.tls import Authority
from support.versitygw import VersityGw, missing as no_versitygw

WRONG = {"of another name": ({"names": "DNS:elsewhere.example"}, "mismatch"),
         "that has expired": ({"days": -1}, "has expired")}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def bucket_of(directory, certificate):
    if no_versitygw():
        pytest.skip("versitygw: " + no_versitygw())
    return VersityGw(directory, certificate).start()


def probe(url, environment=None):
    done = subprocess.run([BIN / "dsec", "store", "probe", url, "--json"], timeout=60, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **(environment or {})})
    return done.returncode, done.stdout


def test_a_bucket_behind_a_private_authority_is_used_when_its_file_is_named(tmp_path, authority):
    bucket = bucket_of(tmp_path / "gw", authority.certificate())
    server = None
    try:
        url = bucket.url(prefix="/tls")
        code, said = probe(url)
        assert code == 1 and "certificate of 127.0.0.1" in said and "is refused" in said, said
        other = Authority(tmp_path, "stranger")
        code, said = probe(f"{url}&ca={other.file}")
        assert code == 1 and "is refused" in said, said
        assert probe(f"{url}&ca={authority.file}")[0] == 0
        assert probe(url, {"SSL_CERT_FILE": str(authority.file)})[0] == 0

        server = Server(["--store", url, "--store-ca", str(authority.file)], name="tls-store").start()
        digest = images.import_tar(server.api, "tiny:1", images.tiny_tar())["digest"]
        assert list((bucket.files / "tls").rglob(digest.removeprefix("sha256:") + ".json"))
    finally:
        complaints = server.close() if server else []
        bucket.close()
    assert not complaints


@pytest.mark.parametrize("what", WRONG)
def test_a_bucket_with_a_certificate_that_does_not_hold_is_refused(tmp_path, authority, what):
    how, words = WRONG[what]
    bucket = bucket_of(tmp_path / "gw", authority.certificate(**how))
    try:
        code, said = probe(f"{bucket.url()}&ca={authority.file}")
        assert code == 1 and words in said, said
    finally:
        bucket.close()


def test_a_file_of_authorities_that_is_none_is_an_error_of_the_start(tmp_path, authority):
    wrong = tmp_path / "none.pem"
    wrong.write_text("-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n")
    (tmp_path / "credentials").write_text("aws_access_key_id=a\naws_secret_access_key=b\n")
    (tmp_path / "credentials").chmod(0o600)
    bucket = f"s3://layers?endpoint=https://127.0.0.1:1&credentials={tmp_path}/credentials"
    for arguments, words in ((["--store", f"{bucket}&ca={wrong}"], "not a PEM file of certificates"),
                             (["--store", f"{bucket}&ca={tmp_path}/absent"], "absent"),
                             (["--store", f"s3://layers?endpoint=http://127.0.0.1:1&ca={authority.file}"], "ca goes with"),
                             (["--store", str(tmp_path), "--store-ca", str(authority.file)], "--store-ca is for"),
                             (["--store", bucket, "--store-ca", str(wrong)], "not a PEM file of certificates"),
                             (["--registry-ca", str(authority.file)], "--allow-registry"),
                             (["--allow-registry", "registry.example", "--registry-ca", str(wrong)], "not a PEM file of certificates")):
        server = Server(arguments, name="no-ca")
        server.start(wait=False)
        assert server.child.wait(timeout=30) != 0
        assert words in server.log_tail(), server.log_tail()
        assert not server.close()


@pytest.fixture
def needs_registry():
    if registries.PROGRAM is None or shutil.which("skopeo") is None:
        pytest.skip("docker-registry or skopeo is not installed")


def pull(server, host, authfile=None):
    body = json.dumps(authfile).encode() if authfile else b""
    answer = server.api.raw("POST", "/v1/images", body, {"Content-Type": "application/json"}, {"name": "pulled:1", "source": f"docker://{host}/app:1"})
    assert answer.status == 202, answer
    deadline = time.monotonic() + 60
    while True:
        operation = server.api.must("GET", f"/v1/operations/{answer.json['operation_id']}", query={"wait_ms": 2000})
        if operation["state"] not in ("running", "cancelling"):
            return operation
        assert time.monotonic() < deadline, operation


@contextlib.contextmanager
def command_lines():
    """Those of all processes that are seen meanwhile."""
    seen, over = set(), threading.Event()

    def watch():
        while not over.is_set():
            for process in pathlib.Path("/proc").iterdir():
                if process.name.isdigit():
                    with contextlib.suppress(OSError):
                        seen.add((process / "cmdline").read_bytes())
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_a_registry_behind_a_private_authority_asks_for_a_key(tmp_path, authority, needs_registry):
    registry = registries.Registry(tmp_path, "reader", "hunter2-secret", authority.certificate())
    layout = oci.Layout()
    layout.image([images.tiny_tar()])
    registry.push(layout, "app:1", tmp_path / "layout")
    key = {"auths": {registry.host: {"auth": base64.b64encode(b"reader:hunter2-secret").decode()}}}
    stranger = Authority(tmp_path, "stranger")
    nodes = {}
    try:
        for name, arguments in {"with": ["--registry-ca", str(authority.file)], "stranger": ["--registry-ca", str(stranger.file)], "without": []}.items():
            nodes[name] = Server(["--allow-registry", registry.host, *arguments], name="pull-" + name).start()
        for name in ("stranger", "without"):
            failed = pull(nodes[name], registry.host, key)
            assert failed["state"] == "failed" and "certificate" in failed["error"]["message"], failed
        node = nodes["with"]
        assert pull(node, registry.host)["error"]["code"] == "permission_denied"
        with command_lines() as seen:
            assert pull(node, registry.host, key)["state"] == "succeeded"
        assert any(b"skopeo" in line for line in seen) and not any(b"hunter2" in line or key["auths"][registry.host]["auth"].encode() in line for line in seen)
        assert b"hunter2-secret" not in node.log_file.read_bytes()
    finally:
        complaints = [one for node in nodes.values() for one in node.close()]
        registry.close()
    assert not complaints


class Redirecting:
    """A registry's manifests, and another host for its blobs."""

    def __init__(self, registry):
        outer = self
        self.redirected = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.redirected += "/blobs/" in self.path
                self.send_response(307)
                self.send_header("Location", f"http://{registry.host}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_a_registry_leads_to_another_host_only_where_that_is_allowed_too(tmp_path, needs_registry):
    registry = registries.Registry(tmp_path)
    front = Redirecting(registry)
    layout = oci.Layout()
    layout.image([images.tiny_tar()])
    registry.push(layout, "app:1", tmp_path / "layout")
    alone = Server([f"--allow-registry=http://{front.host}"], name="alone").start()
    both = Server([f"--allow-registry=http://{front.host}", f"--allow-registry=http://{registry.host}"], name="both").start()
    try:
        failed = pull(alone, front.host)
        assert failed["state"] == "failed" and failed["error"]["code"] == "unavailable", failed
        assert pull(both, front.host)["state"] == "succeeded"
        assert front.redirected > 0
    finally:
        complaints = alone.close() + both.close()
        front.close()
        registry.close()
    assert not complaints
