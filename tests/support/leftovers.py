"""Removes what test runs that were killed have left: processes, mounts, directories.

Every test server lives in a directory of its own below RUNS that names the
process which owns it; a directory whose owner is gone is a leftover.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import time

RUNS = pathlib.Path("/tmp/dsec-test-runs")
VARIABLE = "DSEC_TEST_DIRECTORY"  # in the environment of all that a test server starts


def processes_of(directory):
    """Every process, sandboxed or not, that descends from a server started in `directory`."""
    mark = f"{VARIABLE}={directory}".encode()
    roots, parents = set(), {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            state, parent = stat[stat.rindex(")") + 2:].split()[:2]
            if state == "Z":
                continue
            parents[int(entry)] = int(parent)
            if mark in pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                roots.add(int(entry))
        except (OSError, ValueError):
            continue
    found = set(roots)
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                grown = True
    found.discard(os.getpid())
    return found


def is_skeleton(pid):
    """Whether a PID 1 is one that the spawner made ahead: it waits in its slot for a sandbox."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        slot = next(line[3:] for line in lines if line.startswith("0::")).removesuffix("/agent")
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if os.path.isdir(root + slot):
                return "trusted.dsec.idle" in os.listxattr(root + slot)
    except (OSError, StopIteration):
        pass
    return False


def kill_all(directory, seconds=10.0):
    """SIGKILL until nothing of `directory` runs; the pids that would not go."""
    deadline = time.monotonic() + seconds
    while True:
        pids = processes_of(directory)
        if not pids or time.monotonic() > deadline:
            return pids
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def unmount_below(directory):
    """Detaches every mount at or below `directory`, deepest first."""
    targets = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split(" ")[4].encode().decode("unicode_escape")
        if target == str(directory) or target.startswith(str(directory) + "/"):
            targets.append(target)
    for target in sorted(targets, key=len, reverse=True):
        subprocess.run(["umount", "-l", target], check=False, stdin=subprocess.DEVNULL)
    return targets


def detach_loops(directory):
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = backing.read_text().strip().removesuffix(" (deleted)")
        except OSError:
            continue
        if file.startswith(str(directory) + "/"):
            subprocess.run(["losetup", "-d", f"/dev/{backing.parts[3]}"], check=False, stdin=subprocess.DEVNULL)


def remove_cgroups(names):
    """Removes the cgroup directories of the given names in every hierarchy, deepest first."""
    for name in names:
        for top in pathlib.Path("/sys/fs/cgroup").rglob(name):
            for directory, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    pass


def remove_directory(directory):
    kill_all(directory)
    unmount_below(directory)
    detach_loops(directory)
    shutil.rmtree(directory, ignore_errors=True)


def remove():
    """Cleans every directory whose owner has gone; a line for each."""
    lines = []
    if not RUNS.exists():
        return lines
    for directory in sorted(RUNS.iterdir()):
        try:
            owner = int((directory / "owner").read_text())
            started = (directory / "owner_start").read_text()
        except (OSError, ValueError):
            owner, started = 0, ""
        if owner and start_time(owner) == started:
            continue
        remove_directory(directory)
        lines.append(str(directory))
    return lines


def start_time(pid):
    """The kernel's start tick of a process, to tell a reused pid; "" when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2:].split()[19]
    except (OSError, ValueError, IndexError):
        return ""
