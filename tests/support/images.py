"""Base images for tests: a tiny one of busybox, and a Debian one that is built once and cached."""
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile

from support.server import ROOT

CACHE = pathlib.Path(os.environ.get("DSEC_TEST_CACHE", "/var/cache/dsec-test"))
# What the suite about root inside needs; kept small, because every new machine builds it.
DEBIAN_PACKAGES = ("python3", "sudo", "gdb", "procps", "iproute2", "git")


def build_probe():
    """The static probe program, built when no build of these sources is there."""
    files = sorted((ROOT / "tests" / "probe").glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    program = CACHE / f"probe-{digest}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"probe-{os.getpid()}.partial"
        subprocess.run(["gcc", "-O1", "-static", "-w", "-o", partial, *[file for file in files if file.suffix == ".c"], "-lpthread"], check=True, stdin=subprocess.DEVNULL)
        partial.rename(program)
    return program


def add_file(archive, name, data, mode=0o644, uid=0, gid=0):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid = len(data), mode, uid, gid
    archive.addfile(info, io.BytesIO(data))


def add_directory(archive, name, mode=0o755, uid=0, gid=0):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, uid, gid
    archive.addfile(info)


def add_symlink(archive, name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    archive.addfile(info)


PASSWD = b"""root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/:/bin/false
alice:x:1000:1000:Alice:/home/alice:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
"""
GROUP = b"root:x:0:\ndaemon:x:1:\nalice:x:1000:\nstaff:x:50:alice\nnogroup:x:65534:\n"


def tiny_tar():
    """A busybox base with the probe at /probe, as tar bytes."""
    applets = subprocess.run(["busybox", "--list"], check=True, capture_output=True, text=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("home", 0o755), ("tmp", 0o1777), ("var", 0o755),
                           ("proc", 0o555), ("sys", 0o555), ("dev", 0o755), ("run", 0o755), ("usr", 0o755), ("work", 0o755)):
            add_directory(archive, name, mode)
        add_directory(archive, "home/alice", 0o755, 1000, 1000)
        add_file(archive, "bin/busybox", pathlib.Path(subprocess.run(["which", "busybox"], check=True, capture_output=True,
                                                                     text=True).stdout.strip()).read_bytes(), 0o755)
        for applet in applets:
            if applet != "busybox":
                add_symlink(archive, f"bin/{applet}", "busybox")
        add_symlink(archive, "usr/bin", "../bin")
        add_file(archive, "etc/passwd", PASSWD)
        add_file(archive, "etc/group", GROUP)
        add_file(archive, "probe", build_probe().read_bytes(), 0o755)
        add_file(archive, "canary", b"base\n")
    return out.getvalue()


def debian_tar():
    """The path of the cached Debian base; built on the first use, which takes a minute or two."""
    name = hashlib.sha256(" ".join(DEBIAN_PACKAGES).encode() + b"1").hexdigest()[:12]
    file = CACHE / f"bookworm-{name}.tar"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"bookworm-{os.getpid()}.tar"
        try:
            subprocess.run(
                ["mmdebstrap", "--quiet", "--mode=unshare", "--variant=minbase", "--aptopt=Apt::Install-Recommends \"false\"",
                 "--include=" + ",".join(DEBIAN_PACKAGES), "--dpkgopt=path-exclude=/usr/share/doc/*",
                 "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*", "bookworm", "-"],
                check=True, stdin=subprocess.DEVNULL, stdout=open(partial, "wb"), cwd="/")
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)
    return file


def import_tar(api, name, source, what="images", timeout=300.0, **query):
    """Imports tar bytes or a tar file and waits for the end; the layer or image object."""
    body = open(source, "rb") if isinstance(source, pathlib.Path) else source
    answer = api.raw("POST", f"/v1/{what}", body, headers={"Content-Type": "application/x-tar"}, query={"name": name, **query},
                     timeout=timeout)
    assert answer.status in (200, 201, 202), f"import of {name}: {answer}"
    return finish_operation(api, answer.json)


def finish_operation(api, body, seconds=300.0):
    """Follows an operation, when the answer is one, to its result."""
    import time
    operation = body.get("operation_id") or (body.get("operation") or {}).get("id")
    deadline = time.monotonic() + seconds
    while operation:
        body = api.must("GET", f"/v1/operations/{operation}", query={"wait_ms": 5000})
        state = body.get("state")
        if state in ("succeeded", "done"):
            return body.get("result") or body
        assert state not in ("failed", "cancelled"), body
        assert time.monotonic() < deadline, body
    return body
