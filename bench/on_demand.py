#!/usr/bin/python3
"""Sandboxes whose data lies in a shared store alone, against local ones: bench/on_demand.py [--rounds N] [--optimized] [--out DIR].

One image of more than a GiB. In turns, caches of the host dropped before each, two new nodes: one that has taken the
image whole (`local`), and one that has read nothing yet (`on demand`), the store being a directory each read of which
takes 300 us longer.
On each: first output of a small command in a new sandbox, the same in a second sandbox at once and in a third a second later, and a job that reads files of
50 MiB and more; for that the bytes that came from the store, beside the 256 KiB units that the files' own extents lie
in.

With --optimized also (some seven minutes more): a job that reads the first 64 KiB of 900 files, on new nodes, of the
image as it was imported and as `dsec layer optimize` writes it by the trace that the first of them left; with and
without a trace. Compared: bytes from the store with the pages of 4 KiB that were touched. Needs root, a release
build and mmdebstrap.
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
SPARSE_FILES, SPARSE_BYTES = 900, 64 << 10
TRACE_SECONDS = 180  # after two minutes it is written
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


def sparse_job():
    """Of the filler: 56 MiB that are parts of files."""
    chosen = random.Random(77).sample(range(FILLER_FILES), SPARSE_FILES)
    names = " ".join(f"/data/{i % 40}/{i}" for i in sorted(chosen))
    return ["sh", "-c", f"head -q -c {SPARSE_BYTES} {names} > /dev/null"]


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


class Nodes:
    """New nodes of one store."""

    def __init__(self, arguments, work, store, trust):
        self.arguments, self.work, self.store, self.trust = arguments, work, store, trust

    def start(self, digest, *more):
        """A node with the layer as IMAGE, and the milliseconds that taking it took."""
        node = Server(self.arguments.binaries, self.work, "node", ["--store", str(self.store), "--store-trust", str(self.trust), *more],
                      {"DSEC_FAIL_POINT": f"origin.directory.read=delay:{DELAY_US}"})
        node.start()
        begin = time.perf_counter()
        node.command("layer", "fetch", digest, IMAGE)
        return node, (time.perf_counter() - begin) * 1000


def numbers_of_job(nodes, digest, *more, wait_for_trace=False):
    """Of the sparse job on a new node: milliseconds, and the counters of dsec-stored."""
    traces = set(nodes.store.glob("??/*.trace"))
    node, _ = nodes.start(digest, *more)
    try:
        drop_caches()
        milliseconds, identity = timed_sandbox(server_client(node), sparse_job(), keep=False)
        del identity
        time.sleep(2.5)
        row = {"ms": milliseconds, **json.loads((node.data / "store" / "stats.json").read_text())["total"]}
        until = time.monotonic() + TRACE_SECONDS
        while wait_for_trace and set(nodes.store.glob("??/*.trace")) == traces:
            if time.monotonic() > until:
                raise RuntimeError("no trace came")
            time.sleep(1)
        return row
    finally:
        node.stop()


def measure_optimized(nodes, maker, digest):
    rows = {"as imported, no trace": numbers_of_job(nodes, digest, wait_for_trace=True)}
    rows["as imported, with a trace"] = numbers_of_job(nodes, digest)
    begin = time.perf_counter()
    made = json.loads(maker.command("layer", "optimize", IMAGE, "--as", "optimized:1", "--json"))
    rows["optimize"] = {"ms": (time.perf_counter() - begin) * 1000, **{figure: made[figure] for figure in ("touched_bytes", "hot_bytes", "data_bytes")}}
    rows["optimized, no trace"] = numbers_of_job(nodes, made["digest"], wait_for_trace=True)
    rows["optimized, with a trace"] = numbers_of_job(nodes, made["digest"])
    return rows


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
    nodes = Nodes(arguments, work, store, trust)
    sides = {"local": ["--store-cache-mb", "0", "--store-traces", "off"], "on demand": ["--store-traces", "off"]}
    try:
        for number in range(arguments.rounds):
            files = job_files(number)
            row = {}
            for side in sides if number % 2 == 0 else reversed(sides):
                node, taken = nodes.start(digest, *sides[side])
                try:
                    row[side] = {"take_ms": taken, **measure(node, files, with_fetches=side != "local")}
                    if side != "local":
                        row[side]["job_units_bytes"] = units_of_files(node, files) * UNIT
                finally:
                    node.stop()
            results["rounds"].append(row)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        if arguments.optimized:
            results["optimized"] = measure_optimized(nodes, maker, digest)
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
    if "optimized" in results:
        lines += ["", "| layer | fetched | touched pages | fetched of them | misses | job |", "|---|---|---|---|---|---|"]
        for text, row in results["optimized"].items():
            if text != "optimize":
                lines.append(f"| {text} | {row['fetched_bytes'] / 2**20:.1f} MiB | {row['touched_bytes'] / 2**20:.1f} MiB | **{row['fetched_bytes'] / row['touched_bytes']:.2f}x** | {row['demand_misses']} | {row['ms']:.0f} ms |")
        made = results["optimized"]["optimize"]
        lines.append(f"\nOptimizing took {made['ms'] / 1000:.1f} s; {made['hot_bytes'] / 2**20:.1f} MiB lie first, for {made['touched_bytes'] / 2**20:.1f} MiB that the trace names. Target: 2x with a trace.")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--optimized", action="store_true", help="also the layer as dsec layer optimize writes it")
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
