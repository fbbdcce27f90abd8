#!/bin/bash
# Installs what the tests need, builds, runs the default tier.
#
#   ./test.sh                 the default tier: under 30 minutes on a new machine
#   ./test.sh --nightly       adds sanitizers, fuzzing, a thousand kills, proofs from a minimal tree
#   ./test.sh --only NAME…    only these stages (see --list)
#
# Idempotent; takes nothing from standard input. The last line of output is
# "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")"
groups=(build run test)
for argument in "$@"; do
  if [ "$argument" = --nightly ]; then groups+=(nightly); fi
done
started=$(date +%s)
scripts/install-packages.sh "${groups[@]}"
export DSEC_TEST_INSTALL_SECONDS=$(( $(date +%s) - started ))
exec /usr/bin/python3 -u tests/runner/main.py "$@" </dev/null
