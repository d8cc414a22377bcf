// Package gpt reads a GUID partition table and fits it to the disk that an image was written to.
package gpt

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"unicode/utf16"
)

// Sector is the only sector size that this package knows: images are made for it.
const Sector = 512

// Head is how many bytes from the start of a disk Parse needs: protective MBR, header and the largest table it accepts.
const Head = (2 + maxTable) * Sector

// maxTable is the size in sectors of the largest partition table that is accepted: 128 entries of 128 bytes take 32.
const maxTable = 256

// GUID is a GUID as it lies on the disk: the first three fields in little-endian order.
type GUID [16]byte

// ParseGUID reads the usual text form.
func ParseGUID(s string) (GUID, error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != 16 || len(s) != 36 {
		return GUID{}, fmt.Errorf("parse GUID %q", s)
	}
	g := GUID(raw)
	slices.Reverse(g[0:4])
	slices.Reverse(g[4:6])
	slices.Reverse(g[6:8])
	if !strings.EqualFold(g.String(), s) { // dashes in other places
		return GUID{}, fmt.Errorf("parse GUID %q", s)
	}
	return g, nil
}

// String returns the usual text form, in upper case.
func (g GUID) String() string {
	return fmt.Sprintf("%08X-%04X-%04X-%X-%X", binary.LittleEndian.Uint32(g[0:]), binary.LittleEndian.Uint16(g[4:]),
		binary.LittleEndian.Uint16(g[6:]), g[8:10], g[10:])
}

// newGUID returns a random GUID, version 4.
func newGUID() GUID {
	var g GUID
	rand.Read(g[:]) // never fails
	g[7] = g[7]&0x0f | 0x40
	g[8] = g[8]&0x3f | 0x80
	return g
}

// Partition types in text form: see the UEFI specification and the Discoverable Partitions Specification.
const (
	TypeESP       = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
	TypeBasicData = "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"
	TypeLinux     = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
	TypeRootAMD64 = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
	TypeLinuxLVM  = "E6D6D379-F507-44C2-A23C-238F2A3DF928"
	TypeLinuxRAID = "A19D880F-05FC-4D3B-A006-743F0F84911E"
	TypeLinuxHome = "933AC7E1-2EB4-4F13-B844-0E14E2AEF915"
)

// Entry is one partition.
type Entry struct {
	Type, ID    GUID
	First, Last uint64 // sectors, both included
	Attributes  uint64
	Name        string
	index       int // place in the table, from 0
}

// Number returns the partition's number, from 1.
func (e Entry) Number() int { return e.index + 1 }

// Size returns the length in bytes.
func (e Entry) Size() int64 { return int64(e.Last-e.First+1) * Sector }

// Is reports whether the partition is of one of these types.
func (e Entry) Is(types ...string) bool {
	return slices.ContainsFunc(types, func(t string) bool { return strings.EqualFold(t, e.Type.String()) })
}

// Table is a partition table.
type Table struct {
	mbr                     [Sector]byte
	disk                    GUID
	alternate               uint64 // where the other header is said to be
	firstUsable, lastUsable uint64
	entrySize               int
	raw                     []byte // the entries as they lie on the disk: what we do not know is kept
	sectors                 uint64 // of the disk; set by Fit
}

var signature = []byte("EFI PART")

// ErrNone says that there is no GPT.
var ErrNone = errors.New("no GUID partition table")

