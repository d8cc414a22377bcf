package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// Set is the disks of a machine.
type Set struct {
	Sys string       // where sysfs is, usually /sys
	Dev string       // where the device nodes are, usually /dev
	Log *slog.Logger // never nil

	sums     *sums    // of what Write wrote; nil in a Set that was not made by New
	protocol protocol // nil: the kernel
}

// New returns the disks of this machine.
func New(log *slog.Logger) Set {
	return Set{Sys: "/sys", Dev: "/dev", Log: log, sums: newSums()}
}

// ioSize is the size of one request, and so the longest stretch between two looks at the context.
const ioSize = 4 << 20

// align is enough for every block size in use.
const align = 4096

// device is an open disk. Reads and writes bypass the page cache, so that an error shows up where it happens.
type device struct {
	Disk
	f        *os.File
	block    int // logical block size, bytes
	protocol protocol
}

// open finds a disk by its serial number, opens it exclusively and makes sure, on the open file, that it is still the one
// that was found: device number, size and serial number (F01). From here on the kernel's names do not matter.
func (s Set) open(want machine.Disk, write bool) (*device, error) {
	found, err := s.find(want)
	if err != nil {
		return nil, err
	}
	flags := unix.O_DIRECT | unix.O_EXCL
	if write {
		flags |= os.O_RDWR
	}
	f, err := os.OpenFile(s.node(found.Name), flags, 0)
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", want.Serial, err)
	}
	d := &device{Disk: found, f: f, protocol: s.protocol}
	if d.protocol == nil {
		d.protocol = kernel{}
	}
	if err := s.check(d); err != nil {
		f.Close() // the check's error matters
		return nil, err
	}
	return d, nil
}

// check compares an open disk with what was found.
func (s Set) check(d *device) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.f.Fd()), &st); err != nil {
		return fmt.Errorf("check disk %s: %w", d.Serial, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != d.Dev {
		return agent.Fatal(fmt.Errorf("check disk %s: %s is not device %d:%d any more", d.Serial, d.Name, unix.Major(d.Dev), unix.Minor(d.Dev)))
	}
	var size uint64
	if err := ioctl(d.f, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return fmt.Errorf("check disk %s: read size: %w", d.Serial, err)
	}
	block, err := unix.IoctlGetInt(int(d.f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("check disk %s: read block size: %w", d.Serial, err)
	}
	d.block = block
	now, err := s.read(filepath.Base(d.Name))
	if err != nil {
		return fmt.Errorf("check disk %s: %w", d.Serial, err)
	}
	if now.Serial != d.Serial || now.Dev != d.Dev || now.Size != d.Size || int64(size) != d.Size {
		return agent.Fatal(fmt.Errorf("check disk %s: it changed under us: now %s, %d bytes", d.Serial, now.Serial, size))
	}
	return nil
}

func (d *device) Close() error { return d.f.Close() }

// sync writes out what the page cache and the disk's own cache hold.
func (d *device) sync() error {
	if err := d.f.Sync(); err != nil {
		return fmt.Errorf("flush disk %s: %w", d.Serial, err)
	}
	return nil
}

// drop forgets what the page cache holds of the disk.
func (d *device) drop() error {
	if err := unix.IoctlSetInt(int(d.f.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("drop cache of disk %s: %w", d.Serial, err)
	}
	return nil
}

// readAt fills buf, which is aligned and a multiple of the block size.
func (d *device) readAt(buf []byte, off int64) error {
	if n, err := d.f.ReadAt(buf, off); err != nil && !(errors.Is(err, io.EOF) && n == len(buf)) {
		return fmt.Errorf("read disk %s at %d: %w", d.Serial, off, err)
	}
	return nil
}

// writeAt writes buf, which is aligned and a multiple of the block size.
func (d *device) writeAt(buf []byte, off int64) error {
	if _, err := d.f.WriteAt(buf, off); err != nil {
		return fmt.Errorf("write disk %s at %d: %w", d.Serial, off, err)
	}
	return nil
}

// zeroPiece is how much one BLKZEROOUT is asked to do: some disks take seconds for it, and a power-off must not wait.
const zeroPiece = 64 << 20

// zero makes a range, aligned to the block size, read as zeros: by the disk's own command where it has one, else by writing.
func (d *device) zero(ctx context.Context, off, n int64, wrote func(int64)) error {
	var zeroed int64
	if err := d.zeroOut(ctx, off, n, func(n int64) { zeroed += n; wrote(n) }); err == nil || ctx.Err() != nil {
		return err
	}
	return d.overwrite(ctx, off+zeroed, n-zeroed, wrote)
}

// zeroOut zeroes a range by BLKZEROOUT.
func (d *device) zeroOut(ctx context.Context, off, n int64, wrote func(int64)) error {
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := min(n, zeroPiece)
		span := [2]uint64{uint64(off), uint64(piece)}
		if err := ioctl(d.f, unix.BLKZEROOUT, unsafe.Pointer(&span)); err != nil {
			return fmt.Errorf("zero disk %s at %d: %w", d.Serial, off, err)
		}
		wrote(piece)
		off, n = off+piece, n-piece
	}
	return nil
}

// overwrite writes zeros, block by block.
func (d *device) overwrite(ctx context.Context, off, n int64, wrote func(int64)) error {
	zeros := aligned(int(min(n, ioSize)))
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := min(n, ioSize)
		if err := d.writeAt(zeros[:piece], off); err != nil {
			return err
		}
		wrote(piece)
		off, n = off+piece, n-piece
	}
	return nil
}

// isZero reports whether a range, aligned to the block size, reads as zeros.
func (d *device) isZero(ctx context.Context, off, n int64, read func(int64)) (bool, error) {
	buf := aligned(int(min(n, ioSize)))
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		piece := min(n, ioSize)
		if err := d.readAt(buf[:piece], off); err != nil {
			return false, err
		}
		if !allZero(buf[:piece]) {
			return false, nil
		}
		read(piece)
		off, n = off+piece, n-piece
	}
	return true, nil
}

// allZero reports whether b holds nothing but zeros, eight bytes at a time; b is aligned.
func allZero(b []byte) bool {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	for _, w := range words {
		if w != 0 {
			return false
		}
	}
	for _, c := range b[len(b)&^7:] {
		if c != 0 {
			return false
		}
	}
	return true
}

// aligned returns a zeroed buffer that O_DIRECT takes.
func aligned(n int) []byte {
	buf := make([]byte, n+align)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) & (align - 1)
	return buf[skip : skip+n : skip+n]
}

// ioctl calls an ioctl that takes a pointer.
func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// hdioGetIdentity is HDIO_GET_IDENTITY of linux/hdreg.h: the ATA IDENTIFY block, strings in reading order.
const hdioGetIdentity = 0x030d

// ataSerial asks an ATA disk for its serial number, words 10 to 19 of IDENTIFY; "" when it is not one.
func ataSerial(node string) string {
	f, err := os.OpenFile(node, unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	var id [512]byte
	if err := ioctl(f, hdioGetIdentity, unsafe.Pointer(&id)); err != nil {
		return ""
	}
	return string(id[20:40])
}
