package images

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// smallQcow2 lets qemu-img make a qcow2 file of a disk of 8 KiB: the fuzzer is slow with long seeds.
func smallQcow2(t testing.TB, args ...string) []byte {
	t.Helper()
	disk := make([]byte, 8<<10)
	for i := range 700 {
		disk[i] = byte(i * i)
	}
	return qemuConvert(t, disk, "qcow2", args...)
}

// qemuConvert lets qemu-img put a disk into a format.
func qemuConvert(t testing.TB, disk []byte, format string, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "q."+format)
	tool(t, nil, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", format}, args...), tempFile(t, disk), out)...)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestF07Qcow2ReadsNoOtherFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(secret, testDisk(t, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	create := func(name string, args ...string) string {
		path := filepath.Join(dir, name)
		tool(t, nil, "qemu-img", append(append([]string{"create", "-q", "-f", "qcow2"}, args...), path, "1M")...)
		return path
	}
	backed := create("backed", "-F", "raw", "-b", secret)
	mustRefuse(t, Import{Path: backed}, "file", "backing file")
	mustRefuse(t, Import{Path: backed, Format: Qcow2}, "file", "backing file")
	mustRefuse(t, Import{Path: backed, Format: Raw}, "format", "declared raw and is qcow2")
	mustRefuse(t, Import{Path: create("json", "-F", "raw", "-b", `json:{"driver":"raw","file":{"driver":"file","filename":"`+secret+`"}}`)}, "file", "backing file")
	mustRefuse(t, Import{Path: create("v2", "-o", "compat=0.10", "-F", "raw", "-b", secret)}, "file", "backing file")
	mustRefuse(t, Import{Path: create("data", "-o", "data_file="+filepath.Join(dir, "data.raw"))}, "file", "another file")
	mustRefuse(t, Import{Path: create("dataraw", "-o", "data_file="+filepath.Join(dir, "data2.raw")+",data_file_raw=on")}, "file", "another file")

	evil, err := os.ReadFile(backed)
	if err != nil {
		t.Fatal(err)
	}
	disguised := filepath.Join(dir, "disk.raw")
	if err := os.WriteFile(disguised, evil, 0o600); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, Import{Path: disguised, Unbootable: true}, "file", "backing file")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, evil, "gzip", "-c")), Unbootable: true}, "file", "backing file")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, evil, "zstd", "-qc")), Format: Raw, Unbootable: true}, "format", "declared raw")
	mustRefuse(t, Import{Path: tempFile(t, testDisk(t, 1<<20)), Format: Qcow2}, "format", "declared qcow2 and is raw")
	mustRefuse(t, Import{Path: disguised, Format: "vdi"}, "format", "raw, qcow2, vmdk or vhd")

	vmdk := "# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"" + secret + "\" 0\n"
	mustRefuse(t, Import{Path: tempFile(t, []byte(vmdk)), Unbootable: true}, "file", "names other files")
}

