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
	fmt.Printf("\nTEST-INIT nonce=%s err=%v cmdline=%s\n", nonce, err, strings.TrimSpace(string(cmdline)))
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
