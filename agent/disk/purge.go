package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/bareyard/bareyard/machine"
)

// selfErase is a way in which a disk erases itself.
type selfErase struct {
	name  string
	level machine.ErasureLevel // that NIST SP 800-88 gives it
	run   func(ctx context.Context, share func(done float64)) error
}

// errEraseFailed says that a disk took the command and did not carry it out.
var errEraseFailed = errors.New("the disk failed to erase itself")

// refusal says that a disk, or the kernel, did not take a command: it has done nothing.
type refusal struct{ error }

// outcome judges a command that erases: what was not refused has begun.
func outcome(err error) error {
	if refused := (refusal{}); err == nil || errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("%w: %w", errEraseFailed, err)
}

// purge has the disk erase itself. It returns the method, with name "" when there is none, and why no stronger one was used. An error means
// that the disk cannot be trusted any more. It counts the size of the disk as wrote, whatever happens.
func (d *device) purge(ctx context.Context, rotates bool, wrote func(int64)) (method selfErase, lacks []string, err error) {
	var counted int64
	count := func(done float64) {
		if n := int64(min(max(done, 0), 1) * float64(d.Size)); n > counted {
			wrote(n - counted)
			counted = n
		}
	}
	defer func() { count(1) }()
	var list []selfErase
	if n, ok, err := d.nvme(); ok {
		if err != nil {
			return method, []string{err.Error()}, nil
		}
		if n.others > 0 {
			return method, nil, fmt.Errorf("the drive has %d further namespaces that are not on record, and may hold data: delete them (nvme delete-ns), and give the machine back again", n.others)
		}
		list, lacks = n.methods()
	} else if a, err := d.ata(); err == nil {
		if err := a.open(); err != nil {
			return method, nil, err
		}
		list, lacks = a.methods(rotates)
	} else {
		return method, []string{fmt.Sprintf("the disk takes neither NVMe nor ATA commands (SAS, virtual, or behind a RAID controller): %v", err)}, nil
	}
	var failed error
	for _, m := range list {
		err := m.run(ctx, count)
		if err == nil {
			return m, lacks, nil
		}
		if ctx.Err() != nil {
			return method, lacks, ctx.Err()
		}
		lacks = append(lacks, fmt.Sprintf("%s: %v", m.name, err))
		if errors.Is(err, errEraseFailed) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return method, lacks, failed
}
