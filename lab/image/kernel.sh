#!/bin/sh
# Fetches Debian's generic kernel for the RAM disk: build/kernel/vmlinuz, build/kernel/modules/VERSION/ and build/kernel/version.
# The generic one, not the cloud one, because the RAM disk meets AHCI, e1000e, ixgbe, mlx5 and IPMI, which the cloud kernel leaves out.
# Usage: kernel.sh [OUT]   (OUT is build/kernel of the repository unless given)
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$root/build/kernel}

package=$(apt-cache depends --important linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n1)
if [ -z "$package" ]; then
	echo "kernel.sh: apt does not know linux-image-amd64: run apt-get update" >&2
	exit 1
fi
version=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: //p')
stamp="$package $version"
mkdir -p "$(dirname "$out")"
exec 9>"$out.lock" && flock 9
if [ -f "$out/stamp" ] && [ "$(cat "$out/stamp")" = "$stamp" ]; then
	exit 0
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/bareyard-kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package=$version")
mkdir "$work/tree"
dpkg -x "$work"/*.deb "$work/tree"
release=$(basename "$work"/tree/boot/vmlinuz-* | sed 's/^vmlinuz-//')
depmod -b "$work/tree" "$release"

# A new folder beside the old one and a rename at the end: a reader never sees half of it.
rm -rf "$out.new"
mkdir -p "$out.new/modules"
cp "$work/tree/boot/vmlinuz-$release" "$out.new/vmlinuz"
cp -a "$work/tree/lib/modules/$release" "$out.new/modules/"
echo "$release" >"$out.new/version"
echo "$stamp" >"$out.new/stamp"
rm -rf "$out"
mv "$out.new" "$out"
