package images

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/bareyard/bareyard/machine"
)

// The qcow2 reader is our own because it must refuse what others follow: a backing file or an external data file names a path on this host
// (field case F07), and a library that opens it hands that file's bytes to the author of the image. This one is given one
// io.ReaderAt and has no way to open anything. It reads versions 2 and 3 with zlib and zstd clusters; internal snapshots are ignored.
// Format: docs/interop/qcow2.txt of QEMU.

const (
	qcow2Magic     = "QFI\xfb"
	qcow2HeaderMin = 72
	qcow2HeaderV3  = 104
)

// Incompatible feature bits of version 3.
const (
	qcow2Dirty        = 1 << 0 // reference counts may be stale; the data is whole
	qcow2Corrupt      = 1 << 1
	qcow2ExternalData = 1 << 2
	qcow2Compression  = 1 << 3 // the compression field counts
	qcow2ExtendedL2   = 1 << 4
)

const (
	qcow2OffsetMask = 0x00fffffffffffe00
	qcow2MaxL1      = 32 << 20 // bytes, QEMU's own bound
)

// qcow2 reads the guest's disk out of a qcow2 file, from start to end.
type qcow2 struct {
	r        io.ReaderAt
	fileSize int64
	size     int64 // bytes of the guest's disk
	bits     uint  // log2 of the cluster size
	flate    io.ReadCloser
	zstd     *zstd.Decoder
	l1       []uint64

	at      int64  // guest offset of the next byte
	l2      []byte // the L2 table of the cluster at
	l2Index int64  // its place in l1; -1 for none
	cluster []byte // what is left of the cluster at
	buf     []byte
	packed  []byte
}

// openQcow2 checks the header and loads the first-level table. maxSize bounds the guest's disk in bytes.
func openQcow2(r io.ReaderAt, fileSize, maxSize int64) (*qcow2, error) {
	head := make([]byte, qcow2HeaderV3+1)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read qcow2 header: %w", err)
	}
	head = head[:n]
	if n < qcow2HeaderMin || string(head[:4]) != qcow2Magic {
		return nil, qcow2Error("has no complete header")
	}
	be := binary.BigEndian
	version := be.Uint32(head[4:])
	if version != 2 && version != 3 {
		return nil, qcow2Error(fmt.Sprintf("has version %d; 2 and 3 are known", version))
	}
	if be.Uint64(head[8:]) != 0 || be.Uint32(head[16:]) != 0 {
		return nil, &machine.Error{
			Code: machine.Invalid, Field: "file",
			Message: "the qcow2 image has a backing file: it is only the difference to another file on its author's host",
			Hint:    "flatten it there: qemu-img convert -O qcow2 IN OUT",
		}
	}
	q := &qcow2{r: r, fileSize: fileSize, bits: uint(be.Uint32(head[20:])), size: int64(be.Uint64(head[24:])), l2Index: -1}
	switch {
	case q.bits < 9 || q.bits > 21:
		return nil, qcow2Error(fmt.Sprintf("has clusters of 2^%d bytes", q.bits))
	case q.size <= 0 || q.size > maxSize:
		return nil, sizeError(uint64(q.size), maxSize)
	case q.size%sectorSize != 0:
		return nil, qcow2Error(fmt.Sprintf("has a disk of %d bytes, no multiple of 512", q.size))
	case be.Uint32(head[32:]) != 0:
		return nil, qcow2Error("is encrypted")
	}
	if version == 3 {
		if err := q.features(head); err != nil {
			return nil, err
		}
	}
	if err := q.loadL1(int64(be.Uint64(head[40:])), int64(be.Uint32(head[36:]))); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// features reads what version 3 adds to the header.
func (q *qcow2) features(head []byte) error {
	be := binary.BigEndian
	if len(head) < qcow2HeaderV3 {
		return qcow2Error("has no complete header")
	}
	incompatible, length := be.Uint64(head[72:]), be.Uint32(head[100:])
	switch {
	case incompatible&qcow2ExternalData != 0:
		return &machine.Error{
			Code: machine.Invalid, Field: "file",
			Message: "the qcow2 image keeps its data in another file on its author's host",
			Hint:    "make it whole there: qemu-img convert -O qcow2 IN OUT",
		}
	case incompatible&qcow2Corrupt != 0:
		return qcow2Error("is marked corrupt")
	case incompatible&qcow2ExtendedL2 != 0:
		return &machine.Error{
			Code: machine.Invalid, Field: "file", Message: "the qcow2 image has subclusters, which are not read here",
			Hint: "convert it: qemu-img convert -O qcow2 IN OUT",
		}
	case incompatible&^(qcow2Dirty|qcow2Compression) != 0:
		return qcow2Error(fmt.Sprintf("asks for unknown features %#x", incompatible))
	case length < qcow2HeaderV3 || int64(length) > int64(1)<<q.bits:
		return qcow2Error(fmt.Sprintf("has a header of %d bytes", length))
	}
	if incompatible&qcow2Compression == 0 {
		return nil
	}
	if length <= qcow2HeaderV3 || len(head) <= qcow2HeaderV3 {
		return qcow2Error("names no compression")
	}
	switch kind := head[qcow2HeaderV3]; kind {
	case 0:
	case 1:
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<22), zstd.WithDecoderMaxWindow(1<<22))
		if err != nil {
			return fmt.Errorf("make zstd decoder: %w", err)
		}
		q.zstd = dec
	default:
		return qcow2Error(fmt.Sprintf("has compression %d; 0 (zlib) and 1 (zstd) are known", kind))
	}
	return nil
}

