#!/bin/bash
# From a fresh Debian 12 to graded rollouts in sandboxes: installs what is needed,
# builds, starts `dsec serve`, imports a base, a workspace and a toolkit, runs
# examples/swe_rollouts.py. Can be run again at any time; what is done stays done.
#
#   ./quickstart.sh            the server goes on running afterwards
#   ./quickstart.sh --stop     ends the server that an earlier run started, with its sandboxes
#
# DSEC_QUICKSTART_DIR (default /var/lib/dsec-quickstart) holds everything that it makes outside this tree.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=${DSEC_QUICKSTART_DIR:-/var/lib/dsec-quickstart}
base=debian:12
base_source=debian:bookworm,python3,python3-pytest,git,procps,ca-certificates
dsec=$tree/build/release/bin/dsec

bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; fi
number=0
doing=''
step() {
  number=$((number + 1))
  doing=$1
  printf '%s[%d/6] %s%s\n' "$bold" "$number" "$1" "$plain"
}
advice='look at the lines above'
on_exit() {
  local code=$?
  if [ "$code" -ne 0 ] && [ -n "$doing" ]; then
    printf '\nquickstart: "%s" failed (exit code %d): %s.\nRun ./quickstart.sh again afterwards; it goes on from there.\n' "$doing" "$code" "$advice" >&2
  fi
}
trap on_exit EXIT

server_pid() {  # of the server that an earlier run started, if it is that still
  local pid
  pid=$(cat "$state/serve.pid" 2>/dev/null) || return 1
  [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$dsec" ] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -- "--data-dir $state/data " && echo "$pid"
}

if [ "${1:-}" = --stop ]; then
  if pid=$(server_pid); then
    DSEC_URL=$(cat "$state/url") DSEC_API_KEY=$(cat "$state/data/admin.key") "$dsec" ps -q |
      DSEC_URL=$(cat "$state/url") DSEC_API_KEY=$(cat "$state/data/admin.key") xargs -r "$dsec" rm >/dev/null
    kill -TERM "$pid"
    tail --pid="$pid" -f /dev/null
    echo "stopped; $state/data keeps the images. Remove $state to remove everything"
  else
    echo "no server of this script runs"
  fi
  exit 0
elif [ $# -gt 0 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
fi

if [ "$(id -u)" -ne 0 ]; then
  echo "quickstart: needs root: it installs packages and starts a server that makes namespaces, mounts and cgroups" >&2
  exit 1
fi
mkdir -p "$state"

step "Install packages"
advice="is this Debian 12, and does \`apt-get update\` work?"
"$tree/scripts/install-packages.sh" build run demo
echo "all there"

step "Build"
advice="the compiler's output is in $state/build.log"
(cd "$tree" && cmake --preset release -DDSEC_TESTS=OFF -DDSEC_BENCH=OFF) >"$state/build.log" 2>&1 || { tail -15 "$state/build.log"; exit 1; }
if [ -t 1 ]; then
  (cd "$tree" && cmake --build --preset release) 2>&1 | tee -a "$state/build.log"
else
  (cd "$tree" && cmake --build --preset release) >>"$state/build.log" 2>&1 || { tail -15 "$state/build.log"; exit 1; }
fi
"$dsec" version

step "Look at this host"
advice="mend what is marked as missing"
"$dsec" doctor

step "Start the server"
advice="its log is $state/serve.log"
if pid=$(server_pid); then
  echo "process $pid serves already at $(cat "$state/url")"
else
  rm -f "$state/ready"
  setsid "$dsec" serve --listen 127.0.0.1:0 --data-dir "$state/data" --ready-file "$state/ready" </dev/null >>"$state/serve.log" 2>&1 &
  pid=$!
  echo "$pid" >"$state/serve.pid"
  /usr/bin/python3 - "$state/ready" "$pid" <<'PYTHON' || { tail -5 "$state/serve.log"; exit 1; }
import os, select, sys, ctypes, time
path, pid = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_CLOEXEC)
# IN_CLOSE_WRITE | IN_MOVED_TO: the file comes whole, by either way.
libc.inotify_add_watch(watch, os.path.dirname(path).encode(), 0x8 | 0x80)
server = os.pidfd_open(pid)
deadline = time.monotonic() + 60
while not (os.path.exists(path) and os.path.getsize(path)):
    left = deadline - time.monotonic()
    ready, _, _ = select.select([watch, server], [], [], max(0, left))
    if server in ready:
        sys.exit("the server ended")
    if not ready:
        sys.exit("the server is not ready after 60 s")
    os.read(watch, 65536)
PYTHON
  /usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$state/ready" >"$state/url"
  echo "process $pid serves at $(cat "$state/url")"
fi
export DSEC_URL DSEC_API_KEY
DSEC_URL=$(cat "$state/url")
DSEC_API_KEY=$(cat "$state/data/admin.key")

# What the paper's network_rules name: the registries that this machine's own package clients use.
"$dsec" service detect -q | sed 's/^/service that sandboxes may be allowed to reach: /' || true

step "Import a base image"
advice="\`mmdebstrap --mode=unshare bookworm /dev/null\` has to work here; the server's log is $state/serve.log"
if "$dsec" image inspect "$base" >/dev/null 2>&1; then
  echo "$base is there"
else
  "$dsec" image import "$base" "$base_source"
fi

step "Run the demonstration: sixteen rollouts"
advice="the table says which rollout went wrong; the server's log is $state/serve.log"
PYTHONPATH=$tree/sdk/python /usr/bin/python3 "$tree/examples/swe_rollouts.py" --base "$base"

doing=''
cat <<TEXT

${bold}It works.${plain} The server runs on. To go on with it:

  export DSEC_URL=$DSEC_URL DSEC_API_KEY=\$(cat $state/data/admin.key)
  export PATH=$tree/build/release/bin:\$PATH
  dsec run --rm -it --image $base -- bash
  dsec --help

The demonstration is examples/swe_rollouts.py; sdk/python/README.md shows the library. ./quickstart.sh --stop ends the server.
TEXT
