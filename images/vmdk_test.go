package images

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	streamVMDK = []string{"-o", "subformat=streamOptimized"}
	sparseVMDK = []string{"-o", "subformat=monolithicSparse"}
)

// footed makes of qemu-img's stream, which has its directory at the start, one as VMware's tools write it: the header leaves open where
// the directory is, and a footer tells.
func footed(stream []byte) []byte {
	header := bytes.Clone(stream[:512])
	out := bytes.Clone(stream)
	out = append(out, make([]byte, -len(out)&511)...)
	binary.LittleEndian.PutUint64(out[56:], vmdkGDAtEnd)
	marker := make([]byte, 512)
	marker[0], marker[12] = 1, vmdkMarkFooter
	return append(append(append(out, marker...), header...), make([]byte, 512)...)
}

// redescribe replaces text in the descriptor of a VMDK, which has room for it.
func redescribe(t *testing.T, file []byte, old, replacement string) []byte {
	t.Helper()
	at := int(binary.LittleEndian.Uint64(file[28:])) * 512
	room := file[at : at+int(binary.LittleEndian.Uint64(file[36:]))*512]
	text := string(bytes.TrimRight(room, "\x00"))
	if !strings.Contains(text, old) {
		t.Fatalf("no %q in %s", old, text)
	}
	clear(room)
	copy(room, strings.Replace(text, old, replacement, 1))
	return file
}

