#!/bin/sh
# Builds the lab's Debian image without loop devices or mounts: build/lab-image/debian-12.raw.zst, a disk that boots under SeaBIOS, OVMF and
# OVMF with Secure Boot. It is kept until its recipe changes (this folder, the kernel, the NVML mock); remove build/lab-image to
# take newer Debian packages. Needs root and: mmdebstrap e2fsprogs mtools gdisk zstd cpio kmod grub-common grub-pc-bin
# grub-efi-amd64-signed shim-signed.
# Usage: build.sh [OUT]   (OUT is build/lab-image of the repository unless given)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-$root/build/lab-image}
kernel=$root/build/kernel
mock=$root/build/mocknvml
image=$out/debian-12.raw.zst

uuid=6c61622d-6465-4269-a16e-2d3132000000 # of the root file system
export SOURCE_DATE_EPOCH=1767225600 LC_ALL=C

missing=
for tool in mmdebstrap:mmdebstrap mke2fs:e2fsprogs mformat:mtools sgdisk:gdisk zstd:zstd cpio:cpio depmod:kmod grub-mkimage:grub-common; do
	command -v "${tool%:*}" >/dev/null || missing="$missing ${tool#*:}"
done
for file in /usr/lib/grub/i386-pc/boot.img:grub-pc-bin /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed:grub-efi-amd64-signed /usr/lib/shim/shimx64.efi.signed:shim-signed; do
	[ -e "${file%:*}" ] || missing="$missing ${file#*:}"
done
if [ -n "$missing" ]; then
	echo "build.sh: install first:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "build.sh: files in the image belong to root: run this as root" >&2
	exit 1
fi

mkdir -p "$out"
exec 9>"$out/lock" && flock 9
[ -f "$kernel/stamp" ] || "$here/kernel.sh"

hash() { sha256sum | cut -c1-16; }
bootstrap() { # OUT
	mmdebstrap --quiet --variant=minbase --mode=root --aptopt='Apt::Install-Recommends "false"' \
		--dpkgopt=force-confold --dpkgopt=force-unsafe-io \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
		--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$(paste -sd, "$here/packages")" bookworm "$1"
}
base=$({ cat "$here/packages"; sed -n '/^bootstrap()/,/^}/p' "$here/build.sh"; } | hash)
recipe=$({
	(cd "$here" && find . -type f | sort | xargs sha256sum)
	cat "$kernel/stamp"
	[ ! -d "$mock" ] || (cd "$mock" && find . -type f | sort | xargs sha256sum)
} | hash)
if [ -f "$image" ] && [ "$(cat "$out/recipe" 2>/dev/null)" = "$recipe" ]; then
	exit 0
fi

work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
tree=$work/tree

# 1. Debian's packages, the slow part, kept by themselves.
if [ ! -f "$out/base-$base.tar" ]; then
	echo "build.sh: Debian's packages (3 to 10 minutes)" >&2
	bootstrap "$work/base.tar"
	rm -f "$out"/base-*.tar
	mv "$work/base.tar" "$out/base-$base.tar"
fi
echo "build.sh: image" >&2
mkdir "$tree"
tar -C "$tree" -xf "$out/base-$base.tar" --exclude='./dev/*'

