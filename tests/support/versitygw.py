"""versitygw on loopback: an S3 server whose objects are files of a directory."""
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

from support.images import CACHE

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
PROGRAM = CACHE / "bin" / f"versitygw-{VERSION}"
BUILD_SECONDS = 600
START_SECONDS = 20.0
KEY, SECRET = "testkey", "testsecret"


def missing():
    """Why it cannot run here, or None. Built once for a machine, and kept."""
    if PROGRAM.exists():
        return None
    if shutil.which("go") is None:
        return f"no {PROGRAM}, and no go to build it"
    with tempfile.TemporaryDirectory(prefix="versitygw-build-") as scratch:
        environment = {**os.environ, "GOPATH": scratch + "/path", "GOCACHE": scratch + "/cache", "GOBIN": scratch + "/bin", "GOFLAGS": "-modcacherw"}
        try:
            done = subprocess.run(["go", "install", "-ldflags=-s -w", MODULE], env=environment, timeout=BUILD_SECONDS,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except subprocess.TimeoutExpired:
            return f"building it took more than {BUILD_SECONDS} s"
        if done.returncode != 0:
            return "it does not build: " + done.stdout.strip()[-300:]
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(scratch + "/bin/versitygw", PROGRAM)
    return None


class VersityGw:
    """start() serves bucket `layers`, kept as files below `files`, at `endpoint`."""

    def __init__(self, directory, certificate=None):
        """`certificate` is (certificate, key): then it speaks TLS."""
        self.directory = pathlib.Path(directory)
        self.certificate = certificate
        self.files = self.directory / "objects" / "layers"
        self.credentials = self.directory / "credentials"
        self.child = None
        self.endpoint = None
        self.port = None

    def start(self):
        self.files.mkdir(parents=True, exist_ok=True)
        self.credentials.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        self.credentials.chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", self.port or 0))
            self.port = free.getsockname()[1]
        self.endpoint = f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"
        tls = ["--cert", self.certificate[0], "--key", self.certificate[1]] if self.certificate else []
        with open(self.directory / "log", "ab") as log:
            self.child = subprocess.Popen([PROGRAM, "--port", f"127.0.0.1:{self.port}", "--keep-alive", "--quiet", *tls, "posix", self.files.parent],
                                          env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise RuntimeError("versitygw does not start: " + (self.directory / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def url(self, endpoint=None, prefix=""):
        """The bucket's address, directly or through a proxy."""
        return f"s3://layers{prefix}?endpoint={endpoint or self.endpoint}&credentials={self.credentials}"

    def kill(self):
        self.child.kill()
        self.child.wait()

    def close(self):
        if self.child and self.child.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
