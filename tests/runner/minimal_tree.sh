#!/bin/bash
# Proves packages.txt: in a minimal bookworm tree, the install step, the release
# build and the .deb work from nothing. 77 when this machine cannot run a tree.
#
# The tree is made by mmdebstrap from the node's own package sources and entered
# by chroot in new mount, pid, ipc and uts namespaces; it goes away with them.
set -euo pipefail
cd "$(dirname "$0")/../.."
source_tree=$PWD
work=$(mktemp -d /var/tmp/dsec-minimal.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
tree=$work/tree

echo "--- minimal tree by mmdebstrap"
# --variant=apt: dpkg, apt and what they need; nothing that a build would like to find.
mmdebstrap --quiet --variant=apt --mode=root bookworm "$tree" </dev/null || exit 77
mkdir -p "$tree/src"
git -C "$source_tree" ls-files -z --cached --others --exclude-standard | (cd "$source_tree" && tar --null -T - -cf - --ignore-failed-read) | tar -xf - -C "$tree/src"
cp /etc/resolv.conf "$tree/etc/resolv.conf" 2>/dev/null || true
cp -r /etc/apt/apt.conf.d/. "$tree/etc/apt/apt.conf.d/" 2>/dev/null || true
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  if [ -n "${!name:-}" ]; then echo "export $name='${!name}'" >>"$work/proxy"; fi
done
[ -f "$work/proxy" ] && cp "$work/proxy" "$tree/proxy" || : >"$tree/proxy"

inside() {
  unshare --mount --pid --fork --ipc --uts --mount-proc="$tree/proc" chroot "$tree" /usr/bin/env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 /bin/bash -euo pipefail -c ". /proxy; cd /src; $1" </dev/null
}
mkdir -p "$tree/dev" "$tree/proc"
for device in null zero full random urandom; do
  [ -e "$tree/dev/$device" ] || cp -a "/dev/$device" "$tree/dev/$device"
done

echo "--- install step"
inside 'scripts/install-packages.sh build run'
echo "--- release build"
inside 'cmake --preset release -DDSEC_BENCH=OFF >/dev/null && cmake --build --preset release'
echo "--- unit tests of what needs no kernel feature"
inside 'ctest --test-dir build/release -R "^unit.(base|model|protocol|placement)$" --output-on-failure'
echo "--- .deb built, installed and removed"
inside 'cd build/release && cpack -G DEB >/dev/null && apt-get install -y -qq --no-install-recommends ./dsec_*.deb >/dev/null && /usr/bin/dsec version && dpkg -L dsec | grep -q libexec/dsec/dsec-agent && apt-get remove -y -qq dsec >/dev/null && ! test -e /usr/bin/dsec'
echo "minimal tree: all steps passed"
