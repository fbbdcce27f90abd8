#!/usr/bin/python3
"""Composed layers against archives that each sandbox unpacks: bench/layer_experiment.py [--sandboxes N] [--at-once N] [--tests NAME...].

Every sandbox gets a workspace (Python's own test suite) and a toolkit (a compiler), and runs tests of that suite. On one
side both are layers; on the other they are tar.gz files in the base, unpacked by each sandbox into its writable layer.
Both sides: the same base, the same disk-backed writable layers, the same number at once, caches dropped before. Bytes
are what the block device counted, the host's file systems synced. Needs root, a release build, apt and a disk with
some GiB for each sandbox that runs at once.

As it stands, 64 sandboxes of some 20 s of CPU, it takes about half an hour on two processors: 64 x 20 s / 2 for the
layers, a third more for the archives, and two minutes to make both. `--sandboxes 8 --at-once 4` takes four minutes.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import machine  # noqa: E402
from harness.dsec_api import Call, Server, create_call, delete_call, expect  # noqa: E402
from harness.samples import summary  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLKIT_PATHS = ["usr/lib/llvm-19", "usr/lib/gcc"]
SUITE_PACKAGE = "libpython3.11-testsuite"
SUITE_PATH = "usr/lib/python3.11/test"
TESTS = ["test_decimal", "test_set", "test_statistics", "test_difflib", "test_heapq", "test_random", "test_fractions", "test_long", "test_itertools", "test_deque", "test_array"]
RESOURCES = {"cpu_cores": 1, "memory_mb": 1024, "disk_mb": 4096, "max_processes": 256}
SIDES = {"layers": {"base": "experiment:1", "workspace": "suite:1", "toolkits": ["tools:1"]}, "archives": {"base": "experiment:1", "workspace": "archives:1"}}
UNPACK = "tar -xzf /srv/suite.tar.gz -C / && tar -xzf /srv/tools.tar.gz -C /"


def device_of(path):
    number = os.stat(path).st_dev
    return pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")


def counted_bytes(device):
    os.sync()
    fields = device.read_text().split()
    return {"read": int(fields[2]) * 512, "written": int(fields[6]) * 512}


def make_trees(work):
    """suite.tar and tools.tar, and the same as tar.gz in one archive."""
    packages = work / "packages"
    packages.mkdir()
    subprocess.run(["apt-get", "download", SUITE_PACKAGE], cwd=packages, check=True, stdout=subprocess.DEVNULL)
    tree = work / "tree"
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
    subprocess.run(["tar", "-C", tree, "-cf", work / "suite.tar", SUITE_PATH], check=True)
    there = [path for path in TOOLKIT_PATHS if os.path.isdir("/" + path)]
    subprocess.run(["tar", "-C", "/", "-cf", work / "tools.tar", *there], check=True)
    for name in ("suite", "tools"):
        with open(work / f"{name}.tar.gz", "wb") as out:
            subprocess.run(["gzip", "-c", work / f"{name}.tar"], check=True, stdout=out)
    subprocess.run(["tar", "-C", work, "-cf", work / "archives.tar", "suite.tar.gz", "tools.tar.gz"], check=True)
    return {name: os.path.getsize(work / name) for name in ("suite.tar", "tools.tar", "suite.tar.gz", "tools.tar.gz")}


def import_all(server, work):
    server.command("image", "import", "experiment:1", "debian:bookworm,python3")
    server.command("layer", "import", "--kind", "workspace", "suite:1", str(work / "suite.tar"))
    server.command("layer", "import", "--kind", "toolkit", "tools:1", str(work / "tools.tar"))
    server.command("layer", "import", "--kind", "workspace", "archives:1", str(work / "archives.tar"), "--at", "/srv")


def command(identity, shell):
    return Call("POST", f"/v1/sandboxes/{identity}/exec", {"shell": shell, "wait_ms": 3_600_000, "timeout_ms": 3_600_000})


def one_sandbox(side, tests, note):
    begin = time.perf_counter()
    environment = SIDES[side]
    call = create_call()
    call.body = {"environment": environment, "resources": RESOURCES, "wait_ms": 300_000}
    made = expect((yield call), 201)
    try:
        if side == "archives":
            unpacked = expect((yield command(made["id"], UNPACK)), 200)
            if unpacked["exit_code"] != 0:
                raise RuntimeError(f"tar: {unpacked['stderr'][-300:]}")
        ready = time.perf_counter()
        tested = expect((yield command(made["id"], f"test -x /usr/lib/llvm-19/bin/clang && cd /tmp && python3 -m test {' '.join(tests)} 2>&1 | tail -5")), 200)
        if "Tests result: SUCCESS" not in tested["stdout"]:
            raise RuntimeError(f"the tests: {tested['stdout'][-300:]}")
    finally:
        yield delete_call(made["id"])
    note({"setup_s": ready - begin, "whole_s": time.perf_counter() - begin, "cpu_s": tested["cpu_ms"] / 1000})


def run_side(server, side, arguments, device):
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    before, begin, done = counted_bytes(device), time.perf_counter(), []
    left = list(range(arguments.sandboxes))

    def worker():
        while left:
            left.pop()
            yield from one_sandbox(side, arguments.tests, done.append)

    client = server.client()
    failures = client.run([worker() for _ in range(max(2, arguments.at_once))], deadline_seconds=7200)
    seconds = time.perf_counter() - begin
    after = counted_bytes(device)
    return {"seconds": seconds, "sandboxes": done, "failures": failures, "written": after["written"] - before["written"], "read": after["read"] - before["read"]}


def run(arguments, work):
    sizes = make_trees(work)
    server = Server(arguments.binaries, work, "experiment")
    client = server.start()
    server.client = lambda: client
    try:
        import_all(server, work)
        device = device_of(work)
        sides = {side: run_side(server, side, arguments, device) for side in ("layers", "archives")}
    finally:
        server.stop()
    return {"sizes": sizes, "sides": sides}


def table(results):
    layers, archives = results["sides"]["layers"], results["sides"]["archives"]
    middle = {side: {figure: summary([one[figure] for one in data["sandboxes"]])["p50"] for figure in ("setup_s", "cpu_s")} for side, data in results["sides"].items()}
    rows = [
        ("set-up of a sandbox, p50", middle["layers"]["setup_s"], middle["archives"]["setup_s"], "s", 20),
        ("the whole job, all sandboxes", layers["seconds"], archives["seconds"], "s", 1.76),
        ("bytes written", layers["written"] / 2**20, archives["written"] / 2**20, "MiB", 5.5),
    ]
    lines = ["| figure | layers | archives | ratio | target |", "|---|---|---|---|---|"]
    for text, ours, theirs, unit, target in rows:
        lines.append(f"| {text} | {ours:.3g} {unit} | {theirs:.3g} {unit} | **{theirs / ours:.2f}x** | {target}x |")
    lines.append(f"| processor time of the tests, p50 | {middle['layers']['cpu_s']:.1f} s | {middle['archives']['cpu_s']:.1f} s | - | 20 s or more |")
    lines.append(f"| failures | {len(layers['failures'])} | {len(archives['failures'])} | - | 0 |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="NAME", help="of Python's own suite, that each sandbox runs")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/var/tmp/dsec-bench-layers"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True)
    try:
        load = machine.load()
        results = {"machine": machine.describe(), "load_before": load, "sandboxes": arguments.sandboxes, "at_once": arguments.at_once, "tests": arguments.tests,
                   **run(arguments, arguments.work), "load_after": machine.load()}
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", arguments.work], check=False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "layer_experiment.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results), end="")


if __name__ == "__main__":
    main()
