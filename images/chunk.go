package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Decoder turns stored chunks back into the bytes of the image and checks them. It holds one chunk at a time; it is not safe for
// use by several goroutines, each of which makes its own.
type Decoder struct {
	dec *zstd.Decoder
}

// NewDecoder returns a decoder. Close it to free its memory.
func NewDecoder() (*Decoder, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxChunkSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make chunk decoder: %w", err)
	}
	return &Decoder{dec: dec}, nil
}

// Decode appends to dst[:0] the bytes of chunk c out of stored, its zstd form, after checking their length and the digest of either
// form. Bytes that fail are never returned, so that a bad chunk cannot reach a disk. A dst with the capacity of the chunk is filled in place.
func (d *Decoder) Decode(dst, stored []byte, c Chunk) ([]byte, error) {
	if c.Zero {
		return nil, fmt.Errorf("chunk at %d is zero and has no stored form", c.Offset)
	}
	// Header first: a hostile store must not make us unpack gigabytes.
	var h zstd.Header
	if err := h.Decode(stored); err != nil {
		return nil, fmt.Errorf("decode chunk %s: %w", c.Digest, err)
	}
	if !h.HasFCS || h.FrameContentSize != uint64(c.Length) {
		return nil, fmt.Errorf("chunk %s says %d bytes, not %d", c.Digest, h.FrameContentSize, c.Length)
	}
	out, err := d.dec.DecodeAll(stored, dst[:0])
	if err != nil {
		return nil, fmt.Errorf("decode chunk %s: %w", c.Digest, err)
	}
	if int64(len(out)) != c.Length {
		return nil, fmt.Errorf("chunk %s has %d bytes, not %d", c.Digest, len(out), c.Length)
	}
	if c.Packed != "" && hexSum(stored) == c.Packed {
		return out, nil // the very bytes that the import unpacked and checked
	}
	if sum := sha256.Sum256(out); hex.EncodeToString(sum[:]) != c.Digest {
		return nil, fmt.Errorf("chunk %s has digest %x", c.Digest, sum)
	}
	return out, nil
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Close frees the decoder.
func (d *Decoder) Close() { d.dec.Close() }

// MaxStored returns the most bytes that the stored form of c can have: where to cut off a server that does not stop.
func (c Chunk) MaxStored() int64 { return c.Length + c.Length/8 + 1024 }

// ReadStored reads the stored form of c from r into buf, which it grows, and refuses more than MaxStored bytes.
func ReadStored(r io.Reader, buf []byte, c Chunk) ([]byte, error) {
	b := bytes.NewBuffer(buf[:0])
	n, err := io.Copy(b, io.LimitReader(r, c.MaxStored()+1))
	if err != nil {
		return nil, fmt.Errorf("read chunk %s: %w", c.Digest, err)
	}
	if n > c.MaxStored() {
		return nil, fmt.Errorf("chunk %s is longer than %d bytes", c.Digest, c.MaxStored())
	}
	return b.Bytes(), nil
}
