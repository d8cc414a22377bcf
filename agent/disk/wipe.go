package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// edge is how much is zeroed at both ends of a disk and of each partition: more than any superblock, label or table keeps
// away from the end (md 1.0 and 0.90, backup GPT, LVM's second metadata area, ZFS labels, IMSM and DDF).
const edge = 4 << 20

// Wipe takes down what is built on the disks and erases the signatures and tables that would bring it back, on the disks and
// on every partition of them, and makes sure of it (F03). It leaves the data between: that is what Erase is for.
func (s Set) Wipe(ctx context.Context, disks []machine.Disk) error {
	if len(disks) == 0 {
		return errors.New("wipe: no disks named")
	}
	for _, want := range disks { // refuse all before touching one
		if _, err := s.find(want); err != nil {
			return err
		}
	}
	for _, want := range disks {
		if err := s.wipe(ctx, want); err != nil {
			return fmt.Errorf("wipe disk %s: %w", want.Serial, err)
		}
	}
	return nil
}

func (s Set) wipe(ctx context.Context, want machine.Disk) error {
	found, err := s.find(want)
	if err != nil {
		return err
	}
	if err := s.release(found); err != nil {
		return err
	}
	d, err := s.open(want, true)
	if err != nil {
		return err
	}
	defer d.Close()
	spans := edges(d)
	for _, r := range spans {
		if err := d.zero(ctx, r.off, r.n, func(int64) {}); err != nil {
			return err
		}
	}
	if err := d.sync(); err != nil {
		return err
	}
	if err := d.rescan(ctx); err != nil {
		return err
	}
	if err := d.drop(); err != nil {
		return err
	}
	for _, r := range spans {
		clean, err := d.isZero(ctx, r.off, r.n, func(int64) {})
		if err != nil {
			return err
		}
		if !clean {
			return fmt.Errorf("%d bytes at %d are not zero after zeroing", r.n, r.off)
		}
	}
	return nil
}

// span is a stretch of a disk in bytes.
type span struct{ off, n int64 }

// edges returns both ends of a disk and of each of its partitions, aligned to the block size and within the disk, whatever
// a damaged table claims.
func edges(d *device) []span {
	var spans []span
	add := func(off, end int64) {
		block := int64(d.block)
		off, end = max(off, 0)/block*block, min((end+block-1)/block*block, d.Size)
		if off < end {
			spans = append(spans, span{off, end - off})
		}
	}
	for _, p := range append([]Part{{Size: d.Size}}, d.Parts...) {
		end := p.Start + p.Size
		add(p.Start, min(p.Start+edge, end))
		add(max(end-edge, p.Start), end)
	}
	return spans
}

// rescan makes the kernel forget the partitions of before.
func (d *device) rescan(ctx context.Context) error {
	for try := 1; ; try++ {
		err := unix.IoctlSetInt(int(d.f.Fd()), unix.BLKRRPART, 0)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL): // EINVAL: a disk that takes no partitions
			return nil
		case !errors.Is(err, unix.EBUSY) || try == 20:
			return fmt.Errorf("read partition table of disk %s: %w", d.Serial, err)
		}
		select { // somebody looks at a partition, for a moment only
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
