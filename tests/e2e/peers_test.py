"""Nodes that read from one another before they ask a store that is slow."""
import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time

import pytest

from support import images, leftovers
from support.api import wait_until
from support.fault_proxy import FaultProxy
from support.registry import free_port
from support.server import BIN, Server
from support.versitygw import VersityGw, missing as no_versitygw

FILES, BIG = 4, 6 << 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    if no_versitygw():
        pytest.skip("versitygw: " + no_versitygw())
    running = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        yield running.start()
    finally:
        running.close()


class Fleet:
    """A bucket behind a slow proxy, a node that made the layer, and nodes of one key."""

    def __init__(self, directory):
        self.directory = directory
        self.bucket = VersityGw(directory / "gw")
        self.proxy = self.maker = None
        self.key, self.other_key = directory / "fleet.key", directory / "other.key"
        for key in (self.key, self.other_key):
            key.write_text(os.urandom(32).hex())
            key.chmod(0o600)
        self.trusted = directory / "trusted.pub"

    def start(self):
        self.bucket.start()
        self.proxy = FaultProxy(self.bucket.port).start()
        self.maker_port = free_port()
        self.maker = Server(["--store", self.bucket.url(prefix="/peers"), "--peer-listen", f"127.0.0.1:{self.maker_port}", "--fleet-key", str(self.key)], name="maker").start()
        out = io.BytesIO(images.tiny_tar())
        with tarfile.open(fileobj=out, mode="a") as archive:
            for number in range(FILES):
                images.add_file(archive, f"data/{number}", os.urandom(BIG))
        self.digest = images.import_tar(self.maker.api, "big:1", out.getvalue())["digest"]
        self.trusted.write_bytes(subprocess.run(["openssl", "pkey", "-in", self.maker.data / "store.key", "-pubout"], check=True, stdout=subprocess.PIPE).stdout)
        box = self.maker.api.create("big:1")
        self.sums = sums(box)
        box.delete()
        return self

    def close(self):
        complaints = self.maker.close() if self.maker else []
        if self.proxy:
            self.proxy.close()
        self.bucket.close()
        assert not complaints

    @contextlib.contextmanager
    def node(self, *ports, key=None, name="node"):
        """A node that has nothing, asks the peers at these ports, and may be asked at `port`."""
        port = free_port()
        peers = ["--peers", ",".join(f"http://127.0.0.1:{p}" for p in ports)] if ports else []
        server = Server(["--store", self.bucket.url(self.proxy.endpoint, prefix="/peers"), "--store-trust", str(self.trusted), "--store-traces", "off", "--stop-sandboxes",
                         "--peer-listen", f"127.0.0.1:{port}", "--fleet-key", str(key or self.key), *peers], name=name).start()
        server.peer_port = port
        try:
            done = subprocess.run([BIN / "dsec", "layer", "fetch", self.digest, "big:1"], timeout=60, capture_output=True, text=True, check=False,
                                  env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})
            assert done.returncode == 0, done.stdout + done.stderr
            yield server
        finally:
            self.proxy.spoil(None)
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(stored_pid(server), signal.SIGCONT)
            complaints = server.close()
        assert not complaints


def sums(box):
    done = box.sh(f"for i in $(seq 0 {FILES - 1}); do md5sum /data/$i || exit 9; done")
    assert done.code == 0
    return done.out


def stats(server):
    return json.loads((server.data / "store" / "stats.json").read_text())


def asked(server):
    """What the node has read, once its last second is told."""
    time.sleep(1.5)
    return stats(server)["asked_peers"]


def stored_pid(server):
    for pid in leftovers.processes_of(server.directory):
        with contextlib.suppress(OSError):
            if open(f"/proc/{pid}/comm", encoding="utf-8").read().strip() == "dsec-stored":
                return pid
    return None


def keeper_log(server):
    return (server.data / "run" / "keeper.log").read_text(errors="replace")


