package ramdisk_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bareyard/bareyard/images/ramdisk"
)

// TestISO: a disc holds the kernel and the RAM disk as they were, and in its room whatever is put there on the way out; the file stays as
// it is.
func TestISO(t *testing.T) {
	if _, err := exec.LookPath("xorriso"); err != nil {
		t.Fatalf("%v: apt-get install xorriso grub-common grub-pc-bin grub-efi-amd64-bin mtools", err)
	}
	dir := t.TempDir()
	kernel, initrd := bytes.Repeat([]byte("kernel"), 5000), bytes.Repeat([]byte("ramdisk"), 9001)
	for name, content := range map[string][]byte{"vmlinuz": kernel, "ramdisk": initrd} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "disc.iso")
	o := ramdisk.ISOOptions{Kernel: filepath.Join(dir, "vmlinuz"), RAMDisk: filepath.Join(dir, "ramdisk"), Cmdline: "console=ttyS0", Out: out}
	if err := ramdisk.BuildISO(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	disc, err := ramdisk.OpenISO(out)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := ramdisk.Archive(map[string][]byte{"etc/bareyard/boot.json": []byte(`{"nonce":"canary"}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer disc.Close()
	other := filepath.Join(dir, "other.iso")
	o.Out = other
	o.Kernel = o.RAMDisk
	if err := ramdisk.BuildISO(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, out); err != nil { // made anew while it is served
		t.Fatal(err)
	}
	f, err := disc.With(archive)
	if err != nil {
		t.Fatal(err)
	}
	served, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "served.iso")
	if err := os.WriteFile(copied, served, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]byte{"/boot/vmlinuz": kernel, "/boot/ramdisk": initrd, "/boot/archive": append(archive, make([]byte, 64<<10-len(archive))...)} {
		to := filepath.Join(dir, filepath.Base(path)+".out")
		if text, err := exec.Command("xorriso", "-osirrox", "on", "-indev", copied, "-extract", path, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs: %d bytes, want %d, %v", path, len(got), len(want), err)
		}
	}
	if bytes.Contains(kept, []byte("canary")) || len(kept) != len(served) {
		t.Errorf("%d bytes are served, of %d", len(served), len(kept))
	}
	if now, err := os.ReadFile(out); err != nil || bytes.Contains(now, []byte("canary")) {
		t.Errorf("the disc itself was changed: %v", err)
	}
	if _, err := disc.With(make([]byte, 64<<10+1)); err == nil {
		t.Error("an archive that is too large was taken")
	}
	if _, err := ramdisk.OpenISO(filepath.Join(dir, "vmlinuz")); err == nil {
		t.Error("what is no disc was taken for one")
	}
	o.Cmdline = "a; halt"
	if err := ramdisk.BuildISO(t.Context(), o); err == nil {
		t.Error("kernel parameters with a GRUB command in them were taken")
	}
}
