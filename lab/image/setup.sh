#!/bin/sh
# Runs in the image's tree: takes out what a virtual machine under TCG pays for at each boot and never uses.
set -eu

systemctl set-default multi-user.target
systemctl enable systemd-networkd.service systemd-networkd-wait-online.service ssh.service acpid.socket acpid.path
systemctl disable iperf3.service 2>/dev/null || true
for unit in \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
	cloud-init-hotplugd.socket getty@tty1.service getty-static.service \
	systemd-pstore.service systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-machine-id-commit.service \
	systemd-random-seed.service systemd-network-generator.service systemd-binfmt.service systemd-pcrphase.service \
	systemd-pcrphase-sysinit.service systemd-ask-password-console.path systemd-ask-password-wall.path \
	systemd-boot-system-token.service systemd-sysusers.service systemd-firstboot.service systemd-journal-flush.service \
	systemd-modules-load.service kmod-static-nodes.service systemd-initctl.socket systemd-journald-audit.socket systemd-rfkill.socket systemd-repart.service \
	dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount \
	modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service modprobe@dm_mod.service \
	modprobe@loop.service proc-sys-fs-binfmt_misc.automount keyboard-setup.service console-setup.service; do
	systemctl mask --quiet "$unit"
done
# Generators run at each boot and reload.
mkdir -p /etc/systemd/system-generators
for generator in cryptsetup gpt-auto hibernate-resume integritysetup rc-local run system-update sysv veritysetup debug; do
	ln -sf /dev/null "/etc/systemd/system-generators/systemd-$generator-generator"
done

# Rules for cameras, sticks, sound, tapes and seats: each device that is found passes all of them.
for rule in 50-firmware 55-dm 60-autosuspend 60-cdrom_id 60-drm 60-fido-id 60-infiniband 60-input-id 60-persistent-alsa 60-persistent-input \
	60-persistent-storage-dm 60-persistent-storage-tape 60-persistent-v4l 60-sensor 60-serial 64-btrfs 66-azure-ephemeral 70-camera \
	70-joystick 70-memory 70-mouse 70-power-switch 70-touchpad 70-uaccess 71-seat 73-seat-late 75-probe_mtd 78-sound-card 85-hwclock \
	95-dm-notify 96-e2scrub 10-cloud-init-hook-hotplug; do
	ln -sf /dev/null "/etc/udev/rules.d/$rule.rules"
done
# cloud-init checks its input against a schema when this is there; loading it takes longer than all else that a stage does.
rm -rf /usr/lib/python3/dist-packages/jsonschema
# The account that cloud-init would make; it adds the key.
useradd --create-home --shell /bin/bash --comment Debian --groups adm,dialout,sudo --password '!' debian

# What must be new on each machine.
rm -f /etc/ssh/ssh_host_* /var/lib/systemd/random-seed /var/lib/dbus/machine-id
: >/etc/machine-id

# A hardware database of keyboards and mice is a large part of udev's start.
rm -f /usr/lib/udev/hwdb.bin /etc/udev/hwdb.bin /usr/lib/udev/hwdb.d/*
rm -rf /usr/share/i18n /usr/share/zoneinfo/right /var/cache/debconf/*-old /var/lib/apt/lists/* /var/cache/apt/* /var/log/*.log /var/log/apt
depmod "$(cat /usr/lib/modules/release)"
rm /usr/lib/modules/release
