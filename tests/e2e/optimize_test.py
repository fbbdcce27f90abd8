"""Layers laid out anew by what was read of them: fewer bytes come from the store, and the same files."""
import base64
import io
import json
import os
import random
import shutil
import struct
import subprocess
import tarfile
import time

import pytest

from support import images
from support.api import end_of, key_of
from support.server import BIN, Server

CHUNK, PAGE = 256 << 10, 4096
FILES, FILE_BYTES, LARGE_BYTES = 400, 40 << 10, 24 << 20
READ_AHEAD = 32  # pages that the kernel reads where somebody begins to read
SPOTS = (1, 5, 9, 13, 17, 21)
WANTED = sorted(random.Random(5).sample(range(FILES), 24))
JOB = "cat {} > /dev/null; for i in {}; do dd if=/large bs=4096 skip=$((i * 256)) count=2 status=none | md5sum; done".format(" ".join(f"/data/{i}" for i in WANTED), " ".join(map(str, SPOTS)))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def maker(store):
    server = Server(["--store", str(store), "--stop-sandboxes"], name="maker").start()
    yield server
    complaints = server.close()
    assert not complaints, "; ".join(complaints)


@pytest.fixture(scope="module")
def base(maker):
    out = io.BytesIO(images.tiny_tar())
    with tarfile.open(fileobj=out, mode="a") as archive:
        for number in range(FILES):
            images.add_file(archive, f"data/{number}", os.urandom(FILE_BYTES))
        images.add_file(archive, "large", os.urandom(LARGE_BYTES))
    return images.import_tar(maker.api, "big:1", out.getvalue(), profile="plain")


def cli(server, *arguments):
    return subprocess.run([BIN / "dsec", *arguments], timeout=120, capture_output=True, text=True, check=False,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})


def run_job(store, maker, digest):
    """On a new node: what the job printed, and the node's numbers of the layer's data."""
    server = Server(["--store", str(store), "--store-traces", "off", "--stop-sandboxes"], name="node")
    server.data.mkdir(mode=0o700)
    shutil.copy(maker.data / "store.key", server.data / "store.key")
    server.start()
    try:
        done = cli(server, "layer", "fetch", digest, "big:1")
        assert done.returncode == 0, done.stdout + done.stderr
        result = server.api.create("big:1").sh(JOB)
        assert result.code == 0, result
        time.sleep(2.5)  # the numbers are renewed each second
        told = server.api.must("GET", "/v1/layers/big:1")["data"]
        doctor = cli(server, "doctor")
        return result.out, json.loads((server.data / "store" / "stats.json").read_text())["total"], told, doctor.stdout
    finally:
        complaints = server.close()
        assert not complaints, "; ".join(complaints)


def data_of(folder, digest):
    """The one data object of the layer, which its metadata names."""
    front = next(folder.glob(f"**/{digest[7:]}.meta")).read_bytes()[:PAGE]
    names = {path.stem for path in folder.glob("**/*.data") if path.stem.encode() in front}
    assert len(names) == 1
    return names.pop()


