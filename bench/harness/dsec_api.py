"""dsec through its REST API: a server of its own, and the figures of the contract."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence

from . import machine
from .http_client import Answer, Call, Client, Work
from .runtimes import Program, Skip, Timed

IMAGE = "dsec-bench:1"
RESOURCES = {"cpu_cores": 1, "memory_mb": 512, "max_processes": 512}


class Refused(Exception):
    """An answer that is not what the figure needs."""


def expect(answer: Answer, *statuses: int) -> Any:
    if answer.status not in statuses:
        raise Refused(f"{answer.status}: {answer.body[:300].decode(errors='replace')}")
    return answer.json()


class Server:
    def __init__(self, binaries: Path, work: Path, name: str = "dsec", arguments: Sequence[str] = (), environment: Optional[Dict[str, str]] = None) -> None:
        self.binaries = binaries
        self.data = work / f"{name}-data"
        self.ready = work / f"{name}-ready.json"
        self.log_path = work / f"{name}.log"
        self.arguments = arguments
        self.environment = dict(os.environ, **(environment or {}))
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> Client:
        if not (self.binaries / "dsec").exists():
            raise Skip(f"{self.binaries}/dsec is not built")
        shutil.rmtree(self.data, ignore_errors=True)
        self.ready.unlink(missing_ok=True)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(self.binaries / "dsec"), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(self.data), "--ready-file", str(self.ready),
                 "--stop-sandboxes", *self.arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self.environment)
        until = time.monotonic() + 60
        while not self.ready.exists() or self.ready.stat().st_size == 0:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Skip(f"dsec serve did not start: {self.log_path.read_bytes()[-400:].decode(errors='replace')}")
            time.sleep(0.02)
        said = json.loads(self.ready.read_text())
        self.url, self.key = said["url"], said["admin_key"]
        return Client(self.url, self.key)

    def import_base(self, rootfs: Path) -> None:
        self.command("image", "import", IMAGE, str(rootfs))

    def command(self, *arguments: str) -> str:
        """The output of `dsec ARGUMENTS` against this server."""
        environment = dict(os.environ, DSEC_URL=self.url, DSEC_API_KEY=self.key)
        done = subprocess.run([str(self.binaries / "dsec"), *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=600)
        if done.returncode != 0:
            raise Skip(f"dsec {arguments[0]} {arguments[1]}: {done.stdout[-400:].decode(errors='replace')}")
        return done.stdout.decode()

    def platform_processes(self) -> Dict[str, int]:
        """name -> pid of serve and of keeper and spawner: of the keeper that was given this
        data directory, and of its child."""
        assert self.process is not None
        out = {"dsec": self.process.pid}
        for pid in machine.processes_named("dsec-keeper"):
            if str(self.data) in machine.arguments_of(pid):
                for child in machine.processes_of(pid):
                    out[machine.command_of(child)] = child
        return {name: pid for name, pid in out.items() if name in ("dsec", "dsec-keeper", "dsec-spawner")}

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def create_call(**more: Any) -> Call:
    """With a key, as libdsec sends one: the answer waits until the log is on stable storage."""
    return Call("POST", "/v1/sandboxes", {"image": IMAGE, "resources": RESOURCES, **more}, f"Idempotency-Key: {uuid.uuid4().hex}\r\n")


def exec_call(identity: str, *argv: str) -> Call:
    return Call("POST", f"/v1/sandboxes/{identity}/exec", {"argv": list(argv)})


def delete_call(identity: str) -> Call:
    return Call("DELETE", f"/v1/sandboxes/{identity}")


def cycle(note: Callable[[Timed], None], with_true: bool = False) -> Work:
    """One sandbox: created, used and deleted."""
    figures: Timed = {}
    begin = time.perf_counter()
    made = expect((yield create_call()), 201)
    identity = made["id"]
    figures["create"] = (time.perf_counter() - begin) * 1000
    try:
        printed = expect((yield exec_call(identity, "echo", "hello")), 200)
        figures["create to echo"] = (time.perf_counter() - begin) * 1000
        if printed.get("stdout") != "hello\n":
            raise Refused(f"echo printed {printed}")
        if with_true:
            again = time.perf_counter()
            expect((yield exec_call(identity, "true")), 200)
            figures["exec true"] = (time.perf_counter() - again) * 1000
    finally:
        last = time.perf_counter()
        gone = yield delete_call(identity)
    expect(gone, 200, 202, 204)
    figures["delete"] = (time.perf_counter() - last) * 1000
    figures["cycle"] = (time.perf_counter() - begin) * 1000
    note(figures)


def cycles(count: int, note: Callable[[Timed], None]) -> Work:
    for _ in range(count):
        yield from cycle(note)


class Dsec(Program):
    """The column of this project in the table of programs."""

    name = "dsec API"
    commands = ["dsec serve --listen 127.0.0.1:0 --data-dir DIR", "POST /v1/sandboxes, POST /v1/sandboxes/ID/exec, DELETE /v1/sandboxes/ID on one kept connection"]

    def __init__(self, server: Server) -> None:
        self.server = server

    def prepare(self, rootfs: Path, work: Path) -> None:
        self.client = self.server.start()
        self.server.import_base(rootfs)
        self.cycle("probe")

    def cycle(self, tag: str) -> Timed:
        out: Timed = {}
        failures = self.client.run([cycle(out.update, with_true=True)])
        if failures:
            raise RuntimeError(failures[0])
        return out

    def finish(self) -> None:
        self.server.stop()


def exec_true(client: Client, count: int, note: Callable[[float], None]) -> List[str]:
    def work() -> Work:
        made = expect((yield create_call()), 201)
        for _ in range(count):
            begin = time.perf_counter()
            expect((yield exec_call(made["id"], "true")), 200)
            note((time.perf_counter() - begin) * 1000)
        yield delete_call(made["id"])

    return client.run([work()])


def echoes(client: Client, count: int, note: Callable[[float], None]) -> List[str]:
    """Create to first output of one client that does nothing else: no other program runs in between."""
    return client.run([cycles(count, lambda figures: note(figures["create to echo"]))])


def burst(client: Client, at_once: int, note: Callable[[float], None]) -> List[str]:
    """`at_once` clients that create and echo in the same moment; the deletes come when all have their echo."""
    identities: List[str] = []

    def work() -> Work:
        begin = time.perf_counter()
        made = expect((yield create_call()), 201)
        identities.append(made["id"])
        expect((yield exec_call(made["id"], "echo", "hello")), 200)
        note((time.perf_counter() - begin) * 1000)

    failures = client.run([work() for _ in range(at_once)])
    return failures + client.run([remove(identities)])


def throughput(client: Client, at_once: int, count: int) -> Dict[str, Any]:
    """create + exec + delete through HTTP."""
    done: List[float] = []
    share = max(1, count // at_once)
    begin = time.perf_counter()
    spent = time.process_time()
    failures = client.run([cycles(share, lambda figures: done.append(figures["cycle"])) for _ in range(at_once)])
    seconds = time.perf_counter() - begin
    return {"at_once": at_once, "cycles": len(done), "seconds": seconds, "rate": len(done) / seconds,
            "client_cpu_share": (time.process_time() - spent) / seconds, "failures": failures, "cycle_ms": done}


def idle(client: Client, server: Server, count: int, note_create: Callable[[int, float], None]) -> Dict[str, Any]:
    """`count` sandboxes that do nothing: their memory, kernel included, and the cost of one more."""
    identities: List[str] = []
    before = settled_memory_kb()

    def fill(share: int) -> Work:
        for _ in range(share):
            begin = time.perf_counter()
            made = expect((yield create_call()), 201)
            identities.append(made["id"])
            note_create(len(identities), (time.perf_counter() - begin) * 1000)

    failures = client.run([fill(count)], deadline_seconds=1200)
    after = settled_memory_kb()
    live: List[float] = []

    def one_more() -> Work:
        for _ in range(100):
            begin = time.perf_counter()
            made = expect((yield create_call()), 201)
            live.append((time.perf_counter() - begin) * 1000)
            yield delete_call(made["id"])

    failures += client.run([one_more()])
    processes = {name: {"rss_kb": machine.resident_kb(pid), "descriptors": machine.descriptors(pid)} for name, pid in server.platform_processes().items()}
    works = [remove(identities[start::8]) for start in range(8)]
    failures += client.run(works, deadline_seconds=1200)
    return {"sandboxes": len(identities), "kb_each": (before - after) / max(1, len(identities)), "create_at_full_ms": live, "processes": processes,
            "failures": failures}


def remove(identities: List[str]) -> Work:
    for identity in identities:
        yield delete_call(identity)


def settled_memory_kb() -> int:
    """MemAvailable once it has stopped moving, caches dropped."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    last = machine.memory_available_kb()
    for _ in range(20):
        time.sleep(0.25)
        now = machine.memory_available_kb()
        if abs(now - last) < 1024:
            return now
        last = now
    return last


def endurance(client: Client, server: Server, count: int, at_once: int, sample_every: int) -> Dict[str, Any]:
    """Many cycles with samples of memory and descriptors: both must be flat."""
    samples: List[Dict[str, Any]] = []
    done: List[float] = []

    def sample() -> None:
        row: Dict[str, Any] = {"cycles": len(done), "available_kb": machine.memory_available_kb()}
        for name, pid in server.platform_processes().items():
            row[name] = {"rss_kb": machine.resident_kb(pid), "descriptors": machine.descriptors(pid)}
        samples.append(row)

    def note(figures: Timed) -> None:
        done.append(figures["cycle"])
        if len(done) % sample_every == 0:
            sample()

    sample()
    begin = time.perf_counter()
    failures = client.run([cycles(count // at_once, note) for _ in range(at_once)], deadline_seconds=3600)
    sample()
    return {"cycles": len(done), "seconds": time.perf_counter() - begin, "samples": samples, "failures": failures}
