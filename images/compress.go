package images

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz"

	"github.com/bareyard/bareyard/machine"
)

// compression names a compression by what the first bytes say; file names do not count.
type compression string

const (
	uncompressed compression = ""
	gzipped      compression = "gzip"
	xzed         compression = "xz"
	zstded       compression = "zstd"
	bzipped      compression = "bzip2"
	lz4ed        compression = "lz4"
)

var compressionMagic = []struct {
	magic string
	kind  compression
}{
	{"\x1f\x8b\x08", gzipped},
	{"\xfd7zXZ\x00", xzed},
	{"\x28\xb5\x2f\xfd", zstded},
	{"\x04\x22\x4d\x18", lz4ed},
}

// compressionOf returns how a file that begins with head is compressed.
func compressionOf(head []byte) compression {
	for _, m := range compressionMagic {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return m.kind
		}
	}
	// pzstd begins with a skippable frame. lz4 may too; nobody is known to do so.
	if len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18}) {
		return zstded
	}
	// "BZh", a level and the magic of a block: three letters alone might be a boot sector.
	if len(head) >= 10 && bytes.HasPrefix(head, []byte("BZh")) && head[3] >= '1' && head[3] <= '9' && bytes.Equal(head[4:10], []byte{0x31, 0x41, 0x59, 0x26, 0x53, 0x59}) {
		return bzipped
	}
	return uncompressed
}

// unpacker reads a compressed stream.
type unpacker struct {
	r     io.Reader
	kind  compression
	src   *sourceErr
	close func()
}

// sourceErr remembers an error of the source, so that a disk that fails is not taken for a damaged image.
type sourceErr struct {
	r   io.Reader
	err error
}

func (s *sourceErr) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err == nil || err == io.EOF { //nolint:errorlint // a decompressor that wraps io.EOF means damage
		return n, err
	}
	return n, u.explain(err)
}

func (u *unpacker) explain(err error) error {
	switch {
	case u.src.err != nil:
		return u.src.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fileError("a later part of the image is compressed with a longer window than may be used here", windowHint)
	case u.kind == uncompressed:
		return err
	}
	return damaged(u.kind, err)
}

const windowHint = "compress it again without --long or --ultra, or allow a larger window"

// unpack returns a reader of what r holds, unpacked once. maxWindow bounds the memory in bytes that the stream may make us
// hold. The header is looked at first: an image compressed with a longer window is refused with the figure (field case F11).
func unpack(from io.Reader, kind compression, maxWindow uint64) (*unpacker, error) {
	src := &sourceErr{r: from}
	r := bufio.NewReaderSize(src, 256<<10)
	u := &unpacker{r: r, kind: kind, src: src, close: func() {}}
	head, _ := r.Peek(64)
	switch kind {
	case gzipped:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, u.explain(err)
		}
		u.r, u.close = z, func() { z.Close() }
	case xzed:
		if need := xzDictionary(head); need > maxWindow {
			return nil, windowError(kind, need, maxWindow)
		}
		z, err := xz.NewReader(r)
		if err != nil {
			return nil, u.explain(err)
		}
		u.r = z
	case zstded:
		if need := zstdWindow(head); need > maxWindow {
			return nil, windowError(kind, need, maxWindow)
		}
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<63), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, u.explain(err)
		}
		u.r, u.close = z, z.Close
	case bzipped:
		u.r = bzip2.NewReader(r)
	case lz4ed:
		u.r = lz4Frames{r, lz4.NewReader(r)}
	}
	return u, nil
}

// lz4Frames reads concatenated frames, which the lz4 package takes for the end after the first.
type lz4Frames struct {
	src *bufio.Reader
	z   *lz4.Reader
}

func (l lz4Frames) Read(p []byte) (int, error) {
	for {
		n, err := l.z.Read(p)
		if err != io.EOF || n > 0 {
			return n, err
		}
		if _, err := l.src.Peek(1); err != nil {
			return 0, err
		}
		l.z.Reset(l.src)
	}
}

// zstdWindow returns the window in bytes that the first frame of a stream asks for; 0 when head does not say.
func zstdWindow(head []byte) uint64 {
	var h zstd.Header
	if h.Decode(head) != nil || h.Skippable {
		return 0
	}
	if h.SingleSegment {
		return h.FrameContentSize
	}
	return h.WindowSize
}

// xzDictionary returns the dictionary in bytes that the first block of a stream asks for (the .xz file format 1.2.1, sections 3.1
// and 5.3.1); 0 when head does not say.
func xzDictionary(head []byte) uint64 {
	if len(head) < 12+2 {
		return 0
	}
	size, flags, rest := (int(head[12])+1)*4, head[13], head[14:]
	if size < len(rest) {
		rest = rest[:size]
	}
	number := func() (n uint64) {
		for shift := 0; len(rest) > 0 && shift < 63; shift += 7 {
			b := rest[0]
			rest = rest[1:]
			n |= uint64(b&0x7f) << shift
			if b < 0x80 {
				break
			}
		}
		return n
	}
	for _, sized := range []byte{0x40, 0x80} {
		if flags&sized != 0 {
			number()
		}
	}
	for range int(flags&3) + 1 {
		id, length := number(), number()
		if length > uint64(len(rest)) {
			return 0
		}
		if id == 0x21 && length == 1 {
			bits := rest[0]
			if bits > 40 {
				return 0
			}
			return uint64(2|bits&1) << (bits/2 + 11)
		}
		rest = rest[length:]
	}
	return 0
}

func windowError(kind compression, need, limit uint64) error {
	return &machine.Error{
		Code:    machine.Invalid,
		Field:   "file",
		Message: fmt.Sprintf("the image is compressed with a %s window of %d MiB, more than the %d MiB that may be used here", kind, (need+1<<20-1)>>20, limit>>20),
		Hint:    windowHint,
	}
}

func damaged(kind compression, err error) error {
	return &machine.Error{
		Code:    machine.Invalid,
		Field:   "file",
		Message: fmt.Sprintf("the %s data is damaged or cut short: %v", kind, err),
		Hint:    "fetch the file again and compare its digest with the publisher's",
	}
}
