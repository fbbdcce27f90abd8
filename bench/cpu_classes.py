#!/usr/bin/python3
"""A service beside sandboxes that compute: bench/cpu_classes.py [--rounds N] [--seconds N] [--out DIR].

A sandbox of priority latency serves every 20 ms, with 5 ms of CPU, and tells how long after its time each was done. Beside it others
compute without end, on half of the processors and on all of them, of priority batch and, to compare, of priority latency too. The five
cases alternate; what is said is the ratio to the same round's run alone, with a bootstrap interval over the rounds. Needs root,
build/release/bin, gcc and busybox.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import inside, machine  # noqa: E402
from harness.samples import percentile  # noqa: E402
from support import images  # noqa: E402
from support.server import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = [("alone", None, 0.0), ("batch, half of the node", "batch", 0.5), ("batch, all of the node", "batch", 1.0),
         ("unprotected, half of the node", "latency", 0.5), ("unprotected, all of the node", "latency", 1.0)]
SMALL = {"memory_mb": 64, "disk_mb": 16, "max_processes": 16}
WARM_UP = 50  # samples
TARGET = 1.10


def run_case(server, service, priority, share, seconds):
    """Microseconds of each time that the service was due."""
    hogs = [server.api.create("bench:1", priority=priority, resources={**SMALL, "cpu_cores": 1}) for _ in range(round(share * os.cpu_count()))]
    for hog in hogs:
        hog.start(argv=["/service"])
    time.sleep(0.5)
    result = service.run("/service", str(seconds), timeout=seconds + 60)
    for hog in hogs:
        hog.delete()
    if result.code != 0:
        raise RuntimeError(dict(result))
    return [int(line) for line in result.out.split()][WARM_UP:]


def interval(ratios, draws=5000):
    """The middle 95 % of the median of resampled rounds."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=10, help="of each run; a second of it is warm-up")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    noise = machine.describe()
    samples = {name: [] for name, _, _ in CASES}
    with tempfile.TemporaryDirectory(prefix="dsec-cpu-") as scratch:
        server = Server(name="cpu-classes").start()
        try:
            images.import_tar(server.api, "bench:1", inside.base_tar(pathlib.Path(scratch), {"service": "service"}, {}))
            service = server.api.create("bench:1", resources={**SMALL, "cpu_cores": 1})
            for number in range(arguments.rounds):
                for name, priority, share in CASES[number % len(CASES):] + CASES[:number % len(CASES)]:
                    samples[name].append(run_case(server, service, priority, share, arguments.seconds))
        finally:
            complaints = server.close()
    print("| case | p50 | p99 | max | p50 of alone | p99 of alone | target |")
    print("|---|---|---|---|---|---|---|")
    figures = {}
    for name, priority, _ in CASES:
        every = [value / 1000 for run in samples[name] for value in run]
        figure = {"p50_ms": percentile(every, 0.5), "p99_ms": percentile(every, 0.99), "max_ms": max(every)}
        cells = []
        for share in (0.5, 0.99):
            ratios = [percentile(run, share) / percentile(alone, share) for run, alone in zip(samples[name], samples["alone"])]
            low, high = interval(ratios)
            figure[f"p{round(share * 100)}_ratio"] = [statistics.median(ratios), low, high]
            reached = "reached" if statistics.median(ratios) <= TARGET else "**missed**"
            cells.append("1" if priority is None else f"**{statistics.median(ratios):.3f}** [{low:.3f}, {high:.3f}]" + (f" {reached}" if priority == "batch" else ""))
        figures[name] = figure
        print(f"| {name} | {figure['p50_ms']:.2f} ms | {figure['p99_ms']:.2f} ms | {figure['max_ms']:.1f} ms | {cells[0]} | {cells[1]} | {'1.10' if priority == 'batch' else '-'} |")
    if complaints:
        print("failures: " + "; ".join(complaints))
    (arguments.out / "cpu_classes.json").write_text(json.dumps({"machine": noise, "rounds": arguments.rounds, "seconds": arguments.seconds, "figures": figures, "samples_us": samples, "failures": complaints}, separators=(",", ":")) + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
