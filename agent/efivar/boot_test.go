package efivar

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	efi "github.com/canonical/go-efilib"
)

// memory is a firmware that does what it is told, unless it is one of those that do not.
type memory struct {
	vars   map[string][]byte
	writes int
	stub   bool // BootOrder snaps back to the network first
}

func (m *memory) List() ([]string, error) { return slices.Sorted(maps.Keys(m.vars)), nil }

func (m *memory) Get(name string) ([]byte, error) {
	if data, ok := m.vars[name]; ok {
		return data, nil
	}
	return nil, ErrNone
}

func (m *memory) Set(name string, data []byte) error {
	m.writes++
	if m.stub && name == "BootOrder" {
		return nil
	}
	m.vars[name] = bytes.Clone(data)
	return nil
}

func (m *memory) Delete(name string) error {
	delete(m.vars, name)
	return nil
}

var esp = Partition{Number: 15, First: 2048, Size: 262144, ID: [16]byte{0x11, 0x22, 0x33, 0x44, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}

func option(label string) []byte { return encodeOption(label, Partition{Number: 1}) }

func TestBootFrom(t *testing.T) {
	odd := append([]byte{1, 0, 0, 0, 4, 0}, 0xa6, 0xa6, 0x00, 0xd8) // half a surrogate, no end (F17)
	tests := []struct {
		name  string
		vars  map[string][]byte
		order string
		left  []string // Boot#### afterwards
	}{
		{"nothing there, not even BootOrder (F19)", nil, "0000", []string{"Boot0000"}},
		{"behind the others", map[string][]byte{"Boot0000": option("UEFI PXE"), "Boot0001": option("Windows"), "BootOrder": {0, 0, 1, 0}},
			"0002 0000 0001", []string{"Boot0000", "Boot0001", "Boot0002"}},
		{"old ones of ours", map[string][]byte{"Boot0003": option("Bareyard ubuntu"), "Boot0007": option("Bareyard debian"), "Boot0001": option("UEFI PXE"),
			"BootOrder": {7, 0, 3, 0, 1, 0}, "BootNext": {1, 0}}, "0003 0001", []string{"Boot0001", "Boot0003"}},
		{"odd bytes (F17)", map[string][]byte{"Boot0000": odd, "Boot0001": {}, "Boot0002": {1, 2, 3}, "BootOrder": {0, 0, 9}}, "0003 0000",
			[]string{"Boot0000", "Boot0001", "Boot0002", "Boot0003"}},
		{"repetitions", map[string][]byte{"Boot0001": option("x"), "BootOrder": {1, 0, 1, 0, 5, 0}}, "0000 0001 0005", []string{"Boot0000", "Boot0001"}},
		{"other variables", map[string][]byte{"BootCurrent": {1, 0}, "BootOptionSupport": {1, 0, 0, 0}, "Boot00G0": {}}, "0000", []string{"Boot0000"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &memory{vars: map[string][]byte{}}
			maps.Copy(m.vars, tt.vars)
			if err := BootFrom(m, "debian-12", esp); err != nil {
				t.Fatal(err)
			}
			var order []string
			for b := m.vars["BootOrder"]; len(b) >= 2; b = b[2:] {
				order = append(order, fmt.Sprintf("%02x%02x", b[1], b[0]))
			}
			if got := strings.Join(order, " "); got != tt.order {
				t.Errorf("order %s, want %s", got, tt.order)
			}
			var left []string
			for name := range m.vars {
				if _, ok := bootNumber(name); ok {
					left = append(left, name)
				}
			}
			slices.Sort(left)
			if !slices.Equal(left, tt.left) {
				t.Errorf("entries %v, want %v", left, tt.left)
			}
			if _, ok := m.vars["BootNext"]; ok {
				t.Error("BootNext is left")
			}
			if got := m.vars["Boot"+tt.order[:4]]; description(got) != "Bareyard debian-12" {
				t.Errorf("first entry is %q", description(got))
			}
			writes := m.writes
			if err := BootFrom(m, "debian-12", esp); err != nil || m.writes != writes {
				t.Errorf("the second time: %d more writes, %v", m.writes-writes, err)
			}
		})
	}
}

func TestF19FirmwareThatKeepsItsOrder(t *testing.T) {
	m := &memory{vars: map[string][]byte{"BootOrder": {1, 0}}, stub: true}
	if err := BootFrom(m, "debian-12", esp); err == nil {
		t.Error("a firmware that ignores BootOrder goes unnoticed")
	}
}

// An independent decoder reads what we write.
func TestEncodeOption(t *testing.T) {
	o, err := efi.ReadLoadOption(bytes.NewReader(encodeOption("Bareyard debian-12", esp)))
	if err != nil {
		t.Fatal(err)
	}
	want := `\HD(15,GPT,44332211-0605-0807-090a-0b0c0d0e0f10)\\EFI\BOOT\BOOTX64.EFI`
	if got := o.FilePath.String(); !strings.EqualFold(got, want) || o.Description != "Bareyard debian-12" || !o.IsActive() {
		t.Errorf("%s %q, want %s", got, o.Description, want)
	}
	if hd, ok := o.FilePath[0].(*efi.HardDriveDevicePathNode); !ok || hd.PartitionStart != 2048 || hd.PartitionSize != 262144 {
		t.Errorf("first node %+v", o.FilePath[0])
	}
}

func TestFS(t *testing.T) {
	f := FS(t.TempDir())
	if _, err := f.Get("BootOrder"); !errors.Is(err, ErrNone) {
		t.Errorf("Get: %v", err)
	}
	if err := f.Set("BootOrder", []byte{1, 0}); err != nil {
		t.Fatal(err)
	}
	names, err := f.List()
	if err != nil || !slices.Equal(names, []string{"BootOrder"}) {
		t.Errorf("List: %v, %v", names, err)
	}
	if data, err := f.Get("BootOrder"); err != nil || hex.EncodeToString(data) != "0100" {
		t.Errorf("Get: %x, %v", data, err)
	}
	for range 2 {
		if err := f.Delete("BootOrder"); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
}

func FuzzDescription(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 4, 0, 'a', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 4, 0, 0xa6, 0xa6, 0, 0xd8, 1})
	f.Add(option("Bareyard debian"))
	f.Fuzz(func(t *testing.T, option []byte) { description(option) })
}
