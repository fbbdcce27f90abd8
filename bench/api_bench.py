#!/usr/bin/env python3
"""Measures the platform through its API beside runc, crun, bubblewrap, podman and dockerd.

Called by bench/run.sh. Every program works on the same root filesystem, with the
same limits where it has them, warmed by one cycle, and the programs take turns: one
cycle each, in an order that rotates. Raw samples go to <out>/raw-*.csv and
results.json; bench/report.py turns them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import dsec_api, machine  # noqa: E402
from harness.engines import Docker, Podman  # noqa: E402
from harness.runtimes import Bubblewrap, ClientFloor, Engine, Minijail, OciRuntime, Program, Skip, hide_v2_hierarchy  # noqa: E402
from harness.samples import Recorder, summary  # noqa: E402

SIZES = {
    # turns, slow turns (of programs that take 100 ms and more), execs, bursts, cycles, idle, endurance
    "quick": {"turns": 30, "slow_turns": 5, "execs": 300, "bursts": 3, "cycles": 200, "idle": 100, "endurance": 400},
    "full": {"turns": 300, "slow_turns": 30, "execs": 3000, "bursts": 20, "cycles": 2000, "idle": 2000, "endurance": 10000},
}
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = (1 << 14) | (1 << 18)


def leave_the_hosts_mounts() -> None:
    """A mount namespace of this process, so that hiding the v2 hierarchy from crun hides it from nobody else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def take_turns(programs: List[Program], slow: List[Program], sizes: Dict[str, int], recorder: Recorder) -> None:
    every = max(1, sizes["turns"] // max(1, sizes["slow_turns"]))
    for turn in range(sizes["turns"]):
        this_turn = programs + (slow if turn % every == 0 else [])
        if not this_turn:
            continue
        shift = turn % len(this_turn)
        for order, program in enumerate(this_turn[shift:] + this_turn[:shift]):
            try:
                for figure, ms in program.cycle(str(turn)).items():
                    recorder.add(program.name, figure, ms, order)
            except Exception as error:  # noqa: BLE001: a failure is a result of the run
                recorder.fail(program.name, "turn", f"{type(error).__name__}: {error}")
        if turn % 10 == 9:
            print(f"  turn {turn + 1} of {sizes['turns']}", file=sys.stderr, flush=True)


def measure_api(dsec: dsec_api.Dsec, sizes: Dict[str, int], recorder: Recorder) -> Dict[str, Any]:
    client, server = dsec.client, dsec.server
    out: Dict[str, Any] = {}
    failures: List[str] = []
    say = lambda text: print(f"  {text}", file=sys.stderr, flush=True)  # noqa: E731

    say("exec of true")
    failures += dsec_api.exec_true(client, sizes["execs"], lambda ms: recorder.add("dsec API", "exec true, one sandbox", ms))
    say("create to echo, one after another")
    failures += dsec_api.echoes(client, sizes["cycles"], lambda ms: recorder.add("dsec API", "create to echo, one after another", ms))
    say("create to echo, 50 at once")
    for _ in range(sizes["bursts"]):
        failures += dsec_api.burst(client, 50, lambda ms: recorder.add("dsec API", "create to echo, 50 at once", ms))
    out["throughput"] = []
    for at_once in (1, 8, 50):
        say(f"cycles, {at_once} at once")
        result = dsec_api.throughput(client, at_once, sizes["cycles"])
        for ms in result.pop("cycle_ms"):
            recorder.add("dsec API", f"cycle, {at_once} at once", ms)
        out["throughput"].append(result)
    say(f"{sizes['idle']} idle sandboxes")
    idle = dsec_api.idle(client, server, sizes["idle"], lambda live, ms: recorder.add("dsec API", f"create, {live // 500 * 500}+ live", ms))
    for ms in idle.pop("create_at_full_ms"):
        recorder.add("dsec API", f"create with {sizes['idle']} live", ms)
    out["idle"] = idle
    say(f"{sizes['endurance']} cycles with samples")
    out["endurance"] = dsec_api.endurance(client, server, sizes["endurance"], 8, max(1, sizes["endurance"] // 50))
    parts = [("cycles", result) for result in out["throughput"]] + [("idle", idle), ("endurance", out["endurance"])]
    for part, found in parts:
        for why in found["failures"]:
            recorder.fail("dsec API", part, why)
    for why in failures:
        recorder.fail("dsec API", "api", why)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SIZES), nargs="?", default="quick")
    parser.add_argument("--binaries", type=Path, required=True, help="where dsec, dsec-keeper, dsec-spawner and dsec-agent are")
    parser.add_argument("--rootfs", type=Path, required=True, help="a root filesystem as a directory")
    parser.add_argument("--work", type=Path, required=True, help="scratch, on a disk")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of programs, by comma; default all")
    parser.add_argument("--no-api", action="store_true", help="only the table of programs")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench: needs root", file=sys.stderr)
        return 2
    sizes = SIZES[arguments.size]
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)

    recorder = Recorder()
    result: Dict[str, Any] = {"size": arguments.size, "sizes": sizes, "machine": machine.describe(), "load_before": machine.load(), "skipped": {},
                              "commands": {}, "api": {}}
    server = dsec_api.Server(arguments.binaries, arguments.work)
    dsec = dsec_api.Dsec(server)
    engines: List[Program] = [Engine(arguments.binaries / "engine_create", v1) for v1 in (True, False)]
    fast: List[Program] = [dsec, *engines, ClientFloor(), OciRuntime("runc"), OciRuntime("crun"), Bubblewrap(), Minijail()]
    slow: List[Program] = [Podman("runc"), Podman("crun"), Docker()]
    if arguments.only:
        chosen = arguments.only.split(",")
        fast = [program for program in fast if program.name in chosen]
        slow = [program for program in slow if program.name in chosen]

    usable: List[Program] = []
    try:
        for program in fast + slow:
            # The server starts before the mounts differ: it sees the host as it is.
            if program is not dsec and program not in engines and "hidden" not in result:
                leave_the_hosts_mounts()
                result["hidden"] = hide_v2_hierarchy()[1]
            print(f"prepare {program.name}", file=sys.stderr, flush=True)
            try:
                program.prepare(arguments.rootfs, arguments.work)
                usable.append(program)
                result["commands"][program.name] = program.commands
            except Skip as reason:
                result["skipped"][program.name] = str(reason)
                print(f"skip {program.name}: {reason}", file=sys.stderr)
            except Exception as error:  # noqa: BLE001
                result["skipped"][program.name] = f"{type(error).__name__}: {error}"
                print(f"skip {program.name}: {error}", file=sys.stderr)
        print("programs in turns", file=sys.stderr, flush=True)
        take_turns([p for p in fast if p in usable], [p for p in slow if p in usable], sizes, recorder)
        if dsec in usable and not arguments.no_api:
            print("API", file=sys.stderr, flush=True)
            result["api"] = measure_api(dsec, sizes, recorder)
    finally:
        for program in usable:
            program.finish()
        if dsec not in usable:
            server.stop()

    result["load_after"] = machine.load()
    result["failures"] = recorder.failures
    names: Dict[str, Dict[str, Any]] = {}
    for row in recorder.rows:
        names.setdefault(row["program"], {}).setdefault(row["figure"], []).append(row["ms"])
    result["summary"] = {program: {figure: summary(values) for figure, values in figures.items()} for program, figures in names.items()}
    (arguments.out / "results.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    with open(arguments.out / "raw-samples.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["program", "figure", "ms", "order"])
        writer.writeheader()
        writer.writerows(recorder.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
