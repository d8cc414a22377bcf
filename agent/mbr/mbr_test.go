package mbr_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/bareyard/bareyard/agent/mbr"
)

type part struct {
	status, kind byte
	first, size  uint32
}

func sector(parts ...part) []byte {
	b := make([]byte, 512)
	for i, p := range parts {
		r := b[446+16*i:]
		r[0], r[4] = p.status, p.kind
		binary.LittleEndian.PutUint32(r[8:], p.first)
		binary.LittleEndian.PutUint32(r[12:], p.size)
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		raw []byte
		ok  bool
	}{
		"two":            {sector(part{0x80, 0x83, 2048, 100}, part{0, 0x8e, 2148, 5}), true},
		"out of order":   {sector(part{0, 0x83, 9000, 100}, part{0x80, 0x83, 2048, 100}), true},
		"gap":            {sector(part{}, part{0, 0x83, 2048, 100}), true},
		"no signature":   {make([]byte, 512), false},
		"short":          {sector(part{0, 0x83, 2048, 100})[:511], false},
		"empty":          {sector(), false},
		"of a GPT":       {sector(part{0, 0xee, 1, 1 << 31}), false},
		"overlap":        {sector(part{0, 0x83, 2048, 100}, part{0, 0x83, 2100, 100}), false},
		"over the table": {sector(part{0, 0x83, 0, 100}), false},
		"a boot sector":  {sector(part{0x37, 0x83, 2048, 100}), false},
		"no size":        {sector(part{0, 0x83, 2048, 0}), false},
	} {
		if _, err := mbr.Parse(tt.raw); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSet(t *testing.T) {
	table, err := mbr.Parse(sector(part{0x80, 0x83, 2048, 100}))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []mbr.Entry{{0, 1, 1, 1}, {5, 1, 1, 1}, {2, 1, 1 << 31, 1<<31 + 1}} {
		if err := table.Set(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if n, ok := table.Free(); !ok || n != 2 {
		t.Errorf("free: %d, %v", n, ok)
	}
	if err := table.Set(mbr.Entry{Number: 4, Type: mbr.FAT16LBA, First: 1<<32 - 32768, Size: 32768}); err != nil {
		t.Fatal(err)
	}
	again, err := mbr.Parse(table.Encode())
	if err != nil || len(again.Entries()) != 2 || again.Entries()[1].First != 1<<32-32768 {
		t.Errorf("%+v, %v", again, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sector(part{0x80, 0x83, 2048, 100}, part{0, 0x8e, 2148, 5}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		table, err := mbr.Parse(raw)
		if err != nil {
			return
		}
		for _, e := range table.Entries() {
			if err := table.Set(e); err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
		}
		if again, err := mbr.Parse(table.Encode()); err != nil || !bytes.Equal(again.Encode(), table.Encode()) {
			t.Fatal(err)
		}
	})
}
