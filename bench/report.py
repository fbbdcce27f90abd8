#!/usr/bin/env python3
"""Writes the report of a benchmark run: results.json (and engine.json) -> Markdown.

Losses and misses stand beside wins; what was skipped says why.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

FIGURES = ["create to ready", "create to echo", "one-shot echo", "exec true", "delete", "cycle"]
BASELINE = "runc"


def ms(value: Optional[float]) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def pair(summary: Optional[Dict[str, Any]]) -> str:
    return "–" if not summary else f"{ms(summary['p50'])} / {ms(summary['p99'])}"


def table(header: List[str], rows: List[List[str]]) -> List[str]:
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(row) + " |" for row in rows), ""]


def verdict(value: Optional[float], limit: float, at_most: bool = True) -> str:
    if value is None or value != value:
        return "not measured"
    return "reached" if (value <= limit if at_most else value >= limit) else "**missed**"


def programs(result: Dict[str, Any]) -> List[str]:
    summary = result["summary"]
    rows = []
    for name, figures in summary.items():
        rows.append([name, *(pair(figures.get(figure)) for figure in FIGURES), str(max((figures[f]["n"] for f in FIGURES if f in figures), default=0))])
    out = ["## Beside other programs", "", "Milliseconds, p50 / p99, one client, the programs in turns (one cycle each, rotating).", ""]
    out += table(["program", *FIGURES, "n"], rows)
    ours = summary.get("dsec API", {})
    ratios = []
    for name, figures in summary.items():
        if name in ("dsec API", "plain process"):
            continue
        row = [name]
        for figure in FIGURES:
            mine, theirs = ours.get(figure), figures.get(figure)
            if not mine and figure == "one-shot echo":
                mine = ours.get("create to echo")
            row.append("–" if not mine or not theirs else f"{theirs['p50'] / mine['p50']:.1f}x")
        ratios.append(row)
    if ratios and ours:
        out += ["How many times longer than dsec through its API (below 1: dsec is slower). dsec has no one-shot call: its create to echo stands for it.", ""]
        out += table(["program", *FIGURES], ratios)
    if result["skipped"]:
        out += ["Skipped: " + "; ".join(f"{name}: {why.splitlines()[0][:200]}" for name, why in result["skipped"].items()) + ".", ""]
    out += ["Commands:", ""]
    for name, commands in result["commands"].items():
        out += [f"- {name}: " + "; ".join(f"`{command}`" for command in commands)]
    out += [f"- all of the clients but dsec's server run in a mount namespace of their own: `{result.get('hidden', 'as the host is')}`", ""]
    return out


def targets(result: Dict[str, Any]) -> List[str]:
    ours = result["summary"].get("dsec API", {})
    api = result.get("api") or {}
    def p(figure: str, which: str) -> Optional[float]:
        return ours[figure][which] if figure in ours else None
    def figure(name: str, which: str, limit: float) -> List[str]:
        return [ms(p(name, which)), verdict(p(name, which), limit)]
    rates = {row["at_once"]: row["rate"] for row in api.get("throughput", [])}
    best = max(rates.values(), default=None)
    failures = sum(1 for one in result["failures"] if one["program"] == "dsec API")
    idle = api.get("idle", {})
    full = f"create with {result['sizes']['idle']} live"
    ratio = p(full, "p50") / p("create", "p50") if p(full, "p50") and p("create", "p50") else None
    rows = [
        ["create to first output of echo, one client, one after another, p50", "4 ms (goal 3)", *figure("create to echo, one after another", "p50", 4)],
        ["the same, p99", "20 ms", *figure("create to echo, one after another", "p99", 20)],
        ["the same in turns with the other programs, p50", "4 ms", *figure("create to echo", "p50", 4)],
        ["the same, p99", "20 ms", *figure("create to echo", "p99", 20)],
        ["50 at once, p99", "200 ms", *figure("create to echo, 50 at once", "p99", 200)],
        ["failures of dsec in the run", "0", str(failures), verdict(failures if ours else None, 0)],
        ["exec of true, p50", "1.2 ms", *figure("exec true, one sandbox", "p50", 1.2)],
        ["exec of true, p99", "5 ms", *figure("exec true, one sandbox", "p99", 5)],
        ["create + exec + delete a second", "250 (goal 500)", "–" if best is None else f"{best:.0f}", verdict(best, 250, at_most=False)],
        [f"host memory of an idle sandbox, {idle.get('sandboxes', '–')} live", "1.2 MiB", f"{idle['kb_each'] / 1024:.2f} MiB" if idle else "–",
         verdict(idle.get("kb_each"), 1.2 * 1024)],
        ["create with all of them live, against the empty node", "1.5x", "–" if ratio is None else f"{ratio:.2f}x", verdict(ratio, 1.5)],
    ]
    return ["## What the API must reach", "", *table(["figure", "target", "measured", ""], rows)]


ENGINE_RATIOS = [("runc", 12.0), ("crun", 5.0), ("bwrap", 3.5), ("minijail", 3.0)]
ENGINE_ECHO_RATIOS = [("runc", 15.0), ("crun", 6.0)]


def engine_targets(result: Dict[str, Any]) -> List[str]:
    """From the same turns: one-shot runs of the others against create to agent ready of the
    engine, their run -d plus exec against its create plus first echo."""
    summary = result["summary"]
    rows = []
    for name, limit in (("dsec engine", 1.1), ("dsec engine, no v1", 0.8)):
        ready = summary.get(name, {}).get("create to ready", {}).get("p50")
        rows.append([f"{name}: create to agent ready, p50", f"{limit} ms", ms(ready), verdict(ready, limit)])
        for other, times in ENGINE_RATIOS:
            theirs = summary.get(other, {}).get("one-shot echo", {}).get("p50")
            ratio = theirs / ready if theirs and ready else None
            rows.append([f"{name}: faster than {other} one-shot", f"{times:g}x", "–" if ratio is None else f"{ratio:.1f}x", verdict(ratio, times, at_most=False)])
        echo = summary.get(name, {}).get("create to echo", {}).get("p50")
        for other, times in ENGINE_ECHO_RATIOS:
            theirs = summary.get(other, {}).get("create to echo", {}).get("p50")
            ratio = theirs / echo if theirs and echo else None
            rows.append([f"{name}: create and first echo faster than {other} run -d and exec", f"{times:g}x", "–" if ratio is None else f"{ratio:.1f}x",
                         verdict(ratio, times, at_most=False)])
    return ["## What the engine must reach", "", *table(["figure", "target", "measured", ""], rows)]


def api_details(result: Dict[str, Any]) -> List[str]:
    api = result.get("api") or {}
    out: List[str] = []
    if api.get("throughput"):
        out += ["## Rate through HTTP", "", "create + exec of echo + delete; the client runs on the same processors.", ""]
        out += table(["at once", "cycles a second", "cycles", "failures", "processor share of the client"],
                     [[str(r["at_once"]), f"{r['rate']:.0f}", str(r["cycles"]), str(len(r["failures"])), f"{r['client_cpu_share']:.0%}"] for r in api["throughput"]])
    if api.get("endurance"):
        samples = api["endurance"]["samples"]
        names = [name for name in samples[-1] if name.startswith("dsec")]
        shown = samples[:: max(1, len(samples) // 10)]
        if shown[-1] is not samples[-1]:
            shown.append(samples[-1])
        out += ["## Endurance", "", f"{api['endurance']['cycles']} cycles in {api['endurance']['seconds']:.0f} s, {len(api['endurance']['failures'])} failures. "
                "Resident KiB and open descriptors.", ""]
        out += table(["cycles", *names], [[str(s["cycles"]), *(f"{s[n]['rss_kb']} / {s[n]['descriptors']}" if n in s else "–" for n in names)] for s in shown])
    if result["failures"]:
        out += ["## Failures", "", *(f"- {one['program']}, {one['figure']}: {one['why'].splitlines()[0]}" for one in result["failures"][:20])]
        if len(result["failures"]) > 20:
            out += [f"- and {len(result['failures']) - 20} more in results.json"]
        out += [""]
    return out


def distributions(result: Dict[str, Any]) -> List[str]:
    rows = []
    for program, figures in result["summary"].items():
        for figure, s in figures.items():
            rows.append([program, figure, str(s["n"]), *(ms(s[key]) for key in ("min", "p50", "p90", "p99", "max"))])
    return ["## Distributions", "", "Milliseconds.", "", *table(["program", "figure", "n", "min", "p50", "p90", "p99", "max"], rows)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="with results.json")
    parser.add_argument("--into", type=Path, help="the report; default: standard output")
    arguments = parser.parse_args()
    result = json.loads((arguments.directory / "results.json").read_text())
    m = result["machine"]
    load_before, load_after = result["load_before"][0], result["load_after"][0]
    out = ["# Benchmarks", "",
           f"Written by `bench/run.sh {result['size']}`; the raw samples are in `{arguments.directory.name}/`. Compare ratios: the absolute values are this machine's.", "",
           f"Taken at {m['taken_at']} on {m['processors']} processors ({m['processor']}{', virtual' if m['hypervisor'] else ''}), {m['memory_gib']} GiB, Linux {m['kernel']}, "
           f"cgroups: {m['cgroups']}. Load average {load_before:.1f} before, {load_after:.1f} after"
           + (" (**the machine was not quiet before the run**)" if load_before > 1.0 else "") + ".", "",
           "Versions: " + ", ".join(f"{name} ({text})" for name, text in m["versions"].items() if text) + ".", ""]
    engine = arguments.directory / "engine.md"
    out += targets(result)
    out += engine_targets(result)
    if engine.exists():
        out += ["## The engine alone", "", engine.read_text().strip(), ""]
    out += programs(result) + api_details(result) + distributions(result)
    text = "\n".join(out)
    if arguments.into:
        arguments.into.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
