package disk

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// rack is a sysfs and a /dev made of files, whose disks are loop devices: real block devices, without a machine around them.
type rack struct {
	t   *testing.T
	set Set
	log *bytes.Buffer
}

func newRack(t *testing.T) *rack {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("these tests attach loop devices: run them as root")
	}
	dir := t.TempDir()
	log := &safeBuffer{}
	r := &rack{t: t, log: &log.Buffer, set: Set{Sys: filepath.Join(dir, "sys"), Dev: filepath.Join(dir, "dev"), Log: slog.New(slog.NewTextHandler(log, nil))}}
	for _, d := range []string{"sys/block", "dev"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

type safeBuffer struct {
	mu sync.Mutex // guards Buffer
	bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// put writes a file of the rack's sysfs.
func (r *rack) put(path, content string) {
	r.t.Helper()
	path = filepath.Join(r.set.Sys, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// loop is one disk of a rack.
type loop struct {
	machine.Disk
	name string
	dev  string // loop device
}

// add attaches a disk filled with noise and shows it in sysfs under a name. It is in memory: an fsync of a disk that others
// use takes seconds.
func (r *rack) add(name, serial string, size int64) *loop {
	r.t.Helper()
	fd, err := unix.MemfdCreate(serial, unix.MFD_CLOEXEC)
	if err != nil {
		r.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), serial)
	defer f.Close() // the loop device keeps it
	if _, err := f.Write(noise(size)); err != nil {
		r.t.Fatal(err)
	}
	return r.attach(name, serial, f, size)
}

// attach shows a file as a disk.
func (r *rack) attach(name, serial string, f *os.File, size int64) *loop {
	r.t.Helper()
	dev, number := attachLoop(r.t, f)
	l := &loop{Disk: machine.Disk{Serial: serial, Size: size}, name: name, dev: dev}
	dir := "block/" + name
	r.put(dir+"/size", fmt.Sprintln(size/512))
	r.put(dir+"/dev", fmt.Sprintf("%d:%d\n", unix.Major(number), unix.Minor(number)))
	r.put(dir+"/serial", serial+"\n")
	r.put(dir+"/removable", "0\n")
	r.put(dir+"/ro", "0\n")
	r.put("devices/pci0000:00/"+name+"/vendor", "0x1af4\n")
	if err := os.Symlink("../../devices/pci0000:00/"+name, filepath.Join(r.set.Sys, dir, "device")); err != nil {
		r.t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(r.set.Dev, name), unix.S_IFBLK|0o600, int(number)); err != nil {
		r.t.Fatal(err)
	}
	return l
}

// attachLoop attaches a file to a free loop device, which goes away with the test. Others look for one at the same time.
func attachLoop(t *testing.T, f *os.File) (string, uint64) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("%v: these tests need the loop driver", err)
	}
	defer control.Close()
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatalf("find a loop device: %v", err)
		}
		dev := fmt.Sprintf("/dev/loop%d", n)
		l, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if err := unix.IoctlSetInt(int(l.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
			l.Close()
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(l.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			unix.IoctlSetInt(int(l.Fd()), unix.LOOP_CLR_FD, 0)
			l.Close()
		})
		return dev, st.Rdev
	}
	t.Fatal("no free loop device")
	return "", 0
}

// part adds a partition to the loop device, as the kernel would after reading a table, and shows it in sysfs.
func (r *rack) part(l *loop, name string, number int, start, size int64) {
	r.t.Helper()
	f, err := os.OpenFile(l.dev, os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	p := unix.BlkpgPartition{Start: start, Length: size, Pno: int32(number)}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_ADD_PARTITION, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	if err := ioctl(f, unix.BLKPG, unsafe.Pointer(&arg)); err != nil {
		r.t.Fatalf("add partition: %v", err)
	}
	r.t.Cleanup(func() {
		if f, err := os.OpenFile(l.dev, os.O_RDWR, 0); err == nil {
			arg.Op = unix.BLKPG_DEL_PARTITION
			ioctl(f, unix.BLKPG, unsafe.Pointer(&arg)) // the wipe may have done it
			f.Close()
		}
	})
	dir := "block/" + l.name + "/" + name
	r.put(dir+"/partition", fmt.Sprintln(number))
	r.put(dir+"/start", fmt.Sprintln(start/512))
	r.put(dir+"/size", fmt.Sprintln(size/512))
}

// read returns what is on the disk.
func (l *loop) read(t *testing.T, off, n int64) []byte {
	t.Helper()
	f, err := os.OpenFile(l.dev, unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := aligned(int(n))
	if _, err := f.ReadAt(buf, off); err != nil {
		t.Fatal(err)
	}
	return buf
}

// write puts data on the disk.
func (l *loop) write(t *testing.T, data []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(l.dev, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// noise returns bytes of which none of a thousand in a row are all zero; the same size makes the same bytes.
func noise(size int64) []byte {
	b := make([]byte, size)
	src := rand.NewChaCha8([32]byte{byte(size >> 20)})
	block := make([]byte, min(size, 1<<20))
	src.Read(block)
	for off := int64(0); off < size; off += int64(len(block)) {
		copy(b[off:], block)
	}
	return b
}

func quiet(int64, int64) {}

// stopAfter is a progress function that cancels once so many bytes are done.
func stopAfter(cancel context.CancelFunc, bytes int64) func(done, total int64) {
	return func(done, _ int64) {
		if done >= bytes {
			cancel()
		}
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want one with %q", err, part)
	}
}
