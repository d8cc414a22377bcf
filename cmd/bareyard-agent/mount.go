package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// mountAll mounts what the kernel shows itself by.
func mountAll() error {
	for _, m := range []struct{ kind, target string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		err := unix.Mount(m.kind, m.target, m.kind, unix.MS_NOSUID, "")
		if err != nil && !errors.Is(err, unix.EBUSY) { // the kernel may have mounted /dev
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// As process 1 a crash of ours is a kernel panic: restart instead of standing still for ever.
	if err := os.WriteFile("/proc/sys/kernel/panic", []byte("30"), 0); err != nil {
		return fmt.Errorf("set panic time-out: %w", err)
	}
	return nil
}

// mountFirmwareVariables makes UEFI's variables writable files. Without them the boot entry is not set, which is no
// more than a warning: the image has the fallback path.
func mountFirmwareVariables(d *drivers, log *slog.Logger) {
	if _, err := os.Stat("/sys/firmware/efi"); err != nil {
		return // BIOS
	}
	if err := d.probe("efivarfs"); err != nil {
		log.Warn("efivarfs is not loaded", "error", err)
	}
	if err := unix.Mount("efivarfs", "/sys/firmware/efi/efivars", "efivarfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		log.Warn("firmware variables cannot be mounted", "error", err)
	}
}
