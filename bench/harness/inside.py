"""A base for benchmarks that need programs of their own inside: busybox, and what bench/inside has the source of."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from support import images  # noqa: E402


def compiled(name: str, scratch: Path) -> bytes:
    program = scratch / name
    subprocess.run(["gcc", "-O2", "-static", "-o", program, ROOT / "bench" / "inside" / f"{name}.c"], check=True)
    return program.read_bytes()


def base_tar(scratch: Path, programs: Dict[str, str], files: Dict[str, int]) -> bytes:
    """`programs`: path inside -> source's name; `files`: path inside -> MiB of random bytes."""
    out = io.BytesIO(images.tiny_tar())
    with tarfile.open(fileobj=out, mode="a") as archive:
        for path, name in programs.items():
            images.add_file(archive, path, compiled(name, scratch), mode=0o755)
        for path, mib in files.items():
            images.add_file(archive, path, os.urandom(mib << 20))
    return out.getvalue()
