"""The shared store on real engines, started by hand: the port's contract, and what happens when servers die."""
import os
import subprocess

import pytest

from support.moosefs import MooseFs, missing as no_moosefs
from support.server import BIN
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
    run_contract("bucket", {"DSEC_TEST_BUCKET": bucket.url(), "DSEC_TEST_BUCKET_FILES": str(bucket.files)})


def test_two_mounts_of_moosefs_keep_the_contract(moosefs):
    first, second = moosefs.mounts
    run_contract("mounts", {"DSEC_TEST_MOUNTS": f"{first}:{second}"})