def test_a_node_reads_from_others_what_they_have_and_from_the_slow_store_the_rest(fleet):
    with fleet.node(name="first") as first, fleet.node(first.peer_port, name="second") as second:
        assert sums(first.api.create("big:1")) == fleet.sums
        fleet.proxy.spoil("slow")

        assert sums(second.api.create("big:1")) == fleet.sums

        seen = asked(second)
        assert seen["peer_bytes"] >= FILES * BIG > 9 * seen["store_bytes"] and seen["wrong"] == 0, seen
        assert stats(first)["served_peers"]["bytes"] >= seen["peer_bytes"]
        with fleet.node(first.peer_port, second.peer_port, name="third") as third:
            assert sums(third.api.create("big:1")) == fleet.sums
            seen = asked(third)
            assert seen["peer_bytes"] > 9 * seen["store_bytes"], seen


def test_peers_that_stand_still_or_die_while_one_reads_cost_time_and_no_byte(fleet):
    with fleet.node(name="still") as still, fleet.node(name="dying") as dying:
        for server in (still, dying):
            assert sums(server.api.create("big:1")) == fleet.sums
        with fleet.node(still.peer_port, dying.peer_port, name="reader") as reader:
            box = reader.api.create("big:1")
            fleet.proxy.spoil("slow")
            result = {}
            reading = threading.Thread(target=lambda: result.update(sums=sums(box)))
            reading.start()
            os.kill(wait_until(lambda: stored_pid(still), 20, "dsec-stored"), signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(wait_until(lambda: stored_pid(dying), 20, "dsec-stored"), signal.SIGKILL)
            reading.join(90)

            assert result.get("sums") == fleet.sums
            assert asked(reader)["faults"] > 0


def test_a_peer_that_lies_is_found_out_and_the_store_asked(fleet):
    victims = sorted((fleet.maker.data / "layers").glob("*.data"), key=lambda path: path.stat().st_size)
    with open(victims[-1], "r+b") as file:
        for at in range(0, victims[-1].stat().st_size, 256 << 10):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
    with fleet.node(fleet.maker_port, name="lied-to") as node:
        assert sums(node.api.create("big:1")) == fleet.sums
        seen = asked(node)
        assert seen["wrong"] == 1 and seen["store_bytes"] > 9 * seen["peer_bytes"], seen
        assert "a peer is left alone for a time" in keeper_log(node) and f"127.0.0.1:{fleet.maker_port}" in keeper_log(node)


def test_a_node_of_another_fleet_gets_nothing_and_works(fleet):
    with fleet.node(name="ours") as ours:
        assert sums(ours.api.create("big:1")) == fleet.sums
        with fleet.node(ours.peer_port, key=fleet.other_key, name="theirs") as theirs:
            assert sums(theirs.api.create("big:1")) == fleet.sums
            assert asked(theirs)["peer_bytes"] == 0
        told = stats(ours)["served_peers"]
        assert told["bytes"] == 0 and told["unsigned"] > 0, told
        assert fleet.key.read_text() not in ours.log_file.read_text() + keeper_log(ours) + (ours.data / "store" / "config.json").read_text()


def test_what_is_configured_of_peers_is_checked_at_the_start(fleet, tmp_path):
    readable, short = tmp_path / "readable", tmp_path / "short"
    readable.write_text("x" * 64), short.write_text("x")
    readable.chmod(0o644), short.chmod(0o600)
    peers, key, store = ["--peers", "http://127.0.0.1:1"], ["--fleet-key", str(fleet.key)], ["--store", str(tmp_path)]
    for arguments, words in (([*store, *peers], "--fleet-key goes with"), ([*store, *key], "--fleet-key goes with"), ([*peers, *key], "go with --store"),
                             ([*store, *peers, *key, "--store-cache-mb", "0"], "go with --store and its cache"),
                             ([*store, "--peers", "http://node:1", *key], "named by its address"), ([*store, "--peer-listen", "here", *key], "ADDRESS:PORT"),
                             ([*store, *peers, "--fleet-key", str(readable)], "others than its owner may read it"),
                             ([*store, *peers, "--fleet-key", str(short)], "32 bytes or more")):
        server = Server(arguments, name="no-peers")
        server.start(wait=False)
        assert server.child.wait(timeout=30) != 0
        assert words in server.log_tail(), server.log_tail()
        assert not server.close()
