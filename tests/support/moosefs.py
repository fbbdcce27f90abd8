"""MooseFS on this machine: a master, two chunkservers, two mounts.

It refuses loopback names, so all of it lives in a network namespace of its own
with one more address; the mounts are the host's.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

ADDRESS = "10.77.3.1"
START_SECONDS = 60.0
PROGRAMS = ("mfsmaster", "mfschunkserver", "mfsmount", "nsenter", "unshare")


def missing():
    """Why it cannot run here, or None."""
    absent = [p for p in PROGRAMS if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if absent:
        return "not installed: " + ", ".join(absent)
    if not pathlib.Path("/dev/fuse").exists():
        return "no /dev/fuse"
    return None


class MooseFs:
    """start() makes `mounts`, two folders with one file system; close() takes all of it away."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.mounts = [self.directory / "a", self.directory / "b"]
        self.holder = None
        self.daemons = {}
        self.mounters = []

    def start(self):
        for folder in ("meta", "run", "chunks1", "chunks2", "state1", "state2", "a", "b"):
            (self.directory / folder).mkdir(parents=True)
        shutil.copy("/var/lib/mfs/metadata.mfs.empty", self.directory / "meta" / "metadata.mfs")
        self._write_configuration()
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._wait(lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a network namespace")
        for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", ADDRESS + "/32", "dev", "lo"]):
            subprocess.run(self._inside(command), check=True)
        self.start_master()
        for number in (1, 2):
            self.start_chunkserver(number)
        self._wait(self._master_listens, "master")  # a mount that comes before it goes away again
        for mount in self.mounts:
            self.mounters.append(self._spawn(["mfsmount", mount, "-f", "-H", ADDRESS, "-o", "mfsioretries=3"]))
            self._wait(lambda m=mount: os.path.ismount(m), f"the mount {mount}")
        self._wait(self._writable, "two chunkservers")
        return self

    def start_master(self, recover=False):
        self.daemons["master"] = self._spawn(["mfsmaster", "-f", "-c", self.directory / "master.cfg", *(["-a"] if recover else []), "start"])

    def start_chunkserver(self, number):
        self.daemons[f"chunks{number}"] = self._spawn(["mfschunkserver", "-f", "-c", self.directory / f"cs{number}.cfg", "start"])

    def kill(self, name):
        """SIGKILL of "master", "chunks1" or "chunks2"."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self):
        for mount in self.mounts:
            subprocess.run(["umount", "--lazy", mount], stderr=subprocess.DEVNULL, check=False)
        for child in [*self.mounters, *self.daemons.values(), *([self.holder] if self.holder else [])]:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _inside(self, command):
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--", *map(str, command)]

    def _spawn(self, command):
        environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(self._inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def _master_listens(self):
        return "mfsmaster daemon initialized properly" in (self.directory / "log").read_text(errors="replace")

    def _writable(self):
        """Both copies of a new file can be placed."""
        probe = self.mounts[0] / "probe"
        try:
            probe.write_bytes(b"x")
            with open(probe, "rb") as file:
                os.fsync(file.fileno())
            probe.unlink()
        except OSError:
            return False
        return True

    def _wait(self, condition, what):
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"MooseFS: no {what}: " + (self.directory / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def _write_configuration(self):
        d = self.directory
        (d / "exports.cfg").write_text(f"{ADDRESS}/32 / rw,alldirs,admin,maproot=0:0\n")
        (d / "topology.cfg").write_text("")
        (d / "master.cfg").write_text(
            f"WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {d}/meta\nEXPORTS_FILENAME = {d}/exports.cfg\n"
            f"TOPOLOGY_FILENAME = {d}/topology.cfg\nLOCK_MEMORY = 0\nMATOML_LISTEN_HOST = {ADDRESS}\n"
            f"MATOCS_LISTEN_HOST = {ADDRESS}\nMATOCL_LISTEN_HOST = {ADDRESS}\n")
        for number in (1, 2):
            (d / f"hdd{number}.cfg").write_text(f"{d}/chunks{number}\n")
            (d / f"cs{number}.cfg").write_text(
                f"WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = {d}/state{number}\nHDD_CONF_FILENAME = {d}/hdd{number}.cfg\n"
                f"MASTER_HOST = {ADDRESS}\nBIND_HOST = {ADDRESS}\nCSSERV_LISTEN_HOST = {ADDRESS}\nCSSERV_LISTEN_PORT = 943{number}\n"
                "HDD_LEAVE_SPACE_DEFAULT = 256MiB\nLOCK_MEMORY = 0\n")
