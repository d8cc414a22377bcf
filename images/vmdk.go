package images

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The VMDK reader takes images that are one file: streamOptimized, as OVAs hold them, and monolithicSparse. Like the qcow2 reader it is
// given one io.ReaderAt and has no way to open anything; what the descriptor inside names is checked all the same, because an image whose
// data is elsewhere is not whole (field case F07). Format: VMware Virtual Disk Format 5.0; numbers are little-endian.

const (
	vmdkMagic       = "KDMV"
	vmdkGDAtEnd     = ^uint64(0)
	vmdkMaxGD       = 32 << 20 // bytes
	vmdkMaxGrain    = 4096     // sectors: 2 MiB, thirty times what all known writers use
	vmdkMaxGTEs     = 512
	vmdkMarkFooter  = 3
	vmdkGrainMarker = 12 // bytes before the data of a compressed grain
)

// Flags of the header.
const (
	vmdkNewlines   = 1 << 0
	vmdkZeroGrains = 1 << 2 // an entry of 1 is a grain of zeros
	vmdkCompressed = 1 << 16
	vmdkMarkers    = 1 << 17
)

// vmdk reads the guest's disk out of a VMDK file, from start to end.
type vmdk struct {
	r        io.ReaderAt
	fileSize int64
	size     int64 // bytes of the guest's disk
	grain    int64 // bytes
	entries  int64 // of a grain table
	packed   bool
	zeros    bool // an entry of 1 means zeros
	gd       []uint32

	at      int64  // guest offset of the next byte
	table   []byte // the grain table of the grain at
	tableOf int64  // its place in gd; -1 for none
	left    []byte // what is left of the grain at
	buf     []byte // one byte longer than a grain, to notice what does not end
	stored  []byte
	zlib    io.ReadCloser
}

// vmdkHeader is a sparse extent's header, or the copy of it at the end of a stream.
type vmdkHeader struct {
	version, flags          uint32
	capacity, grain         uint64 // sectors
	descriptorAt, described uint64 // sectors
	entries                 uint32
	directory               uint64 // sector
	newlines                string
	compression             uint16
}

func parseVMDK(b []byte) vmdkHeader {
	le := binary.LittleEndian
	return vmdkHeader{
		version: le.Uint32(b[4:]), flags: le.Uint32(b[8:]), capacity: le.Uint64(b[12:]), grain: le.Uint64(b[20:]),
		descriptorAt: le.Uint64(b[28:]), described: le.Uint64(b[36:]), entries: le.Uint32(b[44:]), directory: le.Uint64(b[56:]),
		newlines: string(b[73:77]), compression: le.Uint16(b[77:]),
	}
}

// openVMDK checks header, descriptor and footer, and loads the grain directory. maxSize bounds the guest's disk in bytes.
func openVMDK(r io.ReaderAt, fileSize, maxSize int64) (*vmdk, error) {
	v := &vmdk{r: r, fileSize: fileSize, tableOf: -1}
	head := make([]byte, sectorSize)
	if err := v.readAt(head, 0, "header"); err != nil {
		return nil, err
	}
	if string(head[:4]) != vmdkMagic {
		return nil, vmdkError("has no header")
	}
	h := parseVMDK(head)
	if err := h.check(maxSize); err != nil {
		return nil, err
	}
	if err := v.descriptor(h); err != nil {
		return nil, err
	}
	if h.directory == vmdkGDAtEnd {
		end, err := v.footer()
		if err != nil {
			return nil, err
		}
		if end.version != h.version || end.flags != h.flags || end.capacity != h.capacity || end.grain != h.grain || end.entries != h.entries || end.compression != h.compression {
			return nil, vmdkError("has a footer that is not the header's: it is damaged")
		}
		h.directory = end.directory
	}
	v.size, v.grain, v.entries = int64(h.capacity)*sectorSize, int64(h.grain)*sectorSize, int64(h.entries)
	v.packed, v.zeros = h.flags&vmdkCompressed != 0, h.flags&vmdkZeroGrains != 0
	if err := v.loadDirectory(h.directory); err != nil {
		return nil, err
	}
	v.table = make([]byte, v.entries*4)
	v.buf = make([]byte, v.grain+1)
	return v, nil
}

func (h vmdkHeader) check(maxSize int64) error {
	switch {
	case h.version < 1 || h.version > 3:
		return vmdkError(fmt.Sprintf("has version %d; 1 to 3 are known", h.version))
	case h.flags&vmdkNewlines != 0 && h.newlines != "\n \r\n":
		return vmdkError("went through a transfer that changed line ends: it is damaged")
	case h.capacity == 0 || h.capacity > uint64(maxSize)/sectorSize:
		return sizeError(min(h.capacity, 1<<54)*sectorSize, maxSize)
	case h.grain == 0 || h.grain > vmdkMaxGrain || h.grain&(h.grain-1) != 0:
		return vmdkError(fmt.Sprintf("has grains of %d sectors", h.grain))
	case h.entries == 0 || h.entries > vmdkMaxGTEs:
		return vmdkError(fmt.Sprintf("has grain tables of %d entries", h.entries))
	case h.flags&vmdkCompressed == 0 && h.flags&vmdkMarkers != 0, h.flags&vmdkCompressed != 0 && h.flags&vmdkMarkers == 0:
		return vmdkError("is compressed without markers, or has them without being compressed")
	case h.flags&vmdkCompressed != 0 && h.compression != 1:
		return vmdkError(fmt.Sprintf("has compression %d; 1 (deflate) is known", h.compression))
	}
	return nil
}

