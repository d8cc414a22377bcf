package fakecard

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
)

// tool runs a program of the test's making and fails with what it said.
func tool(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// initrd packs files by their path in the guest.
func initrd(t *testing.T, path string, files map[string]string) {
	t.Helper()
	var buf bytes.Buffer
	w := cpio.Newc.Writer(&buf)
	records := []cpio.Record{cpio.CharDev("dev/console", 0o600, 5, 1)}
	for _, dir := range []string{"dev", "bin", "lib", "lib64", "sys", "proc", "tmp"} {
		records = append([]cpio.Record{cpio.Directory(dir, 0o755)}, records...)
	}
	for name, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, cpio.StaticFile(name, string(data), 0o755))
	}
	if err := cpio.WriteRecords(w, records); err != nil {
		t.Fatal(err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A Linux guest sees eight cards, the stand-in library finds them, and the validator reads them; one that is lost is named.
func TestGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a machine")
	}
	dir := t.TempDir()
	qemu, init, validate, nvml := filepath.Join(dir, "qemu"), filepath.Join(dir, "init"), filepath.Join(dir, "validate"), filepath.Join(dir, "nvml")
	if err := Patch(t.Context(), emulator, qemu); err != nil {
		t.Fatal(err)
	}
	tool(t, nil, "sh", "../image/kernel.sh")
	tool(t, []string{"CGO_ENABLED=0"}, "go", "build", "-ldflags=-s -w", "-o", init, "./testdata/init")
	tool(t, []string{"CGO_ENABLED=1", "CGO_CFLAGS=-Wno-deprecated-declarations"}, "go", "build", "-ldflags=-s -w", "-o", validate, "../../cmd/bareyard-validate")
	tool(t, nil, "sh", "../mocknvml/build.sh", nvml)
	initrd(t, filepath.Join(dir, "initrd"), map[string]string{
		"init": init, "bin/validate": validate, "lib/libnvidia-ml.so.1": filepath.Join(nvml, "libnvidia-ml.so.1"),
		"lib/libc.so.6": "/lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2": "/lib64/ld-linux-x86-64.so.2",
	})

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	args := append([]string{
		"-machine", "q35", "-accel", "tcg,tb-size=128", "-cpu", "max", "-smp", "1", "-m", "512", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", "../../build/kernel/vmlinuz", "-initrd", filepath.Join(dir, "initrd"), "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
		"-serial", "stdio", "-smbios", "type=1,family=mocknvml:0000:04:00.0 lost",
	}, Args(8)...)
	cmd := exec.CommandContext(ctx, qemu, args...)
	cmd.Env = append(os.Environ(), Env()...)
	start := time.Now()
	data, err := cmd.CombinedOutput()
	out := strings.ReplaceAll(string(data), "\r", "")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%v\n%s", time.Since(start).Round(time.Second), out)
	if n := len(regexp.MustCompile(`(?m)^pci 0000:0[1-8]:00\.0 0x10de 0x2b85 0x030200$`).FindAllString(out, -1)); n != 8 {
		t.Errorf("the guest sees %d cards, want 8", n)
	}
	if n := len(regexp.MustCompile(`(?m)^0000:0\d:00\.0 .*10de:2b85  NVIDIA GeForce RTX 5090  32607 MiB`).FindAllString(out, -1)); n != 7 {
		t.Errorf("the validator reads %d cards, want 7", n)
	}
	if !regexp.MustCompile(`(?m)^0000:04:00\.0 .*10de:2b85  - `).MatchString(out) {
		t.Error("the card that is lost does not stand out")
	}
}
