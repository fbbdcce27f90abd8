"""The shared store on real engines, started by hand: the port's contract, what happens when servers die, and spoiled answers."""
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import time

import pytest

from support import images
from support.fault_proxy import FaultProxy
from support.moosefs import MooseFs, missing as no_moosefs
from support.server import BIN, Server
from support.versitygw import VersityGw, missing as no_versitygw

CONTRACT = BIN / "dsec_contract_origin_contract_test"
SECONDS = 240


def run_contract(adapter, environment):
    """Every test of the contract on one adapter; how many passed."""
    if not CONTRACT.exists():
        pytest.skip(f"no {CONTRACT}: build the tests first")
    done = subprocess.run([CONTRACT, f"--gtest_filter=*/{adapter}"], env={**os.environ, **environment}, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[  PASSED  ] 0 tests" not in done.stdout, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def moosefs(tmp_path_factory):
    if no_moosefs():
        pytest.skip("MooseFS: " + no_moosefs())
    running = MooseFs(tmp_path_factory.mktemp("moosefs") / "fs")
    try:
        yield running.start()
    finally:
        running.close()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    if no_versitygw():
        pytest.skip("versitygw: " + no_versitygw())
    running = VersityGw(tmp_path_factory.mktemp("versitygw"))
    try:
        yield running.start()
    finally:
        running.close()


def test_a_bucket_of_versitygw_keeps_the_contract(bucket):
    run_contract("bucket", {"DSEC_TEST_BUCKET": bucket.url()})


def probe(*arguments, code=0):
    done = subprocess.run([BIN / "dsec", "store", "probe", *map(str, arguments), "--json"], timeout=SECONDS, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == code, done.stdout + done.stderr
    return {row["check"]: row["finding"] for row in json.loads(done.stdout)}


def test_the_probe_says_what_versitygw_holds(bucket):
    rows = probe(bucket.url(prefix="/probe"))

    assert set(rows.values()) == {"holds"} and {"conditional PUT", "conditional upload in parts", "list of uploads", "cut-off PUT", "checksum header"} <= rows.keys(), rows
    assert not [path for path in bucket.files.rglob("*") if path.is_file() and "probe" in str(path)]


def test_the_probe_says_what_two_mounts_of_moosefs_hold(moosefs):
    rows = probe(moosefs.mounts[0], "--second", moosefs.mounts[1])

    # Its FUSE client knows no renameat2; link does as well.
    assert rows.pop("rename without replacing") == "noted"
    assert set(rows.values()) == {"holds"} and {"second mount", "O_DIRECT", "link without replacing"} <= rows.keys(), rows


def test_the_probe_refuses_what_is_no_store(tmp_path):
    assert probe(tmp_path / "absent", code=1) == {"open": "refused"}
    other = tmp_path / "other"
    store = tmp_path / "store"
    other.mkdir(), store.mkdir()
    assert "refused" in probe(store, "--second", other, code=1)["second mount"]


def test_two_mounts_of_moosefs_keep_the_contract(moosefs):
    first, second = moosefs.mounts
    run_contract("mounts", {"DSEC_TEST_MOUNTS": f"{first}:{second}"})


def layer_tar(seed, megabytes=3):
    """A toolkit of bytes that nothing makes smaller, other ones for each seed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        images.add_file(archive, "data", random.Random(seed).randbytes(megabytes << 20))
    return out.getvalue()


class Pair:
    """A node that makes layers, and one that takes them by another way to the same store."""

    def __init__(self, direct, other_way):
        self.maker = Server(["--store", direct], name="maker").start()
        self.taker = Server(["--store", other_way, "--store-cache-mb", "0"], name="taker")  # whole, at once
        self.taker.data.mkdir(mode=0o700)
        shutil.copy(self.maker.data / "store.key", self.taker.data / "store.key")
        self.taker.start()

    def made(self, seed):
        return images.import_tar(self.maker.api, f"layer{seed}:1", layer_tar(seed), what="layers", kind="toolkit")["digest"]

    def fetch(self, digest, seconds=200):
        """(exit code, what was said, how long it took)"""
        began = time.monotonic()
        done = subprocess.run([BIN / "dsec", "layer", "fetch", digest, "taken:1"], timeout=seconds, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={"DSEC_URL": self.taker.api.url, "DSEC_API_KEY": self.taker.api.key, "HOME": str(self.taker.directory)})
        return done.returncode, done.stdout, time.monotonic() - began

    def intact(self, digest):
        return self.taker.api.call("POST", f"/v1/layers/{digest}/verify").status == 200

    def left(self):
        return list((self.taker.data / "exchange").iterdir()) + list((self.taker.data / "layers").glob("*.data"))

    def close(self):
        complaints = self.taker.close() + self.maker.close()
        assert not complaints, "; ".join(complaints)


@pytest.fixture(scope="module")
def spoiled(bucket):
    """A pair whose taker reads through a fault proxy, and that proxy."""
    proxy = FaultProxy(bucket.port).start()
    pair = Pair(bucket.url(prefix="/pair"), bucket.url(proxy.endpoint, prefix="/pair"))
    yield pair, proxy
    proxy.spoil(None)
    pair.close()
    proxy.close()


@pytest.mark.parametrize("fault", ["short", "long", "wrong", "whole", "503", "reset"])
def test_a_spoiled_answer_is_asked_for_again_and_never_believed(spoiled, fault):
    pair, proxy = spoiled
    digest = pair.made(fault)

    proxy.spoil(fault)
    code, said, _ = pair.fetch(digest)
    assert code == 1 and proxy.spoiled > 0, said
    assert digest.split(":")[1] in said and not pair.left()

    proxy.spoil(fault, times=1)
    code, said, _ = pair.fetch(digest)
    assert (code, proxy.spoiled) == (0, 1), said
    assert pair.intact(digest)
    pair.taker.api.must("DELETE", "/v1/layers/taken:1")


def test_a_bucket_of_compressed_data_is_read_and_spoiled_frames_are_not_believed(bucket):
    proxy = FaultProxy(bucket.port).start()
    form = "&at-rest=zstd"
    pair = Pair(bucket.url(prefix="/zstd") + form, bucket.url(proxy.endpoint, prefix="/zstd"))
    try:
        digest = pair.made("zstd")
        assert list((bucket.files / "zstd").rglob("*.dataz")) and not list((bucket.files / "zstd").rglob("*.data"))
        proxy.spoil("wrong")
        code, said, _ = pair.fetch(digest)
        assert code == 1 and proxy.spoiled > 0 and not pair.left(), said
        proxy.spoil(None)
        code, said, _ = pair.fetch(digest)
        assert code == 0 and pair.intact(digest), said
    finally:
        proxy.spoil(None)
        pair.close()
        proxy.close()


def test_a_server_that_hangs_is_given_up(spoiled):
    pair, proxy = spoiled
    digest = pair.made("hang")

    proxy.spoil("hang")
    code, said, took = pair.fetch(digest)

    assert code == 1 and took < 100, (said, took)
    assert not pair.left()


def test_a_slow_store_is_waited_for(spoiled):
    pair, proxy = spoiled
    digest = pair.made("slow")

    proxy.spoil("slow")
    code, said, _ = pair.fetch(digest)

    assert code == 0, said
    assert pair.intact(digest)
    pair.taker.api.must("DELETE", "/v1/layers/taken:1")


def test_dead_chunkservers_cost_one_a_delay_and_all_an_error(moosefs):
    store = moosefs.mounts[0] / "store"
    store.mkdir()
    pair = Pair(str(store), str(moosefs.mounts[1] / "store"))
    try:
        one, all_dead = pair.made("one"), pair.made("all")
        moosefs.kill("chunks1")
        code, said, _ = pair.fetch(one)
        assert code == 0, said
        assert pair.intact(one)
        pair.taker.api.must("DELETE", "/v1/layers/taken:1")

        moosefs.kill("chunks2")
        code, said, took = pair.fetch(all_dead)
        assert code == 1 and took < 120, (said, took)
        assert not pair.left()

        moosefs.start_chunkserver(1)
        moosefs.start_chunkserver(2)
        deadline = time.monotonic() + 90
        while code != 0 and time.monotonic() < deadline:
            code, said, _ = pair.fetch(all_dead)
        assert code == 0, said
        assert pair.intact(all_dead)
    finally:
        pair.close()
