#!/usr/bin/python3
"""A cold job with and without other nodes to read from: bench/peers.py [--rounds N] [--delay-us N].

The layer and the job of bench/traces.py, in a directory each read of which takes longer; no traces. One node has run the
job before and stays. Fresh nodes run it, in turns: with that node as a peer, and with the store alone. Needs root, build/release/bin
and a few GiB of scratch. Prints JSON lines.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from traces import Bench  # noqa: E402  (also finds tests/support)
from support.registry import free_port  # noqa: E402


class PeerBench(Bench):
    def __init__(self, scratch, delay_us):
        super().__init__(scratch, delay_us)
        self.fleet_key, self.port = scratch / "fleet.key", free_port()
        self.fleet_key.write_text(os.urandom(32).hex())
        self.fleet_key.chmod(0o600)

    def flags(self, side):
        peer = {"warm": ["--peer-listen", f"127.0.0.1:{self.port}"], "with": ["--peers", f"http://127.0.0.1:{self.port}"]}.get(side)
        return ["--store-traces", "off", *(peer + ["--fleet-key", str(self.fleet_key), "--peer-mib-per-second", "1024"] if peer else [])]

    def row(self, digest, side):
        return self.run(digest, side, *self.flags(side), more=asked)


def asked(server):
    return json.loads((server.data / "store" / "stats.json").read_text()).get("asked_peers", {})


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--delay-us", type=int, default=5000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsec-peers-", dir="/var/tmp") as scratch:
        bench = PeerBench(pathlib.Path(scratch), arguments.delay_us)
        digest = bench.make()
        rows = []

        def rounds():
            for _ in range(arguments.rounds):
                for side in ("without", "with"):
                    rows.append(bench.row(digest, side))
                    print(json.dumps(rows[-1]), flush=True)
        print(json.dumps(bench.run(digest, "warm", *bench.flags("warm"), after=rounds)), flush=True)
    for side in ("without", "with"):
        mine = [row for row in rows if row["run"] == side]
        print(json.dumps({"summary": side, "seconds_median": statistics.median(row["seconds"] for row in mine),
                          "fetched_bytes_median": statistics.median(row["fetched_bytes"] for row in mine),
                          "store_bytes_median": statistics.median(row.get("store_bytes", row["fetched_bytes"]) for row in mine)}))


if __name__ == "__main__":
    main()
