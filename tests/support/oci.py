"""OCI images made by hand: layouts of gzip layers, for imports and for a registry."""
import gzip
import hashlib
import io
import json
import os
import tarfile

from support import images

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer_tar(files):
    """The tar of one layer: {name: bytes}; None is a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            images.add_directory(archive, name) if data is None else images.add_file(archive, name, data)
    return out.getvalue()


def noise(size, seed):
    """Bytes that no compression makes small, the same for one seed."""
    out = hashlib.shake_256(seed.encode()).digest(size)
    assert len(out) == size
    return out


class Layout:
    """The blobs of an OCI layout and its index; several images make an index of platforms."""

    def __init__(self):
        self.blobs = {}
        self.manifests = []

    def put(self, data):
        self.blobs[digest_of(data)] = data
        return {"digest": digest_of(data), "size": len(data)}

    def image(self, layers, architecture="amd64", config=None):
        """Adds an image; its manifest's descriptor."""
        described = [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **self.put(gzip.compress(tar, 1, mtime=0))} for tar in layers]
        settings = {"architecture": architecture, "os": "linux", "config": config or {},
                    "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in layers]}}
        configuration = {"mediaType": "application/vnd.oci.image.config.v1+json", **self.put(json.dumps(settings).encode())}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": configuration, "layers": described}
        entry = {"mediaType": MANIFEST, **self.put(json.dumps(manifest).encode()), "platform": {"os": "linux", "architecture": architecture}}
        self.manifests.append(entry)
        return entry

    def index(self):
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests}).encode()

    def tar(self):
        """The layout as one archive."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            images.add_file(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            images.add_file(archive, "index.json", self.index())
            for digest, data in self.blobs.items():
                images.add_file(archive, "blobs/sha256/" + digest[7:], data)
        return out.getvalue()

    def write(self, directory):
        """As a directory; several images are one index there, as registries have them."""
        index = self.index()
        if len(self.manifests) > 1:
            index = json.dumps({"schemaVersion": 2, "manifests": [{"mediaType": INDEX, **self.put(index)}]}).encode()
        os.makedirs(directory / "blobs" / "sha256")
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        (directory / "index.json").write_bytes(index)
        for digest, data in self.blobs.items():
            (directory / "blobs" / "sha256" / digest[7:]).write_bytes(data)
