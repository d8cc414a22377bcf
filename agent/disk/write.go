package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sync/errgroup"
)

const (
	memory    = 192 << 20 // for chunks in flight, packed and unpacked
	maxWorker = 8
	syncEvery = 1 << 30 // so that a disk that lies about its writes is found out early
	blank     = 1 << 20 // of the start of the disk is invalid while the image is written
)

// workers returns how many chunks may be in flight: enough to keep network, processors and disk busy at once, within memory.
func workers(m images.Manifest) int {
	return max(1, min(maxWorker, 2*runtime.NumCPU()+1, int(memory/(5*m.ChunkSize/2))))
}

// Write puts an image on the target. It refuses, before the first write, a disk that is not the one asked for or is too
// small. While it runs the start of the disk is zero, and the first chunk is written last, so that an image that is not
// complete never boots. Lost connections are taken up again; a chunk with a wrong digest never reaches the disk.
func (s Set) Write(ctx context.Context, target machine.Disk, ref machine.ImageRef, progress func(done, total int64)) error {
	src := newSource(ref, maxWorker)
	defer src.close()
	return s.write(ctx, src, target, ref, progress)
}

func (s Set) write(ctx context.Context, src *source, target machine.Disk, ref machine.ImageRef, progress func(done, total int64)) error {
	if _, err := s.find(target); err != nil {
		return err
	}
	m, err := src.manifest(ctx, ref)
	if err != nil {
		return err
	}
	fetch, err := src.newFetcher(m.ChunkSize)
	if err != nil {
		return err
	}
	defer fetch.dec.Close()
	d, err := s.open(target, true)
	if err != nil {
		return err
	}
	defer d.Close()
	first, err := prepare(ctx, d, m, fetch)
	if err != nil {
		return err
	}
	if err := d.zero(ctx, 0, min(blank, d.Size), func(int64) {}); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	s.sums.forget(target.Serial)
	note := s.sums.of(target.Serial)
	if first != nil {
		note(0, first[:m.Chunks[0].Length])
	}
	sum := adder{total: m.Size, progress: progress}
	sum.add(0)
	if err := d.writeChunks(ctx, src, m, note, sum.add); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	if first != nil {
		if err := d.writeAt(first, 0); err != nil {
			return err
		}
	} else if err := d.zero(ctx, 0, d.round(m.Chunks[0].Length), func(int64) {}); err != nil {
		return err
	}
	sum.add(m.Chunks[0].Length)
	if err := d.sync(); err != nil {
		return err
	}
	return d.rescan(ctx)
}

// prepare makes sure that the image belongs on the disk and returns its first chunk, nil if it is zero.
func prepare(ctx context.Context, d *device, m images.Manifest, fetch *fetcher) ([]byte, error) {
	if d.round(m.Size) > d.Size {
		return nil, agent.Fatal(fmt.Errorf("write disk %s: the image has %d bytes, the disk %d", d.Serial, m.Size, d.Size))
	}
	if m.Chunks[0].Zero {
		return nil, nil
	}
	first, err := fetch.chunk(ctx, m.Chunks[0], d.block)
	if err != nil {
		return nil, err
	}
	if d.block != 512 && len(first) > 520 && string(first[512:520]) == "EFI PART" {
		return nil, agent.Fatal(fmt.Errorf("write disk %s: the image is made for sectors of 512 bytes, the disk has %d", d.Serial, d.block))
	}
	return first, nil
}

// round rounds up to the block size.
func (d *device) round(n int64) int64 {
	block := int64(d.block)
	return (n + block - 1) / block * block
}

// writeChunks writes all chunks but the first.
func (d *device) writeChunks(ctx context.Context, src *source, m images.Manifest, note func(int64, []byte), wrote func(int64)) error {
	g, ctx := errgroup.WithContext(ctx)
	work := make(chan images.Chunk)
	g.Go(func() error { // hands out; zero chunks that follow each other become one
		defer close(work)
		for i := 1; i < len(m.Chunks); i++ {
			c := m.Chunks[i]
			for ; c.Zero && i+1 < len(m.Chunks) && m.Chunks[i+1].Zero; i++ {
				c.Length += m.Chunks[i+1].Length
			}
			select {
			case work <- c:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var unsynced atomic.Int64
	for range workers(m) {
		g.Go(func() error {
			fetch, err := src.newFetcher(m.ChunkSize)
			if err != nil {
				return err
			}
			defer fetch.dec.Close()
			for c := range work {
				if c.Zero {
					// The end of the image may be in the middle of a block.
					err = d.zero(ctx, c.Offset, d.round(c.Length), func(n int64) { wrote(min(n, c.Length)) })
				} else if err = d.writeChunk(ctx, fetch, c, note); err == nil {
					wrote(c.Length)
				}
				if err != nil {
					return err
				}
				if unsynced.Add(c.Length) >= syncEvery {
					unsynced.Store(0)
					if err := d.sync(); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (d *device) writeChunk(ctx context.Context, fetch *fetcher, c images.Chunk, note func(int64, []byte)) error {
	data, err := fetch.chunk(ctx, c, d.block)
	if err != nil {
		return err
	}
	for off := 0; off < len(data); off += ioSize {
		if err := ctx.Err(); err != nil { // told to stop while the chunk was on its way
			return err
		}
		if err := d.writeAt(data[off:min(off+ioSize, len(data))], c.Offset+int64(off)); err != nil {
			return err
		}
	}
	note(c.Offset, data[:c.Length])
	return nil
}

// Verify reads the target back from the disk itself and compares it with the image, chunk by chunk, zeros too.
func (s Set) Verify(ctx context.Context, target machine.Disk, ref machine.ImageRef, progress func(done, total int64)) error {
	src := newSource(ref, 1)
	defer src.close()
	m, err := src.manifest(ctx, ref)
	if err != nil {
		return err
	}
	d, err := s.open(target, false)
	if err != nil {
		return err
	}
	defer d.Close()
	if m.Size > d.Size {
		return agent.Fatal(fmt.Errorf("verify disk %s: the image has %d bytes, the disk %d", d.Serial, m.Size, d.Size))
	}
	if err := d.drop(); err != nil {
		return err
	}
	sum := adder{total: m.Size, progress: progress}
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(4, workers(m)) {
		g.Go(func() error {
			buf := aligned(int(d.round(m.ChunkSize)))
			for {
				i := int(next.Add(1)) - 1
				if i >= len(m.Chunks) {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := d.verifyChunk(m.Chunks[i], buf, s.sums); err != nil {
					return err
				}
				sum.add(m.Chunks[i].Length)
			}
		})
	}
	return g.Wait()
}

// errDiffers says that the disk does not hold what was written.
var errDiffers = errors.New("differs from the image")

func (d *device) verifyChunk(c images.Chunk, buf []byte, written *sums) error {
	buf = buf[:d.round(c.Length)]
	if err := d.readAt(buf, c.Offset); err != nil {
		return err
	}
	buf = buf[:c.Length]
	var same bool
	known := false
	switch {
	case c.Zero:
		same = allZero(buf)
	default:
		if same, known = written.matches(d.Serial, c.Offset, buf); !known {
			sum := sha256.Sum256(buf)
			same = hex.EncodeToString(sum[:]) == c.Digest
		}
	}
	if !same {
		return fmt.Errorf("verify disk %s at %d: %w", d.Serial, c.Offset, errDiffers)
	}
	return nil
}
