"""A real `dsec serve` in a directory of its own, on a free port."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

from support import leftovers
from support.api import Api

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("DSEC_BIN", ROOT / "build" / "release" / "bin"))
START_SECONDS = 30.0


def rows_of(server, sandbox):
    """How many rows the history has of a sandbox."""
    with contextlib.closing(sqlite3.connect(f"file:{server.data}/dsec.db?mode=ro", uri=True)) as store:
        return store.execute("SELECT count(*) FROM sandbox_history WHERE id=?", [sandbox]).fetchone()[0]


class Server:
    """Starts in the constructor's directory on start(); close() leaves nothing behind."""

    def __init__(self, arguments=(), environment=None, name="server"):
        leftovers.RUNS.mkdir(mode=0o755, exist_ok=True)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=name + "-", dir=leftovers.RUNS))
        (self.directory / "owner").write_text(str(os.getpid()))
        (self.directory / "owner_start").write_text(leftovers.start_time(os.getpid()))
        self.data = self.directory / "data"
        self.ready_file = self.directory / "ready.json"
        self.log_file = self.directory / "log"
        self.arguments = list(arguments)
        self.extra_environment = dict(environment or {})
        self.child = None
        self.api = None

    def start(self, fail_point=None, wait=True, listen="127.0.0.1:0"):
        self.ready_file.unlink(missing_ok=True)
        environment = {**os.environ, **self.extra_environment, leftovers.VARIABLE: str(self.directory)}
        environment.pop("DSEC_FAIL_POINT", None)
        if fail_point:
            environment["DSEC_FAIL_POINT"] = fail_point
        with open(self.log_file, "ab") as log:
            self.child = subprocess.Popen(
                [BIN / "dsec", "serve", "--listen", listen, "--data-dir", self.data, "--ready-file", self.ready_file, *self.arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self.directory)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=START_SECONDS):
        deadline = time.monotonic() + seconds
        while not self.ready_file.exists():
            status = self.child.poll()
            assert status is None, f"dsec serve ended with {status} before it was ready:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"dsec serve is not ready after {seconds} s:\n{self.log_tail()}"
            time.sleep(0.01)
        ready = json.loads(self.ready_file.read_text())
        self.api = Api(ready["url"], ready["admin_key"])
        return self.api

    def log_tail(self, lines=40):
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def kill(self):
        """SIGKILL to serve alone: keeper, spawner and sandboxes stay."""
        self.child.kill()
        self.child.wait()

    def stop(self, seconds=20.0):
        """SIGTERM, as an administrator would; the exit status."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=seconds)

    def restart(self, hard=True, **options):
        if self.child.poll() is None:
            if hard:
                self.kill()
            else:
                assert self.stop() == 0
        return self.start(**options)

    def open_files(self):
        """How many descriptors serve has open now."""
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def connections(self):
        """How many clients are connected to it now."""
        port = f":{self.api.port:04X}"
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(port) and row[3] == "01" for row in rows)

    def threads(self):
        return len(os.listdir(f"/proc/{self.child.pid}/task"))

    def pid_of(self, program):
        """The pid of this server's keeper or spawner, by name; None when it does not run.

        A child that has not executed anything yet has its parent's name: a sandbox's PID 1 is not to be taken for the spawner.
        """
        found = {}
        for pid in leftovers.processes_of(self.directory):
            try:
                stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                continue
            if stat[stat.index("(") + 1:stat.rindex(")")] == program[:15]:
                found[pid] = int(stat[stat.rindex(")") + 2:].split()[1])
        return next((pid for pid, parent in found.items() if parent not in found), None)

    def kill_helper(self, program):
        """SIGKILL to the keeper or the spawner, if it runs; never to a process that took its number meanwhile."""
        pid = self.pid_of(program)
        if pid is None:
            return
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self.pid_of(program) == pid:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)

    def delete_all(self):
        """Deletes every sandbox through the API."""
        for item in self.api.list_all():
            self.api.call("DELETE", f"/v1/sandboxes/{item['id']}")

    def close(self):
        """Deletes the sandboxes, stops the programs and removes the directory.

        Whatever does not end in the regular way is killed, and said in the return value.
        """
        complaints = []
        seconds = 20.0  # a keeper without a serve and without sandboxes ends by itself after 15
        try:
            if self.child is not None and self.child.poll() is None and self.api is not None:
                self.delete_all()
                status = self.stop()
                seconds = 5.0
                if status != 0:
                    complaints.append(f"serve ended with {status} on SIGTERM")
        except Exception as error:  # the rest of the clean-up must still happen
            complaints.append(f"{type(error).__name__}: {error}")
        deadline = time.monotonic() + seconds
        while leftovers.processes_of(self.directory) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = leftovers.processes_of(self.directory)
        if left:
            names = []
            for pid in left:
                try:
                    names.append(pathlib.Path(f"/proc/{pid}/comm").read_text().strip())
                except OSError:
                    continue
            if names:
                complaints.append("still running after the last sandbox ended and serve stopped: " + " ".join(sorted(names)))
            leftovers.kill_all(self.directory)
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        mounts = leftovers.unmount_below(self.directory)
        if mounts:
            complaints.append("mounts left: " + " ".join(mounts))
        leftovers.detach_loops(self.directory)
        if not os.environ.get("DSEC_TEST_KEEP"):
            shutil.rmtree(self.directory, ignore_errors=True)
        return complaints
