// Command init is the RAM disk of the QEMU tests: it shows what arrived and powers off.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

func main() {
	nonce, err := os.ReadFile("/bareyard/nonce")
	_ = os.Mkdir("/proc", 0o755)
	_ = syscall.Mount("proc", "/proc", "proc", 0, "")
	cmdline, _ := os.ReadFile("/proc/cmdline")
	fmt.Printf("\nTEST-INIT nonce=%s err=%v lockdown=%s cmdline=%s\n", nonce, err, secureBoot(), strings.TrimSpace(string(cmdline)))
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

// secureBoot returns how far the kernel trusts its user: "none", or "integrity" where the firmware's Secure Boot is on.
func secureBoot() string {
	_ = os.MkdirAll("/sys", 0o755)
	_ = syscall.Mount("sysfs", "/sys", "sysfs", 0, "")
	_ = syscall.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, "")
	b, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return "unknown"
	}
	_, rest, _ := strings.Cut(string(b), "[")
	level, _, _ := strings.Cut(rest, "]")
	return level
}
