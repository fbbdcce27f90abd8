"""Who is killed while he publishes, and what reads while a store's servers come and go."""
import hashlib
import io
import random
import shutil
import socket
import subprocess
import tarfile
import threading
import time

import pytest

from support import images
from support.api import wait_until
from support.moosefs import MooseFs, missing as no_moosefs
from support.server import BIN, Server
from support.versitygw import VersityGw, missing as no_versitygw

MIB = 1 << 20


class Valve:
    """Passes bytes to a server, and closes for those of clients once `limit` more of them have passed."""

    def __init__(self, port):
        self.port = port
        self.left = None  # None: open
        self.closed = threading.Event()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def close_after(self, limit):
        with self.lock:
            self.left = limit
            self.closed.clear()

    def open(self):
        with self.lock:
            self.left = None

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            self.sockets += [client, server]
            threading.Thread(target=self.carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(server, client, False), daemon=True).start()

    def carry(self, source, sink, counted):
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    stop = counted and self.left is not None and self.left < len(data)
                    if counted and self.left is not None:
                        self.left -= len(data)
                if stop:
                    self.closed.set()
                    while source.recv(1 << 16):  # until the client is gone
                        pass
                    break
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        for one in self.sockets:
            one.close()


def layer_tar(seed, megabytes):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        images.add_file(archive, "data", random.Random(seed).randbytes(megabytes * MIB))
    return out.getvalue()


def begin_import(server, name, tar):
    """An import that will not live to its end."""
    def run():
        try:
            images.import_tar(server.api, name, tar, what="layers", kind="toolkit")
        except Exception:  # whichever way the server's end shows
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def imported(server, name, tar):
    return images.import_tar(server.api, name, tar, what="layers", kind="toolkit")["digest"]


def collect(server):
    started = server.api.must("POST", "/v1/layers:gc", {"store": True, "dry_run": True, "delete_after_seconds": 0}, expect=202)
    return images.finish_operation(server.api, started)


def fetch(server, digest, seconds=150):
    done = subprocess.run([BIN / "dsec", "layer", "fetch", digest, f"taken:{digest[7:19]}"], timeout=seconds, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})
    return done.returncode, done.stdout


def taker_of(maker, store):
    taker = Server(["--store", store, "--store-cache-mb", "0"], name="taker")
    taker.data.mkdir(mode=0o700)
    shutil.copy(maker.data / "store.key", taker.data / "store.key")
    return taker.start()


def assert_every_object_is_whole(files):
    for path in files.rglob("*"):
        if path.is_file() and path.suffix in (".data", ".meta", ".index", ".lease") and ".sgwtmp" not in path.parts:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name.split(".")[0], path


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    if no_versitygw():
        pytest.skip("versitygw: " + no_versitygw())
    running = VersityGw(tmp_path_factory.mktemp("versitygw"))
    try:
        yield running.start()
    finally:
        running.close()


@pytest.mark.parametrize("what, megabytes, limit, left_behind", [("a PUT", 3, 1 * MIB, 0), ("an upload in parts", 36, 20 * MIB, 1)])
def test_a_client_killed_in(bucket, what, megabytes, limit, left_behind):
    valve = Valve(bucket.port)
    prefix = f"/killed{megabytes}"
    maker = Server(["--store", bucket.url(valve.endpoint, prefix=prefix)], name="killed").start()
    taker = None
    try:
        tar = layer_tar(what, megabytes)
        valve.close_after(limit)
        begun = begin_import(maker, "cut:1", tar)
        assert valve.closed.wait(60), "nothing was put"
        maker.kill()
        begun.join(30)
        valve.open()
        time.sleep(0.5)  # for the server to see its client's end
        assert_every_object_is_whole(bucket.files / prefix[1:])
        assert not list((bucket.files / prefix[1:]).rglob("*.json"))

        maker.start()
        seen = collect(maker)["leftovers"]
        assert seen["found"] == left_behind and seen["removed"] == 0, seen
        digest = imported(maker, "cut:2", tar)
        taker = taker_of(maker, bucket.url(prefix=prefix))
        code, said = fetch(taker, digest)
        assert code == 0, said
        assert taker.api.call("POST", f"/v1/layers/{digest}/verify").status == 200
        assert_every_object_is_whole(bucket.files / prefix[1:])
    finally:
        complaints = maker.close() + (taker.close() if taker else [])
        valve.close()
    assert not complaints


@pytest.fixture(scope="module")
def moosefs(tmp_path_factory):
    if no_moosefs():
        pytest.skip("MooseFS: " + no_moosefs())
    running = MooseFs(tmp_path_factory.mktemp("moosefs") / "fs")
    try:
        yield running.start()
    finally:
        running.close()


def test_a_client_killed_in_a_write_leaves_no_object_and_what_it_left_is_known(moosefs):
    store = moosefs.mounts[0] / "written"
    store.mkdir()
    maker = Server(["--store", str(store)], name="killed").start(fail_point="origin.directory.write=kill:4")
    taker = None
    try:
        tar = layer_tar("write", 16)
        begin_import(maker, "cut:1", tar).join(60)
        wait_until(lambda: maker.child.poll() is not None, 30, "the kill")
        left = list((store / ".incoming").iterdir())
        assert len(left) == 1 and 0 < left[0].stat().st_size < 16 * MIB, left
        assert_every_object_is_whole(moosefs.mounts[1] / "written")

        maker.start()
        assert collect(maker)["leftovers"]["found"] == 1
        digest = imported(maker, "cut:2", tar)
        taker = taker_of(maker, str(moosefs.mounts[1] / "written"))
        code, said = fetch(taker, digest)
        assert code == 0, said
        assert taker.api.call("POST", f"/v1/layers/{digest}/verify").status == 200
    finally:
        complaints = maker.close() + (taker.close() if taker else [])
    assert not complaints


def test_a_master_that_dies_while_nodes_read_costs_time_and_no_byte(moosefs):
    (moosefs.mounts[0] / "master").mkdir()
    maker = Server(["--store", str(moosefs.mounts[0] / "master")], name="maker").start()
    taker = None
    try:
        digests = [imported(maker, f"layer{i}:1", layer_tar(i, 12)) for i in range(4)]
        taker = taker_of(maker, str(moosefs.mounts[1] / "master"))
        answers = {}
        readers = [threading.Thread(target=lambda d=digest: answers.update({d: fetch(taker, d)})) for digest in digests]
        for reader in readers[:2]:
            reader.start()
        moosefs.kill("master")
        for reader in readers[2:]:
            reader.start()
        time.sleep(3)
        moosefs.start_master(recover=True)
        for reader in readers:
            reader.join(150)

        assert set(answers) == set(digests), "every call has ended"
        for digest, (code, said) in answers.items():
            deadline = time.monotonic() + 60
            while code != 0 and time.monotonic() < deadline:
                assert "dsec: " in said and digest.removeprefix("sha256:") in said, said
                code, said = fetch(taker, digest)
            assert code == 0, said
            assert taker.api.call("POST", f"/v1/layers/{digest}/verify").status == 200
    finally:
        complaints = maker.close() + (taker.close() if taker else [])
    assert not complaints
