"""runc, crun and bubblewrap as a client would use them, on the same root filesystem.

Every program gets new pid, mount, ipc, uts and net namespaces and, where it can
make them, cgroups with 512 MiB and 512 processes. A figure is the time of one
step; the steps of one program follow one another, the programs take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

Timed = Dict[str, float]  # figure -> milliseconds


class Skip(Exception):
    """The program cannot run here; the text says what is missing."""


def milliseconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def run(argv: List[str], expect: Optional[str] = None) -> None:
    out = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    text = out.stdout.decode(errors="replace")
    if out.returncode != 0 or (expect is not None and expect not in text):
        raise RuntimeError(f"{' '.join(argv)}: {out.returncode}: {text.strip()[-300:]}")


class Program:
    """One column of the table."""

    name = ""
    commands: List[str] = []  # what is run, for the report

    def prepare(self, rootfs: Path, work: Path) -> None:
        raise NotImplementedError

    def cycle(self, tag: str) -> Timed:
        """One sandbox: made, used and removed."""
        raise NotImplementedError

    def finish(self) -> None:
        pass


class ClientFloor(Program):
    """What the client itself takes to start a plain program."""

    name = "plain process"
    commands = ["/bin/echo hello", "/bin/true"]

    def prepare(self, rootfs: Path, work: Path) -> None:
        pass

    def cycle(self, tag: str) -> Timed:
        return {
            "one-shot echo": milliseconds(lambda: run(["/bin/echo", "hello"], "hello")),
            "exec true": milliseconds(lambda: run(["/bin/true"])),
        }


class OciRuntime(Program):
    def __init__(self, program: str) -> None:
        self.name = program
        self.commands = [
            f"{program} run --bundle B ID  (process: echo hello)",
            f"{program} run --detach --bundle B ID  (process: sleep infinity); {program} exec ID echo hello",
            f"{program} exec ID true",
            f"{program} delete --force ID",
        ]

    def prepare(self, rootfs: Path, work: Path) -> None:
        if shutil.which(self.name) is None:
            raise Skip("not installed")
        self.state = work / f"{self.name}-state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.once = self._bundle(rootfs, work / f"{self.name}-once", ["echo", "hello"])
        self.live = self._bundle(rootfs, work / f"{self.name}-live", ["sleep", "infinity"])
        try:
            self.cycle("probe")
        except RuntimeError as error:
            raise Skip(str(error)) from error

    def _bundle(self, rootfs: Path, path: Path, argv: List[str]) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        config = path / "config.json"
        config.unlink(missing_ok=True)
        subprocess.run([self.name, "spec"], cwd=path, check=True, stdin=subprocess.DEVNULL)
        spec = json.loads(config.read_text())
        spec["process"]["terminal"] = False
        spec["process"]["args"] = argv
        spec["root"] = {"path": str(rootfs), "readonly": True}
        spec["linux"].setdefault("resources", {}).update({"memory": {"limit": 512 << 20}, "pids": {"limit": 512}})
        config.write_text(json.dumps(spec))
        return path

    def _argv(self, *words: str) -> List[str]:
        return [self.name, "--root", str(self.state), *words]

    def cycle(self, tag: str) -> Timed:
        live = f"bench-{self.name}-{os.getpid()}-{tag}"
        out: Timed = {"one-shot echo": milliseconds(lambda: run(self._argv("run", "--bundle", str(self.once), live + "-once"), "hello"))}
        try:
            # A detached container keeps the client's pipes: it gets none.
            create = milliseconds(lambda: self._quiet("run", "--detach", "--bundle", str(self.live), live))
            echo = milliseconds(lambda: run(self._argv("exec", live, "echo", "hello"), "hello"))
            out["create"] = create
            out["create to echo"] = create + echo
            out["exec true"] = milliseconds(lambda: run(self._argv("exec", live, "true")))
        finally:
            out["delete"] = milliseconds(lambda: self._quiet("delete", "--force", live))
        out["cycle"] = out["create to echo"] + out["delete"]
        return out

    def _quiet(self, *words: str) -> None:
        done = subprocess.run(self._argv(*words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(self._argv(*words))}: {done.returncode}")


class Bubblewrap(Program):
    name = "bwrap"
    flags = ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    commands = [
        "bwrap --unshare-all --die-with-parent --ro-bind ROOT / --proc /proc --dev /dev --tmpfs /tmp echo hello",
        "the same with sh, held by a pipe; echo and true are written to it (no exec, no cgroups)",
    ]

    def prepare(self, rootfs: Path, work: Path) -> None:
        if shutil.which("bwrap") is None:
            raise Skip("not installed")
        self.argv = ["bwrap", "--ro-bind", str(rootfs), "/", *self.flags]
        try:
            self.cycle("probe")
        except RuntimeError as error:
            raise Skip(str(error)) from error

    def cycle(self, tag: str) -> Timed:
        out: Timed = {"one-shot echo": milliseconds(lambda: run([*self.argv, "echo", "hello"], "hello"))}
        begin = time.perf_counter()
        shell = subprocess.Popen([*self.argv, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert shell.stdin is not None and shell.stdout is not None
        shell.stdin.write(b"echo hello\n")
        if shell.stdout.readline() != b"hello\n":
            shell.kill()
            raise RuntimeError("bwrap: no output")
        out["create to echo"] = (time.perf_counter() - begin) * 1000
        begin = time.perf_counter()
        shell.stdin.write(b"/bin/true; echo done\n")
        shell.stdout.readline()
        out["exec true"] = (time.perf_counter() - begin) * 1000
        begin = time.perf_counter()
        shell.kill()
        shell.wait()
        out["delete"] = (time.perf_counter() - begin) * 1000
        shell.stdin.close()
        shell.stdout.close()
        out["cycle"] = out["create to echo"] + out["delete"]
        return out


class Minijail(Program):
    """Not in Debian: `minijail0` on PATH or DSEC_BENCH_MINIJAIL is used, built from its public source."""

    name = "minijail"
    commands = ["minijail0 -T static -v -p -I -l -e -N -r --uts -C ROOT -- /bin/echo hello (no cgroups, no user namespace)"]

    def prepare(self, rootfs: Path, work: Path) -> None:
        program = os.environ.get("DSEC_BENCH_MINIJAIL") or shutil.which("minijail0")
        if program is None:
            raise Skip("not installed: it is not in Debian; name one by DSEC_BENCH_MINIJAIL")
        self.argv = [program, "-T", "static", "-v", "-p", "-I", "-l", "-e", "-N", "-r", "--uts", "-C", str(rootfs), "--", "/bin/echo", "hello"]
        try:
            self.cycle("probe")
        except RuntimeError as error:
            raise Skip(str(error)) from error

    def cycle(self, tag: str) -> Timed:
        return {"one-shot echo": milliseconds(lambda: run(self.argv, "hello"))}


class Engine(Program):
    """dsec's container backend without server, log and HTTP: create until the agent has answered, then a first echo."""

    def __init__(self, binary: Path, v1: bool) -> None:
        self.name = "dsec engine" + ("" if v1 else ", no v1")
        self.argv = [str(binary), "turns", *([] if v1 else ["--no-v1"])]
        self.commands = [" ".join(["engine_create", *self.argv[1:], "--rootfs ROOT"]) + " (every isolation, the real agent, limits)"]
        self.process: Optional[subprocess.Popen[str]] = None

    def prepare(self, rootfs: Path, work: Path) -> None:
        if not Path(self.argv[0]).exists():
            raise Skip(f"{self.argv[0]} is not built")
        self.process = subprocess.Popen([*self.argv, "--rootfs", str(rootfs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, bufsize=1)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise Skip("engine_create turns did not start")

    def cycle(self, tag: str) -> Timed:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if len(line) != 3:
            raise RuntimeError("engine_create has ended")
        ready, echo, destroy = (float(word) / 1000 for word in line)
        return {"create to ready": ready, "create to echo": echo, "delete": destroy, "cycle": echo + destroy}

    def finish(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(timeout=60)


def hide_v2_hierarchy() -> Tuple[bool, str]:
    """crun refuses a hybrid host while it sees the v2 mount: taken away in a mount
    namespace of this process. Returns whether it was there, and what was done."""
    where = Path("/sys/fs/cgroup/unified")
    if not where.exists() or not os.path.ismount(where):
        return False, "the host has no separate v2 mount"
    subprocess.run(["umount", str(where)], check=True)
    return True, "unshare --mount; umount /sys/fs/cgroup/unified"
