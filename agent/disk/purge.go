package disk

import (
	"context"
	"errors"
	"fmt"
)

// selfErase is a way in which a disk erases itself, with the cells that no write reaches (NIST SP 800-88: purge).
type selfErase struct {
	name string
	run  func(ctx context.Context, share func(done float64)) error
}

// errEraseFailed says that a disk took the command and did not carry it out.
var errEraseFailed = errors.New("the disk failed to erase itself")

// purge has the disk erase itself. It returns the name of the method, "" when there is none, and why no stronger one was used. An error
// means that the disk cannot be trusted any more. It counts the size of the disk as wrote, whatever happens.
func (d *device) purge(ctx context.Context, wrote func(int64)) (method string, lacks []string, err error) {
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
			return "", []string{err.Error()}, nil
		}
		list, lacks = n.methods()
	} else if a, err := d.ata(); err == nil {
		if err := a.unlock(); err != nil {
			return "", nil, err
		}
		list, lacks = a.methods()
	} else {
		return "", []string{fmt.Sprintf("the disk takes neither NVMe nor ATA commands (SAS, virtual, or behind a RAID controller): %v", err)}, nil
	}
	var failed error
	for _, m := range list {
		err := m.run(ctx, count)
		if err == nil {
			return m.name, lacks, nil
		}
		if ctx.Err() != nil {
			return "", lacks, ctx.Err()
		}
		lacks = append(lacks, fmt.Sprintf("%s: %v", m.name, err))
		if errors.Is(err, errEraseFailed) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return "", lacks, failed
}
