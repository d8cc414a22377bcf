package tftp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// File is what a transfer sends.
type File interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Bytes returns a File of what is in memory.
func Bytes(b []byte) File { return memory{bytes.NewReader(b)} }

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// opened is a file of a file system, with the size that it had when it was opened.
type opened struct {
	*os.File
	size int64
}

func (f opened) Size() int64 { return f.size }

// maxFile bounds what one transfer may send. Loaders have at most a few megabytes, the RAM disk some tens.
const maxFile = 512 << 20

// OpenPath opens a regular file that the operator named, wherever its links lead.
func OpenPath(path string) (File, error) {
	return open(path, os.Stat, os.Open)
}

// open looks before it opens: a named pipe must not hang the server.
func open(name string, stat func(string) (fs.FileInfo, error), open func(string) (*os.File, error)) (File, error) {
	st, err := stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %v: %w", name, err, fs.ErrPermission)
	}
	if err != nil {
		return nil, fmt.Errorf("open boot file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file: %w", name, fs.ErrPermission)
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s is too large for TFTP: %w", name, fs.ErrPermission)
	}
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("open boot file: %w", err)
	}
	return opened{f, st.Size()}, nil
}

// Dir returns the regular files directly in a folder and nothing else. A path of any kind is refused, on both kinds of
// slash, and links that lead out of the folder are not followed. Some ROMs put a slash before the name, and some add
// the 0xff that ends the DHCP options after it: both are taken off.
func Dir(folder string) func(name string) (File, error) {
	return func(name string) (File, error) {
		name, err := Clean(name)
		if err != nil {
			return nil, err
		}
		root, err := os.OpenRoot(folder)
		if err != nil {
			return nil, fmt.Errorf("open loader folder: %w", err)
		}
		defer root.Close()
		return open(name, root.Stat, root.Open)
	}
}

// Clean returns the bare file name that a request means, or an error that is fs.ErrPermission when it is a path.
func Clean(name string) (string, error) {
	asked := name
	if n := len(name); n > 1 && name[n-1] == 0xff {
		name = name[:n-1]
	}
	if len(name) > 1 && name[0] == '/' {
		name = name[1:]
	}
	if name == "" || name == "." || name == ".." {
		return "", fmt.Errorf("%q is not a file name: %w", asked, fs.ErrPermission)
	}
	for i := range len(name) {
		if c := name[i]; c == '/' || c == '\\' || c < ' ' || c > '~' {
			return "", fmt.Errorf("%q is not a file name: %w", asked, fs.ErrPermission)
		}
	}
	return name, nil
}
