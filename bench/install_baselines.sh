#!/bin/bash
# Installs the programs that bench/run.sh compares with, without starting their services.
set -euo pipefail
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends runc crun bubblewrap podman docker.io mmdebstrap
