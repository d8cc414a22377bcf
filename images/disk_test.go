package images

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
)

// testDisk makes a disk of size bytes with boot code, a GPT with a BIOS boot partition, an ESP and a root, some data and long
// stretches of zeros.
func testDisk(t testing.TB, size int) []byte {
	t.Helper()
	d := make([]byte, size)
	le := binary.LittleEndian
	copy(d, "\xeb\x63\x90")
	d[446+4] = mbrProtective
	le.PutUint32(d[446+8:], 1)
	le.PutUint32(d[446+12:], uint32(size/512-1))
	d[510], d[511] = 0x55, 0xaa
	entries := d[1024 : 1024+128*128]
	for i, p := range []struct {
		kind        [16]byte
		first, last int
	}{{biosBootType, 34, 39}, {espType, 40, 79}, {[16]byte{1, 2, 3}, 80, size/512 - 34}} {
		e := entries[i*128:]
		copy(e, p.kind[:])
		e[16] = byte(i + 1)
		le.PutUint64(e[32:], uint64(p.first))
		le.PutUint64(e[40:], uint64(p.last))
	}
	h := d[512:1024]
	copy(h, "EFI PART\x00\x00\x01\x00")
	le.PutUint32(h[12:], 92)
	le.PutUint64(h[24:], 1)
	le.PutUint64(h[32:], uint64(size/512-1))
	le.PutUint64(h[72:], 2)
	le.PutUint32(h[80:], 128)
	le.PutUint32(h[84:], 128)
	le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
	le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
	random := rand.NewChaCha8([32]byte{})
	random.Read(d[80*512 : 80*512+200_000])
	if size > 9<<20 {
		random.Read(d[9<<20 : 9<<20+50_000])
	}
	return d
}

func tempFile(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tool runs a program of the distribution and fails with what to install.
func tool(t testing.TB, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%s is missing: apt-get install qemu-utils zstd xz-utils lz4 bzip2", name)
	}
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, stderr.String())
	}
	return out
}

func exported(t testing.TB, s *Store, digest string) []byte {
	t.Helper()
	m, err := s.Manifest(digest)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Export(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// mustRefuse imports what must be refused, and sees that no image exists then and that the error is one for the user, about field.
func mustRefuse(t *testing.T, in Import, field, word string) {
	t.Helper()
	s := &Store{Dir: t.TempDir()}
	_, err := s.Import(context.Background(), in)
	var e *machine.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want one that the user can act on", err)
	}
	if e.Field != field || !strings.Contains(e.Message+" "+e.Hint, word) {
		t.Errorf("error on %q: %s (%s); want one on %q with %q", e.Field, e.Message, e.Hint, field, word)
	}
	if digests, err := s.Digests(); err != nil || len(digests) != 0 {
		t.Errorf("images %v exist after a refusal (%v)", digests, err)
	}
}
