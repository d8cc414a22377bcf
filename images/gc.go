package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// How long GC leaves alone what nothing refers to yet.
const (
	keepManifests = time.Hour      // its import is over, its entry in the catalogue not yet made
	keepParts     = 24 * time.Hour // an interrupted download that may be resumed
)

// Verify reads every chunk of an image back and returns those that are missing or damaged; importing the image again repairs
// them. done is told how many bytes of the disk were checked; it may be nil.
func (s *Store) Verify(ctx context.Context, digest string, done func(int64)) (bad []Chunk, err error) {
	m, err := s.Manifest(digest)
	if err != nil {
		return nil, err
	}
	dec, err := NewDecoder()
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	var stored []byte
	buf := make([]byte, 0, m.ChunkSize)
	for _, c := range m.Chunks {
		if err := ctx.Err(); err != nil {
			return bad, err
		}
		if !c.Zero {
			b, err := s.readChunk(stored, c)
			if err == nil {
				stored = b
				_, err = dec.Decode(buf, b, c)
			}
			if err != nil {
				bad = append(bad, c)
			}
		}
		if done != nil {
			done(c.Offset + c.Length)
		}
	}
	return bad, nil
}

// Remove takes an image out of the store; machine.NotFound when it is not there. Its chunks stay until GC finds that no other
// image has them.
func (s *Store) Remove(digest string) error {
	if !ValidDigest(digest) {
		return notFound("image", digest)
	}
	err := os.Remove(s.manifestPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return notFound("image", digest)
	}
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return syncDir(filepath.Join(s.Dir, "manifests"))
}

// Freed says what GC removed.
type Freed struct {
	Images, Chunks, Files int
	Bytes                 int64
}

// GC removes the images that are not in keep, an hour of grace after their import, then every chunk that no image in the store
// has, then what interrupted imports left. An image whose manifest cannot be read stops it: its chunks are unknown. It answers
// machine.Conflict while an import runs.
func (s *Store) GC(ctx context.Context, keep []string) (Freed, error) {
	unlock, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return Freed{}, err
	}
	defer unlock()

	var freed Freed
	wanted := map[string]bool{}
	for _, d := range keep {
		wanted[d] = true
	}
	digests, err := s.Digests()
	if err != nil {
		return Freed{}, err
	}
	used := map[string]bool{}
	for _, d := range digests {
		path := s.manifestPath(d)
		if !wanted[d] && olderThan(path, keepManifests) {
			if err := freed.remove(path); err != nil {
				return freed, err
			}
			freed.Images++
			continue
		}
		m, err := s.Manifest(d)
		if err != nil {
			return freed, fmt.Errorf("clean image store: %w", err)
		}
		for _, c := range m.Chunks {
			used[c.Digest] = true
		}
	}
	// Other processes' imports hold the lock, so that no temporary file is in use.
	err = filepath.WalkDir(s.Dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.IsDir():
			return nil
		}
		name, top := entry.Name(), topFolder(s.Dir, path)
		switch {
		case top == "chunks" && ValidDigest(name):
			if used[name] {
				return nil
			}
			freed.Chunks++
		case top == "incoming" && !olderThan(path, keepParts):
			return nil
		case top == "incoming", top != "" && name[0] == '.':
			freed.Files++
		default:
			return nil // not ours
		}
		return freed.remove(path)
	})
	if err != nil {
		return freed, fmt.Errorf("clean image store: %w", err)
	}
	return freed, nil
}

func (f *Freed) remove(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("remove from image store: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove from image store: %w", err)
	}
	f.Bytes += info.Size()
	return nil
}

func olderThan(path string, age time.Duration) bool {
	info, err := os.Stat(path)
	return err == nil && time.Since(info.ModTime()) > age
}

// topFolder returns the first folder below dir that path lies in, "" for none.
func topFolder(dir, path string) string {
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return ""
	}
	for i := range len(rel) {
		if rel[i] == filepath.Separator {
			return rel[:i]
		}
	}
	return ""
}
