"""The nightly stage tidy: clang-tidy over the product's sources.

Nearly all of clang-tidy's time goes to the headers that a source includes. So
the sources of a folder are checked as one text, up to BATCH of them, and the
headers are paid for once. A source that does not compile beside its neighbours
(each has a kLimit of its own) is set aside and checked with the others set
aside, at last alone.
"""
import bisect
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

from runner.counts import Counts

BATCH = 12
TIMEOUT_SECONDS = 1800
FINDING = re.compile(r"^(?P<path>/[^:]+):(?P<line>\d+):(?P<column>\d+): (?:warning|error): (?P<text>.*) \[(?P<check>[^\],]+)[^\]]*\]$", re.M)


def _flags(command):
    """What the compiler is told, without the compiler, the source and the object."""
    words, kept = shlex.split(command)[1:], []
    while words:
        word = words.pop(0)
        if word in ("-o", "-c"):
            words.pop(0)
        else:
            kept.append(word)
    return kept


def batches(database):
    """The sources of a compilation database, those of one folder and the same flags together."""
    groups = collections.defaultdict(list)
    for entry in json.loads(database.read_text()):
        source = pathlib.Path(entry["file"])
        groups[source.parent, tuple(_flags(entry["command"]))].append(source)
    for (_, flags), sources in sorted(groups.items()):
        sources.sort()
        for start in range(0, len(sources), BATCH):
            yield flags, sources[start:start + BATCH]


def _joined(sources, scratch):
    """The sources as one text in a new file, and the line at which each begins."""
    text, begins = "", []
    for source in sources:
        begins.append(text.count("\n") + 1)
        text += source.read_text().rstrip("\n") + "\n"
    name = "_".join(sources[0].parent.parts[-2:]) + "_" + "_".join(s.stem for s in sources)
    joined = scratch / (name[:200] + ".cc")
    joined.write_text(text)
    return joined, begins


def _origin(match, joined, sources, begins):
    """The file and line that a finding means."""
    path, line = pathlib.Path(match["path"]), int(match["line"])
    if path != joined:
        return path, line
    index = bisect.bisect_right(begins, line) - 1
    return sources[index], line - begins[index] + 1


def check(flags, sources, scratch):
    """The findings of `sources`: {source: [lines]}; a finding in a header counts for the first source."""
    joined, begins = _joined(sources, scratch) if len(sources) > 1 else (sources[0], [1])
    try:
        done = subprocess.run(["clang-tidy-19", "--quiet", joined, "--", *flags, "-w", "-ferror-limit=0"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return {source: [f"{source}: not checked within {TIMEOUT_SECONDS} s"] for source in sources}
    findings, misfits = collections.defaultdict(list), set()
    matches = list(FINDING.finditer(done.stdout))
    for match in matches:
        path, line = _origin(match, joined, sources, begins)
        if match["check"] == "clang-diagnostic-error":
            misfits.add(path)
        elif path.is_relative_to("/usr"):
            continue  # the analyzer followed a call of ours into a library
        findings[path if path in sources else sources[0]].append(f"{path}:{line}:{match['column']}: {match['text']} [{match['check']}]")
    if len(sources) > 1 and (misfits or (done.returncode != 0 and not matches)):
        aside = [s for s in sources if s in misfits] or sources
        rest = [s for s in sources if s not in aside]
        parts = [[s] for s in sources] if not rest else [rest, aside]
        return {k: v for part in parts for k, v in check(flags, part, scratch).items()}
    if done.returncode != 0 and not matches:
        findings[sources[0]].append(done.stdout[-4000:])
    return findings


def tidy(context):
    """One count a source; a finding fails the source it stands in."""
    if shutil.which("clang-tidy-19") is None:
        return context.skip("tidy", "clang-tidy-19 is not installed")
    if context.call(["cmake", "--preset", "tidy"], timeout=300, quiet=True) != 0 or \
            context.call(["cmake", "--build", "--preset", "tidy", "--target", "dsec_openapi"], timeout=300, quiet=True) != 0:
        context.failures.append("tidy: configure")
        return Counts(failed=1)
    build = context.root / "build" / "tidy"
    scratch = build / "joined"
    scratch.mkdir(exist_ok=True)
    counts = Counts()
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        work = [(sources, pool.submit(check, flags, sources, scratch))
                for flags, sources in batches(build / "compile_commands.json")]
        for sources, job in work:
            findings = job.result()
            counts += Counts(passed=len(sources) - len(findings), failed=len(findings))
            for source, lines in sorted(findings.items()):
                print("\n".join(lines), flush=True)
                context.failures.append(f"tidy: {source.relative_to(context.root)}: {len(lines)} findings")
    finally:
        pool.shutdown(cancel_futures=True)
    return counts
