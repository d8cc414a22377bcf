package disk

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/efivar"
	"github.com/bareyard/bareyard/agent/fat"
	"github.com/bareyard/bareyard/agent/gpt"
	"github.com/bareyard/bareyard/machine"
)

// fixture puts one of package gpt's tables of 64 MiB on a disk.
func (l *loop) fixture(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open("../gpt/testdata/" + name + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	edges, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, edges[:len(edges)/2], 0)
	l.write(t, edges[len(edges)/2:], 64*mib-int64(len(edges)/2))
}

// run runs a program on the disk and returns what it says.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: apt-get install gdisk dosfstools mtools util-linux", err)
	}
	out, err := exec.Command(path, args...).Output() // mtools complains of loop devices on the other stream
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (l *loop) table(t *testing.T) *gpt.Table {
	t.Helper()
	table, err := gpt.Parse(l.read(t, 0, gpt.Head))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// memoryVars is a firmware's variables.
type memoryVars map[string][]byte

func (m memoryVars) List() (names []string, err error) {
	for name := range maps.Keys(m) {
		names = append(names, name)
	}
	return names, nil
}

func (m memoryVars) Get(name string) ([]byte, error) {
	if data, ok := m[name]; ok {
		return data, nil
	}
	return nil, efivar.ErrNone
}

func (m memoryVars) Set(name string, data []byte) error {
	m[name] = bytes.Clone(data)
	return nil
}

func (m memoryVars) Delete(name string) error {
	delete(m, name)
	return nil
}

// brokenVars is a firmware that fails.
type brokenVars struct{ efivar.Vars }

func (brokenVars) List() ([]string, error) { return nil, errors.New("no space left on device") }

var seed = map[string]string{
	"meta-data":      "instance-id: job-1-1\nlocal-hostname: m1\n",
	"user-data":      "#cloud-config\nssh_authorized_keys: [ssh-ed25519 AAAA]\n",
	"network-config": "version: 2\n",
}

// The whole of it: backup table at the end, root grown, seed readable, boot entry first; twice, for steps are repeated.
func TestConfigure(t *testing.T) {
	r := newRack(t)
	const size = 160 * mib
	l := r.add("vda", "A", size)
	l.fixture(t, "debian")
	old, _ := l.table(t).Last()
	vars := memoryVars{"BootOrder": {1, 0}, "BootNext": {1, 0}}
	c := machine.Configure{Seed: seed, Firmware: machine.UEFI, Label: "Bareyard debian-12"}
	for range 2 {
		if err := r.set.Configure(t.Context(), l.Disk, c, vars); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "sgdisk", "-v", l.dev); !strings.Contains(out, "No problems found") {
			t.Errorf("sgdisk -v:\n%s", out)
		}
		entries := l.table(t).Entries()
		root, part := entries[len(entries)-2], entries[len(entries)-1]
		if root.Number() != 1 || root.First != old.First || root.Last != part.First-1 || root.ID != old.ID {
			t.Errorf("root %+v, was %+v", root, old)
		}
		if part.Name != "cidata" || part.Size() != fat.Size || part.First%2048 != 0 || int64(part.Last) < size/512-34-2048 {
			t.Errorf("seed partition %+v", part)
		}
		off := int64(part.First) * 512
		if out := probe(t, l.dev, "-O", fmt.Sprint(off), "-S", fmt.Sprint(part.Size())); !strings.Contains(out, "LABEL=CIDATA") || !strings.Contains(out, "TYPE=vfat") {
			t.Errorf("blkid finds\n%s", out)
		}
		for name, want := range seed {
			if got := run(t, "mtype", "-i", fmt.Sprintf("%s@@%d", l.dev, off), "::"+name); got != want {
				t.Errorf("%s holds %q", name, got)
			}
		}
		if got := l.read(t, 64*mib-33*512, 33*512); !allZero(got) {
			t.Error("the image's own backup table is left in the middle of the disk")
		}
		if order := vars["BootOrder"]; len(order) != 4 || order[2] != 1 || len(vars["BootNext"]) != 0 {
			t.Errorf("variables %x", vars)
		}
	}
}

// F17: a firmware that takes no boot entry is a warning, for the removable path is there.
func TestF17BootEntryIsNotNeeded(t *testing.T) {
	for name, tt := range map[string]struct {
		fixture  string
		vars     efivar.Vars
		firmware machine.Firmware
		warns    bool
	}{
		"full NVRAM":  {"debian", brokenVars{}, machine.UEFI, true},
		"no ESP":      {"one", memoryVars{}, machine.UEFI, true},
		"no efivarfs": {"debian", efivar.FS("/nonexistent"), machine.UEFI, true},
		"BIOS":        {"debian", brokenVars{}, machine.BIOS, false},
	} {
		r := newRack(t)
		l := r.add("vda", "A", 96*mib)
		l.fixture(t, tt.fixture)
		err := r.set.Configure(t.Context(), l.Disk, machine.Configure{Seed: seed, Firmware: tt.firmware, Label: "x"}, tt.vars)
		if warned := strings.Contains(r.log.String(), "no boot entry"); err != nil || warned != tt.warns {
			t.Errorf("%s: %v, warned %v", name, err, warned)
		}
	}
}

func TestConfigureRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		fixture string
		size    int64
		seed    map[string]string
		want    string
	}{
		"no room":            {"one", 64 * mib, seed, "no room"},
		"almost no room":     {"one", 64*mib + fat.Size, seed, "no room"},
		"seed too large":     {"one", 96 * mib, map[string]string{"user-data": strings.Repeat("x", fat.Size)}, "larger than"},
		"seed with a path":   {"one", 96 * mib, map[string]string{"../x": ""}, "bad file name"},
		"no partition table": {"", 96 * mib, seed, "no partition table"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			l := r.add("vda", "A", tt.size)
			if tt.fixture != "" {
				l.fixture(t, tt.fixture)
			}
			before := l.read(t, 0, tt.size)
			err := r.set.Configure(t.Context(), l.Disk, machine.Configure{Seed: tt.seed}, nil)
			wantError(t, err, tt.want)
			if !agent.IsFatal(err) {
				t.Errorf("%v is not fatal", err)
			}
			if !bytes.Equal(l.read(t, 0, tt.size), before) {
				t.Error("the disk was written to")
			}
		})
	}
}

// A last partition that is no Linux one, as of an image for another system, keeps its size.
func TestConfigureLeavesOtherPartitions(t *testing.T) {
	r := newRack(t)
	l := r.add("vda", "A", 128*mib)
	l.fixture(t, "debian")
	table := l.table(t)
	if _, _, err := table.Fit(128 * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Add(gpt.TypeBasicData, "windows", 70*2048, 80*2048-1); err != nil {
		t.Fatal(err)
	}
	head, tail := table.Encode()
	l.write(t, head, 0)
	l.write(t, tail, 128*mib-int64(len(tail)))
	before := l.table(t).Entries()
	if err := r.set.Configure(t.Context(), l.Disk, machine.Configure{Seed: seed}, nil); err != nil {
		t.Fatal(err)
	}
	after := l.table(t).Entries()
	if fmt.Sprint(after[:len(before)]) != fmt.Sprint(before) || len(after) != len(before)+1 {
		t.Errorf("partitions\n%v\n%v", before, after)
	}
}

// table of the old kind with boot code: a small partition and a Linux one behind it.
func (l *loop) oldTable(t *testing.T, lastType byte) {
	t.Helper()
	head := make([]byte, 512)
	copy(head, "\xeb\x63boot code")
	for i, p := range []struct {
		kind        byte
		first, size uint32
	}{{0x83, 2048, 8192}, {lastType, 10240, 40 * 2048}} {
		r := head[446+16*i:]
		r[0], r[4] = byte(0x80*(1-i)), p.kind
		binary.LittleEndian.PutUint32(r[8:], p.first)
		binary.LittleEndian.PutUint32(r[12:], p.size)
	}
	head[510], head[511] = 0x55, 0xaa
	l.write(t, head, 0)
}

// Images with a table of the old kind are still about.
func TestConfigureMBR(t *testing.T) {
	for _, kind := range []byte{0x83, 0x07} {
		r := newRack(t)
		l := r.add("vda", "A", 96*mib)
		l.oldTable(t, kind)
		code := l.read(t, 0, 512)[:446]
		var dumps []string
		for range 2 {
			if err := r.set.Configure(t.Context(), l.Disk, machine.Configure{Seed: seed, Firmware: machine.BIOS}, nil); err != nil {
				t.Fatal(err)
			}
			dumps = append(dumps, run(t, "sfdisk", "-d", l.dev))
			off := 80 * mib
			for name, want := range seed {
				if got := run(t, "mtype", "-i", fmt.Sprintf("%s@@%d", l.dev, off), "::"+name); got != want {
					t.Errorf("%s holds %q", name, got)
				}
			}
		}
		want := []string{"start=        2048, size=        8192, type=83, bootable", "start=       10240, size=      153600, type=83", "start=      163840, size=       32768, type=e"}
		if kind == 0x07 {
			want[1] = "start=       10240, size=       81920, type=7"
		}
		for _, w := range want {
			if !strings.Contains(dumps[0], w) {
				t.Errorf("no %q in\n%s", w, dumps[0])
			}
		}
		if dumps[0] != dumps[1] || !bytes.Equal(l.read(t, 0, 512)[:446], code) {
			t.Error("the second time made another table, or the boot code is gone")
		}
	}
}
