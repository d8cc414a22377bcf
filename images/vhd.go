package images

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/bareyard/bareyard/machine"
)

// A fixed VHD is the disk itself with one more sector behind it, and nothing at its start says so. In a stream, which a compressed
// file is, the footer shows only when all of the disk has gone by: so the last sector is always held back until it is known whether it
// is the disk's. Format: Virtual Hard Disk Image Format Specification 1.0; numbers are big-endian.

const (
	vhdMagic  = "conectix"
	vhdFooter = sectorSize
)

// Kinds of VHD, as the footer numbers them.
const (
	vhdFixed        = 2
	vhdDynamic      = 3
	vhdDifferencing = 4
)

const vhdHint = "convert it: qemu-img convert -O qcow2 IN OUT, or -O vpc -o subformat=fixed,force_size=on"

// disk reads a disk that may have a VHD footer, and leaves that out.
type disk struct {
	r      io.Reader
	buf    []byte // read and not given out: at least the last sector, until the end
	n      int64  // bytes given out
	ended  bool
	footer []byte // what was left out, once all has been read
}

func (d *disk) Read(p []byte) (int, error) {
	if d.buf == nil {
		d.buf = make([]byte, 0, 256<<10)
	}
	for !d.ended && len(d.buf) <= vhdFooter {
		n, err := d.r.Read(d.buf[len(d.buf):cap(d.buf)])
		d.buf = d.buf[:len(d.buf)+n]
		if errors.Is(err, io.EOF) {
			d.ended = true
			if err := d.end(); err != nil {
				return 0, err
			}
		} else if err != nil {
			return 0, err
		}
	}
	ready := len(d.buf)
	if !d.ended {
		ready -= vhdFooter
	}
	if ready == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.buf[:ready])
	d.buf = append(d.buf[:0], d.buf[n:]...)
	d.n += int64(n)
	return n, nil
}

// end looks at what is left when the source has ended.
func (d *disk) end() error {
	size := d.n + int64(len(d.buf)) - vhdFooter
	if size < 0 || !bytes.HasPrefix(d.buf[len(d.buf)-vhdFooter:], []byte(vhdMagic)) {
		return nil
	}
	d.footer = bytes.Clone(d.buf[len(d.buf)-vhdFooter:])
	d.buf = d.buf[:len(d.buf)-vhdFooter]
	return checkVHD(d.footer, size)
}

// checkVHD reads the footer of a VHD behind size bytes.
func checkVHD(footer []byte, size int64) error {
	be := binary.BigEndian
	var sum uint32
	for i, b := range footer {
		if i < 64 || i >= 68 {
			sum += uint32(b)
		}
	}
	if ^sum != be.Uint32(footer[64:]) {
		return vhdError("has a damaged footer: its checksum is wrong")
	}
	if version := be.Uint32(footer[12:]); version>>16 != 1 {
		return vhdError(fmt.Sprintf("has version %d.%d; 1.0 is known", version>>16, version&0xffff))
	}
	switch kind := be.Uint32(footer[60:]); kind {
	case vhdFixed:
	case vhdDynamic:
		return foreignVHD("dynamic")
	case vhdDifferencing:
		return foreignVHD("differencing")
	default:
		return vhdError(fmt.Sprintf("is of the unknown kind %d", kind))
	}
	if claimed := be.Uint64(footer[48:]); claimed != uint64(size) {
		return vhdError(fmt.Sprintf("claims a disk of %d bytes and has %d: it is damaged or cut short", claimed, size))
	}
	return nil
}

// headVHD says what a VHD is whose footer's copy is at its start: no fixed one.
func headVHD(head []byte) error {
	if len(head) >= vhdFooter && binary.BigEndian.Uint32(head[60:]) == vhdDifferencing {
		return foreignVHD("differencing")
	}
	return foreignVHD("dynamic")
}

func foreignVHD(kind string) error {
	e := &machine.Error{Code: machine.Invalid, Field: "file", Message: fmt.Sprintf("the file is a %s VHD image, and only fixed ones are read here", kind), Hint: vhdHint}
	if kind == "differencing" {
		e.Message = "the file is a differencing VHD image: it is only the difference to another file on its author's host"
		e.Hint = "make it whole there: qemu-img convert -O qcow2 IN OUT"
	}
	return e
}

func vhdError(what string) error {
	return fileError("the VHD image "+what, "fetch the file again and compare its digest with the publisher's")
}
