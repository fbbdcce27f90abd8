"""Fixtures of the end-to-end suites: one server a suite, images imported once."""
import os
import pathlib
import shutil

import pytest

from support import images
from support.server import BIN, Server


def pytest_collection_modifyitems(config, items):
    reason = None
    if os.geteuid() != 0:
        reason = "containers need root"
    elif not (BIN / "dsec").exists():
        reason = f"no {BIN}/dsec: build the release preset first"
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def server():
    running = Server().start()
    yield running
    complaints = running.close()
    assert not complaints, "the server did not go away cleanly: " + "; ".join(complaints)


@pytest.fixture(scope="session")
def api(server):
    return server.api


@pytest.fixture(scope="session")
def tiny(api):
    """Name of the busybox base."""
    if shutil.which("busybox") is None:
        pytest.skip("busybox-static is not installed")
    images.import_tar(api, "tiny:1", images.tiny_tar())
    return "tiny:1"


@pytest.fixture(scope="session")
def debian(api):
    """Name of the Debian base, with the probe as a toolkit `probe:1` beside it."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    images.import_tar(api, "debian-test:12", images.debian_tar())
    return "debian-test:12"


@pytest.fixture(scope="session")
def host_probe():
    """The probe program on the host, for negative controls."""
    return images.build_probe()


class Boxes:
    """Makes sandboxes and deletes all of them at the end of the test."""

    def __init__(self, api, image):
        self._api = api
        self._image = image
        self._made = []

    def __call__(self, image=None, **spec):
        spec.setdefault("resources", {"memory_mb": 256, "disk_mb": 256, "max_processes": 128})
        box = self._api.create(image or self._image, **spec)
        self._made.append(box)
        return box

    def close(self):
        for box in self._made:
            answer = box.delete()
            assert answer.status in (200, 202, 204, 404), f"delete of {box.id}: {answer}"


@pytest.fixture
def boxes(api, tiny):
    maker = Boxes(api, tiny)
    yield maker
    maker.close()


@pytest.fixture
def box(boxes):
    """One sandbox of the tiny base, fresh for this test."""
    return boxes()


@pytest.fixture(scope="module")
def shared_box(api, tiny):
    """One sandbox for tests that leave no trace in it."""
    maker = Boxes(api, tiny)
    yield maker()
    maker.close()


@pytest.fixture(scope="module")
def debian_box(api, debian):
    maker = Boxes(api, debian)
    box = maker(resources={"memory_mb": 1024, "disk_mb": 2048, "max_processes": 512, "cpu_cores": 2})
    box.write_file("/probe", pathlib.Path(images.build_probe()).read_bytes(), mode=0o755)
    yield box
    maker.close()
