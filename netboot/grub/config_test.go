package grub

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var agent = Agent{Kernel: "/boot/vmlinuz", RAMDisk: "/boot/ramdisk", Archive: "/boot/archive/52:54:00:99:00:00", Cmdline: "console=ttyS0,115200n8  x=a;b"}

// TestSyntax: GRUB's own parser takes what we write.
func TestSyntax(t *testing.T) {
	check, err := exec.LookPath("grub-script-check")
	if err != nil {
		t.Fatalf("%v: install grub-common", err)
	}
	config, err := agent.Config()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"agent": config, "disk": Disk(), "redirect": Redirect()} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(check, path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", name, err, out, text)
		}
	}
}

func TestConfig(t *testing.T) {
	config, err := agent.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`linux /boot/vmlinuz console=ttyS0,115200n8 "x=a;b";`, "initrd /boot/archive/52:54:00:99:00:00 /boot/ramdisk;"} {
		if !bytes.Contains(config, []byte(line)) {
			t.Errorf("no %q in\n%s", line, config)
		}
	}
	for name, change := range map[string]func(*Agent){
		"variable":     func(a *Agent) { a.Cmdline = "x=$root" },
		"quote":        func(a *Agent) { a.Cmdline = `x="y"` },
		"apostrophe":   func(a *Agent) { a.Cmdline = "x='y'" },
		"line":         func(a *Agent) { a.Cmdline = "x\ny" },
		"control":      func(a *Agent) { a.Cmdline = "x\x01" },
		"backslash":    func(a *Agent) { a.Cmdline = `x\y` },
		"relative":     func(a *Agent) { a.Kernel = "vmlinuz" },
		"two words":    func(a *Agent) { a.RAMDisk = "/a b" },
		"no archive":   func(a *Agent) { a.Archive = "" },
		"not a letter": func(a *Agent) { a.Archive = "/é" },
	} {
		bad := agent
		change(&bad)
		if text, err := bad.Config(); err == nil {
			t.Errorf("%s: written as\n%s", name, text)
		}
	}
	if !strings.Contains(string(Redirect()), "grub.cfg-01-${net_default_mac}") {
		t.Error("the redirect does not lead to the machine's own file")
	}
}
