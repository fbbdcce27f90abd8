"""Images of several layers: what they share, what is left of them, whom they are for."""
import pytest

from support import images, oci
from support.api import key_of
from support.server import Server

SHARED = {"shared": oci.noise(700_000, "shared")}


@pytest.fixture(scope="module")
def busybox_layer():
    return images.tiny_tar()


def layout_of(*layers, **settings):
    layout = oci.Layout()
    layout.image(list(layers), **settings)
    return layout


def import_oci(api, name, archive, **query):
    return api.raw("POST", "/v1/images", archive, {"Content-Type": "application/x-tar"}, {"name": name, "format": "oci", **query})


def stored(server):
    return sorted(path.name for path in (server.data / "layers").iterdir())


@pytest.fixture(scope="module")
def own_server():
    server = Server(name="oci").start()
    yield server
    complaints = server.close()
    assert not complaints, complaints


def test_images_share_the_layers_that_they_have_in_common(own_server, busybox_layer):
    api = own_server.api
    shared = oci.layer_tar(SHARED)
    first = import_oci(api, "first:1", layout_of(busybox_layer, shared, oci.layer_tar({"own": oci.noise(500_000, "one")})).tar())
    assert first.status == 201, first
    before = stored(own_server)

    second = import_oci(api, "second:1", layout_of(busybox_layer, shared, oci.layer_tar({"own": oci.noise(500_000, "two"), "canary": b"second\n"})).tar())

    assert second.status == 201, second
    assert (first.json["image_layers"], first.json["reused_layers"]) == (3, 0)
    assert (second.json["image_layers"], second.json["reused_layers"]) == (3, 2)
    assert second.json["reused_bytes"] > 700_000
    new = set(stored(own_server)) - set(before)
    assert sum(name.endswith(".data") for name in new) == 1, "the own layer alone"
    box = api.create("second:1", resources={"memory_mb": 256, "disk_mb": 256})
    assert box.sh("cat /canary; sha256sum /shared | cut -c1-8").out.split() == ["second", oci.digest_of(SHARED["shared"])[7:15]]
    box.delete()
    for name in ("first:1", "second:1"):
        assert api.raw("DELETE", f"/v1/images/{name}").status == 204
    assert stored(own_server) == []


def test_another_projects_image_saves_no_upload_and_no_proof(own_server, busybox_layer):
    api = own_server.api
    archive = layout_of(busybox_layer, oci.layer_tar(SHARED)).tar()
    theirs = key_of(api)[1]
    assert import_oci(theirs, "secret:1", archive).json["reused_layers"] == 0

    mine = import_oci(api, "mine:1", archive)

    assert mine.status == 201 and mine.json["reused_layers"] == 0, "what they have is nothing that I may learn"
    assert api.raw("DELETE", "/v1/images/mine:1").status == 204
    assert theirs.raw("DELETE", "/v1/images/secret:1").status == 204
    assert stored(own_server) == []


def test_an_index_is_resolved_by_architecture_and_runs_nowhere_else(own_server, busybox_layer):
    api = own_server.api
    layout = oci.Layout()
    layout.image([busybox_layer])
    layout.image([oci.layer_tar({"arm": b"arm\n"})], architecture="arm64")

    ours = import_oci(api, "multi:1", layout.tar())
    arm = import_oci(api, "multi:arm", layout.tar(), architecture="arm64")
    missing = import_oci(api, "multi:s390x", layout.tar(), architecture="s390x")

    assert (ours.json["architecture"], arm.json["architecture"]) == ("amd64", "arm64")
    assert (missing.status, missing.error["code"]) == (501, "unsupported")
    refused = api.raw("POST", "/v1/sandboxes", b'{"image":"multi:arm"}', {"Content-Type": "application/json"})
    assert (refused.status, refused.error["code"]) == (501, "unsupported"), refused
    assert "arm64" in refused.error["message"]
    for name in ("multi:1", "multi:arm"):
        assert api.raw("DELETE", f"/v1/images/{name}").status == 204


@pytest.mark.parametrize("point", ["image.import.part", "image.publish.data", "image.publish.image", "image.publish.record", "image.import.publish"])
def test_a_crash_in_the_middle_of_an_import_leaves_nothing(busybox_layer, point):
    server = Server(name="oci-crash").start(fail_point=f"{point}=kill:1")
    try:
        with pytest.raises(OSError):
            import_oci(server.api, "x:1", layout_of(busybox_layer, oci.layer_tar(SHARED)).tar())
        server.child.wait(20)

        server.start()

        assert stored(server) == []
        assert list((server.data / "import").iterdir()) == []
        again = import_oci(server.api, "x:1", layout_of(busybox_layer, oci.layer_tar(SHARED)).tar())
        assert again.status == 201, again
    finally:
        complaints = server.close()
    assert not complaints, complaints
