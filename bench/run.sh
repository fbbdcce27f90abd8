#!/bin/bash
# All benchmarks, side by side: bench/run.sh [quick|full] [--out DIR] [options of api_bench.py]
#
# Needs root, a release build, and mmdebstrap for the root filesystem. Programs
# that are not installed are skipped and named; bench/install_baselines.sh
# installs them. Writes docs/benchmarks/<size>/ and docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."

size=quick
case "${1:-}" in quick | full) size=$1; shift ;; esac
out=docs/benchmarks/$size
if [ "${1:-}" = --out ]; then out=$2; shift 2; fi
binaries=${DSEC_BENCH_BINARIES:-build/release/bin}
work=${DSEC_BENCH_WORK:-/var/tmp/dsec-bench}

if [ ! -x "$binaries/dsec" ]; then
  echo "bench: $binaries/dsec is missing: cmake --preset release && cmake --build --preset release" >&2
  exit 2
fi
mkdir -p "$work" "$out"
if [ ! -e "$work/rootfs.done" ]; then
  rm -rf --one-file-system "$work/rootfs"
  mmdebstrap --quiet --variant=minbase bookworm "$work/rootfs"
  touch "$work/rootfs.done"
fi

# The engine alone: the backend without server, log or client.
if [ -x "$binaries/engine_create" ]; then
  echo "engine" >&2
  "$binaries/engine_create" "$size" --rootfs "$work/rootfs" > "$out/engine.txt" || echo "engine_create failed: $?" >> "$out/engine.txt"
  { echo '```'; cat "$out/engine.txt"; echo '```'; } > "$out/engine.md"
fi

/usr/bin/python3 bench/api_bench.py "$size" --binaries "$binaries" --rootfs "$work/rootfs" --work "$work" --out "$out" "$@"
/usr/bin/python3 bench/report.py "$out" --into docs/benchmarks.md
/usr/bin/python3 bench/report.py "$out"
