package accelerator

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Roots says where the kernel shows itself; tests point it at folders of their own.
type Roots struct {
	Sys  string // "/sys" when empty
	Proc string // "/proc" when empty
	Kmsg string // "/dev/kmsg" when empty; a file of the same form or of dmesg's will do
	Dev  string // "/dev" when empty; disks that keep their serial number from sysfs are asked there
	Log  string // "/var/log" when empty; the fabric manager writes there
}

func (r Roots) dev() string {
	if r.Dev == "" {
		return "/dev"
	}
	return r.Dev
}

func (r Roots) sys() string {
	if r.Sys == "" {
		return "/sys"
	}
	return r.Sys
}

func (r Roots) proc() string {
	if r.Proc == "" {
		return "/proc"
	}
	return r.Proc
}

// maxLog bounds what is read of a kernel log, in bytes: a card in trouble can write faster than we read.
const maxLog = 64 << 20

// ReadKernelLog reads this boot's kernel log. What went wrong is in the result: a log that cannot be read is a finding.
func ReadKernelLog(r Roots) KernelLog {
	path := r.Kmsg
	if path == "" {
		path = "/dev/kmsg"
	}
	// Without the runtime's poller, which would wait for the next record at the end of the log.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return KernelLog{Error: fmt.Sprintf("open %s: %v", path, err)}
	}
	defer syscall.Close(fd)
	log, err := ParseKernelLog(io.LimitReader(&kmsgReader{fd: fd}, maxLog))
	if err != nil {
		log.Error = err.Error()
	}
	return log
}

// kmsgReader turns /dev/kmsg, which gives one record for each read and refuses a buffer too small for it, into a stream.
type kmsgReader struct {
	fd   int
	buf  [16 << 10]byte
	rest []byte
}

func (k *kmsgReader) Read(p []byte) (int, error) {
	for len(k.rest) == 0 {
		n, err := syscall.Read(k.fd, k.buf[:])
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR):
			continue // EPIPE: the next record was overwritten; the gap shows in the sequence numbers
		case errors.Is(err, syscall.EAGAIN):
			return 0, io.EOF
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		k.rest = k.buf[:n]
	}
	n := copy(p, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

// text reads a small file of sysfs or procfs without the white space around it.
func text(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// readValue reads a file of sysfs or procfs; a file that is not there is a value that is not supported.
func readValue[T any](path, unit, source string, parse func(string) (T, error)) Value[T] {
	s, err := text(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Unsupported[T](source)
	}
	if err != nil {
		return Unreadable[T](source, reason(err))
	}
	v, err := parse(s)
	if err != nil {
		return Unreadable[T](source, err.Error())
	}
	return Measured(v, unit, source)
}

// reason is an error's text without the path, which differs from kernel to kernel and from test to test.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