def trace_of(store, digest, pages):
    """A trace of these pages of the layer's data, all at once, as origin/access_trace.h describes it."""
    size = next(store.glob(f"??/{data_of(store, digest)}.data")).stat().st_size
    chunks = {}
    for page in pages:
        chunks.setdefault(page * PAGE // CHUNK, 0)
        chunks[page * PAGE // CHUNK] |= 1 << (page % (CHUNK // PAGE))
    head = b"DSECTRC1" + struct.pack("<IIQ", CHUNK, len(chunks), size)
    return head + b"".join(struct.pack("<IIQ", chunk, i, bits) for i, (chunk, bits) in enumerate(chunks.items()))


def pages_of_job(maker, digest):
    """Where the files of the job lie in the data file: their bytes are found there."""
    data = (maker.data / "layers" / f"{data_of(maker.data / 'layers', digest)}.data").read_bytes()
    box = maker.api.create("big:1")
    pages = []

    def add(path, begin, length):
        head = base64.b64decode(box.sh(f"dd if={path} bs=4096 skip={begin} count=1 status=none | base64 -w 0").out)
        at = data.find(head)
        assert at >= 0 and at % PAGE == 0, path
        pages.extend(range(at // PAGE, at // PAGE + length))

    for number in WANTED:
        add(f"/data/{number}", 0, FILE_BYTES // PAGE)
    for i in SPOTS:
        add("/large", i * 256, READ_AHEAD)
    box.delete()
    return pages


def test_a_layer_laid_out_by_its_trace_has_the_same_files_and_fetches_less(store, maker, base, tmp_path):
    trace = tmp_path / "trace"
    trace.write_bytes(trace_of(store, base["digest"], pages_of_job(maker, base["digest"])))
    printed, before, told, doctor = run_job(store, maker, base["digest"])
    assert [(one["whole"], one["fetched_bytes"], one["touched_bytes"], one["prefetch_off"]) for one in told] == [(False, before["fetched_bytes"], before["touched_bytes"], False)]
    assert "layers on demand" in doctor and "nothing ahead of readers" in doctor

    done = cli(maker, "layer", "optimize", "big:1", "--trace", str(trace), "--as", "big:hot", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    layer = json.loads(done.stdout)
    assert layer["optimized_from"] == base["digest"] != layer["digest"]
    assert layer["source"] == f"optimized from {base['digest']}"
    assert layer["touched_bytes"] == len(WANTED) * FILE_BYTES + len(SPOTS) * READ_AHEAD * PAGE
    assert layer["hot_bytes"] <= layer["touched_bytes"] * 1.4
    assert cli(maker, "layer", "verify", "big:hot").returncode == 0
    assert cli(maker, "layer", "diff", "big:1", "big:hot").stdout == ""
    same, after, _, _ = run_job(store, maker, layer["digest"])
    assert same == printed
    assert after["fetched_bytes"] < before["fetched_bytes"] / 2, (before, after)
    again = cli(maker, "layer", "optimize", "big:1", "--trace", str(trace), "--as", "big:again", "--json")
    assert json.loads(again.stdout)["digest"] == layer["digest"], "the same layer and trace make the same bytes"


def test_a_layer_that_is_whole_says_so(maker, base):
    told = maker.api.must("GET", "/v1/images/big:1")["data"]

    assert [one["whole"] for one in told] == [True]
    assert told[0]["digest"] == "sha256:" + data_of(maker.data / "layers", base["digest"])


def test_what_nodes_left_in_the_store_is_followed_and_the_name_moves(store, maker, base):
    pages = list(range(5000, 5040))
    name = data_of(store, base["digest"])
    (store / name[:2] / f"{name}.trace").write_bytes(trace_of(store, base["digest"], pages))
    try:
        refused = maker.api.call("POST", f"/v1/layers/{base['digest']}/optimize", {})
        assert refused.error["code"] == "invalid_argument", "a digest is no name for the result"

        done = cli(maker, "layer", "optimize", base["digest"], "--as", "big:traced")
        assert done.returncode == 0, done.stdout + done.stderr
        moved = cli(maker, "layer", "optimize", "big:traced", "--as", "big:traced")
    finally:
        (store / name[:2] / f"{name}.trace").unlink()

    assert "big:traced" in done.stdout and "that were read" in done.stdout
    assert moved.returncode != 0 and "no access trace" in moved.stderr, "the result has none yet"
    assert maker.api.create("big:traced").sh("md5sum < /large").out == maker.api.create("big:1").sh("md5sum < /large").out


@pytest.mark.parametrize("trace, code", [(b"nonsense", "invalid_argument"), (b"", "not_found")])
def test_a_trace_that_is_none_is_refused(maker, base, trace, code):
    answer = maker.api.must("POST", "/v1/layers/big:1/optimize", {"trace": base64.b64encode(trace).decode()}, query={"name": "big:bad"}, expect=202)

    outcome = end_of(maker.api, answer["operation_id"])

    assert outcome["error"]["code"] == code
    assert maker.api.call("GET", "/v1/layers/big:bad").status == 404


def test_what_is_no_trace_in_base64_and_unknown_fields_are_refused(maker, base):
    for body in ({"trace": "%%"}, {"traces": ""}, {"trace": 1}):
        assert maker.api.call("POST", "/v1/layers/big:1/optimize", body).error["code"] == "invalid_argument"


def test_only_builders_may_do_it(maker, base):
    _, runtime = key_of(maker.api, "runtime")
    assert runtime.call("POST", "/v1/layers/big:1/optimize", {}).status == 403


def test_a_server_killed_in_the_middle_leaves_nothing(store, maker, base, tmp_path):
    trace = tmp_path / "trace"
    trace.write_bytes(trace_of(store, base["digest"], range(0, 50)))
    before = sorted(path.name for path in (maker.data / "layers").iterdir())
    maker.stop()
    maker.start(fail_point="image.optimize.publish=kill")
    try:
        done = cli(maker, "layer", "optimize", "big:1", "--trace", str(trace), "--as", "big:never")
        assert done.returncode != 0
    finally:
        maker.start()

    assert sorted(path.name for path in (maker.data / "layers").iterdir()) == before
    assert list((maker.data / "import").iterdir()) == []
    assert cli(maker, "layer", "inspect", "big:never").returncode != 0
