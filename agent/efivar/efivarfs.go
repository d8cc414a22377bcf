package efivar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FS is efivarfs, mounted at this path, usually /sys/firmware/efi/efivars.
type FS string

// global is the vendor GUID of the variables that the UEFI specification defines.
const global = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// attributes of every variable written: non-volatile, boot services, runtime.
const attributes = 7

func (f FS) path(name string) string { return filepath.Join(string(f), name+global) }

// List returns the names of the global variables.
func (f FS) List() ([]string, error) {
	entries, err := os.ReadDir(string(f))
	if err != nil {
		return nil, fmt.Errorf("list variables: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), global); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Get returns the value of a variable.
func (f FS) Get(name string) ([]byte, error) {
	raw, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read variable: %w", err)
	}
	if len(raw) < 4 {
		return nil, fmt.Errorf("read variable %s: %d bytes", name, len(raw))
	}
	return raw[4:], nil
}

// Set writes a variable, in the single write that efivarfs asks for. The variables of booting are never immutable there.
func (f FS) Set(name string, data []byte) error {
	file, err := os.OpenFile(f.path(name), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("write variable: %w", err)
	}
	_, err = file.Write(append(binary.LittleEndian.AppendUint32(nil, attributes), data...))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write variable: %w", err)
	}
	return nil
}

// Delete removes a variable.
func (f FS) Delete(name string) error {
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete variable: %w", err)
	}
	return nil
}
