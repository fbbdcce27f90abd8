#!/usr/bin/python3
"""A burst of sandboxes on a node that has none of their images: bench/burst.py [--images N] [--sandboxes N] [--mib-per-second N].

Images that share nothing lie in an S3 bucket (versitygw) behind the tests' fault proxy: each answer comes 300 us late,
and all of them share a line of a fixed width. A new node gets all sandboxes at once; each takes its image, reads a part
of it, computes, writes a file, and ends. On one side images are read on demand, on the other they are pulled whole
first (`--store-cache-mb 0`); same jobs, same order, the host's caches dropped before. Compared: until the last job is
over, and the bytes that the block device counted. What the ratio of the times is depends on the width of the line
beside the work of the jobs: both are printed. Needs root, a release build, mmdebstrap, versitygw or go, and disk for
twice the images.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from harness import machine  # noqa: E402
from harness.dsec_api import Call, Server, delete_call, expect  # noqa: E402
from harness.noise import Noise  # noqa: E402
from harness.samples import summary  # noqa: E402
from support import versitygw  # noqa: E402
from support.fault_proxy import FaultProxy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
DELAY_S = 300e-6
FILE_BYTES = 512 << 10
WRITTEN_MIB = 4
RESOURCES = {"cpu_cores": 1, "memory_mb": 512, "disk_mb": 512, "max_processes": 128}
SIDES = {"on demand": [], "whole": ["--store-cache-mb", "0"]}


def device_of(path):
    number = os.stat(path).st_dev
    return pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")


def counted_bytes(device):
    os.sync()
    fields = device.read_text().split()
    return {"read": int(fields[2]) * 512, "written": int(fields[6]) * 512}


def make_image(path, rootfs, files, seed):
    subprocess.run(["tar", "-C", rootfs, "--one-file-system", "-cf", path, "."], check=True)
    source = random.Random(seed)
    with tarfile.open(path, "a") as tar:
        mark = tarfile.TarInfo("./etc/image")  # what no other image has, in its metadata
        mark.size = 8
        tar.addfile(mark, Noise(8, source))
        for i in range(files):
            info = tarfile.TarInfo(f"./data/{i % 20}/{i}")
            info.size, info.mode, info.mtime = FILE_BYTES, 0o644, 1_700_000_000
            tar.addfile(info, Noise(FILE_BYTES, source))


def job(arguments, files):
    """Reads arguments.read_mib of the files, computes, writes."""
    chosen = random.Random(11).sample(range(files), (arguments.read_mib << 20) // FILE_BYTES)
    names = " ".join(f"/data/{i % 20}/{i}" for i in sorted(chosen))
    return (f"cat {names} | wc -c && perl -e '$n = 0; $n += $_ for 1..{int(arguments.job_loops)}; print qq($n\\n)' && "
            f"dd if=/dev/urandom of=/root/result bs=1M count={WRITTEN_MIB} status=none")


def prepare(arguments, work, gateway):
    """The images in the bucket: their digests, their bytes, and the public key of who put them there."""
    rootfs = pathlib.Path(os.environ.get("DSEC_BENCH_ROOTFS", "/var/tmp/dsec-bench/rootfs"))
    if not rootfs.exists():
        rootfs.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", rootfs], check=True)
    maker = Server(arguments.binaries, work, "maker", ["--store", gateway.url()])
    maker.start()
    digests, total = [], 0
    try:
        for number in range(arguments.images):
            tar = work / "image.tar"
            make_image(tar, rootfs, arguments.image_mib * (1 << 20) // FILE_BYTES, number)
            maker.command("image", "import", f"burst-{number}:1", str(tar), "--profile", "plain")
            record = json.loads(maker.command("image", "inspect", f"burst-{number}:1"))
            digests.append(record["digest"])
            total += record["size_bytes"]
            tar.unlink()
            maker.command("layer", "sync", f"burst-{number}:1")
            print(f"image {number + 1} of {arguments.images}", file=sys.stderr)
        public = work / "trusted.pub"
        public.write_bytes(subprocess.run(["openssl", "pkey", "-in", maker.data / "store.key", "-pubout"], check=True, stdout=subprocess.PIPE).stdout)
    finally:
        maker.stop()
        subprocess.run(["rm", "-rf", "--one-file-system", maker.data], check=False)
    return digests, total, public


def one_sandbox(number, digest, shell, begin, note):
    name = f"burst-{digest[7:19]}:1"
    started = expect((yield Call("POST", f"/v1/layers/{digest}/fetch?name={name}", {})), 202)
    while True:
        taken = expect((yield Call("GET", f"/v1/operations/{started['operation_id']}?wait_ms=20000")), 200)
        if taken["state"] not in ("running", "cancelling"):
            break
    if taken["state"] != "succeeded":
        raise RuntimeError(f"the image was not taken: {taken}")
    made = expect((yield Call("POST", "/v1/sandboxes", {"image": name, "resources": RESOURCES, "wait_ms": 300_000})), 201)
    try:
        done = expect((yield Call("POST", f"/v1/sandboxes/{made['id']}/exec", {"shell": shell, "wait_ms": 3_600_000, "timeout_ms": 3_600_000})), 200)
        if done["exit_code"] != 0:
            raise RuntimeError(f"the job: {done}")
        note({"sandbox": number, "done_s": time.perf_counter() - begin, "cpu_s": done["cpu_ms"] / 1000})
    finally:
        yield delete_call(made["id"])


def run_side(arguments, work, side, gateway, proxy, digests, trust):
    node = Server(arguments.binaries, work, "node", ["--store", gateway.url(proxy.endpoint), "--store-trust", str(trust), "--store-traces", "off", *SIDES[side]])
    client = node.start()
    try:
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        device = device_of(work)
        shell, rows = job(arguments, arguments.image_mib * (1 << 20) // FILE_BYTES), []
        before, begin = counted_bytes(device), time.perf_counter()
        failures = client.run([one_sandbox(i, digests[i % len(digests)], shell, begin, rows.append) for i in range(arguments.sandboxes)], deadline_seconds=7200)
        seconds = time.perf_counter() - begin
        after = counted_bytes(device)
        return {"seconds": seconds, "sandboxes": rows, "failures": [str(one) for one in failures], **{figure: after[figure] - before[figure] for figure in after}}
    finally:
        node.stop()
        subprocess.run(["rm", "-rf", "--one-file-system", node.data], check=False)


def table(results):
    ours, whole = (results["sides"][side] for side in ("on demand", "whole"))
    middle = {side: summary([one["done_s"] for one in results["sides"][side]["sandboxes"]])["p50"] for side in SIDES}
    lines = [f"{results['images']} images of {results['image_bytes'] / results['images'] / 2**20:.0f} MiB, {results['sandboxes']} sandboxes at once, a line of {results['mib_per_second']} MiB/s; "
             f"a job computes {summary([one['cpu_s'] for one in ours['sandboxes']])['p50']:.1f} s.", "",
             "| figure | on demand | pulled whole | ratio | target |", "|---|---|---|---|---|",
             f"| until the last job is over | {ours['seconds']:.1f} s | {whole['seconds']:.1f} s | **{whole['seconds'] / ours['seconds']:.2f}x** | 1.7x |",
             f"| until half of the jobs are over | {middle['on demand']:.1f} s | {middle['whole']:.1f} s | {middle['whole'] / middle['on demand']:.2f}x | - |",
             f"| bytes written, as the device counts | {ours['written'] / 2**20:.0f} MiB | {whole['written'] / 2**20:.0f} MiB | **{ours['written'] / whole['written'] * 100:.0f} %** | 50 % |",
             f"| failures | {len(ours['failures'])} | {len(whole['failures'])} | - | 0 |"]
    return "\n".join(lines) + "\n"


def run(arguments, work):
    why = versitygw.missing()
    if why:
        raise SystemExit(f"versitygw is needed: {why}")
    gateway = versitygw.VersityGw(work / "gateway").start()
    try:
        digests, total, trust = prepare(arguments, work, gateway)
        proxy = FaultProxy(gateway.port, DELAY_S, arguments.mib_per_second << 20).start()
        try:
            sides = {side: run_side(arguments, work, side, gateway, proxy, digests, trust) for side in SIDES}
        finally:
            proxy.close()
    finally:
        gateway.close()
    return {"image_bytes": total, "sides": sides}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--image-mib", type=int, default=512, help="of an image, beside the Debian system in it")
    parser.add_argument("--sandboxes", type=int, default=60)
    parser.add_argument("--read-mib", type=int, default=24, help="what a job reads of its image")
    parser.add_argument("--job-loops", type=float, default=3e7, help="what it computes: about a second for 2e7")
    parser.add_argument("--mib-per-second", type=int, default=60, help="width of the line to the store")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/var/tmp/dsec-bench-burst"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True)
    try:
        load = machine.load()
        settings = {name: getattr(arguments, name) for name in ("images", "sandboxes", "read_mib", "job_loops", "mib_per_second")}
        results = {"machine": machine.describe(), "load_before": load, **settings, **run(arguments, arguments.work), "load_after": machine.load()}
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", arguments.work], check=False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "burst.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results), end="")


if __name__ == "__main__":
    main()
