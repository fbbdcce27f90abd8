"""Ceph on this machine: a monitor, a manager, two OSDs, CephFS on two mounts by ceph-fuse, and radosgw.

All of it lives in a network namespace of its own, with the usual ports; the mounts are the host's.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import uuid

START_SECONDS = 180.0
PROGRAMS = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "radosgw", "radosgw-admin", "monmaptool", "nsenter", "unshare")
KEY, SECRET = "testkey", "testsecret"
CONFIGURATION = """[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:3300,v1:127.0.0.1:6789]
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
run dir = {d}/run
log file = {d}/log/$name.log
pid file = {d}/run/$name.pid
admin socket = {d}/run/$name.$pid.asok
crash dir = {d}/crash
mon data = {d}/mon
mgr data = {d}/mgr
osd data = {d}/osd$id
mds data = {d}/mds
rgw data = {d}/rgw
keyring = {d}/keyring
mon data avail crit = 2
mon warn on pool no redundancy = false
osd objectstore = bluestore
bluestore block size = 8589934592
osd memory target = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 2
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off

[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:7480
"""


def missing():
    """Why it cannot run here, or None."""
    absent = [p for p in PROGRAMS if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if absent:
        return "not installed (scripts/install-packages.sh ceph): " + ", ".join(absent)
    if not pathlib.Path("/dev/fuse").exists():
        return "no /dev/fuse"
    return None


class Ceph:
    """start() makes `mounts`, two folders with one CephFS, and the bucket `layers`; close() takes all of it away."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.mounts = [self.directory / "a", self.directory / "b"]
        self.credentials = self.directory / "credentials"
        self.holder = None
        self.daemons = {}
        self.environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin", "CEPH_CONF": str(self.directory / "ceph.conf")}

    def start(self):
        for folder in ("run", "log", "crash", "mon", "mgr", "mds", "rgw", "osd0", "osd1", "a", "b"):
            (self.directory / folder).mkdir(parents=True)
        fsid = str(uuid.uuid4())
        (self.directory / "ceph.conf").write_text(CONFIGURATION.format(fsid=fsid, d=self.directory))
        (self.directory / "keyring").write_text("")
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._wait(lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a network namespace")
        self._run("ip", "link", "set", "lo", "up")
        self._start_cluster(fsid)
        self._start_file_system()
        self._start_gateway()
        return self

    def _start_cluster(self, fsid):
        monmap = self.directory / "monmap"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", "[v2:127.0.0.1:3300,v1:127.0.0.1:6789]", monmap)
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap)
        self._spawn("mon", "ceph-mon", "-f", "-i", "a")
        self._wait(lambda: self._asks("ceph", "--connect-timeout", "5", "-s"), "a monitor")
        self._spawn("mgr", "ceph-mgr", "-f", "-i", "x")
        for number in (0, 1):
            name = str(uuid.uuid4())
            self._run("ceph", "osd", "new", name)
            self._run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", name)
            self.start_osd(number)
        self._wait(lambda: json.loads(self._run("ceph", "osd", "stat", "-f", "json"))["num_up_osds"] == 2, "two OSDs")

    def _start_file_system(self):
        for pool in ("fsmeta", "fsdata"):
            self._run("ceph", "osd", "pool", "create", pool, "8")
        self._run("ceph", "fs", "new", "fs", "fsmeta", "fsdata")
        self._spawn("mds", "ceph-mds", "-f", "-i", "a")
        self._wait(lambda: "up:active" in self._run("ceph", "mds", "stat"), "a metadata server")
        for mount in self.mounts:
            # Of its own: a second client of one name on a host fails without.
            own = [f"--pid-file={self.directory}/run/{mount.name}.pid", f"--admin-socket={self.directory}/run/{mount.name}.asok", f"--log-file={self.directory}/log/{mount.name}.log"]
            self._spawn(f"mount {mount.name}", "ceph-fuse", "-f", mount, *own)
            self._wait(lambda m=mount: os.path.ismount(m), f"the mount {mount}")

    def _start_gateway(self):
        self._run("radosgw-admin", "user", "create", "--uid=t", "--display-name=t", f"--access-key={KEY}", f"--secret-key={SECRET}", seconds=120)
        self._spawn("gateway", "radosgw", "-f", "-n", "client.rgw")
        self.credentials.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        self.credentials.chmod(0o600)
        connect = "import socket; socket.create_connection(('127.0.0.1', 7480), 2).close()"
        self._wait(lambda: self._asks("/usr/bin/python3", "-c", connect), "a gateway")

    def start_osd(self, number):
        self._spawn(f"osd{number}", "ceph-osd", "-f", "-i", number)

    def kill(self, name):
        """SIGKILL of "osd0", "osd1", "mds", "mon" or "gateway"."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def url(self, prefix=""):
        return f"s3://layers{prefix}?endpoint=http://127.0.0.1:7480&credentials={self.credentials}"

    def inside(self, command):
        """A command line that reaches the gateway."""
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--", *map(str, command)]

    def close(self):
        for mount in self.mounts:
            subprocess.run(["umount", "--lazy", mount], stderr=subprocess.DEVNULL, check=False)
        for child in [*self.daemons.values(), *([self.holder] if self.holder else [])]:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *command, seconds=60):
        done = subprocess.run(self.inside(command), env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Ceph: {' '.join(map(str, command))}: {done.stderr[-2000:]}")
        return done.stdout

    def _asks(self, *command):
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self._run(*command, seconds=15)
            return True
        return False

    def _spawn(self, name, *command):
        with open(self.directory / "log" / f"{name}.out", "ab") as log:
            self.daemons[name] = subprocess.Popen(self.inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment)

    def _wait(self, condition, what):
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            dead = [name for name, child in self.daemons.items() if child.poll() is not None]
            if dead or time.monotonic() > deadline:
                said = "".join((self.directory / "log" / f"{name}.out").read_text(errors="replace")[-1500:] for name in dead or list(self.daemons)[-1:])
                raise RuntimeError(f"Ceph: no {what}; ended: {dead}: {said}")
            time.sleep(0.3)
