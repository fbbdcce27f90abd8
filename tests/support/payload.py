"""Processes of sandboxes, found from the host."""
import os
import pathlib
import re


def payload_pids(marker):
    """Processes in a pid namespace below this one whose arguments contain `marker`: whatever of their server still runs."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if marker.encode() in pathlib.Path(f"/proc/{entry}/cmdline").read_bytes() and len(numbers_of(entry)) > 1:
                found.append(int(entry))
        except OSError:
            continue
    return found


def numbers_of(pid):
    """Its pids, from this namespace down to its own."""
    return re.search(r"NSpid:\s+(.*)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1).split()


def ancestors_in_sandbox(pid):
    """The pids from `pid` up to the sandbox's PID 1, which is the last."""
    chain = []
    while pid > 1:
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        nspid = re.search(r"NSpid:\s+(.*)", status).group(1).split()
        if len(nspid) < 2:
            break
        chain.append(pid)
        if nspid[-1] == "1":
            break
        pid = int(re.search(r"PPid:\s+(\d+)", status).group(1))
    return chain
