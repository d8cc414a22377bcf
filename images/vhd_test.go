package images

import (
	"bytes"
	"encoding/binary"
	"io"
	"path/filepath"
	"testing"
	"testing/iotest"
)

var fixedVHD = []string{"-o", "subformat=fixed,force_size=on"}

// sealVHD gives a footer that was changed its checksum.
func sealVHD(file []byte) []byte {
	footer := file[len(file)-vhdFooter:]
	clear(footer[64:68])
	var sum uint32
	for _, b := range footer {
		sum += uint32(b)
	}
	binary.BigEndian.PutUint32(footer[64:], ^sum)
	return file
}

func TestVHDRefused(t *testing.T) {
	disk := testDisk(t, 1<<20)
	good := qemuConvert(t, disk, "vpc", fixedVHD...)
	at := len(disk)
	be := binary.BigEndian
	for name, try := range map[string]struct {
		spoil func(b []byte) []byte
		word  string
	}{
		"checksum":     {func(b []byte) []byte { b[at+100]++; return b }, "checksum is wrong"},
		"version":      {func(b []byte) []byte { be.PutUint32(b[at+12:], 2<<16); return sealVHD(b) }, "version 2.0"},
		"kind":         {func(b []byte) []byte { be.PutUint32(b[at+60:], 6); return sealVHD(b) }, "unknown kind 6"},
		"dynamic":      {func(b []byte) []byte { be.PutUint32(b[at+60:], vhdDynamic); return sealVHD(b) }, "dynamic VHD"},
		"differencing": {func(b []byte) []byte { be.PutUint32(b[at+60:], vhdDifferencing); return sealVHD(b) }, "another file on its author's host"},
		"longer":       {func(b []byte) []byte { be.PutUint64(b[at+48:], 1<<60); return sealVHD(b) }, "claims a disk of 1152921504606846976 bytes and has 1048576"},
		"shorter":      {func(b []byte) []byte { be.PutUint64(b[at+48:], 1<<19); return sealVHD(b) }, "claims a disk of 524288 bytes and has 1048576"},
		"a hole":       {func(b []byte) []byte { return append(b[:1<<19:1<<19], b[1<<19+512:]...) }, "cut short"},
		"footer only":  {func(b []byte) []byte { return b[at:] }, "dynamic VHD"},
		"cut short":    {func(b []byte) []byte { return b[:1<<19] }, "cut short"},
		"in a footer":  {func(b []byte) []byte { return b[:at+100] }, "cut short"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := try.spoil(bytes.Clone(good))
			mustRefuse(t, Import{Path: tempFile(t, bad)}, "file", try.word)
			mustRefuse(t, Import{Path: tempFile(t, tool(t, bad, "gzip", "-c"))}, "file", try.word)
		})
	}
	mustRefuse(t, Import{Path: tempFile(t, good), Format: Raw}, "format", "declared raw and is vhd")
	mustRefuse(t, Import{Path: tempFile(t, disk), Format: VHD}, "format", "declared vhd and is raw")
	mustRefuse(t, Import{Path: tempFile(t, good), SHA256: digestOf(disk)}, "sha256", "that of the image as written")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, good, "xz", "-c")), SHA256: digestOf(good)}, "sha256", "unpacked file")

	parent, child := filepath.Join(t.TempDir(), "parent"), qemuConvert(t, disk, "vpc")
	mustRefuse(t, Import{Path: tempFile(t, child)}, "file", "only fixed ones are read")
	be.PutUint32(child[60:], vhdDifferencing)
	copy(child[512+576:], parent)
	mustRefuse(t, Import{Path: tempFile(t, child), Unbootable: true}, "file", "another file on its author's host")
}

// What the disk's last sector is shows however the source hands out its bytes.
func TestVHDFooterInAStream(t *testing.T) {
	data := testDisk(t, 1<<20)
	fixed := qemuConvert(t, data, "vpc", fixedVHD...)
	for name, wrap := range map[string]func(io.Reader) io.Reader{"bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader} {
		for _, file := range [][]byte{data, fixed, data[:511], data[:512], nil} {
			d := disk{r: wrap(bytes.NewReader(file))}
			got, err := io.ReadAll(&d)
			want := file
			if len(file) == len(fixed) {
				want = data
			}
			if err != nil || !bytes.Equal(got, want) || (d.footer != nil) != (len(file) == len(fixed)) {
				t.Errorf("%s: %d bytes of %d, footer of %d, %v", name, len(got), len(file), len(d.footer), err)
			}
		}
	}
}

func FuzzVHD(f *testing.F) {
	small := make([]byte, 8<<10)
	small[700] = 7
	for _, args := range [][]string{fixedVHD, {"-o", "subformat=fixed"}, nil} {
		b := qemuConvert(f, small, "vpc", args...)
		f.Add(b[max(0, len(b)-4096):])
	}
	f.Add(sealVHD(qemuConvert(f, small, "vpc", fixedVHD...)[:4096]))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := disk{r: bytes.NewReader(data)}
		n, err := io.Copy(io.Discard, &d)
		if err == nil && n+int64(len(d.footer)) != int64(len(data)) {
			t.Fatalf("%d bytes and a footer of %d out of %d", n, len(d.footer), len(data))
		}
		if err == nil && d.footer != nil && binary.BigEndian.Uint64(d.footer[48:]) != uint64(n) {
			t.Fatalf("%d bytes, not what the footer says", n)
		}
	})
}
