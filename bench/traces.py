#!/usr/bin/python3
"""A cold job with and without an access trace: bench/traces.py [--rounds N] [--delay-us N].

A layer of this machine's own Python and C compiler lies in a directory each read of which takes longer. Fresh nodes
run the same job on it: the first one leaves a trace after its two minutes, the others follow it or are told not to,
in turns. Needs root, build/release/bin and a few GiB of scratch. Prints JSON lines.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "sdk" / "python")]

from support import images          # noqa: E402
from support.server import BIN, Server  # noqa: E402

PATHS = ["usr/bin", "usr/lib/python3", "usr/lib/python3.11", "usr/lib/gcc", "usr/lib/x86_64-linux-gnu", "usr/include", "etc/alternatives", "etc/ld.so.cache", "etc/passwd"]
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
JOB = """set -e
python3 -c 'import asyncio, email, http.server, json, sqlite3, ssl, unittest, xml.etree.ElementTree'
printf 'int main(void) { return 0; }' > /tmp/x.c && gcc -O2 -o /tmp/x /tmp/x.c && /tmp/x
find /usr/lib/python3 -name '*.py' 2>/dev/null | head -50 | xargs -r cat > /dev/null"""
TRACE_SECONDS = 150


def make_tar(path):
    def wanted(info):
        if info.name.endswith(".a") or "LLVM" in info.name or "clang" in info.name or "llvm" in info.name:
            return None  # large, and nothing of them is read
        return info if info.isreg() or info.isdir() or info.issym() or info.islnk() else None
    with tarfile.open(path, "w") as tar:
        for name in PATHS + ["usr/lib64"]:
            if os.path.lexists("/" + name):
                tar.add("/" + name, name, filter=wanted)
        for name, target in LINKS.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for name in ("tmp", "root"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(info)


def numbers(server):
    path = server.data / "store" / "stats.json"
    time.sleep(2.5)  # renewed each second
    return json.loads(path.read_text())["total"]


class Bench:
    def __init__(self, scratch, delay_us):
        self.scratch, self.delay_us = scratch, delay_us
        self.store = scratch / "store"
        self.store.mkdir()
        self.key = scratch / "store.key"

    def node(self, name, *arguments):
        server = Server(["--store", str(self.store), *arguments], name=name)
        if self.key.exists():
            server.data.mkdir(mode=0o700)
            shutil.copy(self.key, server.data / "store.key")
        return server.start(fail_point=f"origin.directory.read=delay:{self.delay_us}")

    def make(self):
        maker = self.node("maker")
        try:
            tar = self.scratch / "host.tar"
            make_tar(tar)
            layer = images.import_tar(maker.api, "host:1", tar.read_bytes())
            shutil.copy(maker.data / "store.key", self.key)
            return layer["digest"]
        finally:
            maker.close()

    def run(self, digest, name, *arguments, after=lambda: None, more=lambda server: {}):
        server = self.node(name, *arguments)
        try:
            done = subprocess.run([BIN / "dsec", "layer", "fetch", digest, "host:1"], check=False, capture_output=True, text=True,
                                  env={"DSEC_URL": server.api.url, "DSEC_API_KEY": server.api.key, "HOME": str(self.scratch)})
            assert done.returncode == 0, done.stdout + done.stderr
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            began = time.monotonic()
            box = server.api.create("host:1", resources={"memory_mb": 1024})
            result = box.sh(JOB)
            seconds = time.monotonic() - began
            assert result.code == 0, result
            row = {"run": name, "seconds": round(seconds, 3), **numbers(server), **more(server)}
            after()
            return row
        finally:
            server.close()

    def trace_is_there(self):
        deadline = time.monotonic() + TRACE_SECONDS
        while not list(self.store.glob("??/*.trace")):
            assert time.monotonic() < deadline, "no trace came"
            time.sleep(1)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--delay-us", type=int, default=300)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsec-traces-", dir="/var/tmp") as scratch:
        bench = Bench(pathlib.Path(scratch), arguments.delay_us)
        digest = bench.make()
        rows = [bench.run(digest, "first", after=bench.trace_is_there)]
        print(json.dumps(rows[0]), flush=True)
        for _ in range(arguments.rounds):
            for name, flags in (("without", ["--store-traces", "off"]), ("with", [])):
                rows.append(bench.run(digest, name, *flags))
                print(json.dumps(rows[-1]), flush=True)
    for name in ("without", "with"):
        mine = [row for row in rows if row["run"] == name]
        print(json.dumps({"summary": name, "seconds_median": statistics.median(row["seconds"] for row in mine),
                          "fetched_per_touched": round(statistics.median(row["fetched_bytes"] / row["touched_bytes"] for row in mine), 2),
                          "misses_median": statistics.median(row["demand_misses"] for row in mine)}))


if __name__ == "__main__":
    main()
