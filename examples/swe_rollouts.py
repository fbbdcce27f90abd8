#!/usr/bin/python3
"""Sixteen software-engineering rollouts at once, on a real project, graded fairly.

The base is Debian with Python and pytest; the workspace is the sdist of boltons,
a real library with its own test suite, into which this script seeds one bug; the
toolkit is the small tool set of examples/coding_tools. Each rollout is a scripted
agent: it looks around, runs the failing test, edits (some rightly, some wrongly,
some by tampering with the tests) and runs the test again.

Grading does not trust anything that the agent could touch: its processes are
killed, then the source files alone go into a fresh sandbox, the tests are copied
in from this machine, and the whole suite runs there.

Exit code 0: every rollout was graded as its script deserves. 1: one was not, or
something failed.

    python3 examples/swe_rollouts.py [--rollouts 16] [--base debian:12]
"""
from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
try:
    import libdsec  # noqa: F401
except ImportError:
    sys.path.insert(0, str(HERE.parent / "sdk" / "python"))
from libdsec import CommandResult, DSecClient, DSecContainerRunArgs, DSecError, NotFound, Sandbox  # noqa: E402

PROJECT, VERSION = "boltons", "25.0.0"
BASE_SOURCE = "debian:bookworm,python3,python3-pytest,git,procps"
WORKSPACE, TOOLKIT = f"{PROJECT}:{VERSION}-seeded", "coding-tools:1"
WORK, TOOLS = f"/work/{PROJECT}", "/opt/dsec-tools"
BROKEN_FILE, FAILING_TEST = f"{PROJECT}/iterutils.py", "tests/test_iterutils.py::test_chunk_ranges"
RIGHT = "range(input_offset, input_stop, chunk_size - overlap_size)"
BROKEN = "range(input_offset, input_stop, chunk_size)"
WRONG = "range(input_offset, input_stop, chunk_size - overlap_size - 1)"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dsec" / "demonstration"


@dataclasses.dataclass(frozen=True)
class Script:
    """What one kind of agent does after it has seen the test fail."""

    name: str
    solves: bool  # what a fair grader finds
    looks_solved: bool  # what the agent's own last test run says
    edit: "dict[str, str] | None" = None
    shell: "str | None" = None


SCRIPTS = {
    script.name: script
    for script in (
        Script("right fix", True, True, edit={"old": BROKEN, "new": RIGHT}),
        Script("wrong fix", False, False, edit={"old": BROKEN, "new": WRONG}),
        Script("gives up", False, False),
        # Makes the test pass by gutting it.
        Script("edits the test", False, True,
               shell=f"cd {WORK} && printf 'def test_chunk_ranges():\\n    pass\\n' > tests/test_iterutils.py"),
        # Makes pytest itself report success, and leaves a detached process that guards it.
        Script("rigs pytest", False, True,
               shell=f"cd {WORK} && printf 'def pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > conftest.py && "
                     f"cp conftest.py /tmp/rig.py && (setsid sh -c 'while :; do cp /tmp/rig.py {WORK}/conftest.py; sleep 0.2; done' "
                     ">/dev/null 2>&1 &)"),
    )
}
ORDER = ["right fix", "wrong fix", "right fix", "edits the test", "right fix", "gives up", "rigs pytest", "right fix"]


class Unexpected(Exception):
    """Something that the demonstration promised did not hold."""


@dataclasses.dataclass
class Outcome:
    number: int
    script: Script
    seconds: "dict[str, float]" = dataclasses.field(default_factory=dict)
    own_verdict: "bool | None" = None
    graded: "bool | None" = None
    passed: int = 0
    leftovers: int = 0
    infra: bool = False
    error: str = ""

    @property
    def as_expected(self) -> bool:
        return not self.error and self.graded == self.script.solves and self.own_verdict == self.script.looks_solved


class Stopwatch:
    """Adds the time of a block to an outcome under a name."""

    def __init__(self, outcome: Outcome, name: str) -> None:
        self.outcome, self.name = outcome, name

    def __enter__(self) -> None:
        self.begun = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        seconds = self.outcome.seconds
        seconds[self.name] = seconds.get(self.name, 0.0) + time.perf_counter() - self.begun


# What rollouts start from ---------------------------------------------------


