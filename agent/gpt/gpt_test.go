package gpt_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/agent/gpt"
)

func sgdisk(t testing.TB, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("sgdisk")
	if err != nil {
		t.Fatalf("%v: apt-get install gdisk", err)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("sgdisk %v: %v\n%s", args, err, out)
	}
	return string(out)
}

var update = flag.Bool("update", false, "make testdata anew with sgdisk")

// fixtures are tables as sgdisk writes them on a disk of 64 MiB: the first and the last 64 KiB, compressed. They are kept, for
// sgdisk syncs every file system of the machine whenever it writes.
var fixtures = map[string][]string{
	"two":      {"-n1:2048:+16M", "-t1:ef00", "-n2:0:0"},
	"room":     {"-n1:2048:+16M", "-n2:0:+10M"},
	"debian":   {"-n14:2048:+4M", "-t14:ef02", "-n15:0:+8M", "-t15:ef00", "-n1:0:0", "-t1:8300"},
	"table256": {"-S256", "-n1:2048:0"},
	"names":    {"-n1:2048:0", "-c1:Grüße 根", "-A1:set:2", "-u1:11111111-2222-4333-8444-555566667777"},
	"one":      {"-n1:2048:0"},
}

const (
	fixtureSize = 64 << 20
	fixtureEdge = 64 << 10
)

// create makes a disk of size bytes with the image of a fixture at its start.
func create(t testing.TB, fixture string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, max(size, fixtureSize)); err != nil {
		t.Fatal(err)
	}
	edges := load(t, fixture)
	patch(t, path, edges[:fixtureEdge], 0)
	patch(t, path, edges[fixtureEdge:], fixtureSize-fixtureEdge)
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// load returns both edges of a fixture.
func load(t testing.TB, fixture string) []byte {
	t.Helper()
	golden := filepath.Join("testdata", fixture+".gz")
	if *update {
		path := filepath.Join(t.TempDir(), "new")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, fixtureSize); err != nil {
			t.Fatal(err)
		}
		sgdisk(t, append(fixtures[fixture], path)...)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(raw[:fixtureEdge])
		w.Write(raw[fixtureSize-fixtureEdge:])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	edges, err := io.ReadAll(r)
	if err != nil || len(edges) != 2*fixtureEdge {
		t.Fatalf("read fixture %s: %d bytes, %v", fixture, len(edges), err)
	}
	return edges
}

func parse(t *testing.T, path string) *gpt.Table {
	t.Helper()
	table, err := gpt.Parse(stretch(t, path, 0))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return table
}

// stretch reads gpt.Head bytes of a file.
func stretch(t testing.TB, path string, off int64) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.NewSectionReader(f, off, gpt.Head))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func patch(t testing.TB, path string, data []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, off); err != nil {
		t.Fatal(err)
	}
}

// F05: an image's backup table sits where the image ended; a larger disk needs it at its own end, and the old one gone.
func TestF05BackupMovesToTheEnd(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name, fixture string
		disk          int64
		old           bool // the disk held another GPT before, with its backup at the true end
	}{
		{"as reported", "two", 128 * mib, false},
		{"disk held a GPT", "two", 128 * mib, true},
		{"same size", "room", 64 * mib, false},
		{"root first in the table, last on the disk", "debian", 192 * mib, false},
		{"odd size", "one", 99*mib + 512*7, false},
		{"a table of 256", "table256", 128 * mib, false},
		{"names and attributes", "names", 128 * mib, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := create(t, tt.fixture, tt.disk)
			if tt.old {
				patch(t, path, load(t, "one")[fixtureEdge:], tt.disk-fixtureEdge)
			}
			before := parse(t, path).Entries()

			table := parse(t, path)
			off, n, err := table.Fit(tt.disk)
			if err != nil {
				t.Fatalf("Fit: %v", err)
			}
			if grown := tt.disk > fixtureSize; grown != (n > 0) || grown && off+n != fixtureSize {
				t.Errorf("old backup at %d+%d, the image ended at %d", off, n, fixtureSize)
			}
			patch(t, path, make([]byte, n), off)
			head, tail := table.Encode()
			patch(t, path, tail, tt.disk/512*512-int64(len(tail)))
			patch(t, path, head, 0)

			if out := sgdisk(t, "-v", path); !strings.Contains(out, "No problems found") {
				t.Errorf("sgdisk -v:\n%s", out)
			}
			after := parse(t, path).Entries()
			if fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("partitions changed:\n%v\n%v", before, after)
			}
			headers := map[int64]bool{}
			for _, off := range []int64{0, fixtureSize - fixtureEdge, tt.disk - fixtureEdge} {
				raw := stretch(t, path, off)
				for i := 0; i+512 <= len(raw); i += 512 {
					if bytes.HasPrefix(raw[i:], []byte("EFI PART")) {
						headers[off+int64(i)] = true
					}
				}
			}
			if len(headers) != 2 {
				t.Errorf("GPT headers at %v", headers)
			}
			// The backup alone must do too.
			patch(t, path, make([]byte, 512), 512)
			if out := sgdisk(t, "-v", path); !strings.Contains(out, "regenerate") && !strings.Contains(out, "backup") {
				t.Errorf("sgdisk -v of the backup alone:\n%s", out)
			}
		})
	}
}

