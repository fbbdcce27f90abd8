"""What a test suite may leave behind on the host, and what it must not.

A snapshot before, one after; whatever is in the second alone is a leak. Things
that other programs of the machine make are told apart by name: mounts, cgroup
directories and processes count when they carry one of our names or lie below a
test directory; namespaces count when nobody but a sandbox could hold them.
"""
import os
import pathlib
import time

NAMESPACES = ("mnt", "pid", "net", "user", "ipc", "uts", "cgroup")
OUR_PROGRAMS = ("dsec", "dsec-keeper", "dsec-spawner", "dsec-agent", "dsec-stored")


def _processes():
    """pid -> (comm, exe, cmdline) of every process that still runs."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            comm = stat[stat.index("(") + 1:stat.rindex(")")]
            if stat[stat.rindex(")") + 2] == "Z":
                continue
            cmdline = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            try:
                exe = os.readlink(f"/proc/{entry}/exe")
            except OSError:
                exe = ""
            found[int(entry)] = (comm, exe, cmdline.strip())
        except (OSError, ValueError):
            continue
    return found


def _is_ours(comm, exe, cmdline):
    names = {comm, os.path.basename(exe.removesuffix(" (deleted)")), os.path.basename(cmdline.split(" ")[0])}
    return bool(names & set(OUR_PROGRAMS)) or comm.startswith(("dsec", "aether", "chronus"))


def _namespaces():
    """{'net:[4026…]': pid of one holder} of every namespace but this process's own."""
    own = set()
    for kind in NAMESPACES:
        own.add(os.readlink(f"/proc/self/ns/{kind}"))
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        for kind in NAMESPACES:
            try:
                name = os.readlink(f"/proc/{entry}/ns/{kind}")
            except OSError:
                continue
            if name not in own:
                found.setdefault(name, int(entry))
    return found


def _cgroups():
    found = set()
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            path = os.path.join(directory, name)
            if "dsec" in path:
                found.add(path)
    return found


def _mounts():
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split(" - ")[0].split(" ", 3)[3] + " " + line.split(" - ")[1] for line in lines}


def _loops():
    found = set()
    for device in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.add(f"{device.parts[3]} {device.read_text().strip()}")
        except OSError:
            continue
    return found


class HostState:
    """One snapshot. Cheap enough to take after every suite."""

    def __init__(self):
        self.processes = {pid: f"{pid} {value[0]} {value[2][:120]}" for pid, value in _processes().items() if _is_ours(*value)}
        self.namespaces = _namespaces()
        self.cgroups = _cgroups()
        self.mounts = _mounts()
        self.loops = _loops()
        self.files_open = int(pathlib.Path("/proc/sys/fs/file-nr").read_text().split()[0])

    def leaks_since(self, before):
        """Sentences about what is here now and was not before."""
        leaks = [f"process {text}" for pid, text in self.processes.items() if pid not in before.processes]
        leaks += [f"cgroup {path}" for path in sorted(self.cgroups - before.cgroups)]
        leaks += [f"mount {text}" for text in sorted(self.mounts - before.mounts)]
        leaks += [f"loop device {text}" for text in sorted(self.loops - before.loops)]
        ours = {name: pid for name, pid in self.namespaces.items() if name not in before.namespaces}
        processes = _processes()
        for name, pid in ours.items():
            if pid in processes:
                comm, _, cmdline = processes[pid]
                leaks.append(f"namespace {name} held by {pid} {comm} {cmdline[:80]}")
        return leaks


def settled_leaks(before, seconds=10.0):
    """Leaks since `before` once the kernel has finished tearing down, or at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        leaks = HostState().leaks_since(before)
        if not leaks or time.monotonic() > deadline:
            return leaks
        time.sleep(0.1)