func TestQcow2RefusesBadHeaders(t *testing.T) {
	good := smallQcow2(t)
	be := binary.BigEndian
	for name, try := range map[string]struct {
		spoil func(b []byte) []byte
		word  string
	}{
		"version":        {func(b []byte) []byte { be.PutUint32(b[4:], 4); return b }, "version 4"},
		"short":          {func(b []byte) []byte { return b[:50] }, "complete header"},
		"2^60":           {func(b []byte) []byte { be.PutUint64(b[24:], 1<<60); return b }, "1152921504606846976 bytes"},
		"negative":       {func(b []byte) []byte { be.PutUint64(b[24:], 1<<63+512); return b }, "bytes"},
		"no disk":        {func(b []byte) []byte { be.PutUint64(b[24:], 0); return b }, "0 bytes"},
		"odd size":       {func(b []byte) []byte { be.PutUint64(b[24:], 1000); return b }, "512"},
		"clusters":       {func(b []byte) []byte { be.PutUint32(b[20:], 40); return b }, "2^40"},
		"tiny clusters":  {func(b []byte) []byte { be.PutUint32(b[20:], 3); return b }, "2^3"},
		"encrypted":      {func(b []byte) []byte { be.PutUint32(b[32:], 2); return b }, "encrypted"},
		"small L1":       {func(b []byte) []byte { be.PutUint32(b[36:], 0); return b }, "first-level"},
		"L1 outside":     {func(b []byte) []byte { be.PutUint64(b[40:], 1<<40); return b }, "first-level table outside"},
		"L1 negative":    {func(b []byte) []byte { be.PutUint64(b[40:], 1<<63); return b }, "first-level table outside"},
		"corrupt":        {func(b []byte) []byte { b[79] |= qcow2Corrupt; return b }, "corrupt"},
		"external":       {func(b []byte) []byte { b[79] |= qcow2ExternalData; return b }, "another file"},
		"extended L2":    {func(b []byte) []byte { b[79] |= qcow2ExtendedL2; return b }, "subclusters"},
		"unknown":        {func(b []byte) []byte { b[72] |= 0x80; return b }, "unknown features"},
		"compression":    {func(b []byte) []byte { b[79] |= qcow2Compression; b[104] = 9; return b }, "compression 9"},
		"header length":  {func(b []byte) []byte { be.PutUint32(b[100:], 1<<30); return b }, "header of"},
		"backing length": {func(b []byte) []byte { be.PutUint32(b[16:], 9); return b }, "backing file"},
		"cut short":      {func(b []byte) []byte { return b[:len(b)/2/65536*65536] }, "cut short"},
	} {
		t.Run(name, func(t *testing.T) {
			mustRefuse(t, Import{Path: tempFile(t, try.spoil(bytes.Clone(good))), Unbootable: true}, "file", try.word)
		})
	}
	dirty := bytes.Clone(good)
	dirty[79] |= qcow2Dirty
	s := &Store{Dir: t.TempDir()}
	if _, err := s.Import(context.Background(), Import{Path: tempFile(t, dirty), Unbootable: true}); err != nil {
		t.Errorf("stale reference counts: %v", err)
	}
}

func FuzzQcow2(f *testing.F) {
	for _, args := range [][]string{
		{"-o", "cluster_size=512"}, {"-c", "-o", "cluster_size=512"}, {"-c", "-o", "cluster_size=4k,compression_type=zstd"},
		{"-o", "cluster_size=512,compat=0.10"}, {"-o", "cluster_size=16k,extended_l2=on"},
	} {
		f.Add(smallQcow2(f, args...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 18
		q, err := openQcow2(bytes.NewReader(data), int64(len(data)), limit)
		if err != nil {
			return
		}
		defer q.close()
		n, err := io.Copy(io.Discard, q)
		if n > q.size || q.size > limit || err == nil && n != q.size {
			t.Fatalf("%d of %d bytes, %v", n, q.size, err)
		}
	})
}

func FuzzInspect(f *testing.F) {
	disk := testDisk(f, 1<<20)[:2048]
	h := disk[512:1024]
	binary.LittleEndian.PutUint32(h[80:], 4)
	binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(disk[1024:1024+4*128]))
	clear(h[16:20])
	binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
	if b, err := inspect(disk, 1<<20); err != nil || !b.BIOS || !b.UEFI {
		f.Fatal(b, err)
	}
	f.Add(disk, int64(1<<20))
	f.Add(disk[:512], int64(512))
	f.Add(disk[:1024], int64(1<<40))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		b, err := inspect(head, size)
		if err != nil && (b.BIOS || b.UEFI) {
			t.Fatal("a disk that is refused boots")
		}
		if err == nil && len(head) < 512 {
			t.Fatal("a partition table in less than a sector")
		}
	})
}

func FuzzUnpack(f *testing.F) {
	text := bytes.Repeat([]byte("bareyard"), 100)
	for _, c := range []string{"gzip", "xz", "zstd", "bzip2", "lz4"} {
		f.Add(tool(f, text, c, "-c"))
	}
	f.Add([]byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := unpack(bytes.NewReader(data), compressionOf(data), 1<<20)
		if err != nil {
			return
		}
		defer u.close()
		if n, err := io.Copy(io.Discard, io.LimitReader(u, 1<<22)); err == nil && u.kind == uncompressed && n != int64(min(len(data), 1<<22)) {
			t.Fatalf("%d of %d bytes", n, len(data))
		}
	})
}
