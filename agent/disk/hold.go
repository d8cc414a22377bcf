package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxStack bounds how deep devices may be stacked on a disk: partition, md, dm-crypt, LVM leave room below it.
const maxStack = 16

// release takes down whatever the kernel has built on a disk: md arrays, LVM and other device-mapper devices, bcache. It
// changes nothing on the disk itself. The RAM disk loads no module that would build any by itself; this is for kernels that
// have them built in.
func (s Set) release(d Disk) error {
	if err := s.releaseAbove(filepath.Join(s.Sys, "block", d.Name), maxStack); err != nil {
		return fmt.Errorf("release disk %s: %w", d.Serial, err)
	}
	return nil
}

// releaseAbove takes down the holders of a block device and of its partitions, the topmost first.
func (s Set) releaseAbove(dir string, depth int) error {
	if depth == 0 {
		return errors.New("devices are stacked too deep")
	}
	dirs := []string{dir}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // gone with what was on it
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if part := filepath.Join(dir, e.Name()); text(part, "partition") != "" {
			dirs = append(dirs, part)
		}
	}
	for _, dir := range dirs {
		holders, err := os.ReadDir(filepath.Join(dir, "holders"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, h := range holders {
			above := filepath.Join(s.Sys, "block", h.Name())
			if err := s.releaseAbove(above, depth-1); err != nil {
				return err
			}
			if err := s.takeDown(above); err != nil {
				return fmt.Errorf("take down %s: %w", h.Name(), err)
			}
			s.Log.Info("took down what was built on a disk", "device", h.Name())
			if err := gone(filepath.Join(dir, "holders", h.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeDown stops one stacked device, by what kind it is.
func (s Set) takeDown(dir string) error {
	switch {
	case exists(dir, "md"):
		return os.WriteFile(filepath.Join(dir, "md/array_state"), []byte("clear"), 0)
	case exists(dir, "dm"):
		return removeMapped(filepath.Join(s.Dev, "mapper/control"), text(dir, "dm/name"))
	case exists(dir, "bcache"):
		return os.WriteFile(filepath.Join(dir, "bcache/stop"), []byte("1"), 0)
	case !exists(dir, "."):
		return nil // several disks hold it up, and another one has taken it down
	}
	return errors.New("no idea what it is")
}

// gone waits until a link has disappeared: md and bcache stop in their own time.
func gone(path string) error {
	for range 50 {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%s stays", filepath.Base(path))
}

func exists(dir, file string) bool {
	_, err := os.Lstat(filepath.Join(dir, file))
	return err == nil
}

// dmIoctl is struct dm_ioctl of linux/dm-ioctl.h.
type dmIoctl struct {
	version     [3]uint32
	dataSize    uint32
	dataStart   uint32
	targetCount uint32
	openCount   int32
	flags       uint32
	eventNr     uint32
	padding     uint32
	dev         uint64
	name        [128]byte
	uuid        [129]byte
	data        [7]byte
}

// dmDevRemove is DM_DEV_REMOVE: _IOWR(0xfd, 4, struct dm_ioctl).
const dmDevRemove = 3<<30 | unsafe.Sizeof(dmIoctl{})<<16 | 0xfd<<8 | 4

// removeMapped removes a device-mapper device by its name.
func removeMapped(control, name string) error {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	req := dmIoctl{version: [3]uint32{4}, dataSize: uint32(unsafe.Sizeof(dmIoctl{})), dataStart: uint32(unsafe.Sizeof(dmIoctl{}))}
	if name == "" || len(name) >= len(req.name) {
		return fmt.Errorf("bad name %q", name)
	}
	copy(req.name[:], name)
	if err := ioctl(f, dmDevRemove, unsafe.Pointer(&req)); err != nil && !errors.Is(err, unix.ENXIO) {
		return err
	}
	return nil
}
