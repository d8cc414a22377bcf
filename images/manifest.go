// Package images turns operating-system images into one checked form, a store of digest-addressed chunks, and serves it.
package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/bareyard/bareyard/machine"
)

// ManifestVersion is the version of manifests that this package writes, and the only one that it reads.
const ManifestVersion = 1

// DefaultChunkSize is the length of a chunk in bytes: small enough that a lost connection costs little, large enough that
// a 100 GB image needs only 25,000 requests.
const DefaultChunkSize = 4 << 20

// Bounds on what a manifest may ask of its reader.
const (
	MaxChunkSize     = 64 << 20 // bytes that a reader must hold at once
	MaxImageSize     = 16 << 40 // bytes when written
	MaxManifestBytes = 1 << 30  // encoded
	sectorSize       = 512
)

// Manifest lists the chunks of one image in the order in which they lie on the disk, without gaps.
type Manifest struct {
	Version   int     `json:"version"`
	Size      int64   `json:"size"`       // bytes when written, a multiple of 512
	ChunkSize int64   `json:"chunk_size"` // bytes of every chunk but the last
	Chunks    []Chunk `json:"chunks"`
}

// Chunk is one range of an image.
type Chunk struct {
	Offset int64  `json:"offset"`           // bytes from the start of the disk
	Length int64  `json:"length"`           // bytes when written
	Digest string `json:"digest,omitempty"` // sha256 of the uncompressed bytes, hex; empty when Zero
	Packed string `json:"packed,omitempty"` // sha256 of the zstd form, hex: a reader who finds it need not hash what comes out, five times as much
	Stored int64  `json:"stored,omitempty"` // bytes of the zstd form that the store serves: a hint for progress, no part of the image's digest
	Zero   bool   `json:"zero,omitempty"`   // all bytes are zero: nothing is stored, and the writer may discard the range instead
}

// Digest returns the sha256, in hex, of the manifest's canonical JSON: it names the exact bytes of the written image and how
// they are cut and packed. Stored is left out: it is a hint.
func (m Manifest) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, `{"version":%d,"size":%d,"chunk_size":%d,"chunks":[`, m.Version, m.Size, m.ChunkSize)
	for i, c := range m.Chunks {
		if i > 0 {
			h.Write([]byte{','})
		}
		// Digest is hex, checked by Validate, so that it needs no escaping.
		fmt.Fprintf(h, `{"offset":%d,"length":%d,"digest":%q,"packed":%q,"zero":%t}`, c.Offset, c.Length, c.Digest, c.Packed, c.Zero)
	}
	h.Write([]byte("]}"))
	return hex.EncodeToString(h.Sum(nil))
}

// Stored returns how many compressed bytes a reader of the whole image fetches.
func (m Manifest) Stored() int64 {
	var n int64
	for _, c := range m.Chunks {
		n += c.Stored
	}
	return n
}

// Data returns how many bytes of the image are not in zero chunks.
func (m Manifest) Data() int64 {
	var n int64
	for _, c := range m.Chunks {
		if !c.Zero {
			n += c.Length
		}
	}
	return n
}

// Validate reports the first way in which the manifest breaks its own rules: chunks that leave a gap, overlap, run past the
// end, or lack a digest. A writer may trust offsets and lengths of a manifest that passed.
func (m Manifest) Validate() error {
	switch {
	case m.Version != ManifestVersion:
		return fmt.Errorf("manifest version %d is not %d", m.Version, ManifestVersion)
	case m.Size <= 0 || m.Size > MaxImageSize || m.Size%sectorSize != 0:
		return fmt.Errorf("image size %d is not a multiple of 512 between 512 and %d", m.Size, int64(MaxImageSize))
	case m.ChunkSize <= 0 || m.ChunkSize > MaxChunkSize || m.ChunkSize%4096 != 0:
		return fmt.Errorf("chunk size %d is not a multiple of 4096 up to %d", m.ChunkSize, MaxChunkSize)
	case int64(len(m.Chunks)) != (m.Size+m.ChunkSize-1)/m.ChunkSize:
		return fmt.Errorf("%d chunks of %d bytes do not make %d bytes", len(m.Chunks), m.ChunkSize, m.Size)
	}
	for i, c := range m.Chunks {
		offset := int64(i) * m.ChunkSize
		switch {
		case c.Offset != offset || c.Length != min(m.ChunkSize, m.Size-offset):
			return fmt.Errorf("chunk %d covers %d+%d, not its place %d", i, c.Offset, c.Length, offset)
		case c.Packed != "" && !ValidDigest(c.Packed):
			return fmt.Errorf("chunk %d has a packed digest that is no sha256", i)
		case c.Zero && (c.Digest != "" || c.Packed != "" || c.Stored != 0):
			return fmt.Errorf("chunk %d is zero and yet has a digest", i)
		case !c.Zero && !ValidDigest(c.Digest):
			return fmt.Errorf("chunk %d has no sha256 digest", i)
		case c.Stored < 0 || c.Stored > c.MaxStored():
			return fmt.Errorf("chunk %d claims %d stored bytes", i, c.Stored)
		}
	}
	return nil
}

// ParseManifest decodes a manifest that came from anywhere, validates it and checks that it is the one that digest names.
// It returns a machine.Invalid error for anything else.
func ParseManifest(data []byte, digest string) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("decode manifest: %v", err)}
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("check manifest: %v", err)}
	}
	if got := m.Digest(); got != digest {
		return Manifest{}, &machine.Error{
			Code:    machine.Invalid,
			Message: fmt.Sprintf("manifest is %s, not %s", got, digest),
			Hint:    "the manifest was changed on its way or in the store: import the image again",
		}
	}
	return m, nil
}

// ValidDigest reports whether s is a sha256 in lower-case hex: the only form that becomes a file name or a URL here.
func ValidDigest(s string) bool { return isHex(s, sha256.Size) }

// isHex reports whether s is so many bytes in lower-case hex.
func isHex(s string, size int) bool {
	if len(s) != 2*size {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
