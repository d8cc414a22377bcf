package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bareyard/bareyard/machine"
)

// prepare makes a machine's folder, disks and firmware variables, and keeps those that are there: a lab that comes up again
// finds its machines as it left them.
func (p plan) prepare() error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("prepare machine %s: %w", p.Name, err)
	}
	if p.Simulated {
		return nil
	}
	for path, size := range map[string]int64{p.systemDisk(): p.SystemSize, p.dataDisk(): p.DataSize} {
		if err := sparse(path, size); err != nil {
			return fmt.Errorf("prepare disk: %w", err)
		}
	}
	if p.Firmware == machine.UEFI {
		if err := copyOnce(ovmfVars, p.vars()); err != nil {
			return fmt.Errorf("prepare firmware variables (package ovmf): %w", err)
		}
	}
	return nil
}

func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Close()
}

func copyOnce(from, to string) error {
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}