func TestVMDKWithFooter(t *testing.T) {
	data := testDisk(t, 1<<20)
	file := footed(qemuConvert(t, data, "vmdk", streamVMDK...))
	path := filepath.Join(t.TempDir(), "footed.vmdk")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, nil, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", tempFile(t, data), path) // QEMU reads it so, too
	s := &Store{Dir: t.TempDir()}
	out, err := s.Import(context.Background(), Import{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(exported(t, s, out.Image.Digest), data) {
		t.Error("the disk differs")
	}
}

func TestF07VMDKReadsNoOtherFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	data := testDisk(t, 1<<20)
	stream, sparse := qemuConvert(t, data, "vmdk", streamVMDK...), qemuConvert(t, data, "vmdk", sparseVMDK...)
	line := `RW 2048 SPARSE "q.vmdk"`
	for name, try := range map[string]struct{ old, replacement, word string }{
		"host file":      {line, `RW 2048 SPARSE "` + secret + `"`, "names a file elsewhere"},
		"json":           {line, `RW 2048 SPARSE "json:{}"`, "names a file elsewhere"},
		"upwards":        {line, `RW 2048 SPARSE ".."`, "names a file elsewhere"},
		"flat":           {line, `RW 2048 FLAT "` + secret + `" 0`, "extent of type FLAT"},
		"flat here":      {line, `RW 2048 FLAT "q.vmdk" 0`, "extent of type FLAT"},
		"device":         {line, `RW 2048 VMFSRDM "sda"`, "extent of type VMFSRDM"},
		"two":            {line, line + "\n" + `RW 2048 SPARSE "r.vmdk"`, "several extents"},
		"none":           {line, "", "names no extent"},
		"other size":     {line, `RW 8192 SPARSE "q.vmdk"`, "8192 sectors and a header for 2048"},
		"huge":           {line, `RW 99999999999999999999999 SPARSE "q.vmdk"`, "a header for 2048"},
		"no access":      {line, `NOACCESS 2048 SPARSE "q.vmdk"`, "forbids access"},
		"a parent":       {"parentCID=ffffffff", "parentCID=12345678", "has a parent"},
		"a named parent": {"version=1", "version=1\nparentFileNameHint=\"" + secret + "\"", "has a parent"},
		"another type":   {"createType=", "createType=x", "of type"},
		"odd line":       {"version=1", "version=1\nRW 2048 SPARSE q.vmdk", "with the line"},
	} {
		t.Run(name, func(t *testing.T) {
			mustRefuse(t, Import{Path: tempFile(t, redescribe(t, bytes.Clone(stream), try.old, try.replacement)), Unbootable: true}, "file", try.word)
			mustRefuse(t, Import{Path: tempFile(t, redescribe(t, bytes.Clone(sparse), try.old, try.replacement)), Unbootable: true}, "file", try.word)
		})
	}
	mustRefuse(t, Import{Path: tempFile(t, redescribe(t, bytes.Clone(stream), "streamOptimized", "monolithicSparse"))}, "file", "not of the type")
	mustRefuse(t, Import{Path: tempFile(t, stream), Format: Raw}, "format", "declared raw and is vmdk")
	mustRefuse(t, Import{Path: tempFile(t, data), Format: VMDK}, "format", "declared vmdk and is raw")
	mustRefuse(t, Import{Path: tempFile(t, tool(t, redescribe(t, bytes.Clone(stream), "q.vmdk", "/etc/shadow"), "gzip", "-c")), Unbootable: true}, "file", "elsewhere")

	// What qemu-img makes of several files, it makes of a descriptor and others, which are refused by that.
	for _, kind := range []string{"monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"} {
		mustRefuse(t, Import{Path: tempFile(t, qemuConvert(t, data, "vmdk", "-o", "subformat="+kind)), Unbootable: true}, "file", "names other files")
	}
	out := filepath.Join(t.TempDir(), "part.vmdk")
	tool(t, nil, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", tempFile(t, data), out)
	mustRefuse(t, Import{Path: strings.TrimSuffix(out, ".vmdk") + "-s001.vmdk", Unbootable: true}, "file", "not whole in this file")
}

func TestVMDKRefused(t *testing.T) {
	le := binary.LittleEndian
	data := testDisk(t, 1<<20)
	stream, sparse := footed(qemuConvert(t, data, "vmdk", streamVMDK...)), qemuConvert(t, data, "vmdk", sparseVMDK...)
	footer := len(stream) - 2*512
	// The first grain, by way of the footer, the directory and a table.
	table := func(b []byte) int { return int(le.Uint32(b[int(le.Uint64(b[len(b)-1024+56:]))*512:])) * 512 }
	grain := func(b []byte) int { return int(le.Uint32(b[table(b):])) * 512 }
	both := func(b []byte, f func([]byte)) []byte { f(b); f(b[footer:]); return b }
	bomb := func(b []byte) []byte {
		var z bytes.Buffer
		w := zlib.NewWriter(&z)
		w.Write(make([]byte, 64<<20))
		w.Close()
		le.PutUint32(b[grain(b)+8:], uint32(z.Len()))
		copy(b[grain(b)+12:], z.Bytes())
		return b
	}
	for name, try := range map[string]struct {
		file  []byte
		spoil func(b []byte) []byte
		word  string
	}{
		"version":          {stream, func(b []byte) []byte { le.PutUint32(b[4:], 9); return b }, "version 9"},
		"header cut":       {stream, func(b []byte) []byte { return b[:100] }, "header outside"},
		"only header":      {stream, func(b []byte) []byte { return b[:512] }, "descriptor outside"},
		"cut short":        {stream, func(b []byte) []byte { return b[:len(b)/2/512*512] }, "no footer"},
		"no end":           {stream, func(b []byte) []byte { return b[:len(b)-512] }, "no footer"},
		"one byte less":    {stream, func(b []byte) []byte { return b[:len(b)-1] }, "no footer"},
		"line ends":        {stream, func(b []byte) []byte { b[75] = '\n'; return b }, "changed line ends"},
		"2^60":             {stream, func(b []byte) []byte { return both(b, func(h []byte) { le.PutUint64(h[12:], 1<<51) }) }, "1152921504606846976 bytes"},
		"2^64":             {stream, func(b []byte) []byte { return both(b, func(h []byte) { le.PutUint64(h[12:], 1<<64-1) }) }, "image claims a disk"},
		"no disk":          {stream, func(b []byte) []byte { le.PutUint64(b[12:], 0); return b }, "0 bytes"},
		"grains":           {stream, func(b []byte) []byte { le.PutUint64(b[20:], 1<<40); return b }, "grains of"},
		"odd grains":       {stream, func(b []byte) []byte { le.PutUint64(b[20:], 3); return b }, "grains of 3"},
		"tables":           {stream, func(b []byte) []byte { le.PutUint32(b[44:], 1<<20); return b }, "tables of 1048576"},
		"no tables":        {stream, func(b []byte) []byte { le.PutUint32(b[44:], 0); return b }, "tables of 0"},
		"compression":      {stream, func(b []byte) []byte { le.PutUint16(b[77:], 2); return b }, "compression 2"},
		"no markers":       {stream, func(b []byte) []byte { b[10] &^= 2; return b }, "without markers"},
		"no descriptor":    {stream, func(b []byte) []byte { le.PutUint64(b[28:], 0); return b }, "no descriptor"},
		"descriptor":       {stream, func(b []byte) []byte { le.PutUint64(b[36:], 1<<50); return b }, "descriptor of"},
		"descriptor far":   {stream, func(b []byte) []byte { le.PutUint64(b[28:], 1<<63); return b }, "descriptor outside"},
		"footer differs":   {stream, func(b []byte) []byte { le.PutUint64(b[footer+12:], 8192); return b }, "not the header's"},
		"footer unknowing": {stream, func(b []byte) []byte { le.PutUint64(b[footer+56:], vmdkGDAtEnd); return b }, "does not say"},
		"directory far":    {stream, func(b []byte) []byte { le.PutUint64(b[footer+56:], 1<<62); return b }, "grain directory outside"},
		"directory zero":   {stream, func(b []byte) []byte { le.PutUint64(b[footer+56:], 0); return b }, "grain directory outside"},
		"table far":        {stream, func(b []byte) []byte { le.PutUint32(b[int(le.Uint64(b[footer+56:]))*512:], 1<<31); return b }, "grain table outside"},
		"grain far":        {stream, func(b []byte) []byte { le.PutUint32(b[table(b):], 1<<31); return b }, "grain outside"},
		"grain at the end": {stream, func(b []byte) []byte { le.PutUint32(b[table(b):], uint32(len(b)/512-1)); return b }, "0 compressed bytes"},
		"shared grain":     {stream, func(b []byte) []byte { copy(b[table(b)+4:], b[table(b):][:4]); return b }, "another one's place"},
		"grain of nothing": {stream, func(b []byte) []byte { le.PutUint32(b[grain(b)+8:], 0); return b }, "0 compressed bytes"},
		"grain too long":   {stream, func(b []byte) []byte { le.PutUint32(b[grain(b)+8:], 1<<31); return b }, "2147483648 compressed bytes"},
		"grain shortened":  {stream, func(b []byte) []byte { le.PutUint32(b[grain(b)+8:], 100); return b }, "damaged grain"},
		"grain spoilt":     {stream, func(b []byte) []byte { b[grain(b)+60] ^= 0x10; return b }, "damaged grain"},
		"bomb":             {stream, bomb, "more than its size"},
		"sparse cut short": {sparse, func(b []byte) []byte { return b[:len(b)-64<<10] }, "outside of the file"},
		"sparse directory": {sparse, func(b []byte) []byte { le.PutUint64(b[56:], 1<<40); return b }, "grain directory outside"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustRefuse(t, Import{Path: tempFile(t, try.spoil(bytes.Clone(try.file))), Unbootable: true}, "file", try.word)
		})
	}
}

// tinyVMDK makes an image of two grains of 4 KiB, the second of which is not there: the fuzzer is slow with qemu-img's, which are never less
// than 64 KiB.
func tinyVMDK(kind string, flags uint32, grain []byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, 4*512)
	copy(b, vmdkMagic)
	le.PutUint32(b[4:], 1)
	le.PutUint32(b[8:], flags|vmdkNewlines)
	for at, n := range map[int]uint64{12: 16, 20: 8, 28: 1, 36: 1, 56: 2} {
		le.PutUint64(b[at:], n)
	}
	le.PutUint32(b[44:], 4)
	copy(b[73:], "\n \r\n")
	if flags&vmdkCompressed != 0 {
		b[77] = 1
	}
	copy(b[512:], "parentCID=ffffffff\ncreateType=\""+kind+"\"\nRW 16 SPARSE \"t.vmdk\"\n")
	b[2*512], b[3*512] = 3, 4
	return append(b, grain...)
}

func FuzzVMDK(f *testing.F) {
	plain := bytes.Repeat([]byte("bareyard"), 512)
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	w.Write(plain)
	w.Close()
	stream := tinyVMDK("streamOptimized", vmdkCompressed|vmdkMarkers, append(append(make([]byte, 8), byte(packed.Len()), 0, 0, 0), packed.Bytes()...))
	for _, seed := range [][]byte{stream, footed(stream), tinyVMDK("monolithicSparse", 0, plain), tinyVMDK("monolithicSparse", vmdkZeroGrains, plain)} {
		v, err := openVMDK(bytes.NewReader(seed), int64(len(seed)), 1<<18)
		if err != nil {
			f.Fatal(err)
		}
		if got, err := io.ReadAll(v); err != nil || !bytes.Equal(got, append(bytes.Clone(plain), make([]byte, 4096)...)) {
			f.Fatalf("%d bytes, %v", len(got), err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 18
		v, err := openVMDK(bytes.NewReader(data), int64(len(data)), limit)
		if err != nil {
			return
		}
		defer v.close()
		n, err := io.Copy(io.Discard, v)
		if n > v.size || v.size > limit || err == nil && n != v.size {
			t.Fatalf("%d of %d bytes, %v", n, v.size, err)
		}
	})
}
