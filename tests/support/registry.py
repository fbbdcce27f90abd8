"""A registry of its own on loopback (Debian's docker-registry), with what tests do to one."""
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import crypt

PROGRAM = shutil.which("docker-registry")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Registry:
    """Started in the constructor; `user` and `password` make it ask for them, `certificate` (certificate, key) makes it speak TLS."""

    def __init__(self, directory, user=None, password=None, certificate=None):
        self.directory = pathlib.Path(directory)
        self.storage = self.directory / "storage"
        self.log = self.directory / "log"
        self.port = free_port()
        self.credentials = f"{user}:{password}" if user else None
        config = {"version": "0.1", "log": {"accesslog": {"disabled": False}}, "storage": {"filesystem": {"rootdirectory": str(self.storage)}, "cache": {}},
                  "http": {"addr": f"127.0.0.1:{self.port}"}}
        if certificate:
            config["http"]["tls"] = {"certificate": str(certificate[0]), "key": str(certificate[1])}
        if user:
            hashed = crypt.crypt(password, crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16))
            (self.directory / "htpasswd").write_text(f"{user}:{hashed.replace('$2b$', '$2y$')}\n")
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(self.directory / "htpasswd")}}
        (self.directory / "config.yml").write_text(json.dumps(config))
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen([PROGRAM, "serve", str(self.directory / "config.yml")], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.child.poll() is None and time.monotonic() < deadline, self.log.read_text(errors="replace")
            time.sleep(0.02)

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def push(self, layout, name, directory, *options):
        """An oci.Layout under this name."""
        layout.write(directory)
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--dest-tls-verify=false", *options, f"oci:{directory}", f"docker://{self.host}/{name}"]
        if self.credentials:
            command[4:4] = ["--dest-creds", self.credentials]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)

    def blob_file(self, digest):
        return self.storage / "docker" / "registry" / "v2" / "blobs" / "sha256" / digest[7:9] / digest[7:] / "data"

    def fetched(self):
        """Digests of the blobs that were read so far."""
        return re.findall(r'"GET /v2/[^ "]*/blobs/(sha256:[0-9a-f]{64})', self.log.read_text(errors="replace"))

    def close(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(timeout=20)