// Parse reads the primary table from the first Head bytes of a disk (fewer if the disk is smaller).
func Parse(head []byte) (*Table, error) {
	if len(head) < 2*Sector || !bytes.Equal(head[Sector:Sector+8], signature) {
		return nil, ErrNone
	}
	t := new(Table)
	copy(t.mbr[:], head)
	h := head[Sector : 2*Sector]
	size := binary.LittleEndian.Uint32(h[12:])
	if size < 92 || size > Sector {
		return nil, fmt.Errorf("parse GPT: header of %d bytes", size)
	}
	if got, want := headerCRC(h[:size]), binary.LittleEndian.Uint32(h[16:]); got != want {
		return nil, fmt.Errorf("parse GPT: header checksum is %08x, not %08x", got, want)
	}
	t.alternate = binary.LittleEndian.Uint64(h[32:])
	t.firstUsable = binary.LittleEndian.Uint64(h[40:])
	t.lastUsable = binary.LittleEndian.Uint64(h[48:])
	copy(t.disk[:], h[56:])
	start := binary.LittleEndian.Uint64(h[72:])
	count := binary.LittleEndian.Uint32(h[80:])
	t.entrySize = int(binary.LittleEndian.Uint32(h[84:]))
	switch {
	case t.entrySize < 128 || t.entrySize > 4096 || t.entrySize%128 != 0 || count == 0 || count > 1024:
		return nil, fmt.Errorf("parse GPT: %d entries of %d bytes", count, t.entrySize)
	case start < 2 || start >= 2+maxTable || start*Sector+uint64(count)*uint64(t.entrySize) > uint64(len(head)):
		return nil, fmt.Errorf("parse GPT: table at sector %d", start)
	}
	t.raw = bytes.Clone(head[start*Sector:][:int(count)*t.entrySize])
	if got, want := crc32.ChecksumIEEE(t.raw), binary.LittleEndian.Uint32(h[88:]); got != want {
		return nil, fmt.Errorf("parse GPT: table checksum is %08x, not %08x", got, want)
	}
	last := uint64(0)
	for _, e := range t.Entries() {
		if e.First < 2 || e.Last < e.First || e.Last > 1<<52 {
			return nil, fmt.Errorf("parse GPT: partition %d from %d to %d", e.Number(), e.First, e.Last)
		}
		if e.First <= last {
			return nil, fmt.Errorf("parse GPT: partition %d overlaps another", e.Number())
		}
		last = e.Last
	}
	return t, nil
}

func headerCRC(h []byte) uint32 {
	h = bytes.Clone(h)
	clear(h[16:20])
	return crc32.ChecksumIEEE(h)
}

