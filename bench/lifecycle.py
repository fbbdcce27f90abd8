#!/usr/bin/python3
"""Pause, checkpoint, rollback and fork: bench/lifecycle.py [--rounds N] [--sandboxes N] [--out DIR].

One server with a compressed swap device of its own, one client. Pause and resume beside `runc pause` and `runc resume`
of a container that does nothing; checkpoints beside a plain copy (`cp -a`) of the same files on the same disk. How long
processes stood is the kernel's count for their cgroup, told by the result of a command that ran meanwhile.
Needs root, a release build, mmdebstrap, and zram in the kernel for what is said of memory.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import dsec_api, machine  # noqa: E402
from harness.dsec_api import IMAGE, Server, expect  # noqa: E402
from harness.http_client import Call  # noqa: E402
from harness.samples import summary  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
IN_MEMORY = {"cpu_cores": 2, "memory_mb": 4096, "disk_mb": 2000, "max_processes": 128}
ON_DISK = {"cpu_cores": 2, "memory_mb": 1024, "disk_mb": 8192, "max_processes": 128}
# Fills 128 MiB, half of it random in each 4 KiB, says so, and touches all of it again each time that it is told to.
HOLDER = r"""
use strict; $| = 1;
open(my $r, '<', '/dev/urandom'); my $all = '';
for (1 .. 32768) { read($r, my $half, 2048); $all .= $half . ("\0" x 2048); }
print "full\n";
while (<STDIN>) { my $sum = 0; for (my $at = 0; $at < length $all; $at += 4096) { $sum += ord(substr($all, $at, 1)); } print "touched $sum\n"; }
"""


class Bench:
    def __init__(self, client):
        self.client = client
        self.figures = {}

    def note(self, name, value):
        self.figures.setdefault(name, []).append(value)

    def call(self, method, path, body=None, *statuses):
        """One call from start to end: its answer and how many milliseconds it took."""
        out = {}

        def work():
            begin = time.perf_counter()
            answer = yield Call(method, path, body)
            out["ms"] = (time.perf_counter() - begin) * 1000
            out["json"] = expect(answer, *(statuses or (200, 201, 202, 204))) if answer.body else None

        failures = self.client.run([work()], deadline_seconds=600)
        if failures:
            raise RuntimeError(failures[0])
        return out["json"], out["ms"]

    def make(self, **spec):
        return self.call("POST", "/v1/sandboxes", {"image": IMAGE, **spec}, 201)[0]["id"]

    def run(self, box, *argv):
        answer, spent = self.call("POST", f"/v1/sandboxes/{box}/exec", {"argv": list(argv), "timeout_ms": 300_000}, 200)
        if answer.get("exit_code") != 0:
            raise RuntimeError(f"{argv}: {answer}")
        return answer, spent

    def end(self, *boxes):
        for box in boxes:
            self.call("DELETE", f"/v1/sandboxes/{box}?forget=true")


def pauses(bench, rounds):
    box = bench.make(resources=IN_MEMORY)
    bench.run(box, "true")
    for _ in range(rounds):
        _, spent = bench.call("POST", f"/v1/sandboxes/{box}/pause", {}, 200)
        bench.note("pause", spent)
        begin = time.perf_counter()
        bench.call("POST", f"/v1/sandboxes/{box}/resume", {}, 200)
        bench.run(box, "true")
        bench.note("resume to first exec", (time.perf_counter() - begin) * 1000)
        bench.call("POST", f"/v1/sandboxes/{box}/pause", {}, 200)
        bench.note("exec that resumes first", bench.run(box, "true")[1])
    bench.end(box)


def reclaim(bench, rounds, server):
    for _ in range(rounds):
        box = bench.make(resources=IN_MEMORY)
        started, _ = bench.call("POST", f"/v1/sandboxes/{box}/exec", {"argv": ["perl", "-e", HOLDER], "background": True, "open_stdin": True}, 200, 201, 202)
        path = f"/v1/sandboxes/{box}/exec/{started['exec_id']}"
        until = time.monotonic() + 60
        while bench.call("GET", path + "/output?format=json&stream=stdout&offset=0&wait_ms=1000")[0].get("data", "") == "" and time.monotonic() < until:
            pass
        before = bench.call("GET", f"/v1/sandboxes/{box}/stats")[0]["memory_bytes"]
        zram_before = zram_bytes(server)
        begin = time.perf_counter()
        bench.call("POST", f"/v1/sandboxes/{box}/pause", {}, 200)
        while "reclaimed" not in [event["type"] for event in bench.call("GET", f"/v1/sandboxes/{box}/events")[0]["items"]]:
            if time.perf_counter() - begin > 60:
                raise RuntimeError("nothing was given back within a minute")
            time.sleep(0.01)
        bench.note("pause until all is given back", (time.perf_counter() - begin) * 1000)
        after = bench.call("GET", f"/v1/sandboxes/{box}/stats")[0]["memory_bytes"]
        bench.note("left of the memory, share", after / before)
        bench.note("memory that the swap device took, of what left, share", (zram_bytes(server) - zram_before) / max(1, before - after))
        bench.note("true after the memory went", bench.run(box, "true")[1])
        begin = time.perf_counter()
        bench.call("POST", path + "/stdin", {"data": "\n"}, 200)
        while "touched" not in bench.call("GET", path + "/output?format=json&stream=stdout&offset=5&wait_ms=1000")[0].get("data", ""):
            pass
        bench.note("all of it touched again", (time.perf_counter() - begin) * 1000)
        bench.end(box)


def zram_bytes(server):
    mark = server.data / "swap" / "zram"
    if not mark.exists():
        return 0
    return int(pathlib.Path(f"/sys/block/zram{mark.read_text().strip()}/mm_stat").read_text().split()[2])


def bulk(bench, count):
    boxes = [bench.make(resources={"cpu_cores": 1, "memory_mb": 64, "disk_mb": 16, "max_processes": 32}, labels={"job": "bulk"}) for _ in range(count)]
    for verb in ("pause", "resume"):
        answer, spent = bench.call("POST", f"/v1/sandboxes:{verb}", {"selector": "job=bulk"}, 200, 202)
        bench.note(f"{verb} of {count} by label", spent)
        wrong = [one for one in answer.get("results", []) if "error" in one]
        if wrong:
            raise RuntimeError(f"{verb}: {wrong[:3]}")
    bench.end(*boxes)


def checkpoints(bench, rounds, place, resources, sizes):
    for mib in sizes:
        for _ in range(rounds if mib < 500 else max(1, rounds // 5)):
            box = bench.make(resources=resources)
            bench.run(box, "sh", "-c", f"mkdir /made; for i in $(seq {max(1, mib // 2)}); do head -c 2M /dev/urandom > /made/$i; done")
            clock, _ = bench.call("POST", f"/v1/sandboxes/{box}/exec", {"argv": ["sleep", "600"], "background": True}, 200, 201, 202)
            made, spent = bench.call("POST", f"/v1/sandboxes/{box}/checkpoints", {}, 201)
            bench.note(f"checkpoint of {mib} MiB {place}", spent)
            stood, _ = bench.call("DELETE", f"/v1/sandboxes/{box}/exec/{clock['exec_id']}")
            if "frozen_ms" in stood:
                bench.note(f"stood for it, {mib} MiB {place}", stood["frozen_ms"])
            bench.note(f"checkpoint again, nothing changed, {mib} MiB {place}", bench.call("POST", f"/v1/sandboxes/{box}/checkpoints", {}, 201)[1])
            begin = time.perf_counter()
            bench.call("POST", f"/v1/sandboxes/{box}/rollback", {"checkpoint_id": made["checkpoint_id"]}, 200)
            bench.run(box, "cat", "/etc/hostname")
            bench.note(f"rollback to first output, {mib} MiB {place}", (time.perf_counter() - begin) * 1000)
            bench.end(box)


def forks(bench, rounds, counts):
    box = bench.make(resources={"cpu_cores": 1, "memory_mb": 256, "disk_mb": 64, "max_processes": 64})
    bench.run(box, "sh", "-c", "head -c 10M /dev/urandom > /made")
    for count in counts:
        for _ in range(rounds):
            begin = time.perf_counter()
            answer, _ = bench.call("POST", f"/v1/sandboxes/{box}/fork", {"count": count}, 200)
            children = [one["sandbox"]["id"] for one in answer["sandboxes"]]
            works = []

            def first(child):
                answer = yield Call("POST", f"/v1/sandboxes/{child}/exec", {"argv": ["cat", "/etc/hostname"]})
                expect(answer, 200)

            for child in children:
                works.append(first(child))
            failures = bench.client.run(works, deadline_seconds=120)
            if failures:
                raise RuntimeError(failures[0])
            bench.note(f"fork of {count} to the first output of all", (time.perf_counter() - begin) * 1000)
            bench.end(*children)
    bench.end(box)


def plain_copies(bench, rounds, work, sizes):
    for mib in sizes:
        source, target = work / "source", work / "target"
        for _ in range(rounds if mib < 500 else max(1, rounds // 5)):
            source.mkdir()
            for i in range(max(1, mib // 2)):
                (source / str(i)).write_bytes(os.urandom(2 * MIB))
            begin = time.perf_counter()
            subprocess.run(["cp", "-a", source, target], check=True)
            bench.note(f"cp -a of {mib} MiB", (time.perf_counter() - begin) * 1000)
            subprocess.run(["rm", "-rf", source, target], check=True)


def runc_pauses(bench, rounds, rootfs, work):
    if subprocess.run(["which", "runc"], stdout=subprocess.DEVNULL).returncode != 0:
        return
    bundle = work / "bundle"
    bundle.mkdir()
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    spec["root"] = {"path": str(rootfs), "readonly": True}
    spec["process"].update({"terminal": False, "args": ["sleep", "600"]})
    (bundle / "config.json").write_text(json.dumps(spec))
    subprocess.run(["runc", "run", "-d", "dsec-bench-pause"], cwd=bundle, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        for _ in range(rounds):
            for verb in ("pause", "resume"):
                begin = time.perf_counter()
                subprocess.run(["runc", verb, "dsec-bench-pause"], check=True)
                bench.note(f"runc {verb}", (time.perf_counter() - begin) * 1000)
    finally:
        subprocess.run(["runc", "delete", "-f", "dsec-bench-pause"], check=False)


def table(figures):
    lines = ["| figure | n | p50 | p90 | p99 | max |", "|---|---|---|---|---|---|"]
    for name, values in figures.items():
        of = summary(values)
        unit = "" if "share" in name else " ms"
        lines.append(f"| {name} | {of['n']} | " + " | ".join(f"{of[key]:.2f}{unit}" for key in ("p50", "p90", "p99", "max")) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sandboxes", type=int, default=1000, help="of the bulk pause")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 100, 1000], help="MiB of checkpoints")
    parser.add_argument("--zram-mb", type=int, default=2048)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/var/tmp/dsec-bench-lifecycle"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    rootfs = pathlib.Path(os.environ.get("DSEC_BENCH_ROOTFS", "/var/tmp/dsec-bench/rootfs"))
    if not rootfs.exists():
        rootfs.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", rootfs], check=True)
    arguments.work.mkdir(parents=True)
    load = machine.load()
    server = Server(arguments.binaries, arguments.work, "node", ["--swap-zram-mb", str(arguments.zram_mb)] if arguments.zram_mb else [])
    failed = []
    try:
        bench = Bench(server.start())
        server.import_base(rootfs)
        parts = [lambda: pauses(bench, arguments.rounds * 5), lambda: runc_pauses(bench, arguments.rounds, rootfs, arguments.work),
                 lambda: reclaim(bench, max(3, arguments.rounds // 2), server), lambda: bulk(bench, arguments.sandboxes),
                 lambda: checkpoints(bench, arguments.rounds, "in memory", IN_MEMORY, arguments.sizes),
                 lambda: checkpoints(bench, arguments.rounds, "on disk", ON_DISK, arguments.sizes),
                 lambda: plain_copies(bench, arguments.rounds, arguments.work, arguments.sizes),
                 lambda: forks(bench, arguments.rounds, (8, 64))]
        for part in parts:
            try:
                part()
            except RuntimeError as why:
                failed.append(str(why)[:400])
                print(f"failed: {why}", file=sys.stderr)
    finally:
        server.stop()
        subprocess.run(["rm", "-rf", "--one-file-system", arguments.work], check=False)
    results = {"machine": machine.describe(), "load_before": load, "load_after": machine.load(), "failures": failed, "figures": bench.figures}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "lifecycle.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(bench.figures), end="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
