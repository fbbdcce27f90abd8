"""What the numbers were taken on, and how quiet it was."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional


def _first(path: str, prefix: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(prefix):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def version_of(argv: List[str]) -> Optional[str]:
    try:
        out = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (out.stdout or out.stderr).strip().splitlines()[0] if (out.stdout or out.stderr).strip() else None


def describe() -> Dict[str, Any]:
    memory_kb = int(_first("/proc/meminfo", "MemTotal").split()[0])
    return {
        "taken_at": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "processor": _first("/proc/cpuinfo", "model name"),
        "hypervisor": "hypervisor" in _first("/proc/cpuinfo", "flags").split(),
        "memory_gib": round(memory_kb / 1048576, 1),
        "cgroups": cgroup_layout(),
        "versions": {
            name: version_of(argv)
            for name, argv in {
                "runc": ["runc", "--version"],
                "crun": ["crun", "--version"],
                "bwrap": ["bwrap", "--version"],
                "podman": ["podman", "--version"],
                "dockerd": ["dockerd", "--version"],
            }.items()
        },
    }


def cgroup_layout() -> str:
    mounts = Path("/proc/mounts").read_text()
    v1 = " cgroup " in mounts
    v2 = " cgroup2 " in mounts
    return "v1 and v2 (hybrid)" if v1 and v2 else "v1" if v1 else "v2" if v2 else "none"


def load() -> List[float]:
    return list(os.getloadavg())


def memory_available_kb() -> int:
    return int(_first("/proc/meminfo", "MemAvailable").split()[0])


def processes_of(root_pid: int) -> List[int]:
    """The process and everything below it, by parent."""
    parents: Dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    out = [root_pid]
    for pid in out:
        out.extend(child for child, parent in parents.items() if parent == pid)
    return out


def processes_named(name: str) -> List[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and command_of(int(entry.name)) == name]


def arguments_of(pid: int) -> List[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def resident_kb(pid: int) -> int:
    value = _first(f"/proc/{pid}/status", "VmRSS")
    return int(value.split()[0]) if value else 0


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
