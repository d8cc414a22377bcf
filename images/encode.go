package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// chunker cuts a disk into chunks and stores them: one reader, as many compressors as processors.
type chunker struct {
	store   *Store
	maxSize int64              // bytes; more than that is refused
	written io.Writer          // takes every byte of the disk in order
	count   func(int64)        // told how many bytes of the disk were cut so far
	first   func([]byte) error // sees the first chunk before anything is stored
}

type cut struct {
	index int
	data  []byte // DefaultChunkSize of capacity, from the pool
}

// run reads the disk from r to its end and returns its manifest. Every chunk of it is stored and synced then.
func (c chunker) run(ctx context.Context, r io.Reader) (Manifest, error) {
	workers := runtime.GOMAXPROCS(0)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(workers), zstd.WithEncoderCRC(false))
	if err != nil {
		return Manifest{}, fmt.Errorf("make zstd encoder: %w", err)
	}
	defer enc.Close()

	m := Manifest{Version: ManifestVersion, ChunkSize: DefaultChunkSize}
	var mu sync.Mutex // guards m.Chunks
	free := make(chan []byte, workers+2)
	for range cap(free) {
		free <- make([]byte, DefaultChunkSize)
	}
	cuts := make(chan cut)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(cuts)
		for index := 0; ; index++ {
			var buf []byte
			select {
			case buf = <-free:
			case <-ctx.Done():
				return ctx.Err()
			}
			n, err := fill(r, buf[:DefaultChunkSize])
			if n > 0 {
				if m.Size += int64(n); m.Size > c.maxSize {
					return sizeError(uint64(m.Size), c.maxSize)
				}
				if index == 0 {
					if err := c.first(buf[:n]); err != nil {
						return err
					}
				}
				c.written.Write(buf[:n])
				mu.Lock()
				m.Chunks = append(m.Chunks, Chunk{Offset: int64(index) * DefaultChunkSize, Length: int64(n)})
				mu.Unlock()
				select {
				case cuts <- cut{index, buf[:n]}:
				case <-ctx.Done():
					return ctx.Err()
				}
				c.count(m.Size)
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	for range workers {
		group.Go(func() error {
			var packed []byte
			for cut := range cuts {
				chunk, err := c.put(enc, &packed, cut.data)
				if err != nil {
					return err
				}
				mu.Lock()
				chunk.Offset, chunk.Length = m.Chunks[cut.index].Offset, m.Chunks[cut.index].Length
				m.Chunks[cut.index] = chunk
				mu.Unlock()
				free <- cut.data
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Manifest{}, err
	}
	return m, c.store.syncChunks(m)
}

// fill is io.ReadFull that says io.EOF at any clean end: with io.ErrUnexpectedEOF a decompressor means that its input is cut short.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

var zeros [64 << 10]byte

// isZero reports whether b is all zeros.
func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// put stores one chunk and returns what the manifest says of it, its place aside.
func (c chunker) put(enc *zstd.Encoder, packed *[]byte, data []byte) (Chunk, error) {
	if isZero(data) {
		return Chunk{Zero: true}, nil
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	*packed = enc.EncodeAll(data, (*packed)[:0])
	stored, err := c.store.putChunk(digest, *packed, int64(len(data)))
	if err != nil {
		return Chunk{}, err
	}
	return Chunk{Digest: digest, Packed: hexSum(stored), Stored: int64(len(stored))}, nil
}

// syncChunks makes the names of the chunks survive a power failure; their contents do already.
func (s *Store) syncChunks(m Manifest) error {
	synced := map[string]bool{}
	for _, c := range m.Chunks {
		if c.Zero || synced[c.Digest[:2]] {
			continue
		}
		synced[c.Digest[:2]] = true
		if err := syncDir(filepath.Dir(s.chunkPath(c.Digest))); err != nil {
			return err
		}
	}
	if len(synced) == 0 {
		return nil
	}
	return syncDir(filepath.Join(s.Dir, "chunks"))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}