func (q *qcow2) loadL1(offset, entries int64) error {
	perL1 := int64(1) << (q.bits + q.bits - 3) // guest bytes under one entry
	need := (q.size + perL1 - 1) / perL1
	switch {
	case entries < need:
		return qcow2Error(fmt.Sprintf("has %d first-level entries for a disk that needs %d", entries, need))
	case need*8 > qcow2MaxL1:
		return qcow2Error("has a first-level table of more than 32 MiB")
	case offset <= 0 || offset%(1<<q.bits) != 0 || offset > q.fileSize-need*8:
		return qcow2Error("has its first-level table outside of the file: it is damaged or cut short")
	}
	raw := make([]byte, need*8)
	if _, err := q.r.ReadAt(raw, offset); err != nil {
		return fmt.Errorf("read qcow2 first-level table: %w", err)
	}
	q.l1 = make([]uint64, need)
	for i := range q.l1 {
		q.l1[i] = binary.BigEndian.Uint64(raw[i*8:])
	}
	q.l2 = make([]byte, 1<<q.bits)
	q.buf = make([]byte, 1<<q.bits)
	return nil
}

func (q *qcow2) length() int64 { return q.size }

func (q *qcow2) close() {
	if q.zstd != nil {
		q.zstd.Close()
	}
}

// Read gives the guest's disk in order.
func (q *qcow2) Read(p []byte) (int, error) {
	if len(q.cluster) == 0 {
		if q.at >= q.size {
			return 0, io.EOF
		}
		if err := q.load(q.at); err != nil {
			return 0, err
		}
		q.cluster = q.buf[:min(int64(len(q.buf)), q.size-q.at)]
		q.at += int64(len(q.cluster))
	}
	n := copy(p, q.cluster)
	q.cluster = q.cluster[n:]
	return n, nil
}

// load fills buf with the cluster at a guest offset.
func (q *qcow2) load(guest int64) error {
	index := guest >> q.bits
	perL2 := int64(1) << (q.bits - 3)
	l1 := index / perL2
	if q.l1[l1]&qcow2OffsetMask == 0 {
		clear(q.buf)
		return nil
	}
	if q.l2Index != l1 {
		if err := q.readCluster(q.l2, int64(q.l1[l1]&qcow2OffsetMask), "second-level table"); err != nil {
			return err
		}
		q.l2Index = l1
	}
	entry := binary.BigEndian.Uint64(q.l2[index%perL2*8:])
	switch {
	case entry>>62&1 == 1:
		return q.inflate(entry)
	case entry&1 == 1 || entry&qcow2OffsetMask == 0: // zero flag, or not allocated
		clear(q.buf)
		return nil
	}
	return q.readCluster(q.buf, int64(entry&qcow2OffsetMask), "cluster")
}

// readCluster reads a whole cluster. QEMU may leave the last one of a file short; the rest of it is zero.
func (q *qcow2) readCluster(dst []byte, offset int64, what string) error {
	if offset%int64(len(dst)) != 0 || offset >= q.fileSize {
		return qcow2Error(fmt.Sprintf("has a %s outside of the file: it is damaged or cut short", what))
	}
	n, err := q.r.ReadAt(dst, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read qcow2 %s: %w", what, err)
	}
	clear(dst[n:])
	return nil
}

// inflate unpacks the cluster that a compressed entry describes: a byte offset, and how many further 512-byte sectors it may reach into.
func (q *qcow2) inflate(entry uint64) error {
	x := 62 - (q.bits - 8)
	offset := int64(entry & (1<<x - 1))
	sectors := int64(entry&(1<<62-1)) >> x
	length := (sectors+1)*sectorSize - offset%sectorSize
	if offset >= q.fileSize {
		return qcow2Error("has a cluster outside of the file: it is damaged or cut short")
	}
	length = min(length, q.fileSize-offset)
	if int64(cap(q.packed)) < length {
		q.packed = make([]byte, length)
	}
	q.packed = q.packed[:length]
	if _, err := q.r.ReadAt(q.packed, offset); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read qcow2 cluster: %w", err)
	}
	var src io.Reader
	if q.zstd != nil {
		if err := q.zstd.Reset(bytes.NewReader(q.packed)); err != nil {
			return qcow2Error(fmt.Sprintf("has a damaged cluster: %v", err))
		}
		src = q.zstd
	} else {
		if q.flate == nil {
			q.flate = flate.NewReader(nil)
		}
		if err := q.flate.(flate.Resetter).Reset(bytes.NewReader(q.packed), nil); err != nil {
			return qcow2Error(fmt.Sprintf("has a damaged cluster: %v", err))
		}
		src = q.flate
	}
	if _, err := io.ReadFull(src, q.buf); err != nil {
		return qcow2Error(fmt.Sprintf("has a damaged cluster: %v", err))
	}
	return nil
}

func qcow2Error(what string) error {
	return fileError("the qcow2 image "+what, "check it where it was made: qemu-img check IN")
}

func sizeError(size uint64, limit int64) error {
	return &machine.Error{
		Code: machine.Invalid, Field: "file",
		Message: fmt.Sprintf("the image claims a disk of %d bytes; between 1 and %d are taken", size, limit),
		Hint:    "an operating system needs a few GB: see what was fetched, or raise the limit",
	}
}
