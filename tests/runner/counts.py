"""Counts of a stage, and the context that stages share: paths, child processes, reports."""
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

from support import leftovers

PYTHON = "/usr/bin/python3"


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


class Context:
    def __init__(self, root, nightly):
        self.root = root
        self.nightly = nightly
        self.bin = root / "build" / "release" / "bin"
        self.reports = root / "build" / "test-reports"
        self.skips = []
        self.failures = []
        shutil.rmtree(self.reports, ignore_errors=True)
        self.reports.mkdir(parents=True)
        self.environment = dict(os.environ, LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1",
                                PYTHONPATH=f"{root}/tests:{root}/sdk/python", DSEC_BIN=str(self.bin),
                                DSEC_NIGHTLY="1" if nightly else "")
        for name in ("DSEC_URL", "DSEC_API_KEY", "DSEC_FAIL_POINT"):
            self.environment.pop(name, None)

    def remove_leftovers(self):
        for line in leftovers.remove():
            print("left by an earlier run: " + line)

    def skip(self, what, reason):
        print(f"SKIPPED {what}: {reason}")
        self.skips.append(f"{what}: {reason}")
        return Counts(skipped=1)

    def call(self, command, timeout, quiet=False, environment=None, cwd=None):
        """Runs a command in its own process group; the exit status, 124 past `timeout` seconds.

        With quiet, output is shown only when the command fails.
        """
        print("+ " + " ".join(map(str, command)), flush=True)
        output = tempfile.TemporaryFile() if quiet else None
        child = subprocess.Popen([str(c) for c in command], cwd=cwd or self.root, env=environment or self.environment,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT if quiet else None,
                                 start_new_session=True)
        try:
            status = child.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            print(f"past {timeout} s: killed", flush=True)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = 124
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        if quiet and status != 0:
            output.seek(0)
            print(output.read().decode(errors="replace")[-20000:], flush=True)
        return status

    def ctest(self, stage, build_directory, label, environment=None):
        """Runs the programs of one label and counts the test cases in them."""
        directory = self.reports / f"gtest-{stage}"
        directory.mkdir()
        junit = self.reports / f"ctest-{stage}.xml"
        variables = dict(environment or self.environment, GTEST_OUTPUT=f"xml:{directory}/", GTEST_COLOR="no")
        self.call(["ctest", "--test-dir", build_directory, "-L", f"^{label}$", "-j", str(os.cpu_count() or 1),
                   "--output-on-failure", "--no-tests=ignore", "--output-junit", junit], timeout=1800,
                  environment=variables)
        if not junit.exists():
            self.failures.append(f"{stage}: ctest did not end")
            return Counts(failed=1)
        programs = ElementTree.parse(junit).getroot().findall("testcase")
        if not programs:
            self.failures.append(f"{stage}: no test carries the label {label}")
            return Counts(failed=1)
        counts = Counts()
        for file in sorted(directory.glob("*.xml")):
            counts += self.count_junit(stage, file)
        for program in programs:
            if program.get("status") == "fail" and not counts.failed:
                counts.failed += 1
                self.failures.append(f"{stage}: {program.get('name')} (the program itself)")
        reported = len(list(directory.glob("*.xml")))
        counts.passed += sum(1 for p in programs if p.get("status") == "run" and p.get("name", "").startswith("fuzz."))
        print(f"{len(programs)} programs, {reported} reports")
        return counts

    def count_junit(self, stage, file):
        counts = Counts()
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            name = f"{stage}: {case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                counts.failed += 1
                self.failures.append(name)
            elif skipped is not None or case.get("result") == "skipped" or case.get("status") == "notrun":
                counts.skipped += 1
                reason = (skipped.get("message") or skipped.text or "") if skipped is not None else "disabled"
                self.skips.append(f"{name}: {' '.join(reason.split())[:300]}")
            else:
                counts.passed += 1
        return counts

    def pytest(self, stage, paths, timeout, extra=()):
        missing = [p for p in paths if not (self.root / p).exists()]
        if missing:
            return self.skip(stage, "no " + ", ".join(missing))
        report = self.reports / f"pytest-{stage}.xml"
        status = self.call([PYTHON, "-m", "pytest", "-q", "-rs", "--no-header", "-p", "no:cacheprovider", "--rootdir", self.root,
                            "-c", self.root / "tests" / "pytest.ini", f"--junitxml={report}", "--durations=5", *extra,
                            *[self.root / p for p in paths]], timeout=timeout)
        if not report.exists():
            self.failures.append(f"{stage}: pytest ended with {status} and no report")
            return Counts(failed=1)
        counts = self.count_junit(stage, report)
        if status == 5:
            return self.skip(stage, "no tests yet")
        if status != 0 and counts.failed == 0:
            self.failures.append(f"{stage}: pytest ended with {status}")
            counts.failed += 1
        return counts
