"""From a first node's trace to a layer that the next nodes fetch little of; takes five minutes, most of them waiting."""
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import tarfile
import time

import pytest

from support import images
from support.api import wait_until
from support.server import BIN, Server

FILES, FILE_BYTES, LARGE_BYTES = 1500, 40 << 10, 48 << 20
WANTED = sorted(random.Random(5).sample(range(FILES), 150))
SPOTS = range(1, 48, 3)
JOB = "cat {} | md5sum; for i in {}; do dd if=/large bs=4096 skip=$((i * 256)) count=2 status=none | md5sum; done".format(
    " ".join(f"/data/{i}" for i in WANTED), " ".join(map(str, SPOTS)))
TRACE_SECONDS = 180  # a node writes it after two minutes


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def maker(store):
    server = Server(["--store", str(store), "--stop-sandboxes"], name="maker").start()
    yield server
    complaints = server.close()
    assert not complaints, "; ".join(complaints)


def cli(server, *arguments):
    done = subprocess.run([BIN / "dsec", *arguments], timeout=120, capture_output=True, text=True, check=False,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_job(store, maker, digest, leave_trace=False):
    """On a new node: what the job printed, and the node's numbers."""
    traces = set(store.glob("??/*.trace"))
    server = Server(["--store", str(store), "--stop-sandboxes"], name="node")
    server.data.mkdir(mode=0o700)
    shutil.copy(maker.data / "store.key", server.data / "store.key")
    server.start()
    try:
        cli(server, "layer", "fetch", digest, "big:1")
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        result = server.api.create("big:1").sh(JOB)
        assert result.code == 0, result
        time.sleep(2.5)  # the numbers are renewed each second
        numbers = json.loads((server.data / "store" / "stats.json").read_text())["total"]
        if leave_trace:
            wait_until(lambda: set(store.glob("??/*.trace")) - traces, TRACE_SECONDS, "a trace in the store")
        return result.out, numbers
    finally:
        complaints = server.close()
        assert not complaints, "; ".join(complaints)


def test_a_layer_laid_out_by_a_recorded_trace_is_fetched_little_beyond_what_is_touched(store, maker):
    out = io.BytesIO(images.tiny_tar())
    with tarfile.open(fileobj=out, mode="a") as archive:
        for number in range(FILES):
            images.add_file(archive, f"data/{number}", os.urandom(FILE_BYTES))
        images.add_file(archive, "large", os.urandom(LARGE_BYTES))
    base = images.import_tar(maker.api, "big:1", out.getvalue(), profile="plain")
    printed, before = run_job(store, maker, base["digest"], leave_trace=True)

    layer = json.loads(cli(maker, "layer", "optimize", "big:1", "--json"))
    first, without = run_job(store, maker, layer["digest"], leave_trace=True)
    second, after = run_job(store, maker, layer["digest"])

    ratios = {what: round(one["fetched_bytes"] / one["touched_bytes"], 2) for what, one in (("before", before), ("no trace yet", without), ("with a trace", after))}
    print(ratios, after["touched_bytes"])
    assert printed == first == second
    assert layer["optimized_from"] == base["digest"] and layer["ref"] == "big:1"
    assert ratios["with a trace"] <= 2.0 < ratios["before"], ratios
