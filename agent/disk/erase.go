package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// maxParallel is how many disks are worked on at once.
const maxParallel = 16

// Erase has each disk erase itself, by the strongest means that it has (purge), and then overwrites every byte of it: discard where
// the disk knows it, zeroing by the disk's own command, checked by reading samples back; where that fails, zeros are written block by
// block. A disk that erased itself is overwritten all the same: firmware lies, and what it leaves need not read as zeros. It
// returns what was done to each disk, in order. Progress counts each byte twice, once for the disk's own part.
func (s Set) Erase(ctx context.Context, disks []machine.Disk, progress func(done, total int64)) ([]machine.Erasure, error) {
	return s.each(ctx, "erase", disks, progress, func(d machine.Disk) int64 { return 2 * d.Size }, s.erase)
}

// Prove reads samples of the disks back: all of a disk of up to 256 MiB, otherwise the first and last MiB and 64 MiB spread
// at random between. Any byte that is not zero fails it; the result is returned beside the error.
func (s Set) Prove(ctx context.Context, disks []machine.Disk, progress func(done, total int64)) ([]machine.Erasure, error) {
	return s.each(ctx, "prove", disks, progress, func(d machine.Disk) int64 { return total(samples(d.Size)) }, s.prove)
}

// each does something to all disks at once and adds up their progress.
func (s Set) each(ctx context.Context, verb string, disks []machine.Disk, progress func(done, total int64),
	work func(machine.Disk) int64, f func(context.Context, machine.Disk, func(int64)) (machine.Erasure, error)) ([]machine.Erasure, error) {
	if len(disks) == 0 {
		return nil, fmt.Errorf("%s: no disks named", verb)
	}
	sum := adder{progress: progress}
	found := make([]machine.Disk, len(disks))
	for i, want := range disks { // refuse all before touching one
		d, err := s.find(want)
		if err != nil {
			return nil, err
		}
		found[i] = machine.Disk{Serial: d.Serial, Size: d.Size, Role: want.Role}
		sum.total += work(found[i])
	}
	done := make([]machine.Erasure, len(disks))
	var g errgroup.Group // no shared context: one bad disk does not leave the others half erased
	g.SetLimit(maxParallel)
	errs := make([]error, len(disks))
	for i, d := range found {
		g.Go(func() error {
			done[i], errs[i] = f(ctx, d, sum.add)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("%s disk %s: %w", verb, d.Serial, errs[i])
				done[i].Serial, done[i].Size, done[i].Detail = d.Serial, d.Size, errs[i].Error()
			}
			return nil
		})
	}
	g.Wait() // never an error: they are in errs
	return done, errors.Join(errs...)
}

func (s Set) erase(ctx context.Context, want machine.Disk, wrote func(int64)) (machine.Erasure, error) {
	e := machine.Erasure{Serial: want.Serial, Size: want.Size, Level: machine.Clear}
	found, err := s.find(want)
	if err != nil {
		return e, err
	}
	e.Model = clean(text(filepath.Join(s.Sys, "block", found.Name), "device/model"))
	if err := s.release(found); err != nil {
		return e, err
	}
	d, err := s.open(want, true)
	if err != nil {
		return e, err
	}
	defer d.Close()

	var methods []string
	rotates := text(filepath.Join(s.Sys, "block", found.Name), "queue/rotational") != "0" // "" is not known: the weaker claim holds for both
	own, lacks, err := d.purge(ctx, rotates, wrote)
	if e.Lacks = lacks; err != nil {
		return e, err
	}
	if own.name != "" {
		methods, e.Level = append(methods, own.name), own.level
		s.Log.Info("the disk has erased itself", "serial", want.Serial, "method", own.name)
	}
	span := [2]uint64{0, uint64(d.Size)}
	for _, m := range []struct {
		name    string
		request uintptr
	}{{"blksecdiscard", unix.BLKSECDISCARD}, {"blkdiscard", unix.BLKDISCARD}} {
		if ioctl(d.f, m.request, unsafe.Pointer(&span)) == nil { // most disks know one at most, and the zeros follow anyway
			methods = append(methods, m.name)
			break
		}
	}
	var counted int64
	zeroErr := d.zeroOut(ctx, 0, d.Size, func(n int64) { counted += n; wrote(n) })
	if err := ctx.Err(); err != nil {
		return e, err
	}
	methods = append(methods, "zeroout")
	clean := zeroErr == nil
	if clean {
		if clean, err = d.sampled(ctx, func(int64) {}); err != nil {
			return e, err
		}
	}
	if !clean {
		s.Log.Warn("zeroing did not zero: writing zeros", "serial", d.Serial, "error", zeroErr)
		wrote(-counted)
		methods = append(slices.DeleteFunc(methods, func(m string) bool { return m != own.name }), "overwrite")
		if err := d.overwrite(ctx, 0, d.Size, wrote); err != nil {
			return e, err
		}
		if clean, err = d.sampled(ctx, func(int64) {}); err != nil {
			return e, err
		}
	}
	e.Method = strings.Join(methods, "+")
	if !clean {
		return e, errors.New("not zero after writing zeros")
	}
	if err := d.rescan(ctx); err != nil {
		return e, err
	}
	return e, d.sync()
}

func (s Set) prove(ctx context.Context, want machine.Disk, read func(int64)) (machine.Erasure, error) {
	e := machine.Erasure{Serial: want.Serial, Size: want.Size}
	d, err := s.open(want, false)
	if err != nil {
		return e, err
	}
	defer d.Close()
	e.Clean, err = d.sampled(ctx, func(n int64) { e.Sampled += n; read(n) })
	if err != nil {
		return e, err
	}
	if !e.Clean {
		return e, errors.New("data is left on it")
	}
	return e, nil
}

// sampled reports whether all samples of a disk, read from the disk itself, are zero.
func (d *device) sampled(ctx context.Context, read func(int64)) (bool, error) {
	if err := d.sync(); err != nil {
		return false, err
	}
	if err := d.drop(); err != nil {
		return false, err
	}
	for _, r := range samples(d.Size) {
		if clean, err := d.isZero(ctx, r.off, r.n, read); err != nil || !clean {
			return false, err
		}
	}
	return true, nil
}

const (
	sampleSize = 1 << 20
	sampleAll  = 256 << 20 // up to this size everything is read
	sampleN    = 64        // samples between the first and the last
)

// samples chooses what to read back, in order and without overlap: one sample at a random place of each 64th of the disk,
// so that neither a firmware nor a leftover at a regular distance can hide between them.
func samples(size int64) []span {
	if size <= sampleAll {
		return []span{{0, size}}
	}
	spans := []span{{0, sampleSize}}
	const block = 4096
	from, to := int64(sampleSize), (size-sampleSize)/block*block
	stratum := (to - from) / sampleN / block * block
	for i := range int64(sampleN) {
		room := (stratum - sampleSize) / block
		spans = append(spans, span{from + i*stratum + rand.Int64N(room+1)*block, sampleSize})
	}
	return append(spans, span{to, size - to})
}

func total(spans []span) (n int64) {
	for _, s := range spans {
		n += s.n
	}
	return n
}

// adder adds up the progress of several goroutines.
type adder struct {
	mu       sync.Mutex // guards done and keeps the calls of progress in order
	done     int64
	total    int64
	progress func(done, total int64)
}

func (a *adder) add(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done += n
	a.progress(a.done, a.total)
}
