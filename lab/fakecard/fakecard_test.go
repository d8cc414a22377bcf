package fakecard

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const emulator = "/usr/bin/qemu-system-x86_64"

func TestPatch(t *testing.T) {
	if _, err := os.Stat(emulator); err != nil {
		t.Fatalf("apt-get install qemu-system-x86: %v", err)
	}
	out := filepath.Join(t.TempDir(), "bin", "qemu")
	if err := Patch(t.Context(), emulator, out); err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(emulator)
	if err != nil {
		t.Fatal(err)
	}
	is, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for i := range was {
		if was[i] != is[i] {
			changed++
		}
	}
	if len(was) != len(is) || changed == 0 || changed > 11 {
		t.Errorf("%d bytes changed", changed)
	}
	if err := patch(is); !errors.Is(err, ErrUnknown) {
		t.Errorf("a patched emulator can be patched again: %v", err)
	}

	// A copy that is there is kept; one from another emulator is made anew.
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(out, long, long); err != nil {
		t.Fatal(err)
	}
	age := func() bool { info, err := os.Stat(out); return err == nil && info.ModTime().Equal(long) }
	if err := Patch(t.Context(), emulator, out); err != nil || !age() {
		t.Errorf("made again without need: %v", err)
	}
	if err := os.WriteFile(out+".from", []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Patch(t.Context(), emulator, out); err != nil || age() {
		t.Errorf("an old copy was kept: %v", err)
	}
}

func TestPatchRefuses(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte(strings.Repeat("\x8b\x15\xff\xff\xff\x7f", 1000)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Patch(t.Context(), other, out); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := Patch(t.Context(), filepath.Join(dir, "none"), out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("something was written")
	}
}

func TestArgs(t *testing.T) {
	args := strings.Join(Args(8), " ")
	if strings.Count(args, "edu,bus=card") != 8 || strings.Count(args, "pcie-root-port,") != 8 || !strings.Contains(args, "chassis=39") {
		t.Error(args)
	}
	if strings.Contains(strings.Join(Args(0), " "), "edu") {
		t.Error("no cards, and yet one")
	}
	dir := strings.TrimPrefix(Env()[0], "QEMU_MODULE_DIR=")
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("module folder: %v", err)
	}
}
