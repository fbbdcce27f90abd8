#!/usr/bin/python3
"""The EROFS writer against unpack + mkfs.erofs: bench/erofs_writer.py [--rounds N] [--out DIR] [--scratch DIR].

Three uncompressed tars (a few large files, 100,000 small ones, this machine's own Debian system), each converted
in turns by our writer and by `tar -x` + mkfs.erofs, with the tree on disk and with the tree in memory. Both sides
end with an fsync of the image; the tree is never synced. Beside them what the disk takes for as many bytes, written
and synced by `dd`: no writer is faster than that. Needs root, and build/release/bin/erofs_writer.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.noise import Noise  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
WRITER = ROOT / "build" / "release" / "bin" / "erofs_writer"
SYSTEM_PATHS = ["etc", "usr/lib/gcc", "usr/lib/python3", "usr/lib/python3.11", "usr/sbin", "usr/share", "var/lib/dpkg"]


def add(tar, name, size, source):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 1_700_000_000
    tar.addfile(info, Noise(size, source))


def make_large(path):
    source = random.Random(1)
    with tarfile.open(path, "w") as tar:
        for i in range(6):
            add(tar, f"large/{i}", (96 << 20) + i * 1237, source)


def make_small(path):
    source = random.Random(2)
    with tarfile.open(path, "w") as tar:
        for i in range(100_000):
            add(tar, f"small/{i % 400}/{i}", int(source.paretovariate(1.1) * 400) % 16_000, source)


def make_system(path):
    there = [p for p in SYSTEM_PATHS if os.path.isdir("/" + p)]
    subprocess.run(["tar", "-C", "/", "-cf", path, "--one-file-system", *there], check=True, stderr=subprocess.DEVNULL)


def sync(path):
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def ours(tar, scratch, profile):
    output = scratch / "ours"
    done = subprocess.run([WRITER, tar, output, profile], check=True, capture_output=True, text=True)
    milliseconds, size = done.stdout.split()
    for suffix in (".meta", ".data"):
        os.unlink(f"{output}{suffix}")
    return float(milliseconds), int(size)


def disk_alone(size, scratch):
    """Milliseconds for as many bytes, rounded up to MiB, from nothing to the end of fsync."""
    target = scratch / "disk"
    start = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={-(-size >> 20)}", "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
    milliseconds = (time.monotonic() - start) * 1000
    target.unlink()
    return milliseconds, size


def mkfs(tar, scratch, profile, tree, limit):
    """Milliseconds and bytes; None for what took longer than the limit."""
    image = scratch / "mkfs"
    tree.mkdir()
    start = time.monotonic()
    try:
        subprocess.run(["tar", "-C", tree, "-xf", tar], check=True, timeout=limit)
        subprocess.run(["mkfs.erofs", "--quiet", *(["-zlz4"] if profile == "lz4" else []), image, tree], check=True, timeout=limit,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sync(image)
        return (time.monotonic() - start) * 1000, image.stat().st_size
    except subprocess.TimeoutExpired:
        return None
    finally:
        image.unlink(missing_ok=True)
        shutil.rmtree(tree)


def measure(name, tar, scratch, rounds, profiles, limit):
    sides = {}
    with open(tar, "rb") as file:  # both sides read it from the page cache
        while file.read(1 << 24):
            pass
    runs = [("ours", profile, lambda p=profile: ours(tar, scratch, p)) for profile in ("plain", "lz4")]
    runs.append(("the disk alone", "plain", lambda: disk_alone(sides["ours, plain"]["bytes"], scratch)))
    for profile in profiles:
        runs.append(("mkfs, tree on disk", profile, lambda p=profile: mkfs(tar, scratch, p, scratch / "tree", limit)))
        runs.append(("mkfs, tree in memory", profile, lambda p=profile: mkfs(tar, scratch, p, pathlib.Path(f"/dev/shm/erofs-bench-{os.getpid()}"), limit)))
    for number in range(rounds):
        for side, profile, run in list(runs):
            done = run()
            if done is None:  # it would be as slow in the next round
                sides[f"{side}, {profile}"] = {"over_seconds": limit}
                runs = [one for one in runs if one[:2] != (side, profile)]
                continue
            milliseconds, size = done
            entry = sides.setdefault(f"{side}, {profile}", {"milliseconds": [], "bytes": size})
            entry["milliseconds"].append(round(milliseconds, 1))
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
    return {"tar_bytes": os.path.getsize(tar), "sides": sides}


def table(results):
    lines = ["| tar | profile | ours | the disk alone, as many bytes | tree on disk + mkfs.erofs | tree in memory + mkfs.erofs | size of ours / mkfs.erofs |", "|---|---|---|---|---|---|---|"]
    for name, result in results["tars"].items():
        for profile in results["profiles"]:
            mine = result["sides"][f"ours, {profile}"]
            median = statistics.median(mine["milliseconds"])
            cells = []
            size = "-"
            for side in ("mkfs, tree on disk", "mkfs, tree in memory"):
                other = result["sides"][f"{side}, {profile}"]
                if "over_seconds" in other:
                    cells.append(f"more than {other['over_seconds']} s, **> {other['over_seconds'] * 1000 / median:.1f}x**")
                else:
                    time_ms = statistics.median(other["milliseconds"])
                    size = f"{mine['bytes'] / other['bytes']:.3f}"
                    cells.append(f"{time_ms:.0f} ms, **{time_ms / median:.1f}x**")
            floor = f"{statistics.median(result['sides']['the disk alone, plain']['milliseconds']):.0f} ms" if profile == "plain" else "-"
            lines.append(f"| {name}, {result['tar_bytes'] >> 20} MiB | {profile} | {median:.0f} ms | {floor} | {cells[0]} | {cells[1]} | {size} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profiles", nargs="+", default=["plain", "lz4"], choices=["plain", "lz4"], help="of mkfs.erofs; ours are always timed in both")
    parser.add_argument("--limit", type=int, default=300, help="seconds for tar and for mkfs.erofs each; what takes longer is said to")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("/var/tmp/erofs-writer-bench"))
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True)
    results = {"taken": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "kernel": platform.release(), "processors": os.cpu_count(),
               "load_before": os.getloadavg(), "filesystem": subprocess.run(["stat", "-f", "-c", "%T", arguments.scratch], capture_output=True, text=True).stdout.strip(),
               "rounds": arguments.rounds, "profiles": arguments.profiles, "tars": {}}
    try:
        for name, make in (("six large files", make_large), ("100,000 small files", make_small), ("this Debian system", make_system)):
            tar = arguments.scratch / "input.tar"
            make(tar)
            results["tars"][name] = measure(name, tar, arguments.scratch, arguments.rounds, arguments.profiles, arguments.limit)
            tar.unlink()
    finally:
        shutil.rmtree(arguments.scratch)
    results["load_after"] = os.getloadavg()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "erofs_writer.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results), end="")


if __name__ == "__main__":
    main()
