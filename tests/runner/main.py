"""The runner behind ./test.sh: stages in order, each timed, counted and checked for leaks."""
import argparse
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from runner import stages  # noqa: E402
from support.host_state import HostState, settled_leaks  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./test.sh")
    parser.add_argument("--nightly", action="store_true", help="adds the long stages")
    parser.add_argument("--only", nargs="+", metavar="STAGE", default=None, help="these stages and what they need")
    parser.add_argument("--list", action="store_true", help="print the stages and end")
    parser.add_argument("--shared-machine", action="store_true",
                        help="others run dsec here at the same time: report leaks, do not judge them")
    return parser.parse_args()


def run_stage(stage, context, judge_leaks):
    print(f"\n=== {stage.name}: {stage.about}", flush=True)
    started = time.monotonic()
    before = HostState() if stage.leak_check else None
    try:
        counts = stage.run(context)
    except Exception as error:  # a stage that cannot even start is a failure of that stage, not of the run
        counts = stages.Counts(failed=1)
        print(f"FAILED: {type(error).__name__}: {error}", flush=True)
    if before is not None:
        leaks = settled_leaks(before)
        if not leaks:
            print("leak check: nothing left (mounts, cgroups, namespaces, processes, loop devices)")
            counts.passed += 1
        else:
            print(f"leak check: {len(leaks)} left" + ("" if judge_leaks else " (not judged: --shared-machine)"))
            for leak in leaks[:40]:
                print("  " + leak)
            if judge_leaks:
                counts.failed += 1
    seconds = time.monotonic() - started
    print(f"--- {stage.name}: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped in {seconds:.1f} s", flush=True)
    return counts, seconds


def main():
    arguments = parse_arguments()
    chosen = [s for s in stages.ALL if arguments.nightly or not s.nightly]
    if arguments.list:
        for stage in stages.ALL:
            print(f"{stage.name:16} {'nightly ' if stage.nightly else '        '}{stage.about}")
        return 0
    if arguments.only:
        unknown = set(arguments.only) - {s.name for s in stages.ALL}
        if unknown:
            print(f"unknown stages: {' '.join(sorted(unknown))}", file=sys.stderr)
            return 2
        chosen = [s for s in stages.ALL if s.name in arguments.only]
        if chosen[0].name != "build" and not all(s.own_build for s in chosen):
            chosen.insert(0, stages.ALL[0])

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    context = stages.Context(ROOT, nightly=arguments.nightly)
    context.remove_leftovers()
    total = stages.Counts()
    table = []
    if "DSEC_TEST_INSTALL_SECONDS" in os.environ:
        table.append(("install", stages.Counts(), float(os.environ["DSEC_TEST_INSTALL_SECONDS"])))
    try:
        for stage in chosen:
            counts, seconds = run_stage(stage, context, judge_leaks=not arguments.shared_machine)
            total += counts
            table.append((stage.name, counts, seconds))
            if stage.name == "build" and counts.failed:
                print("the build failed: nothing else can run")
                break
    finally:
        context.remove_leftovers()

    print("\nstage              passed failed skipped  seconds")
    for name, counts, seconds in table:
        print(f"{name:18} {counts.passed:6d} {counts.failed:6d} {counts.skipped:7d} {seconds:8.1f}")
    if context.skips:
        print("\nskipped:")
        for reason in context.skips:
            print("  " + reason)
    if context.failures:
        print("\nfailed:")
        for name in context.failures:
            print("  " + name)
    print()
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
