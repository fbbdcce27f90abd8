"""A clock for a server under test that hours can be added to."""
import hashlib
import mmap
import os
import struct
import subprocess
import time

from support.images import CACHE
from support.server import ROOT

SOURCE = ROOT / "tests" / "support" / "time_shift.c"


def build_library():
    """The library that moves a program's clocks, built when none of this source is there."""
    library = CACHE / f"time-shift-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = CACHE / f"time-shift-{os.getpid()}.partial"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", partial, SOURCE, "-ldl"], check=True, stdin=subprocess.DEVNULL)
        partial.rename(library)
    return library


class MovedClock:
    """Seconds ahead of the machine's clocks, for programs started with `environment`."""

    def __init__(self, file):
        file.write_bytes(b"\0" * 8)
        with open(file, "r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(build_library()), "DSEC_TIME_SHIFT": str(file)}

    @property
    def ahead(self):
        return struct.unpack("=q", self._page[:8])[0] / 1e9

    def now(self):
        """Seconds, as the moved programs' steady clock tells them."""
        return time.monotonic() + self.ahead

    def advance(self, seconds):
        self._page[:8] = struct.pack("=q", int((self.ahead + seconds) * 1e9))
