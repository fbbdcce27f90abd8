"""Two nodes and the store between them."""
import io
import pathlib
import subprocess
import tarfile

import pytest

from support import images
from support.api import key_of
from support.server import BIN, Server


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def nodes(store):
    """Two servers on one store; the second one trusts the first."""
    first = Server(["--store", str(store)], name="first").start()
    public = subprocess.run(["openssl", "pkey", "-in", first.data / "store.key", "-pubout"], check=True, stdout=subprocess.PIPE).stdout
    trust = first.directory / "trusted.pub"
    trust.write_bytes(public)
    second = Server(["--store", str(store), "--store-trust", str(trust)], name="second").start()
    yield first, second
    complaints = second.close() + first.close()
    assert not complaints, "; ".join(complaints)


def dsec(server, *arguments):
    return subprocess.run([BIN / "dsec", *arguments], timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})


def toolkit_tar(content):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        images.add_file(archive, "tool", content)
    return out.getvalue()


def objects(store, suffix):
    return sorted(path for path in pathlib.Path(store).glob("??/*") if path.suffix == suffix)


@pytest.fixture(scope="module")
def layer(nodes):
    """A base that the first node has imported."""
    return images.import_tar(nodes[0].api, "tiny:1", images.tiny_tar())


def test_an_import_is_in_the_store_at_once(nodes, layer, store):
    manifests = [path.stem for path in objects(store, ".json")]

    assert layer["digest"].removeprefix("sha256:") in manifests
    assert len(objects(store, ".data")) == len(objects(store, ".index")) >= 1


def test_another_node_takes_it_by_digest_and_runs_it(nodes, layer):
    second = nodes[1]

    fetched = dsec(second, "layer", "fetch", layer["digest"], "from-store:1")
    ran = dsec(second, "run", "--rm", "--image", "from-store:1", "--", "/bin/sh", "-c", "echo here; id -u")

    assert fetched.returncode == 0, fetched.stdout
    assert (ran.returncode, ran.stdout) == (0, "here\n0\n"), ran.stdout


def test_a_layer_that_a_node_lost_comes_back_when_a_sandbox_needs_it(nodes, layer):
    first = nodes[0]
    first.stop()
    for path in (first.data / "layers").glob(layer["digest"].removeprefix("sha256:") + ".*"):
        path.unlink()
    first.start()

    ran = dsec(first, "run", "--rm", "--image", "tiny:1", "--", "echo", "back")

    assert (ran.returncode, ran.stdout) == (0, "back\n"), ran.stdout


def test_sync_puts_back_what_the_store_lost(nodes, layer, store):
    first = nodes[0]
    for path in objects(store, ".json"):
        path.unlink()

    synced = dsec(first, "layer", "sync", "tiny:1")

    assert synced.returncode == 0, synced.stdout
    assert layer["digest"].removeprefix("sha256:") in [path.stem for path in objects(store, ".json")]
    assert dsec(first, "layer", "sync", "tiny:1", "--to", "nowhere").returncode == 1


def test_a_digest_is_no_right(nodes, layer):
    first = nodes[0]
    own = images.import_tar(first.api, "tool:1", toolkit_tar(b"hidden"), what="layers", kind="toolkit")
    _, stranger = key_of(first.api)
    _, owner = key_of(first.api)
    theirs = images.import_tar(owner, "tool:1", toolkit_tar(b"theirs"), what="layers", kind="toolkit")

    fetched = stranger.call("POST", f"/v1/layers/{layer['digest']}/fetch", query={"name": "mine:1"})
    synced = stranger.call("POST", f"/v1/layers/{theirs['digest']}/sync")
    shared = stranger.call("POST", f"/v1/layers/{own['digest']}/sync")

    assert (fetched.status, synced.status) == (403, 404)
    assert shared.status == 202, "the default project's layers are everybody's"


def test_a_layer_whose_bytes_were_changed_is_refused(nodes, layer, store):
    first, second = nodes
    other = images.import_tar(first.api, "other:1", toolkit_tar(b"other"), what="layers", kind="toolkit")
    metadata = next(path for path in objects(store, ".meta") if path.stem == other["digest"].removeprefix("sha256:"))
    good = metadata.read_bytes()
    metadata.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    fetched = dsec(second, "layer", "fetch", other["digest"], "changed:1")

    assert fetched.returncode == 1 and "sha256" in fetched.stdout, fetched.stdout
    assert not list((second.data / "layers").glob(other["digest"].removeprefix("sha256:") + ".*"))
    assert not list((second.data / "exchange").iterdir())


def test_a_node_that_trusts_nobody_takes_nothing(nodes, layer, store):
    alone = Server(["--store", str(store)], name="alone").start()
    try:
        fetched = dsec(alone, "layer", "fetch", layer["digest"], "mine:1")
    finally:
        complaints = alone.close()

    assert fetched.returncode == 1 and "signed by no key" in fetched.stdout, fetched.stdout
    assert not complaints


def test_serve_refuses_a_store_that_is_none(nodes):
    for arguments in (["--store", "ftp://x"], ["--store", "/nowhere/at/all"], ["--store", "s3://b"], ["--store-trust", "/etc/passwd"]):
        done = subprocess.run([BIN / "dsec", "serve", "--listen", "127.0.0.1:0", "--data-dir", nodes[0].directory / "none", *arguments],
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode != 0 and "store" in done.stdout, done.stdout
