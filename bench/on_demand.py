#!/usr/bin/python3
"""Sandboxes whose data lies in a shared store alone, against local ones: bench/on_demand.py [--rounds N] [--out DIR].

One image of more than a GiB. In turns, caches of the host dropped before each: a node that has it whole (`local`), and
a new node that has read nothing yet (`on demand`), the store being a directory each read of which takes 300 us longer.
On each: first output of a small command in a new sandbox, the same in a second sandbox at once and in a third a second later, and a job that reads files of
50 MiB and more; for that the bytes that came from the store, beside the 256 KiB units that the files' own extents lie
in. Needs root, a release build and mmdebstrap.
"""
import argparse
import fcntl
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import dsec_api, machine  # noqa: E402
from harness.dsec_api import IMAGE, Server, create_call, delete_call, exec_call, expect  # noqa: E402
from harness.noise import Noise  # noqa: E402
from harness.samples import summary  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
DELAY_US = 300
UNIT = 256 << 10
FILLER_FILES, FILLER_BYTES = 2400, 480 << 10  # 1.1 GiB beside the system
WAITING = ["sleep", "3131"]  # nobody else's
SMALL_COMMAND = ["perl", "-MPOSIX", "-MData::Dumper", "-e", "print qq(ready\\n)"]


def make_image(path, rootfs):
    subprocess.run(["tar", "-C", rootfs, "--one-file-system", "-cf", path, "."], check=True)
    source = random.Random(3)
    with tarfile.open(path, "a") as tar:
        for i in range(FILLER_FILES):
            info = tarfile.TarInfo(f"./data/{i % 40}/{i}")
            info.size, info.mode, info.mtime = FILLER_BYTES, 0o644, 1_700_000_000
            tar.addfile(info, Noise(FILLER_BYTES, source))


def job_files(round_number):
    """Of the filler: 120 files, 56 MiB, spread over all of it."""
    chosen = random.Random(round_number).sample(range(FILLER_FILES), 120)
    return [f"/data/{i % 40}/{i}" for i in sorted(chosen)]


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def timed_sandbox(client, argv, keep):
    """Milliseconds from the request for a sandbox to the output of a command in it, and the sandbox."""
    out = {}

    def work():
        begin = time.perf_counter()
        made = expect((yield create_call()), 201)
        answer = expect((yield exec_call(made["id"], *argv)), 200)
        out["ms"] = (time.perf_counter() - begin) * 1000
        if answer["exit_code"] != 0:
            raise dsec_api.Refused(f"{argv[0]}: {answer}")
        out["id"] = made["id"]
        if not keep:
            yield delete_call(made["id"])

    failures = client.run([work()])
    if failures:
        raise RuntimeError(failures[0])
    return out["ms"], out["id"]


def timed_job(client, files):
    begin = time.perf_counter()
    _, identity = timed_sandbox(client, ["cat", *files, "/etc/hostname"], keep=False)
    return (time.perf_counter() - begin) * 1000


def fetched(server):
    stats = server.data / "store" / "stats.json"
    time.sleep(2)  # it is renewed each second
    return sum(one["fetched_bytes"] for one in json.loads(stats.read_text())["objects"].values()) if stats.exists() else 0


def units_of_files(server, files):
    """256 KiB units of the data object that the files' content lies in: by FIEMAP through a sandbox's own root."""
    found = {}

    def work():
        made = expect((yield create_call()), 201)
        expect((yield dsec_api.Call("POST", f"/v1/sandboxes/{made['id']}/exec", {"argv": WAITING, "background": True})), 200, 201, 202)
        found["units"] = len(extents_of(pid_of_waiting(), files))
        yield delete_call(made["id"])

    failures = server_client(server).run([work()])
    if failures:
        raise RuntimeError(failures[0])
    return found["units"]


def server_client(server):
    return dsec_api.Client(server.url, server.key)


def pid_of_waiting():
    for _ in range(100):
        for pid in machine.processes_named("sleep"):
            if machine.arguments_of(pid)[:2] == WAITING:
                return pid
        time.sleep(0.05)
    raise RuntimeError("the command of the sandbox is not to be seen")