# 2. Our files, the kernel and its modules, the NVML mock.
cp -R "$here/files/." "$tree/"
sed -i "s/@ROOT@/$uuid/" "$tree/etc/fstab" "$tree/boot/grub/grub.cfg"
release=$(cat "$kernel/version")
cp "$kernel/vmlinuz" "$tree/boot/vmlinuz"
mkdir -p "$work/all/lib" "$work/initramfs/bin" "$work/initramfs/lib" "$work/initramfs/dev" "$work/initramfs/proc" "$work/initramfs/sys" "$work/initramfs/root"
ln -s "$kernel/modules" "$work/all/lib/modules"
sed 's/#.*//' "$here/modules" | while read -r first second; do
	[ -n "$first" ] || continue
	modprobe -d "$work/all" -S "$release" --show-depends "${second:-$first}" | sed -n 's/^insmod \([^ ]*\).*/\1/p' | while read -r file; do
		place=$tree/usr/lib/modules/$release/${file#*"/$release/"}
		mkdir -p "$(dirname "$place")"
		cp "$file" "$place"
		if [ -n "$second" ] && [ ! -e "$work/initramfs/lib/${file##*/}" ]; then
			cp "$file" "$work/initramfs/lib/"
			echo "/lib/${file##*/}" >>"$work/initramfs/$first"
		fi
	done
done
cp "$kernel/modules/$release/modules.order" "$kernel/modules/$release/modules.builtin" "$kernel/modules/$release/modules.builtin.modinfo" "$tree/usr/lib/modules/$release/"
echo "$release" >"$tree/usr/lib/modules/release"
cp "$here/init" "$work/initramfs/init"
cp "$tree/bin/busybox" "$work/initramfs/bin/busybox"
(cd "$work/initramfs" && find . | sort | cpio --quiet --reproducible -R 0:0 -o -H newc) | zstd -q -19 >"$tree/boot/initrd.img"
if [ -f "$mock/libnvidia-ml.so.1" ]; then
	cp "$mock/libnvidia-ml.so.1" "$tree/usr/lib/x86_64-linux-gnu/"
	[ ! -d "$mock/etc" ] || cp -R "$mock/etc/." "$tree/etc/"
	[ ! -f "$mock/bareyard-mocknvml.yaml" ] || cp "$mock/bareyard-mocknvml.yaml" "$tree/etc/"
fi
cp "$here/setup.sh" "$tree/setup.sh"
chroot "$tree" /setup.sh 2>"$work/setup.log" >&2 || { cat "$work/setup.log" >&2; exit 1; }
rm "$tree/setup.sh"
echo lab >"$tree/etc/hostname"
rm -f "$tree/etc/resolv.conf"

# 3. Partitions: GRUB's core for BIOS (1), the EFI system partition (2), the root (3). The root comes last, so that it can grow.
# Sectors of 512 bytes.
core_at=2048 core_len=2048
esp_at=4096 esp_len=32768
root_at=$((esp_at + esp_len))
used=$(du -sk --apparent-size "$tree" | cut -f1)
blocks=$((used * 115 / 100 + 65536)) # KiB: what the tree takes, metadata, and room to run before the root has grown
root_len=$((blocks * 2))
total=$((root_at + root_len + 2048))

mke2fs -q -t ext4 -T default -U $uuid -L lab-root -m 1 -E root_owner=0:0,lazy_itable_init=1 -J size=16 -d "$tree" "$work/root.ext4" "${blocks}k" >/dev/null

esp=$work/esp.fat
truncate -s $((esp_len * 512)) "$esp"
mformat -i "$esp" -v ESP -T $esp_len -h 64 -s 32 -N 6c616221 ::
mmd -i "$esp" ::EFI ::EFI/BOOT ::EFI/debian
mcopy -i "$esp" /usr/lib/shim/shimx64.efi.signed ::EFI/BOOT/BOOTX64.EFI
mcopy -i "$esp" /usr/lib/shim/mmx64.efi.signed ::EFI/BOOT/mmx64.efi
mcopy -i "$esp" /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed ::EFI/BOOT/grubx64.efi
cat >"$work/esp.cfg" <<'CFG'
regexp --set=1:disk '^([^,]*)' "$root"
set root="$disk,gpt3"
set prefix=($root)/boot/grub
configfile $prefix/grub.cfg
CFG
mcopy -i "$esp" "$work/esp.cfg" ::EFI/debian/grub.cfg

cat >"$work/core.cfg" <<'CFG'
set root="$root"
configfile $prefix/grub.cfg
CFG
grub-mkimage -O i386-pc -o "$work/core.img" -p '(,gpt3)/boot/grub' -c "$work/core.cfg" \
	biosdisk part_gpt ext2 normal configfile linux echo test
[ "$(stat -c %s "$work/core.img")" -le $((core_len * 512)) ]

# What grub-bios-setup does, which wants a block device: boot.img learns where core.img begins (0x5c) and trusts the drive number
# that the BIOS gave (0x66: two NOPs); core.img's first sector learns where the rest of it is (0x1f4).
number() { # LITTLE-ENDIAN 64-bit
	n=$1
	for _ in 1 2 3 4 5 6 7 8; do
		printf "\\$(printf %03o $((n % 256)))"
		n=$((n / 256))
	done
}
put() { dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
head -c 440 /usr/lib/grub/i386-pc/boot.img >"$work/boot.img"
number $core_at | put "$work/boot.img" $((0x5c))
printf '\220\220' | put "$work/boot.img" $((0x66))
number $((core_at + 1)) | put "$work/core.img" $((0x1f4))

raw=$work/debian-12.raw
truncate -s $((total * 512)) "$raw"
sgdisk --clear --disk-guid=6c61622d-6469-4b73-a16e-2d3132000000 \
	--new=1:$core_at:$((core_at + core_len - 1)) --typecode=1:ef02 --change-name=1:bios --partition-guid=1:6c61622d-6269-4f73-a16e-2d3132000000 \
	--new=2:$esp_at:$((esp_at + esp_len - 1)) --typecode=2:ef00 --change-name=2:esp --partition-guid=2:6c61622d-6573-4070-a16e-2d3132000000 \
	--new=3:$root_at:$((root_at + root_len - 1)) --typecode=3:8304 --change-name=3:root --partition-guid=3:6c61622d-726f-4f74-a16e-2d3132000000 \
	"$raw" >/dev/null
dd if="$work/boot.img" of="$raw" conv=notrunc status=none
dd if="$work/core.img" of="$raw" bs=512 seek=$core_at conv=notrunc status=none
dd if="$esp" of="$raw" bs=1M seek=$((esp_at / 2048)) conv=notrunc,sparse status=none
dd if="$work/root.ext4" of="$raw" bs=1M seek=$((root_at / 2048)) conv=notrunc,sparse status=none

zstd -q -T0 -9 "$raw" -o "$work/debian-12.raw.zst"
mv "$work/debian-12.raw.zst" "$image"
echo "$recipe" >"$out/recipe"
echo "build.sh: $image: $((total / 2048)) MiB, $(($(stat -c %s "$image") >> 20)) MiB compressed" >&2
