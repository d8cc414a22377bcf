package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/machine"
)

// Store keeps images on disk. A file appears under its final name only when it is complete and synced, so that a crash leaves
// at most temporary files, which GC removes. Several processes may read a store while one imports.
//
//	Dir/manifests/DIGEST.json
//	Dir/chunks/ab/DIGEST
//	Dir/incoming/…       downloads that are not complete
type Store struct {
	Dir string
}

func (s *Store) manifestPath(digest string) string {
	return filepath.Join(s.Dir, "manifests", digest+".json")
}

func (s *Store) chunkPath(digest string) string {
	return filepath.Join(s.Dir, "chunks", digest[:2], digest)
}

// Manifest returns the manifest that digest names; machine.NotFound when the store does not have it.
func (s *Store) Manifest(digest string) (Manifest, error) {
	data, err := s.manifestBytes(digest)
	if err != nil {
		return Manifest{}, err
	}
	m, err := ParseManifest(data, digest)
	if err != nil {
		return Manifest{}, fmt.Errorf("read image %s: %w", digest, err)
	}
	return m, nil
}

func (s *Store) manifestBytes(digest string) ([]byte, error) {
	if !ValidDigest(digest) {
		return nil, notFound("image", digest)
	}
	data, err := os.ReadFile(s.manifestPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound("image", digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return data, nil
}

// Chunk opens the stored, zstd-compressed form of a chunk and returns its length; machine.NotFound when the store does not have
// it. Whoever opens it closes it.
func (s *Store) Chunk(digest string) (*os.File, int64, error) {
	if !ValidDigest(digest) {
		return nil, 0, notFound("chunk", digest)
	}
	f, err := os.Open(s.chunkPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, notFound("chunk", digest)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open chunk: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open chunk: %w", err)
	}
	return f, info.Size(), nil
}

// Digests lists the images in the store.
func (s *Store) Digests() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "manifests"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var digests []string
	for _, e := range entries {
		if d, ok := trimJSON(e.Name()); ok && ValidDigest(d) {
			digests = append(digests, d)
		}
	}
	return digests, nil
}

func trimJSON(name string) (string, bool) {
	ext := filepath.Ext(name)
	return name[:len(name)-len(ext)], ext == ".json"
}

// putChunk stores the compressed form of a chunk of length bytes and returns the form that is kept. A file that is there already
// is checked and kept, or replaced when it is damaged, so that importing an image again repairs it.
func (s *Store) putChunk(digest string, packed []byte, length int64) (kept []byte, err error) {
	path := s.chunkPath(digest)
	if there, err := os.ReadFile(path); err == nil && checkStored(there, Chunk{Digest: digest, Length: length}) == nil {
		return there, nil
	}
	if err := checkStored(packed, Chunk{Digest: digest, Length: length}); err != nil {
		return nil, fmt.Errorf("store chunk: what was packed does not come out again: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("store chunk: %w", err)
	}
	if err := writeFile(path, packed); err != nil {
		return nil, fmt.Errorf("store chunk: %w", err)
	}
	return packed, nil
}

func checkStored(stored []byte, c Chunk) error {
	dec, err := NewDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	_, err = dec.Decode(make([]byte, 0, c.Length), stored, c)
	return err
}

// putManifest stores a manifest, which makes the image exist: its chunks must be there and synced before.
func (s *Store) putManifest(m Manifest) (string, error) {
	digest := m.Digest()
	data, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode manifest: %w", err)
	}
	path := s.manifestPath(digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("store manifest: %w", err)
	}
	if err := writeFile(path, append(data, '\n')); err != nil {
		return "", fmt.Errorf("store manifest: %w", err)
	}
	return digest, syncDir(filepath.Dir(path))
}

func writeFile(path string, data []byte) error {
	return renameio.WriteFile(path, data, 0o644, renameio.WithTempDir(filepath.Dir(path)))
}

// Export writes the whole image to w, zero ranges included, checking every chunk.
func (s *Store) Export(w io.Writer, m Manifest) error {
	dec, err := NewDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	zero := make([]byte, m.ChunkSize)
	out := make([]byte, 0, m.ChunkSize)
	var stored []byte
	for _, c := range m.Chunks {
		data := zero[:min(c.Length, int64(len(zero)))]
		if !c.Zero {
			if stored, err = s.readChunk(stored, c); err != nil {
				return err
			}
			if data, err = dec.Decode(out, stored, c); err != nil {
				return err
			}
		}
		if _, err := w.Write(data); err != nil {
			return fmt.Errorf("export image: %w", err)
		}
	}
	return nil
}

func (s *Store) readChunk(buf []byte, c Chunk) ([]byte, error) {
	f, _, err := s.Chunk(c.Digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadStored(f, buf, c)
}

func notFound(noun, digest string) error {
	if len(digest) > 80 {
		digest = digest[:80] + "…"
	}
	return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no %s %q in the store", noun, digest)}
}
