"""The shared store on CephFS and radosgw: slow to start, so of the nightly run alone."""
import os
import subprocess

import pytest

from support.ceph import Ceph, missing
from support.server import BIN

CONTRACT = BIN / "dsec_contract_origin_contract_test"
SECONDS = 900

pytestmark = [pytest.mark.skipif("DSEC_CEPH" not in os.environ, reason="DSEC_CEPH is not set: the nightly stage ceph sets it"),
              pytest.mark.skipif(missing() is not None, reason=f"Ceph: {missing()}"),
              pytest.mark.skipif(not CONTRACT.exists(), reason=f"no {CONTRACT}: build the tests first")]


@pytest.fixture(scope="module")
def ceph(tmp_path_factory):
    running = Ceph(tmp_path_factory.mktemp("ceph") / "cluster")
    try:
        yield running.start()
    finally:
        running.close()


def run_contract(ceph, adapter, environment):
    done = subprocess.run(ceph.inside([CONTRACT, f"--gtest_filter=*/{adapter}"]), env={**os.environ, **environment}, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "[  PASSED  ] 0 tests" not in done.stdout, done.stdout


def probe(ceph, *arguments):
    return subprocess.run(ceph.inside([BIN / "dsec", "store", "probe", *arguments]), timeout=SECONDS, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_two_mounts_of_cephfs_keep_the_contract(ceph):
    first, second = ceph.mounts
    run_contract(ceph, "mounts", {"DSEC_TEST_MOUNTS": f"{first}:{second}"})


def test_a_bucket_of_radosgw_keeps_the_contract(ceph):
    run_contract(ceph, "bucket", {"DSEC_TEST_BUCKET": ceph.url(), "DSEC_TEST_MAKE_BUCKET": "1"})


def test_the_probe_refuses_neither(ceph):
    for arguments in ([ceph.mounts[0], "--second", ceph.mounts[1]], [ceph.url(prefix="/probe")]):
        done = probe(ceph, *arguments)
        assert done.returncode == 0, done.stdout


def test_one_dead_osd_stops_no_reader(ceph):
    first, second = ceph.mounts
    ceph.kill("osd1")
    run_contract(ceph, "mounts", {"DSEC_TEST_MOUNTS": f"{first}:{second}"})
    ceph.start_osd(1)
