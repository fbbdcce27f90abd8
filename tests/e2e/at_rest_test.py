"""A store that keeps data compressed, shared by nodes of both settings."""
import subprocess

import pytest

from support import images
from support.server import BIN, Server


def objects(store, suffix):
    return sorted(path for path in store.glob("??/*") if path.suffix == suffix)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def nodes(store):
    """One that compresses and copies layers whole, one that does not and reads them on demand."""
    packer = Server(["--store", f"{store}?at-rest=zstd-12", "--store-cache-mb", "0"], name="packer").start()
    trust = packer.directory / "trusted.pub"
    trust.write_bytes(subprocess.run(["openssl", "pkey", "-in", packer.data / "store.key", "-pubout"], check=True, stdout=subprocess.PIPE).stdout)
    plain = Server(["--store", str(store), "--store-trust", str(trust)], name="plain").start()
    yield packer, plain
    complaints = plain.close() + packer.close()
    assert not complaints, "; ".join(complaints)


@pytest.fixture(scope="module")
def layer(nodes):
    return images.import_tar(nodes[0].api, "tiny:1", images.tiny_tar())


def dsec(server, *arguments):
    return subprocess.run([BIN / "dsec", *arguments], timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(server.directory)})


def test_data_and_metadata_are_stored_compressed_and_all_else_as_it_is(nodes, layer, store):
    for kind in (".data", ".meta"):
        packed = objects(store, kind + "z")
        assert len(packed) == 1 and not objects(store, kind)
        here = nodes[0].data / "layers" / (packed[0].stem + kind)
        assert packed[0].stat().st_size < here.stat().st_size * 0.9
    assert objects(store, ".index") and objects(store, ".json")


def test_a_node_of_the_other_setting_reads_it_on_demand(nodes, layer):
    plain = nodes[1]

    fetched = dsec(plain, "layer", "fetch", layer["digest"], "from-store:1")
    ran = dsec(plain, "run", "--rm", "--image", "from-store:1", "--", "/bin/sh", "-c", "echo here; id -u")

    assert fetched.returncode == 0, fetched.stdout
    assert (ran.returncode, ran.stdout) == (0, "here\n0\n"), ran.stdout


def test_what_is_there_in_one_form_is_not_stored_in_the_other(nodes, layer, store):
    again = images.import_tar(nodes[1].api, "same:1", images.tiny_tar())

    assert again["digest"] == layer["digest"]
    assert dsec(nodes[1], "layer", "sync", "same:1").returncode == 0
    for kind in (".data", ".meta"):
        assert len(objects(store, kind + "z")) == 1 and not objects(store, kind)


@pytest.mark.parametrize("kind", [".dataz", ".metaz"])
def test_frames_that_were_changed_are_an_error_and_no_other_bytes(nodes, layer, store, kind):
    data, = objects(store, kind)
    good = data.read_bytes()
    data.write_bytes(good[:-800] + bytes(800))
    fresh = Server(["--store", str(store), "--store-trust", str(nodes[0].directory / "trusted.pub"), "--store-cache-mb", "0"], name="fresh").start()
    try:
        fetched = dsec(fresh, "layer", "fetch", layer["digest"], "changed:1")
        left = list((fresh.data / "layers").glob("*.data"))
        data.write_bytes(good)
        mended = dsec(fresh, "layer", "fetch", layer["digest"], "mended:1")
    finally:
        data.write_bytes(good)
        complaints = fresh.close()

    assert fetched.returncode == 1 and data.stem in fetched.stdout, fetched.stdout
    assert not left and mended.returncode == 0, mended.stdout
    assert not complaints


@pytest.mark.parametrize("form", ["gzip", "zstd-0", "zstd-20", "zstd-"])
def test_a_form_that_is_none_is_refused(nodes, form):
    done = subprocess.run([BIN / "dsec", "serve", "--listen", "127.0.0.1:0", "--data-dir", nodes[0].directory / "none", "--store", f"/var/tmp?at-rest={form}"],
                          timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    assert done.returncode != 0 and "at-rest" in done.stdout, done.stdout
