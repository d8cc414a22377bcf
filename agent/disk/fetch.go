package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
)

// source fetches one image. Nothing it returns is unchecked: the digests vouch for it, not the connection.
type source struct {
	base     string
	client   *http.Client
	stall    time.Duration // a transfer without a byte for so long is cut off
	patience time.Duration // how long one manifest or chunk is tried for
}

const (
	stallTime    = 20 * time.Second
	fetchTime    = 10 * time.Minute
	badTries     = 3 // fetches of a chunk that arrives whole but wrong
	refusedTries = 5 // answers that are no success: the server may be just starting
)

// newSource returns a source for so many transfers at once.
func newSource(ref machine.ImageRef, parallel int) *source {
	return &source{
		base:  strings.TrimSuffix(ref.URL, "/"),
		stall: stallTime, patience: fetchTime,
		client: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost: parallel,
			MaxConnsPerHost:     parallel,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		}},
	}
}

func (s *source) close() { s.client.CloseIdleConnections() }

// manifest fetches the manifest that ref names. The error is fatal when there is no sense in another attempt.
func (s *source) manifest(ctx context.Context, ref machine.ImageRef) (images.Manifest, error) {
	if !images.ValidDigest(ref.Digest) {
		return images.Manifest{}, agent.Fatal(fmt.Errorf("fetch manifest: bad digest %q", ref.Digest))
	}
	var m images.Manifest
	err := s.insist(ctx, "/manifest/"+ref.Digest, func(r io.Reader) error {
		raw, err := io.ReadAll(io.LimitReader(r, images.MaxManifestBytes))
		if err != nil {
			return err
		}
		if m, err = images.ParseManifest(raw, ref.Digest); err != nil {
			return badError{err}
		}
		return nil
	})
	if err != nil {
		return images.Manifest{}, fmt.Errorf("fetch manifest: %w", err)
	}
	if ref.Size != 0 && ref.Size != m.Size {
		return images.Manifest{}, agent.Fatal(fmt.Errorf("fetch manifest: image has %d bytes, %d were announced", m.Size, ref.Size))
	}
	return m, nil
}

// fetcher fetches chunks, one at a time, and keeps its buffers.
type fetcher struct {
	*source
	dec    *images.Decoder
	stored []byte
	buf    []byte // aligned
}

// newFetcher returns a fetcher of chunks of up to size bytes. Close its decoder.
func (s *source) newFetcher(size int64) (*fetcher, error) {
	dec, err := images.NewDecoder()
	if err != nil {
		return nil, err
	}
	return &fetcher{source: s, dec: dec, buf: aligned(int(size+align-1) / align * align)}, nil
}

// chunk returns the bytes of a chunk, checked, followed by zeros up to a multiple of block. They are good until the next call.
func (f *fetcher) chunk(ctx context.Context, c images.Chunk, block int) ([]byte, error) {
	err := f.insist(ctx, "/chunk/"+c.Digest, func(r io.Reader) error {
		stored, err := images.ReadStored(r, f.stored, c)
		if err != nil {
			return err
		}
		f.stored = stored
		out, err := f.dec.Decode(f.buf, stored, c)
		if err != nil {
			return badError{err}
		}
		if &out[0] != &f.buf[0] { // the decoder took another buffer, which need not be aligned
			copy(f.buf, out)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("fetch chunk at %d: %w", c.Offset, err)
	}
	n := int(c.Length)
	padded := (n + block - 1) / block * block
	clear(f.buf[n:padded])
	return f.buf[:padded], nil
}

// badError says that something arrived whole but is not what its digest names.
type badError struct{ error }

// statusError is an answer that is not a success.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("the image server answers %d", int(e)) }

// insist gets a path until read takes it, with back-off, as long as there is hope.
func (s *source) insist(ctx context.Context, path string, read func(io.Reader) error) error {
	began, wait := time.Now(), 100*time.Millisecond
	bad, refused := 0, 0
	for {
		err := s.get(ctx, path, read)
		var badErr badError
		var status statusError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &badErr):
			bad++
		case errors.As(err, &status):
			refused++
		}
		if bad == badTries || refused == refusedTries || time.Since(began) > s.patience {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// get makes one request. A transfer that stalls is cut off.
func (s *source) get(ctx context.Context, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := fmt.Errorf("nothing came for %v", s.stall)
	watch := time.AfterFunc(s.stall, func() { cancel(stalled) })
	defer watch.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return err
	}
	res, err := s.client.Do(req)
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return statusError(res.StatusCode)
		}
		err = read(aliveReader{res.Body, watch, s.stall})
	}
	if err != nil && context.Cause(ctx) == stalled {
		return stalled
	}
	return err
}

// aliveReader puts off a timer with every read that brings something.
type aliveReader struct {
	r     io.Reader
	timer *time.Timer
	d     time.Duration
}

func (a aliveReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.timer.Reset(a.d)
	}
	return n, err
}