def fetch_project() -> pathlib.Path:
    """The unpacked sdist, fetched once by the machine's own pip."""
    tree = CACHE / f"{PROJECT}-{VERSION}"
    if (tree / "tests").is_dir():
        return tree
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:",
             "--dest", scratch, f"{PROJECT}=={VERSION}"],
            check=True, stdin=subprocess.DEVNULL)
        archive = next(pathlib.Path(scratch).glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(scratch)
        (pathlib.Path(scratch) / tree.name).rename(tree)
    return tree


def seeded_copy(tree: pathlib.Path, target: pathlib.Path) -> None:
    """The project with one bug more than its authors gave it."""
    shutil.copytree(tree, target, ignore=shutil.ignore_patterns("docs", "*.egg-info"))
    file = target / BROKEN_FILE
    text = file.read_text()
    if text.count(RIGHT) != 1:
        raise Unexpected(f"{BROKEN_FILE} of {PROJECT} {VERSION} is not the file that the bug was made for")
    file.write_text(text.replace(RIGHT, BROKEN))


async def prepare(client: DSecClient, base: str, tree: pathlib.Path) -> None:
    """Imports what is not there yet."""
    try:
        await client.images.get(base)
    except NotFound:
        print(f"importing {base} from {BASE_SOURCE}; the server builds it, which takes a minute or two", flush=True)
        await client.images.import_(base, BASE_SOURCE)
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / "project"
        seeded_copy(tree, copy)
        for name, source, kind, at in ((WORKSPACE, copy, "workspace", WORK), (TOOLKIT, HERE / "coding_tools", "toolkit", TOOLS)):
            layer = await client.layers.import_(name, source, kind=kind, at=at)
            print(f"{kind:<9} {name:<24} {layer.digest[:19]}  {layer.size_bytes / 1024:.0f} KiB", flush=True)


# One rollout ----------------------------------------------------------------


def run_args(base: str, role: str, number: int) -> DSecContainerRunArgs:
    return DSecContainerRunArgs(
        container_image=base, workspace=WORKSPACE, toolkits=[TOOLKIT], memory_limit_mb=512, cpu_cores_limit=1, ttl_running_stop=600,
        labels={"job": "swe-rollouts", "role": role, "rollout": str(number)})


async def tool(sandbox: Sandbox, *argv: str, stdin: "str | None" = None, timeout: float = 120) -> CommandResult:
    return await sandbox.exec([f"{TOOLS}/bin/{argv[0]}", *argv[1:]], cwd=WORK, stdin=stdin, timeout=timeout)


async def act(sandbox: Sandbox, outcome: Outcome) -> None:
    """The agent's part."""
    with Stopwatch(outcome, "inspect"):
        found = (await tool(sandbox, "search", r"def chunk_ranges", PROJECT)).check().stdout
        line = int(found.split(":")[1])
        (await tool(sandbox, "view", BROKEN_FILE, str(line), str(line + 60))).check()
    with Stopwatch(outcome, "test"):
        before = await tool(sandbox, "run-tests", FAILING_TEST)
    if before.exit_code != 1 or "1 failed" not in before.stdout:
        raise Unexpected(f"the seeded bug does not show: {before.exit_code} {before.stdout[-300:]}{before.stderr[-300:]}")
    with Stopwatch(outcome, "edit"):
        if outcome.script.edit is not None:
            (await tool(sandbox, "edit", BROKEN_FILE, stdin=json.dumps(outcome.script.edit))).check()
        if outcome.script.shell is not None:
            (await sandbox.run_shell(outcome.script.shell, timeout=30)).check()
    with Stopwatch(outcome, "retest"):
        outcome.own_verdict = (await tool(sandbox, "run-tests", FAILING_TEST)).ok


async def end_agent(sandbox: Sandbox) -> int:
    """Kills whatever the agent left running; how many processes that were."""
    left = int((await sandbox.stats())["processes"])
    for command in await sandbox.processes():
        await (await sandbox.process(command.exec_id)).kill()
    deadline = time.monotonic() + 10
    while (alive := int((await sandbox.stats())["processes"])) > 0:
        if time.monotonic() > deadline:
            raise Unexpected(f"{alive} processes of the agent survive their end")
        await asyncio.sleep(0.05)
    return left


async def grade(client: DSecClient, base: str, sandbox: Sandbox, tree: pathlib.Path, outcome: Outcome) -> None:
    """The agent's sources, the authors' tests, and a sandbox that no agent has seen."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = pathlib.Path(scratch) / PROJECT
        await sandbox.files.download(f"{WORK}/{PROJECT}", sources)
        await sandbox.stop()
        for stray in [path for path in sources.rglob("*") if path.is_symlink() or (path.is_file() and path.suffix != ".py")]:
            stray.unlink()
        async with await client.run_container(run_args(base, "verifier", outcome.number), timeout=120) as verifier:
            for place in (PROJECT, "tests"):
                await verifier.files.remove(f"{WORK}/{place}", recursive=True)
            await verifier.files.upload(sources, f"{WORK}/{PROJECT}")
            await verifier.files.upload(tree / "tests", f"{WORK}/tests")
            result = await tool(verifier, "run-tests", "tests", timeout=300)
    if result.infra:
        outcome.infra = True
        raise Unexpected("the grading itself was disturbed by the platform")
    outcome.graded = result.ok
    summary = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else ""
    words = summary.replace(",", "").split()
    outcome.passed = int(words[words.index("passed") - 1]) if "passed" in words else 0


async def rollout(client: DSecClient, base: str, tree: pathlib.Path, number: int) -> Outcome:
    outcome = Outcome(number, SCRIPTS[ORDER[number % len(ORDER)]])
    begun = time.perf_counter()
    try:
        with Stopwatch(outcome, "create"):
            sandbox = await client.run_container(run_args(base, "agent", number), timeout=120)
        async with sandbox:
            await act(sandbox, outcome)
            with Stopwatch(outcome, "grade"):
                outcome.leftovers = await end_agent(sandbox)
                await grade(client, base, sandbox, tree, outcome)
    except (DSecError, Unexpected) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        outcome.infra = outcome.infra or bool(getattr(error, "infra", False))
    outcome.seconds["total"] = time.perf_counter() - begun
    return outcome


# The report -----------------------------------------------------------------

STEPS = ("create", "inspect", "test", "edit", "retest", "grade", "total")


def report(outcomes: "list[Outcome]", wall: float) -> bool:
    def word(verdict: "bool | None", yes: str, no: str) -> str:
        return "-" if verdict is None else yes if verdict else no

    print(f"\n{'#':>2}  {'agent':<15}" + "".join(f"{step:>9}" for step in STEPS) + "  own test  graded    suite  killed  as expected")
    for o in outcomes:
        times = "".join(f"{o.seconds[step] * 1000:>7.0f}ms" if step in o.seconds else f"{'-':>9}" for step in STEPS)
        print(f"{o.number:>2}  {o.script.name:<15}{times}  {word(o.own_verdict, 'passes', 'fails'):<8}  {word(o.graded, 'solved', 'not'):<7}"
              f"{o.passed:>5} ok  {o.leftovers:>6}  {'yes' if o.as_expected else 'NO'}")
        if o.error:
            print(f"    {'infra, masked: ' if o.infra else ''}{o.error}")
    good = sum(o.as_expected for o in outcomes)
    solved = sum(o.graded is True for o in outcomes)
    fooled = sum(o.own_verdict is True and o.graded is False for o in outcomes)
    creates = sorted(o.seconds["create"] * 1000 for o in outcomes if "create" in o.seconds)
    print(f"\n{len(outcomes)} rollouts in {wall:.1f} s: {solved} solved, {len(outcomes) - solved} not; "
          f"{fooled} looked solved to the agent and were not; {sum(o.infra for o in outcomes)} masked as infra")
    if creates:
        print(f"create to running, all at once: median {creates[len(creates) // 2]:.0f} ms, slowest {creates[-1]:.0f} ms")
    print("every rollout was graded as its script deserves" if good == len(outcomes) else f"{len(outcomes) - good} rollouts were NOT graded as expected")
    return good == len(outcomes)


async def main() -> int:
    parser = argparse.ArgumentParser(description="Concurrent SWE rollouts in DSec sandboxes", epilog="See the docstring of this file.")
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--base", default="debian:12", help="image with python3 and python3-pytest; imported when it is missing")
    parser.add_argument("--prepare-only", action="store_true", help="import what is needed, run nothing")
    options = parser.parse_args()
    try:
        tree = fetch_project()
    except subprocess.CalledProcessError:
        print(f"cannot fetch {PROJECT} {VERSION}: `pip download {PROJECT}=={VERSION}` has to work on this machine; "
              f"or unpack its sdist as {CACHE / f'{PROJECT}-{VERSION}'}", file=sys.stderr)
        return 1
    async with DSecClient() as client:
        await prepare(client, options.base, tree)
        if options.prepare_only:
            return 0
        print(f"{options.rollouts} rollouts at once", flush=True)
        begun = time.perf_counter()
        outcomes = await asyncio.gather(*(rollout(client, options.base, tree, n) for n in range(options.rollouts)))
        as_expected = report(list(outcomes), time.perf_counter() - begun)
        left = await client.list(selector="job=swe-rollouts")
        if left:
            print(f"{len(left)} sandboxes are left behind", file=sys.stderr)
    return 0 if as_expected and not left else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (DSecError, Unexpected) as failure:
        print(f"swe_rollouts: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
