#!/usr/bin/python3
"""What ten images that share layers take: bench/store_size.py --base TAR [--form node|both] [--out DIR] [--scratch DIR].

TAR is a Debian system (mmdebstrap writes one). The layers above it are packages of this machine, file by file as
dpkg lists them; ten images stack them as people do. Each is imported as an OCI layout of gzip layers (level 6, as
registries have them) into a fresh server, once for each profile. Compared: all files of the layer store (form `node`) and all
objects of a shared store that keeps data compressed (form `at-rest`) with the gzip layers, each counted once. Needs root, build/release/bin, and the packages of LAYERS installed.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from harness import machine  # noqa: E402
from harness.dsec_api import Server  # noqa: E402

LAYERS = {
    "python": ["libpython3.11-stdlib", "python3.11-minimal", "python3-pip", "python3-setuptools"],
    "git": ["git", "git-man"],
    "gcc": ["gcc-12", "cpp-12", "binutils-x86-64-linux-gnu", "libgcc-12-dev", "libc6-dev"],
    "c++": ["g++-12", "libstdc++-12-dev"],
    "node": ["nodejs"],
    "java": ["openjdk-17-jre-headless"],
    "clang": ["clang-19", "libllvm19", "libclang-cpp19"],
}
IMAGES = {
    "base": [],
    "python": ["python"],
    "python-git": ["python", "git"],
    "git": ["git"],
    "c": ["git", "gcc"],
    "c++": ["git", "gcc", "c++"],
    "python-c": ["python", "git", "gcc", "project"],
    "node": ["git", "node"],
    "java": ["git", "java"],
    "clang": ["git", "gcc", "c++", "clang"],
}


def tar_of(packages):
    """The packages' files as one deterministic tar."""
    listed = subprocess.run(["dpkg", "-L", *packages], check=True, capture_output=True, text=True).stdout.split("\n")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted({line for line in listed if line.startswith("/") and line != "/." and os.path.lexists(line)}):
            tar.add(path, arcname=path[1:], recursive=False)
    return out.getvalue()


def project_tar():
    """A workspace of small files, as a last layer of one's own has them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i in range(2000):
            data = (f"# module {i}\n" + "value = 1\n" * (i % 97)).encode()
            info = tarfile.TarInfo(f"work/project/{i % 40}/{i}.py")
            info.size, info.mtime = len(data), 1_700_000_000
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Layers:
    """gzip blobs by name, with what manifests say of them."""

    def __init__(self, base):
        self.known = {}
        self.add("base", base.read_bytes())
        for name, packages in LAYERS.items():
            self.add(name, tar_of(packages))
        self.add("project", project_tar())

    def add(self, name, tar):
        blob = gzip.compress(tar, 6, mtime=0)
        self.known[name] = (blob, "sha256:" + hashlib.sha256(blob).hexdigest(), "sha256:" + hashlib.sha256(tar).hexdigest(), len(tar))
        print(f"layer {name}: {len(tar) >> 20} MiB, gzip {len(blob) >> 20} MiB", file=sys.stderr)

    def write_layout(self, names, directory):
        blobs = directory / "blobs" / "sha256"
        blobs.mkdir(parents=True)

        def put(data):
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return {"digest": "sha256:" + digest, "size": len(data)}
        chosen = [self.known[name] for name in ["base", *names]]
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [layer[2] for layer in chosen]}}
        manifest = {"schemaVersion": 2, "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **put(json.dumps(config).encode())},
                    "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **put(layer[0])} for layer in chosen]}
        entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", **put(json.dumps(manifest).encode())}
        (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


def stored_bytes(directory):
    return sum(path.stat().st_size for path in directory.iterdir())


def objects_by_kind(store):
    """Bytes of the shared store's objects, by what they are."""
    out = {}
    for path in store.glob("??/*"):
        out[path.suffix[1:]] = out.get(path.suffix[1:], 0) + path.stat().st_size
    return dict(sorted(out.items()))


