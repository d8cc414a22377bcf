// Command init is the whole userland of the guest in TestGuest: it prints what PCI shows, runs /bin/validate --print, and powers off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	for _, m := range [][2]string{{"sysfs", "/sys"}, {"proc", "/proc"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		os.MkdirAll(m[1], 0o755)
		if err := syscall.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			fmt.Println("mount", m[1], err)
		}
	}
	devices, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, d := range devices {
		line := "pci " + filepath.Base(d)
		for _, f := range []string{"vendor", "device", "class"} {
			b, _ := os.ReadFile(filepath.Join(d, f))
			line += " " + strings.TrimSpace(string(b))
		}
		fmt.Println(line)
	}
	out, err := exec.Command("/bin/validate", "--print").CombinedOutput()
	fmt.Printf("%s\nvalidate: %v\n", out, err)
	syscall.Sync()
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
