#!/usr/bin/python3
"""Many sandboxes that hold memory and idle: bench/density.py [--sandboxes N] [--touch-mib N] [--layer-mib N] [--out DIR].

Each touches memory that compresses to half and reads a file of its layer, as its start command, and idles; the node gives their memory back
(--trim-idle-s, and the brake when it runs short). Then some at random are asked for `true`, while creates go on. As it
stands: 1,500 of 32 MiB, twice a machine of 24 GiB; `--sandboxes 4000 --touch-mib 4 --layer-mib 4` is the other figure. Page cache that is
shared is shown by mincore() over one layer file seen from two sandboxes, and by how much `Cached` grew. Needs root,
build/release/bin, gcc, busybox, zram and room for the swap file. It stops itself when less than 400 MiB are available.
"""
import argparse
import concurrent.futures
import ctypes
import json
import mmap
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import inside, machine  # noqa: E402
from harness.samples import summary  # noqa: E402
from support import images  # noqa: E402
from support.api import Api, Box  # noqa: E402
from support.payload import numbers_of  # noqa: E402
from support.server import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
LEAST_MIB = 400
GIVE_UP_SECONDS = 400


def meminfo():
    return {line.split(":")[0]: int(line.split()[1]) // 1024 for line in pathlib.Path("/proc/meminfo").read_text().splitlines()}


def zram():
    """MiB that swap devices in memory hold, and take for that."""
    held = taken = 0
    for path in pathlib.Path("/sys/block").glob("zram*/mm_stat"):
        fields = [int(x) for x in path.read_text().split()]
        held, taken = held + fields[0], taken + fields[2]
    return {"held_mib": held // MIB, "taken_mib": taken // MIB}


def use_of(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {"cpu_s": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
            "rss_mib": next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) // 1024}


class Guard:
    """Watches the machine: tells the least that was available, and whether to stop."""

    def __init__(self):
        self.least, self.stop, self._over = meminfo()["MemAvailable"], False, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.2):
            now = meminfo()["MemAvailable"]
            self.least = min(self.least, now)
            self.stop = self.stop or now < LEAST_MIB

    def close(self):
        self._over.set()
        self._thread.join()


def create(api, spec, guard, refused, until):
    """A sandbox; a node that says that it is full is asked again."""
    while not guard.stop and time.monotonic() < until:
        answer = api.call("POST", "/v1/sandboxes", spec, timeout=120)
        if answer.status == 201:
            return answer.json["id"]
        if answer.status != 429:
            raise RuntimeError(repr(answer))
        refused.append(time.monotonic())
        time.sleep(float(answer.headers.get("Retry-After", "1")))
    return None


def pages_in_cache(path):
    """(pages of a file that are in memory, of how many), by mincore()."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        area = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        pages = (size + 4095) // 4096
        seen = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), seen) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(one & 1 for one in seen), pages


def roots_inside(count):
    """Roots of that many sandboxes, seen from the host."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and pathlib.Path(f"/proc/{entry}/comm").read_text().strip() == "holder" and len(numbers_of(entry)) > 1:
                found.append(pathlib.Path(f"/proc/{entry}/root"))
        except OSError:
            continue
        if len(found) == count:
            break
    return found


def share_of_cache(layer_mib):
    """One file, dropped from memory, then read through the root of one sandbox: what mincore() tells through another's."""
    if layer_mib == 0:
        return {}
    first, second = (root / "layer.bin" for root in roots_inside(2))
    with open(first, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = pages_in_cache(second)
    first.read_bytes()
    return {"second_before": before, "second_after": pages_in_cache(second), "first_after": pages_in_cache(first)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=1500)
    parser.add_argument("--touch-mib", type=int, default=32)
    parser.add_argument("--layer-mib", type=int, default=32)
    parser.add_argument("--zram-mb", type=int, default=6144)
    parser.add_argument("--swap-file-mb", type=int, default=32768)
    parser.add_argument("--trim-idle-s", type=int, default=10)
    parser.add_argument("--asked", type=int, default=400)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    arguments = parser.parse_args()
    result = {"machine": machine.describe(), "arguments": {k: v for k, v in vars(arguments).items() if k != "out"}, "before": meminfo()}
    with tempfile.TemporaryDirectory(prefix="dsec-density-") as scratch:
        server = Server(["--stop-sandboxes", "--trim-idle-s", str(arguments.trim_idle_s), "--swap-zram-mb", str(arguments.zram_mb), "--swap-file-mb", str(arguments.swap_file_mb)],
                        name="density").start()
        guard = Guard()
        try:
            result.update(measure(server, guard, arguments, pathlib.Path(scratch)))
        finally:
            guard.close()
            server.delete_all()
            server.stop(seconds=300)  # what is in swap has to come back first
            complaints = server.close()
    result.update(least_available_mib=guard.least, stopped_by_guard=guard.stop, complaints=complaints)
    name = f"density_{arguments.sandboxes}x{arguments.touch_mib}.json"
    (arguments.out / name).write_text(json.dumps(result, indent=1) + "\n")
    tell(result)
    return 1 if complaints or guard.stop else 0


def measure(server, guard, arguments, scratch):
    images.import_tar(server.api, "dense:1", inside.base_tar(scratch, {"holder": "holder"}, {"layer.bin": arguments.layer_mib} if arguments.layer_mib else {}))
    holder = ["/holder", str(arguments.touch_mib), *(["/layer.bin"] if arguments.layer_mib else [])]
    spec = {"image": "dense:1", "start": {"argv": holder}, "resources": {"cpu_cores": 1, "memory_mb": max(64, arguments.touch_mib + 32), "disk_mb": 8, "max_processes": 16},
            "lifetime": {"max_seconds": 0}}
    refused, ids = [], []
    cached_before = meminfo()["Cached"]
    begun = time.monotonic()
    until = begun + GIVE_UP_SECONDS
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for made in pool.map(lambda _: create(Api(server.api.url, server.api.key), spec, guard, refused, until), range(arguments.sandboxes)):
                if made:
                    ids.append(made)
    except KeyboardInterrupt:
        guard.stop = True
        raise
    took = time.monotonic() - begun
    time.sleep(2)
    out = {"created": len(ids), "creating_s": took, "refused": len(refused), "cached_grew_mib": meminfo()["Cached"] - cached_before, "shared": share_of_cache(arguments.layer_mib)}
    time.sleep(arguments.trim_idle_s + 20)  # they go idle
    out.update(idle=meminfo(), zram=zram(), processes=len([e for e in os.listdir("/proc") if e.isdigit()]), edge_before=use_of(server.child.pid))
    quiet = time.monotonic()
    time.sleep(10)
    out["edge_cpu_share_idle"] = (use_of(server.child.pid)["cpu_s"] - out["edge_before"]["cpu_s"]) / (time.monotonic() - quiet)

    rng, asked, creates, failures = random.Random(1), [], [], []
    for number in range(min(arguments.asked, len(ids)) if not guard.stop else 0):
        begun = time.monotonic()
        answer = Box(server.api, {"id": ids[rng.randrange(len(ids))]})
        try:
            if answer.run("true", timeout=60).code != 0:
                failures.append("true failed")
            asked.append((time.monotonic() - begun) * 1000)
            if number % 10 == 0:  # creates go on, and one goes for each that comes
                begun = time.monotonic()
                made = create(server.api, spec, guard, refused, time.monotonic() + 60)
                creates.append((time.monotonic() - begun) * 1000)
                if made:
                    server.api.call("DELETE", f"/v1/sandboxes/{ids.pop(rng.randrange(len(ids)))}")
                    ids.append(made)
        except (AssertionError, OSError) as error:
            failures.append(str(error)[:200])
    node = server.api.must("GET", "/v1/nodes")["items"][0]
    states, ends = {}, []
    for item in server.api.list_all(state="all"):
        if item.get("cause") not in (None, "user"):
            execs = server.api.call("GET", f"/v1/sandboxes/{item['id']}/exec")
            ends.append({"cause": item["cause"], "infra": item["infra"], "detail": item.get("end_detail"), "commands": execs.json.get("items") if execs.status == 200 else None})
        key = item["state"] + (f" ({item['cause']})" if item.get("cause") else "")
        states[key] = states.get(key, 0) + 1
    out.update(true_ms=summary(asked), create_ms=summary(creates), failures=failures, states=states, ends=ends, node_memory=node["memory"], edge=use_of(server.child.pid))
    return out


def tell(r):
    true, create_ms, shared = r["true_ms"], r["create_ms"], r["shared"]
    arguments = r["arguments"]
    print(f"{arguments['sandboxes']} sandboxes that each touched {arguments['touch_mib']} MiB, and {arguments['layer_mib']} MiB of their layer; {r['machine']['memory_gib']} GiB of memory.\n")
    print("| figure | value | target |\n|---|---|---|")
    print(f"| created | {r['created']}, in {r['creating_s']:.0f} s; {r['refused']} answers of 429 on the way | {arguments['sandboxes']} |")
    print(f"| `true` in one at random | p50 {true['p50']:.1f} ms, p99 {true['p99']:.1f} ms, max {true['max']:.0f} ms of {true['n']} | 100, 500 ms |")
    print(f"| creates meanwhile | p50 {create_ms['p50']:.0f} ms, max {create_ms['max']:.0f} ms of {create_ms['n']} | go on |")
    print(f"| failures | {len(r['failures'])} | 0 |")
    print(f"| available, idle / least | {r['idle']['MemAvailable']} / {r['least_available_mib']} MiB | the node stays up |")
    print(f"| in swap, idle | {r['idle']['SwapTotal'] - r['idle']['SwapFree']} MiB; zram holds {r['zram']['held_mib']} in {r['zram']['taken_mib']} | - |")
    if shared:
        print(f"| pages of a layer's file in memory, as one sandbox sees them by mincore, before and after another one read it | {shared['second_before'][0]} and {shared['second_after'][0]} of {shared['second_after'][1]} | shared |")
    print(f"| processes on the machine; the edge's memory and CPU while all idle | {r['processes']}; {r['edge']['rss_mib']} MiB, {100 * r['edge_cpu_share_idle']:.1f} % of one | - |")
    print(f"| states, and what the brake did | {r['states']}; {r['node_memory']['trims']} trims, {r['node_memory']['pauses']} pauses, {r['node_memory']['ends']} ends | - |")
    if r["complaints"]:
        print("complaints: " + "; ".join(r["complaints"]))


if __name__ == "__main__":
    sys.exit(main())