def measure(layers, profile, binaries, scratch, at_rest):
    store = scratch / "store"
    store.mkdir()
    server = Server(binaries, scratch, arguments=["--store", f"{store}?at-rest={at_rest}", "--store-cache-mb", "0"] if at_rest else [])
    server.start()
    environment = {**os.environ, "DSEC_URL": server.url, "DSEC_API_KEY": server.key}
    steps = []
    try:
        for name, stack in IMAGES.items():
            layout = scratch / "layout"
            layers.write_layout(stack, layout)
            done = subprocess.run([binaries / "dsec", "image", "import", name.replace("+", "x") + ":1", f"oci:{layout}", "--profile", profile, "--json"],
                                  check=True, capture_output=True, text=True, env=environment)
            shutil.rmtree(layout)
            record = json.loads(done.stdout)
            steps.append({"image": name, "layers": record["image_layers"], "reused": record["reused_layers"], "store_bytes": stored_bytes(server.data / "layers"), **({"at_rest": objects_by_kind(store)} if at_rest else {})})
            print(f"{profile}: {name}: {record['reused_layers']} of {record['image_layers']} layers known", file=sys.stderr)
    finally:
        server.stop()
    return steps


def table(result):
    lines = ["# Store size of images that share layers", "",
             f"{result['machine']}, {result['date']}. Ten images of {result['distinct_layers']} distinct layers: their gzip layers take {result['gzip_bytes'] >> 20} MiB, "
             f"counted once; {result['gzip_bytes_each'] >> 20} MiB when each image has its own. Uncompressed tars: {result['tar_bytes'] >> 20} MiB.", "",
             "| profile | store | against distinct gzip layers | against gzip layers of each image |", "|---|---|---|---|"]
    for profile, steps in result["profiles"].items():
        size = steps[-1]["store_bytes"]
        lines.append(f"| {profile} | {size >> 20} MiB | **{size / result['gzip_bytes']:.2f}x** | {size / result['gzip_bytes_each']:.2f}x |")
    at_rest = {profile: steps[-1]["at_rest"] for profile, steps in result["profiles"].items() if "at_rest" in steps[-1]}
    for profile, kinds in at_rest.items():
        size = sum(kinds.values())
        lines.append(f"| {profile}, at rest | {size >> 20} MiB | **{size / result['gzip_bytes']:.2f}x** | {size / result['gzip_bytes_each']:.2f}x |")
    if at_rest:
        lines += ["", "At rest (`--store URL?at-rest=" + result["at_rest"] + "`), by kind of object:", ""]
        lines += [f"- {profile}: " + ", ".join(f"{kind} {size / 2**20:.1f} MiB" for kind, size in kinds.items()) for profile, kinds in at_rest.items()]
    lines += ["", "After each import:", "", "| image | layers | known | " + " | ".join(f"store, {profile}" for profile in result["profiles"]) + " |", "|---|---|---|" + "---|" * len(result["profiles"])]
    for rows in zip(*result["profiles"].values()):
        lines.append(f"| {rows[0]['image']} | {rows[0]['layers']} | {rows[0]['reused']} | " + " | ".join(f"{row['store_bytes'] >> 20} MiB" for row in rows) + " |")
    lines += ["", "The target of 1.0x is for the form at rest; the others are what nodes mount.", "Again: `bench/store_size.py --base TAR`."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=pathlib.Path, required=True)
    parser.add_argument("--form", choices=["node", "both"], default="both")
    parser.add_argument("--at-rest", default="zstd", help="as in --store URL?at-rest=: zstd, or zstd-19, which takes minutes")
    parser.add_argument("--profiles", nargs="+", choices=["lz4", "plain"], default=["lz4", "plain"])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks" / "full")
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    arguments = parser.parse_args()
    layers = Layers(arguments.base)
    names = {"base", *(name for stack in IMAGES.values() for name in stack)}
    host = machine.describe()
    result = {"machine": f"{host['processors']} x {host['processor']}, Linux {host['kernel']}", "date": host["taken_at"],
              "distinct_layers": len(names), "gzip_bytes": sum(len(layers.known[name][0]) for name in names),
              "gzip_bytes_each": sum(len(layers.known[name][0]) for stack in IMAGES.values() for name in ["base", *stack]),
              "tar_bytes": sum(layers.known[name][3] for name in names), "profiles": {}, "at_rest": arguments.at_rest}
    for profile in arguments.profiles:
        with tempfile.TemporaryDirectory(prefix="store-size-", dir=arguments.scratch) as scratch:
            result["profiles"][profile] = measure(layers, profile, arguments.binaries, pathlib.Path(scratch), arguments.at_rest if arguments.form != "node" else "")
    (arguments.out / "store_size.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
