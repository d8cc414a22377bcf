// Package mbr reads a partition table of the old kind and fits it to the disk that an image was written to.
package mbr

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Sector is the size of the table and the unit of its numbers.
const Sector = 512

// Partition types.
const (
	FAT16LBA   = 0x0e
	Linux      = 0x83
	LinuxLVM   = 0x8e
	Protective = 0xee
)

// Entry is one primary partition.
type Entry struct {
	Number      int // from 1
	Type        byte
	First, Size uint64 // sectors
}

// Table is the first sector of a disk, boot code and all.
type Table struct{ raw [Sector]byte }

// ErrNone says that there is no partition table.
var ErrNone = errors.New("no partition table")

const (
	start     = 446
	entrySize = 16
)

// Parse reads a table from the first sector of a disk. It refuses the protective one of a GPT, and a boot sector that only
// looks like a table.
func Parse(head []byte) (*Table, error) {
	if len(head) < Sector || head[510] != 0x55 || head[511] != 0xaa {
		return nil, ErrNone
	}
	t := &Table{raw: [Sector]byte(head[:Sector])}
	entries := t.Entries()
	if len(entries) == 0 {
		return nil, ErrNone
	}
	end := uint64(1)
	for _, e := range entries {
		status := t.raw[start+entrySize*(e.Number-1)]
		switch {
		case e.Type == Protective:
			return nil, errors.New("parse MBR: it belongs to a GPT")
		case status&0x7f != 0 || e.Size == 0:
			return nil, fmt.Errorf("parse MBR: partition %d is nonsense", e.Number)
		case e.First < end:
			return nil, fmt.Errorf("parse MBR: partition %d overlaps another", e.Number)
		}
		end = e.First + e.Size
	}
	return t, nil
}

// Entries returns the primary partitions in the order in which they lie on the disk.
func (t *Table) Entries() []Entry {
	var entries []Entry
	for i := range 4 {
		r := t.raw[start+entrySize*i:]
		if r[4] != 0 {
			entries = append(entries, Entry{i + 1, r[4], uint64(binary.LittleEndian.Uint32(r[8:])), uint64(binary.LittleEndian.Uint32(r[12:]))})
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	return entries
}

// Set writes a partition into its place in the table, whatever was there. Its old-style addresses become those that say
// "look at the sector numbers".
func (t *Table) Set(e Entry) error {
	if e.Number < 1 || e.Number > 4 || e.First+e.Size > 1<<32 {
		return fmt.Errorf("set partition %d: sectors %d+%d do not fit an MBR", e.Number, e.First, e.Size)
	}
	r := t.raw[start+entrySize*(e.Number-1):][:entrySize]
	r[4] = e.Type
	copy(r[5:8], "\xfe\xff\xff")
	binary.LittleEndian.PutUint32(r[8:], uint32(e.First))
	binary.LittleEndian.PutUint32(r[12:], uint32(e.Size))
	if e.First > 0 && bytes.Equal(r[1:4], []byte{0, 0, 0}) {
		copy(r[1:4], "\xfe\xff\xff")
	}
	return nil
}

// Free returns the number of a place in the table that is not taken.
func (t *Table) Free() (int, bool) {
	for i := range 4 {
		if t.raw[start+entrySize*i+4] == 0 {
			return i + 1, true
		}
	}
	return 0, false
}

// Encode returns the sector.
func (t *Table) Encode() []byte { return t.raw[:] }
