"""podman and dockerd through the Docker API, each on a socket and with data of its own."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from .runtimes import Program, Skip, Timed, milliseconds

IMAGE = "localhost/dsec-bench:1"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


class DockerApi(Program):
    """The calls that a Docker client makes: create, start, exec create, exec start, remove."""

    def prepare(self, rootfs: Path, work: Path) -> None:
        if shutil.which(self.program) is None:
            raise Skip("not installed (bench/install_baselines.sh installs it)")
        self.work = work / self.name.replace(" ", "-")
        self.work.mkdir(parents=True, exist_ok=True)
        self.path = str(self.work / "api.sock")
        self.log = open(self.work / "log", "wb")
        self.daemon = subprocess.Popen(self.daemon_argv(), env=self.environment(), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        try:
            self._wait()
            self._import(rootfs)
            self.cycle("probe")
        except (RuntimeError, OSError, http.client.HTTPException) as error:
            self.finish()
            raise Skip(f"{error}; its log ends: {self._log_tail()}") from error

    def daemon_argv(self) -> List[str]:
        raise NotImplementedError

    def environment(self) -> Dict[str, str]:
        return dict(os.environ)

    program = ""
    # The limits on descriptors and processes that they set by themselves are past
    # what a host without CAP_SYS_RESOURCE may give.
    host_config: Dict[str, Any] = {
        "NetworkMode": "none", "Memory": 512 << 20, "PidsLimit": 512,
        "Ulimits": [{"Name": "nofile", "Soft": 1024, "Hard": 4096}, {"Name": "nproc", "Soft": 4096, "Hard": 4096}]}

    def _log_tail(self) -> str:
        return (self.work / "log").read_bytes()[-300:].decode(errors="replace").strip()

    def _wait(self) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                self._call("GET", "/_ping", raw=True)
                return
            except OSError as error:
                if time.monotonic() > until or self.daemon.poll() is not None:
                    raise RuntimeError(f"{self.program} does not answer: {error}") from error
                time.sleep(0.05)

    def _call(self, method: str, path: str, body: Any = None, raw: bool = False) -> Any:
        connection = _UnixConnection(self.path)
        try:
            payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
            connection.request(method, path, payload, {"Content-Type": kind, "Host": "localhost"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status}: {data[:300].decode(errors='replace')}")
        return data if raw else json.loads(data) if data else None

    def _import(self, rootfs: Path) -> None:
        tar = subprocess.run(["tar", "-C", str(rootfs), "-c", "."], check=True, capture_output=True).stdout
        name, _, tag = IMAGE.rpartition(":")
        said = self._call("POST", f"/images/create?fromSrc=-&repo={name}&tag={tag}", tar, raw=True)
        # The names that the two give it differ; the id is said last.
        self.image = json.loads(said.strip().splitlines()[-1])["status"]

    def cycle(self, tag: str) -> Timed:
        name = f"bench-{os.getpid()}-{tag}"
        out: Timed = {}
        begin = time.perf_counter()
        made = self._call("POST", f"/containers/create?name={name}", {
            "Image": self.image, "Cmd": ["sleep", "infinity"], "NetworkDisabled": True, "HostConfig": self.host_config})
        identity = made["Id"]
        try:
            self._call("POST", f"/containers/{identity}/start", raw=True)
            out["create"] = (time.perf_counter() - begin) * 1000
            self._exec(identity, ["echo", "hello"], "hello")
            out["create to echo"] = (time.perf_counter() - begin) * 1000
            out["exec true"] = milliseconds(lambda: self._exec(identity, ["true"]))
        finally:
            out["delete"] = milliseconds(lambda: self._call("DELETE", f"/containers/{identity}?force=1", raw=True))
        out["cycle"] = out["create to echo"] + out["delete"]
        return out

    def _exec(self, identity: str, argv: List[str], expect: Optional[str] = None) -> None:
        made = self._call("POST", f"/containers/{identity}/exec", {"Cmd": argv, "AttachStdout": True, "AttachStderr": True})
        output = self._call("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}, raw=True)
        if expect is not None and expect.encode() not in output:
            raise RuntimeError(f"exec printed {output[:100]!r}")

    def finish(self) -> None:
        self.daemon.terminate()
        try:
            self.daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        self.log.close()


class Podman(DockerApi):
    def __init__(self, runtime: str) -> None:
        self.program = "podman"
        self.runtime = runtime
        self.name = f"podman API + {runtime}"
        self.commands = [" ".join(self._flags("DIR")) + " system service --time=0 unix://DIR/api.sock",
                         "POST /containers/create, /containers/ID/start, /containers/ID/exec, /exec/ID/start; DELETE /containers/ID?force=1"]

    def _flags(self, where: str) -> List[str]:
        return ["podman", "--root", f"{where}/root", "--runroot", f"{where}/run", "--tmpdir", f"{where}/tmp",
                "--runtime", self.runtime, "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--storage-driver", "overlay"]

    def daemon_argv(self) -> List[str]:
        return [*self._flags(str(self.work)), "system", "service", "--time=0", f"unix://{self.path}"]

    def environment(self) -> Dict[str, str]:
        # Else the monitor of each exec stays for five minutes.
        configuration = self.work / "containers.conf"
        configuration.write_text("[engine]\nexit_command_delay = 0\n")
        return dict(os.environ, CONTAINERS_CONF=str(configuration))

    def finish(self) -> None:
        super().finish()
        subprocess.run([*self._flags(str(self.work)), "system", "reset", "--force"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=120)


class Docker(DockerApi):
    program = "dockerd"
    name = "dockerd API"
    commands = ["dockerd --bridge=none --iptables=false --data-root DIR --exec-root DIR --host unix://DIR/api.sock", "the same calls"]

    def daemon_argv(self) -> List[str]:
        return ["dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--data-root", str(self.work / "data"), "--exec-root",
                str(self.work / "exec"), "--pidfile", str(self.work / "pid"), "--host", f"unix://{self.path}", "--log-level", "error"]
