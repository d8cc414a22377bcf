package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// open returns the file to import, at its start. A URL or a reader becomes a file in incoming first: a digest of the whole is
// known before the last chunk is cut, a broken connection can be resumed, and qcow2 is read out of order.
func (s *Store) open(ctx context.Context, in Import) (*os.File, error) {
	switch {
	case in.Path != "":
		return openRegular(in.Path)
	case in.URL != "":
		return s.fetch(ctx, in)
	}
	f, err := s.temporary()
	if err != nil {
		return nil, err
	}
	limit := maxFile(in.MaxSize)
	n, err := io.Copy(f, &meter{ctx: ctx, r: io.LimitReader(in.Reader, limit+1), count: func(n int64) { in.Progress(Fetching, n, 0) }})
	if err == nil && n > limit {
		err = sizeError(uint64(n), in.MaxSize)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("receive image: %w", err)
	}
	return f, nil
}

// maxFile returns the most bytes that a file with a disk of size bytes can reasonably have: qcow2 has tables.
func maxFile(size int64) int64 { return size + size/64 + 64<<20 }

// openRegular opens a file and nothing else: a device would be read for ever, a FIFO would block.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &machine.Error{Code: machine.Invalid, Field: "file", Message: fmt.Sprintf("no file %q on this host", path), Hint: "the path is read where the server runs"}
	}
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open image: %w", err)
	}
	if !info.Mode().IsRegular() {
		f.Close()
		return nil, &machine.Error{Code: machine.Invalid, Field: "file", Message: fmt.Sprintf("%q is no regular file", path)}
	}
	return f, nil
}

// temporary returns a file without a name, which vanishes when it is closed.
func (s *Store) temporary() (*os.File, error) {
	dir, err := s.incoming()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "unpacked-*")
	if err != nil {
		return nil, fmt.Errorf("make temporary file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make temporary file: %w", err)
	}
	return f, nil
}

func (s *Store) incoming() (string, error) {
	dir := filepath.Join(s.Dir, "incoming")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make image store: %w", err)
	}
	return dir, nil
}

// lock takes the store's lock, shared by imports and exclusive for GC, which must not remove a chunk that an import has just
// found to be there. It does not wait: machine.Conflict says that the other is at work.
func (s *Store) lock(how int) (unlock func(), err error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make image store: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &machine.Error{Code: machine.Conflict, Message: "the image store is busy with an import or a clean-up", Hint: "try again in a minute"}
		}
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	return func() { f.Close() }, nil
}
