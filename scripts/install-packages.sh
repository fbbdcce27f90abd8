#!/bin/bash
# Installs groups of packages.txt by name: scripts/install-packages.sh build run …
# Does nothing, and reads no package list, when all of them are installed.
# With --list it prints the names instead.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

names_of() {
  awk -v group="$1" '
    /^\[/ { inside = ($0 == "[" group "]"); next }
    { sub(/#.*/, ""); if (inside && NF) print $1 }' "$here/packages.txt"
}

list=no
if [ "${1:-}" = --list ]; then list=yes; shift; fi
if [ $# -eq 0 ]; then
  echo "usage: $0 [--list] GROUP…   groups: $(sed -n 's/^\[\(.*\)\]$/\1/p' "$here/packages.txt" | tr '\n' ' ')" >&2
  exit 2
fi
wanted=()
for group in "$@"; do
  names=$(names_of "$group")
  if [ -z "$names" ]; then echo "packages.txt has no group '$group'" >&2; exit 2; fi
  mapfile -t -O "${#wanted[@]}" wanted <<<"$names"
done
if [ "$list" = yes ]; then printf '%s\n' "${wanted[@]}"; exit 0; fi

missing=()
for name in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$name")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" -ne 0 ]; then
  echo "missing packages, and only root can install them: ${missing[*]}" >&2
  exit 1
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# A source that cannot be reached must not stop the others; a package that
# cannot be found then fails the install below, by name.
apt-get -qq update -o DPkg::Lock::Timeout=300 || echo "apt-get update: some sources failed; going on with what is there" >&2
apt-get -y -qq install --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/tmp/dsec-apt.$$ 2>&1 || {
  cat /tmp/dsec-apt.$$ >&2; rm -f /tmp/dsec-apt.$$; exit 1; }
rm -f /tmp/dsec-apt.$$
