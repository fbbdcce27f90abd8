#!/usr/bin/python3
"""Pause and resume, measured: bench/pause.py [--cycles N] [--many N] [--mib N].

Three things, each on a server of its own making: pause and resume of one sandbox, through the first command after it; a
sandbox whose memory was given back, its first command, and all of it touched again; and many sandboxes paused and
resumed by label. Needs root, build/release/bin and a C compiler; swap, where the memory is to have somewhere to go.
Prints JSON lines.
"""
import argparse
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from harness.samples import summary   # noqa: E402
from support import images            # noqa: E402
from support.server import Server     # noqa: E402

SMALL = {"memory_mb": 64, "disk_mb": 64, "max_processes": 32}
TOUCH = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(int argc, char** argv) {
  size_t size = (size_t)atoi(argv[1]) << 20;
  unsigned char* memory = malloc(size);
  unsigned int seed = 1;
  for (size_t page = 0; page < size; page += 4096) {  /* half of each page compresses */
    for (int i = 0; i < 2048; ++i) memory[page + i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
    memset(memory + page + 2048, 7, 2048);
  }
  char line[16];
  puts("ready"), fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    struct timespec a, b;
    unsigned long sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (size_t page = 0; page < size; page += 4096) sum += memory[page]++;
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("touched %.3f %lu\n", (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6, sum), fflush(stdout);
  }
}
"""


class Kept:
    """One connection that stays open: what is measured is the server."""

    def __init__(self, api):
        self.connection = http.client.HTTPConnection(api.host, api.port, timeout=300)
        self.headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        begun = time.monotonic()
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read() or b"null")
        assert response.status in (200, 201, 202), (path, response.status, answer)
        return answer, (time.monotonic() - begun) * 1000


def tell(what, **figures):
    print(json.dumps({"what": what, **figures}), flush=True)


def one(api, kept, cycles):
    box = api.create("tiny:1", resources=SMALL)
    figures = {"pause": [], "resume": [], "exec after it": [], "exec of a paused one": [], "exec of a running one": []}
    run = {"argv": ["true"]}
    for cycle in range(cycles):
        figures["exec of a running one"].append(kept.call("POST", box.path + "/exec", run)[1])
        figures["pause"].append(kept.call("POST", box.path + "/pause", {})[1])
        if cycle % 2:
            figures["exec of a paused one"].append(kept.call("POST", box.path + "/exec", run)[1])
        else:
            figures["resume"].append(kept.call("POST", box.path + "/resume", {})[1])
            figures["exec after it"].append(kept.call("POST", box.path + "/exec", run)[1])
    for name, values in figures.items():
        tell(name, unit="ms", **summary(values))
    box.delete()


def large(api, kept, mib, cycles):
    box = api.create("tiny:1", resources={"memory_mb": 2 * mib + 64, "disk_mb": 64, "max_processes": 32})
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "touch.c"
        source.write_text(TOUCH)
        subprocess.run(["cc", "-O2", "-static", "-o", source.with_suffix(""), source], check=True)
        box.write_file("/touch", source.with_suffix("").read_bytes(), mode=0o755)
    toucher = box.start(argv=["/touch", str(mib)], open_stdin=True)
    seen = len(box.until_output(toucher, b"ready\n", seconds=120))
    before, first, touched, reclaim = [], [], [], []
    for _ in range(cycles):
        before.append(api.must("GET", box.path + "/stats")["memory_bytes"])
        kept.call("POST", box.path + "/pause", {})
        begun = time.monotonic()
        while True:
            info = api.must("GET", box.path)
            events = [e["type"] for e in api.must("GET", box.path + "/events")["items"]]
            if "reclaimed_bytes" in info or events[-1] == "not_reclaimed":
                break
            assert time.monotonic() - begun < 120, "nothing was given back in two minutes"
            time.sleep(0.01)
        reclaim.append((time.monotonic() - begun) * 1000)
        if "reclaimed_bytes" not in info:
            tell("memory given back", skipped=api.must("GET", box.path + "/events")["items"][-1]["detail"])
            break
        left = api.must("GET", box.path + "/stats")["memory_bytes"]
        tell("memory given back", before=before[-1], left=left, share=1 - left / before[-1], reclaimed=info["reclaimed_bytes"], swapped=info.get("swapped_bytes"))
        first.append(kept.call("POST", box.path + "/exec", {"argv": ["true"]})[1])
        api.must("POST", f"{box.path}/exec/{toucher}/stdin", {"data": "go\n"})
        while True:
            data, _, _ = box.output(toucher, offset=seen, wait_ms=5000)
            if b"\n" in data:
                seen += len(data)
                touched.append(float(data.split()[1]))
                break
    for name, values in (("reclaim", reclaim), ("first exec after reclaim", first), (f"{mib} MiB touched again", touched)):
        if touched:
            tell(name, unit="ms", **summary(values))
    box.delete()


def many(api, kept, count, rounds=3):
    made = 0
    while made < count:
        api.create("tiny:1", resources={**SMALL, "memory_mb": 16}, labels={"bench": "many"})
        made += 1
    for verb in ["pause", "resume"] * rounds:
        answer, ms = kept.call("POST", f"/v1/sandboxes:{verb}", {"selector": "bench=many", "deadline_ms": 120000})
        wrong = [r for r in answer["results"] if "error" in r]
        tell(f"{verb} by label", sandboxes=len(answer["results"]), failed=len(wrong), first_failure=wrong[:1], ms=round(ms, 1))
    answer, ms = kept.call("POST", "/v1/sandboxes:stop", {"selector": "bench=many", "deadline_ms": 120000})
    tell("stop by label", sandboxes=len(answer["results"]), ms=round(ms, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--large-cycles", type=int, default=50)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--many", type=int, default=1000)
    options = parser.parse_args()
    server = Server(name="bench-pause").start()
    try:
        images.import_tar(server.api, "tiny:1", images.tiny_tar())
        kept = Kept(server.api)
        one(server.api, kept, options.cycles)
        large(server.api, kept, options.mib, options.large_cycles)
        many(server.api, kept, options.many)
    finally:
        complaints = server.close()
    assert not complaints, complaints


if __name__ == "__main__":
    main()
