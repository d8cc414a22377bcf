// Package disk finds, wipes, erases, writes and configures the disks of the machine it runs on.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// Disk is a disk as the kernel shows it in this very run. Its name may be another one after the next boot.
type Disk struct {
	Serial string // of the disk, or its WWID where it has no serial number
	Size   int64  // bytes
	Name   string // of the kernel, e.g. nvme0n1
	Dev    uint64 // device number, as unix.Mkdev makes it
	Parts  []Part
}

// Part is a partition that the kernel sees, found in sysfs and never by building a name (F15).
type Part struct {
	Name  string // e.g. nvme0n1p1
	Start int64  // bytes from the start of the disk
	Size  int64  // bytes
}

// List returns the disks that belong to the machine, by name. Left out: whatever is removable, read-only, without a device
// behind it (loop, ram, md, dm), or on USB, where BMCs attach virtual media.
func (s Set) List() ([]Disk, error) {
	dir := filepath.Join(s.Sys, "block")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var disks []Disk
	for _, e := range entries {
		if !s.ours(filepath.Join(dir, e.Name())) {
			continue
		}
		d, err := s.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // unplugged while we looked
		}
		if err != nil {
			return nil, err
		}
		if d.Size > 0 {
			disks = append(disks, d)
		}
	}
	return disks, nil
}

// ours judges a folder of /sys/block.
func (s Set) ours(dir string) bool {
	name := filepath.Base(dir)
	device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	switch {
	case err != nil, // nothing behind it
		strings.HasPrefix(name, "sr"), strings.HasPrefix(name, "fd"),
		strings.HasPrefix(name, "mmcblk") && (strings.Contains(name, "boot") || strings.Contains(name, "rpmb")),
		strings.Contains(device, "/usb"),
		text(dir, "removable") == "1", text(dir, "ro") == "1", text(dir, "hidden") == "1":
		return false
	}
	return true
}

// read reads what sysfs says of one disk.
func (s Set) read(name string) (Disk, error) {
	dir := filepath.Join(s.Sys, "block", name)
	d := Disk{Name: name}
	var err error
	if d.Size, err = sectors(dir, "size"); err != nil {
		return Disk{}, fmt.Errorf("read disk %s: %w", name, err)
	}
	if d.Dev, err = devNumber(dir); err != nil {
		return Disk{}, fmt.Errorf("read disk %s: %w", name, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Disk{}, fmt.Errorf("read disk %s: %w", name, err)
	}
	for _, e := range entries {
		part := filepath.Join(dir, e.Name())
		if text(part, "partition") == "" {
			continue
		}
		p := Part{Name: e.Name()}
		if p.Start, err = sectors(part, "start"); err != nil {
			return Disk{}, fmt.Errorf("read partition %s: %w", p.Name, err)
		}
		if p.Size, err = sectors(part, "size"); err != nil {
			return Disk{}, fmt.Errorf("read partition %s: %w", p.Name, err)
		}
		d.Parts = append(d.Parts, p)
	}
	slices.SortFunc(d.Parts, func(a, b Part) int { return int(min(1, max(-1, a.Start-b.Start))) })
	d.Serial = s.serial(dir, name)
	return d, nil
}

// serial asks where each kind of disk keeps its serial number: virtio-blk, NVMe and MMC, SCSI and libata (VPD page 0x80),
// ATA by ioctl, and the WWID for disks that have none.
func (s Set) serial(dir, name string) string {
	for _, file := range []string{"serial", "device/serial"} {
		if serial := clean(text(dir, file)); serial != "" {
			return serial
		}
	}
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		if serial := clean(string(page[4:])); serial != "" {
			return serial
		}
	}
	if serial := clean(ataSerial(s.node(name))); serial != "" {
		return serial
	}
	for _, file := range []string{"wwid", "device/wwid"} {
		if id := clean(text(dir, file)); id != "" {
			return id
		}
	}
	return ""
}

// find returns the one disk that has this serial number now. What it refuses, another attempt would refuse too (F01).
func (s Set) find(want machine.Disk) (Disk, error) {
	if want.Serial == "" {
		return Disk{}, agent.Fatal(errors.New("find disk: no serial number asked for"))
	}
	disks, err := s.List()
	if err != nil {
		return Disk{}, err
	}
	var found []Disk
	for _, d := range disks {
		if d.Serial == want.Serial {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 0:
		return Disk{}, agent.Fatal(fmt.Errorf("find disk: no disk has serial number %s", want.Serial))
	case len(found) > 1:
		return Disk{}, agent.Fatal(fmt.Errorf("find disk: %d disks have serial number %s: %s, %s", len(found), want.Serial, found[0].Name, found[1].Name))
	case want.Size != 0 && want.Size != found[0].Size:
		return Disk{}, agent.Fatal(fmt.Errorf("find disk: %s has %d bytes, %d were recorded", want.Serial, found[0].Size, want.Size))
	}
	return found[0], nil
}

// node returns the path of a device node; the kernel writes / as ! in names like cciss!c0d0.
func (s Set) node(name string) string {
	return filepath.Join(s.Dev, strings.ReplaceAll(name, "!", "/"))
}

// text returns a one-line file of sysfs, or "".
func text(dir, file string) string {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// sectors returns a length in bytes from a file that holds it in units of 512 bytes, whatever the block size.
func sectors(dir, file string) (int64, error) {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 54)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("parse %s: %q", file, raw)
	}
	return n * 512, nil
}

func devNumber(dir string) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(raw), "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("parse device number %q: %w", raw, err)
	}
	return unix.Mkdev(major, minor), nil
}

// clean keeps the printable ASCII of a serial number: some disks pad with NULs, spaces or noise.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}