def extents_of(pid, files):
    units = set()
    for name in files:
        with open(f"/proc/{pid}/root{name}", "rb") as file:
            for physical, length in fiemap(file.fileno()):
                units.update(range(physical // UNIT, (physical + length - 1) // UNIT + 1))
    return units


def fiemap(fd):
    count = 64
    head = struct.pack("=QQIIII", 0, (1 << 64) - 1, 0, 0, count, 0)
    buffer = bytearray(head + bytes(56 * count))
    fcntl.ioctl(fd, 0xC020660B, buffer)
    mapped = struct.unpack_from("=I", buffer, 20)[0]
    for i in range(mapped):
        _, physical, length = struct.unpack_from("=QQQ", buffer, 32 + 56 * i)
        yield physical, length


def measure(server, files, with_fetches):
    client = server_client(server)
    before = fetched(server) if with_fetches else 0
    drop_caches()
    first, kept = timed_sandbox(client, SMALL_COMMAND, keep=True)
    second, other = timed_sandbox(client, SMALL_COMMAND, keep=True)
    time.sleep(1)
    third, later = timed_sandbox(client, SMALL_COMMAND, keep=True)
    out = {"first_ms": first, "second_ms": second, "third_ms": third}
    if with_fetches:
        started = fetched(server)
        out["fetched_for_first_bytes"] = started - before
    drop_caches()
    out["job_ms"] = timed_job(client, files)
    if with_fetches:
        out["fetched_by_job_bytes"] = fetched(server) - started
    for identity in (kept, other, later):
        server.command("rm", identity)
    return out


def run(arguments, work):
    rootfs = pathlib.Path(os.environ.get("DSEC_BENCH_ROOTFS", "/var/tmp/dsec-bench/rootfs"))
    if not rootfs.exists():
        rootfs.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", rootfs], check=True)
    image, store = work / "image.tar", work / "store"
    store.mkdir()
    make_image(image, rootfs)
    maker = Server(arguments.binaries, work, "maker", ["--store", str(store)])
    maker.start()
    maker.command("image", "import", IMAGE, str(image), "--profile", arguments.profile)
    digest = json.loads(maker.command("image", "inspect", IMAGE))["digest"]
    trust = work / "trusted.pub"
    trust.write_bytes(subprocess.run(["openssl", "pkey", "-in", maker.data / "store.key", "-pubout"], check=True, stdout=subprocess.PIPE).stdout)
    results = {"image_bytes": image.stat().st_size, "profile": arguments.profile, "rounds": []}
    image.unlink()
    try:
        for number in range(arguments.rounds):
            files = job_files(number)
            sides = {}
            for side in (("local", "on demand") if number % 2 == 0 else ("on demand", "local")):
                if side == "local":
                    sides[side] = measure(maker, files, with_fetches=False)
                    continue
                node = Server(arguments.binaries, work, "node", ["--store", str(store), "--store-trust", str(trust)],
                              {"DSEC_FAIL_POINT": f"origin.directory.read=delay:{DELAY_US}"})
                node.start()
                try:
                    begin = time.perf_counter()
                    node.command("layer", "fetch", digest, IMAGE)
                    taken = (time.perf_counter() - begin) * 1000
                    sides[side] = {"take_ms": taken, **measure(node, files, with_fetches=True)}
                    sides[side]["job_units_bytes"] = units_of_files(node, files) * UNIT
                finally:
                    node.stop()
            results["rounds"].append(sides)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    finally:
        maker.stop()
    return results


def column(results, side, figure):
    return [one[side][figure] for one in results["rounds"] if figure in one[side]]


def table(results):
    lines = ["| figure | local, p50 | on demand, p50 | ratio of the medians | target |", "|---|---|---|---|---|"]
    for figure, text, target in (("first_ms", "first output, nothing read before", "3x"), ("second_ms", "second sandbox, at once", "1.1x"), ("third_ms", "third sandbox, a second later", "-"), ("job_ms", "a job that reads 56 MiB more", "-")):
        local, remote = (summary(column(results, side, figure))["p50"] for side in ("local", "on demand"))
        lines.append(f"| {text} | {local:.1f} ms | {remote:.1f} ms | **{remote / local:.2f}x** | {target} |")
    taken = summary(column(results, "on demand", "take_ms"))["p50"]
    lines.append(f"| taking the layer: manifest, metadata, check, before the first sandbox | - | {taken:.0f} ms | - | - |")
    shares = [one["on demand"]["fetched_by_job_bytes"] / one["on demand"]["job_units_bytes"] for one in results["rounds"] if one["on demand"].get("job_units_bytes")]
    if shares:
        lines.append(f"| bytes fetched by the job, of the 256 KiB units that its files lie in | - | - | **{summary(shares)['p50']:.2f}x** (largest {max(shares):.2f}x) | 1.3x |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", default="plain", choices=["plain", "lz4"])
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/var/tmp/dsec-bench-on-demand"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True)
    try:
        load = machine.load()
        results = {"machine": machine.describe(), "load_before": load, "delay_us": DELAY_US, **run(arguments, arguments.work), "load_after": machine.load()}
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", arguments.work], check=False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "on_demand.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results), end="")


if __name__ == "__main__":
    main()
