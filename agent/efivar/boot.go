// Package efivar puts a disk first in the UEFI boot order, by the variables that Linux shows in efivarfs.
package efivar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Vars is the firmware's store of global variables, without their attributes.
type Vars interface {
	List() ([]string, error)
	Get(name string) ([]byte, error) // ErrNone when there is no such variable
	Set(name string, data []byte) error
	Delete(name string) error // no error when there is no such variable
}

// ErrNone says that there is no such variable.
var ErrNone = errors.New("no such variable")

// Partition is an EFI system partition as a device path names it.
type Partition struct {
	Number      uint32
	First, Size uint64 // sectors
	ID          [16]byte
}

// ours begins the description of every entry that BootFrom makes, by which the next one knows it.
const ours = "Bareyard "

// loader is the removable path: every bootable image has it, and firmware tries it on its own when an entry is lost (F17).
const loader = `\EFI\BOOT\BOOTX64.EFI`

// BootFrom makes a boot entry for the partition, puts it first in BootOrder, removes the entries of former installs and
// clears BootNext. It writes only what changes: NVRAM wears out. The entries of others stay. A machine must boot without
// it too: firmware rewrites BootOrder as it likes (F19).
func BootFrom(v Vars, label string, esp Partition) error {
	label = ours + strings.TrimPrefix(label, ours)
	names, err := v.List()
	if err != nil {
		return fmt.Errorf("list boot entries: %w", err)
	}
	want := encodeOption(label, esp)
	used := map[uint16]bool{}
	var stale []uint16
	number, have := uint16(0), false
	for _, name := range names {
		n, ok := bootNumber(name)
		if !ok {
			continue
		}
		used[n] = true
		data, err := v.Get(name)
		if err != nil || !strings.HasPrefix(description(data), ours) {
			continue // unreadable: not ours
		}
		if bytes.Equal(data, want) && !have {
			number, have = n, true
			continue
		}
		stale = append(stale, n)
	}
	if !have {
		if number, err = free(used, stale); err != nil {
			return err
		}
		if err := v.Set(bootName(number), want); err != nil {
			return fmt.Errorf("write boot entry: %w", err)
		}
	}
	if err := putFirst(v, number, stale); err != nil {
		return err
	}
	for _, n := range stale {
		if n == number {
			continue
		}
		if err := v.Delete(bootName(n)); err != nil {
			return fmt.Errorf("delete old boot entry: %w", err)
		}
	}
	if err := v.Delete("BootNext"); err != nil {
		return fmt.Errorf("clear next boot: %w", err)
	}
	return nil
}

// free returns the lowest number for a new entry: a stale one's, to be overwritten, or an unused one.
func free(used map[uint16]bool, stale []uint16) (uint16, error) {
	if len(stale) > 0 {
		return slices.Min(stale), nil
	}
	for n := range 1 << 16 {
		if !used[uint16(n)] {
			return uint16(n), nil
		}
	}
	return 0, errors.New("make boot entry: all numbers are taken")
}

// putFirst puts an entry first in BootOrder, without the stale ones and without repetitions, and makes sure that it is.
func putFirst(v Vars, first uint16, stale []uint16) error {
	old, err := v.Get("BootOrder")
	if err != nil && !errors.Is(err, ErrNone) {
		return fmt.Errorf("read boot order: %w", err)
	}
	order := []uint16{first}
	for i := 0; i+1 < len(old); i += 2 { // an odd byte at the end is left out
		n := binary.LittleEndian.Uint16(old[i:])
		if !slices.Contains(order, n) && !slices.Contains(stale, n) {
			order = append(order, n)
		}
	}
	data := make([]byte, 0, 2*len(order))
	for _, n := range order {
		data = binary.LittleEndian.AppendUint16(data, n)
	}
	if bytes.Equal(data, old) {
		return nil
	}
	if err := v.Set("BootOrder", data); err != nil {
		return fmt.Errorf("write boot order: %w", err)
	}
	if got, err := v.Get("BootOrder"); err != nil || !bytes.Equal(got, data) {
		return fmt.Errorf("write boot order: the firmware did not keep it (%w)", errors.Join(err, errors.New("read back")))
	}
	return nil
}

// bootNumber reads the number of a Boot#### variable. The hex digits are upper case by the specification; some firmware
// writes them lower.
func bootNumber(name string) (uint16, bool) {
	digits, ok := strings.CutPrefix(name, "Boot")
	if !ok || len(digits) != 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 16)
	return uint16(n), err == nil
}

func bootName(n uint16) string { return fmt.Sprintf("Boot%04X", n) }

// description returns the text of a load option. Whatever bytes are there, it does not fail (F17).
func description(option []byte) string {
	var units []uint16
	for i := 6; i+1 < len(option); i += 2 {
		c := binary.LittleEndian.Uint16(option[i:])
		if c == 0 {
			break
		}
		units = append(units, c)
	}
	return string(utf16.Decode(units))
}

// encodeOption makes an EFI_LOAD_OPTION: UEFI specification 2.10, 3.1.3; device path nodes in 10.3.
func encodeOption(label string, p Partition) []byte {
	le := binary.LittleEndian
	hd := []byte{4, 1, 42, 0} // media, hard drive
	hd = le.AppendUint32(hd, p.Number)
	hd = le.AppendUint64(hd, p.First)
	hd = le.AppendUint64(hd, p.Size)
	hd = append(hd, p.ID[:]...)
	hd = append(hd, 2, 2) // GPT, signature is a GUID
	path := text(loader)
	file := le.AppendUint16([]byte{4, 4}, uint16(4+len(path))) // media, file path
	file = append(file, path...)
	end := []byte{0x7f, 0xff, 4, 0}

	b := le.AppendUint32(nil, 1) // active
	b = le.AppendUint16(b, uint16(len(hd)+len(file)+len(end)))
	return slices.Concat(b, text(label), hd, file, end)
}

// text returns s in UTF-16 with its terminator.
func text(s string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return append(b, 0, 0)
}