// footer reads the copy of the header before the end of a stream, which knows where the directory is: a marker, the copy, an end marker.
func (v *vmdk) footer() (vmdkHeader, error) {
	end := make([]byte, 3*sectorSize)
	if v.fileSize < int64(len(end))+sectorSize {
		return vmdkHeader{}, vmdkError("has no footer: it is cut short")
	}
	if err := v.readAt(end, v.fileSize-int64(len(end)), "footer"); err != nil {
		return vmdkHeader{}, err
	}
	le := binary.LittleEndian
	mark, last := end[:sectorSize], end[2*sectorSize:]
	if le.Uint64(mark) != 1 || le.Uint32(mark[8:]) != 0 || le.Uint32(mark[12:]) != vmdkMarkFooter || string(end[sectorSize:sectorSize+4]) != vmdkMagic || !isZero(last[:16]) {
		return vmdkHeader{}, vmdkError("has no footer: it is damaged or cut short")
	}
	h := parseVMDK(end[sectorSize:])
	if h.directory == vmdkGDAtEnd {
		return vmdkHeader{}, vmdkError("has a footer that does not say where its grain directory is")
	}
	return h, nil
}

func (v *vmdk) loadDirectory(sector uint64) error {
	perTable := v.grain * v.entries
	count := (v.size + perTable - 1) / perTable
	if count*4 > vmdkMaxGD {
		return vmdkError("has a grain directory of more than 32 MiB")
	}
	raw := make([]byte, count*4)
	if err := v.readSector(raw, sector, "grain directory"); err != nil {
		return err
	}
	v.gd = make([]uint32, count)
	for i := range v.gd {
		v.gd[i] = binary.LittleEndian.Uint32(raw[i*4:])
	}
	return nil
}

// readSector fills b from a sector of the file on.
func (v *vmdk) readSector(b []byte, sector uint64, what string) error {
	if sector == 0 || sector > uint64(v.fileSize)/sectorSize {
		return vmdkOutside(what)
	}
	return v.readAt(b, int64(sector)*sectorSize, what)
}

func (v *vmdk) readAt(b []byte, offset int64, what string) error {
	if offset > v.fileSize-int64(len(b)) {
		return vmdkOutside(what)
	}
	if n, err := v.r.ReadAt(b, offset); n < len(b) {
		return fmt.Errorf("read VMDK %s: %w", what, err)
	}
	return nil
}

func (v *vmdk) close() {}

func (v *vmdk) length() int64 { return v.size }

// Read gives the guest's disk in order.
func (v *vmdk) Read(p []byte) (int, error) {
	if len(v.left) == 0 {
		if v.at >= v.size {
			return 0, io.EOF
		}
		if err := v.load(v.at / v.grain); err != nil {
			return 0, err
		}
		v.left = v.buf[:min(v.grain, v.size-v.at)]
		v.at += int64(len(v.left))
	}
	n := copy(p, v.left)
	v.left = v.left[n:]
	return n, nil
}

// load fills buf with a grain.
func (v *vmdk) load(index int64) error {
	directory := index / v.entries
	if v.gd[directory] == 0 {
		clear(v.buf)
		return nil
	}
	if v.tableOf != directory {
		if err := v.readSector(v.table, uint64(v.gd[directory]), "grain table"); err != nil {
			return err
		}
		v.tableOf = directory
	}
	entry := binary.LittleEndian.Uint32(v.table[index%v.entries*4:])
	switch {
	case entry == 0 || entry == 1 && v.zeros:
		clear(v.buf)
		return nil
	case v.packed:
		return v.inflate(uint64(entry), index)
	}
	return v.readSector(v.buf[:v.grain], uint64(entry), "grain")
}

// inflate unpacks a compressed grain: the sector of the disk that it begins at, how many bytes follow, and those.
func (v *vmdk) inflate(sector uint64, index int64) error {
	marker := make([]byte, vmdkGrainMarker)
	if err := v.readSector(marker, sector, "grain"); err != nil {
		return err
	}
	lba, length := binary.LittleEndian.Uint64(marker), int64(binary.LittleEndian.Uint32(marker[8:]))
	switch {
	case lba != uint64(index*v.grain/sectorSize):
		return vmdkError("has a grain in another one's place: it is damaged")
	case length == 0 || length > v.grain+v.grain/8+1024:
		return vmdkError(fmt.Sprintf("has a grain of %d compressed bytes", length))
	}
	if int64(cap(v.stored)) < length {
		v.stored = make([]byte, length)
	}
	v.stored = v.stored[:length]
	if err := v.readAt(v.stored, int64(sector)*sectorSize+vmdkGrainMarker, "grain"); err != nil {
		return err
	}
	var err error
	if src := bytes.NewReader(v.stored); v.zlib == nil {
		v.zlib, err = zlib.NewReader(src)
	} else {
		err = v.zlib.(zlib.Resetter).Reset(src, nil)
	}
	if err != nil {
		return vmdkError(fmt.Sprintf("has a damaged grain: %v", err))
	}
	n, err := fill(v.zlib, v.buf)
	switch {
	case err == nil:
		return vmdkError("has a grain that unpacks to more than its size")
	case !errors.Is(err, io.EOF) || int64(n) < min(v.grain, v.size-index*v.grain):
		return vmdkError(fmt.Sprintf("has a damaged grain: %d bytes, %v", n, err))
	}
	return nil
}

func vmdkOutside(what string) error {
	return vmdkError("has its " + what + " outside of the file: it is damaged or cut short")
}

func vmdkError(what string) error {
	return fileError("the VMDK image "+what, "fetch the file again and compare its digest with the publisher's")
}