// Entries returns the partitions in the order in which they lie on the disk.
func (t *Table) Entries() []Entry {
	var entries []Entry
	for i := range len(t.raw) / t.entrySize {
		r := t.raw[i*t.entrySize:]
		e := Entry{Type: GUID(r[0:16]), ID: GUID(r[16:32]), First: binary.LittleEndian.Uint64(r[32:]), Last: binary.LittleEndian.Uint64(r[40:]),
			Attributes: binary.LittleEndian.Uint64(r[48:]), index: i}
		if e.Type == (GUID{}) {
			continue
		}
		var name []uint16
		for j := 56; j < 128; j += 2 {
			c := binary.LittleEndian.Uint16(r[j:])
			if c == 0 {
				break
			}
			name = append(name, c)
		}
		e.Name = string(utf16.Decode(name))
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	return entries
}

// Last returns the partition that lies last on the disk.
func (t *Table) Last() (Entry, bool) {
	entries := t.Entries()
	if len(entries) == 0 {
		return Entry{}, false
	}
	return entries[len(entries)-1], true
}

// tableSectors returns how many sectors the entries take.
func (t *Table) tableSectors() uint64 { return (uint64(len(t.raw)) + Sector - 1) / Sector }

// Fit makes the table one of a disk of so many bytes. It returns where the old backup of the image may lie, in bytes, as a
// stretch that no partition covers; n is 0 when there is none to erase.
func (t *Table) Fit(size int64) (off, n int64, err error) {
	sectors := uint64(size / Sector)
	if sectors < 3+2*t.tableSectors() {
		return 0, 0, fmt.Errorf("fit GPT: no room on %d bytes", size)
	}
	t.sectors = sectors
	t.lastUsable = sectors - 2 - t.tableSectors()
	if last, ok := t.Last(); ok && last.Last > t.lastUsable {
		return 0, 0, fmt.Errorf("fit GPT: partition %d ends at sector %d, usable are %d", last.Number(), last.Last, t.lastUsable)
	}
	if t.firstUsable < 2+t.tableSectors() { // the primary is rewritten right behind its header
		t.firstUsable = 2 + t.tableSectors()
		if e := t.Entries(); len(e) > 0 && e[0].First < t.firstUsable {
			return 0, 0, fmt.Errorf("fit GPT: partition %d lies in the table's place", e[0].Number())
		}
	}
	from, to := t.alternate-min(t.alternate, t.tableSectors()), t.alternate+1
	if t.alternate > t.lastUsable || t.alternate < t.firstUsable {
		return 0, 0, nil // overwritten by the new one, or nonsense
	}
	for _, e := range t.Entries() {
		if e.Last >= from && e.First < to {
			from = min(e.Last+1, to) // entries are in order, so that what is left lies behind all that overlap
		}
	}
	return int64(from) * Sector, int64(to-from) * Sector, nil
}

// Grow makes a partition end at sector last.
func (t *Table) Grow(e Entry, last uint64) {
	binary.LittleEndian.PutUint64(t.raw[e.index*t.entrySize+40:], last)
}

// LastUsable returns the last sector that a partition may use.
func (t *Table) LastUsable() uint64 { return t.lastUsable }

// Add adds a partition in the first free place of the table.
func (t *Table) Add(kind, name string, first, last uint64) (Entry, error) {
	g, err := ParseGUID(kind)
	if err != nil {
		return Entry{}, err
	}
	units := utf16.Encode([]rune(name))
	if len(units) > 36 || first < t.firstUsable || last > t.lastUsable || last < first {
		return Entry{}, fmt.Errorf("add partition %q from %d to %d: out of bounds", name, first, last)
	}
	for _, e := range t.Entries() {
		if e.Last >= first && e.First <= last {
			return Entry{}, fmt.Errorf("add partition %q: partition %d is in its place", name, e.Number())
		}
	}
	for i := range len(t.raw) / t.entrySize {
		r := t.raw[i*t.entrySize:][:t.entrySize]
		if GUID(r[:16]) != (GUID{}) {
			continue
		}
		clear(r)
		e := Entry{Type: g, ID: newGUID(), First: first, Last: last, Name: name, index: i}
		copy(r, e.Type[:])
		copy(r[16:], e.ID[:])
		binary.LittleEndian.PutUint64(r[32:], first)
		binary.LittleEndian.PutUint64(r[40:], last)
		for j, u := range units {
			binary.LittleEndian.PutUint16(r[56+2*j:], u)
		}
		return e, nil
	}
	return Entry{}, fmt.Errorf("add partition %q: the table is full", name)
}

// Encode returns what to write at the start of the disk and what to write at its end, after Fit: the backup last, so that
// one of the two is whole at any moment.
func (t *Table) Encode() (head, tail []byte) {
	table := make([]byte, t.tableSectors()*Sector)
	copy(table, t.raw)
	t.alternate = t.sectors - 1
	head = slices.Concat(t.protective(), t.header(1, t.alternate, 2), table)
	tail = slices.Concat(table, t.header(t.alternate, 1, t.alternate-t.tableSectors()))
	return head, tail
}

func (t *Table) header(my, other, table uint64) []byte {
	h := make([]byte, Sector)
	copy(h, signature)
	binary.LittleEndian.PutUint32(h[8:], 0x00010000)
	binary.LittleEndian.PutUint32(h[12:], 92)
	binary.LittleEndian.PutUint64(h[24:], my)
	binary.LittleEndian.PutUint64(h[32:], other)
	binary.LittleEndian.PutUint64(h[40:], t.firstUsable)
	binary.LittleEndian.PutUint64(h[48:], t.lastUsable)
	copy(h[56:], t.disk[:])
	binary.LittleEndian.PutUint64(h[72:], table)
	binary.LittleEndian.PutUint32(h[80:], uint32(len(t.raw)/t.entrySize))
	binary.LittleEndian.PutUint32(h[84:], uint32(t.entrySize))
	binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(t.raw))
	binary.LittleEndian.PutUint32(h[16:], headerCRC(h[:92]))
	return h
}

// protective returns the MBR with its boot code as it was and its 0xEE partition reaching to the end of the disk. In a
// hybrid MBR the other partitions stay, and the 0xEE one too, for it ends where they begin.
func (t *Table) protective() []byte {
	m := bytes.Clone(t.mbr[:])
	only := -1
	for i := range 4 {
		switch p := m[446+16*i:]; p[4] {
		case 0:
		case 0xee:
			only = i
		default:
			return m
		}
	}
	if only >= 0 {
		binary.LittleEndian.PutUint32(m[446+16*only+12:], uint32(min(t.sectors-1, 1<<32-1)))
	}
	return m
}