func TestGrowAndAdd(t *testing.T) {
	const disk = 256 << 20
	path := create(t, "debian", disk)
	table := parse(t, path)
	if _, _, err := table.Fit(disk); err != nil {
		t.Fatal(err)
	}
	root, ok := table.Last()
	if !ok || root.Number() != 1 || !root.Is(gpt.TypeLinux, gpt.TypeRootAMD64) {
		t.Fatalf("last partition %+v", root)
	}
	first := (table.LastUsable() + 1 - (16<<20)/512) / 2048 * 2048
	if _, err := table.Add(gpt.TypeBasicData, "cidata", root.First, root.Last); err == nil {
		t.Error("Add over a partition: no error")
	}
	table.Grow(root, first-1)
	if _, err := table.Add(gpt.TypeBasicData, "cidata", first, table.LastUsable()+1); err == nil {
		t.Error("Add beyond the end: no error")
	}
	seed, err := table.Add(gpt.TypeBasicData, "cidata", first, first+(16<<20)/512-1)
	if err != nil || seed.Number() != 2 || seed.Size() != 16<<20 {
		t.Fatalf("Add: %+v, %v", seed, err)
	}
	head, tail := table.Encode()
	patch(t, path, make([]byte, 33*512), 64<<20-33*512)
	patch(t, path, tail, disk-int64(len(tail)))
	patch(t, path, head, 0)
	if out := sgdisk(t, "-v", path); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v:\n%s", out)
	}
	out := sgdisk(t, "-i2", path)
	if !strings.Contains(out, "'cidata'") || !strings.Contains(out, gpt.TypeBasicData) || !strings.Contains(out, seed.ID.String()) {
		t.Errorf("sgdisk -i2:\n%s", out)
	}
	if got, _ := parse(t, path).Last(); got.Name != "cidata" {
		t.Errorf("last partition %+v", got)
	}
}

func TestFitRefusesASmallerDisk(t *testing.T) {
	path := create(t, "one", fixtureSize)
	for _, size := range []int64{32 << 20, 64<<20 - 512, 1024, 0} {
		if _, _, err := parse(t, path).Fit(size); err == nil {
			t.Errorf("Fit(%d): no error", size)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	path := create(t, "one", fixtureSize)
	good := stretch(t, path, 0)
	if _, err := gpt.Parse(make([]byte, gpt.Head)); !errors.Is(err, gpt.ErrNone) {
		t.Errorf("zeros: %v", err)
	}
	for _, at := range []int{512 + 12, 512 + 16, 512 + 24, 512 + 72, 512 + 80, 512 + 84, 512 + 88, 1024, 1024 + 32} {
		bad := bytes.Clone(good)
		bad[at] ^= 0x40
		if _, err := gpt.Parse(bad); err == nil {
			t.Errorf("a flipped bit at %d is accepted", at)
		}
	}
}

// reseal makes the checksums right, so that the fuzzer gets past them.
func reseal(head []byte) []byte {
	head = bytes.Clone(head)
	if len(head) < 1024 {
		return head
	}
	h, le := head[512:], binary.LittleEndian
	start, n := le.Uint64(h[72:]), uint64(le.Uint32(h[80:]))*uint64(le.Uint32(h[84:]))
	if start < 1000 && start*512+n <= uint64(len(head)) {
		le.PutUint32(h[88:], crc32.ChecksumIEEE(head[start*512:][:n]))
	}
	if size := le.Uint32(h[12:]); size >= 92 && size <= 512 {
		clear(h[16:20])
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:size]))
	}
	return head
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"two", "debian"} {
		f.Add(load(f, name)[:34*512], int64(128<<20))
	}
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		table, err := gpt.Parse(reseal(head))
		if err != nil {
			return
		}
		off, n, err := table.Fit(size)
		if err != nil {
			return
		}
		if off < 0 || n < 0 || off+n > size {
			t.Fatalf("old backup at %d+%d of %d", off, n, size)
		}
		for _, e := range table.Entries() {
			if n > 0 && int64(e.First)*512 < off+n && int64(e.Last+1)*512 > off {
				t.Fatalf("erases %d+%d of partition %+v", off, n, e)
			}
		}
		h, tail := table.Encode()
		if int64(len(h)+len(tail)) > size {
			t.Fatalf("%d bytes of tables on a disk of %d", len(h)+len(tail), size)
		}
		again, err := gpt.Parse(h)
		if err != nil {
			t.Fatalf("what was encoded does not parse: %v", err)
		}
		if fmt.Sprint(again.Entries()) != fmt.Sprint(table.Entries()) {
			t.Fatal("partitions changed")
		}
	})
}
