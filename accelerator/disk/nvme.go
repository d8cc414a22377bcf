package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/accelerator"
)

// logSize is the size of the SMART / Health Information log page (NVM Express base specification, log page 02h).
const logSize = 512

// adminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	Opcode, Flags                            uint8
	_                                        uint16
	NSID, CDW2, CDW3                         uint32
	Metadata, Addr                           uint64
	MetadataLen, DataLen                     uint32
	CDW10, CDW11, CDW12, CDW13, CDW14, CDW15 uint32
	TimeoutMS, Result                        uint32
}

const (
	ioctlAdmin   = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd)
	getLogPage   = 0x02
	healthPage   = 0x02
	allNamespace = 0xffffffff
	adminTimeout = 5000 // ms
)

var errNotNVMe = errors.New("no NVMe disk")

// healthLog asks the kernel to ask the disk. It changes nothing on it.
func healthLog(node string, into *[logSize]byte) error {
	f, err := os.OpenFile(node, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := adminCommand{
		Opcode: getLogPage, NSID: allNamespace, Addr: uint64(uintptr(unsafe.Pointer(into))), DataLen: logSize,
		CDW10: healthPage | (logSize/4-1)<<16, TimeoutMS: adminTimeout,
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlAdmin, uintptr(unsafe.Pointer(&cmd)))
	runtime.KeepAlive(into)
	switch {
	case errno == unix.ENOTTY || errno == unix.EINVAL:
		return errNotNVMe
	case errno != 0:
		return fmt.Errorf("ask for the health log: %w", errno)
	case status != 0:
		return fmt.Errorf("ask for the health log: NVMe status %#x", status)
	}
	return nil
}

// parseHealthLog reads the log page. 128-bit counters are cut at what fits.
func parseHealthLog(b []byte) *accelerator.SMART {
	const source = "nvme"
	count := func(n int64, unit string) accelerator.Value[int64] { return accelerator.Measured(n, unit, source) }
	wide := func(at int) int64 {
		low, high := binary.LittleEndian.Uint64(b[at:]), binary.LittleEndian.Uint64(b[at+8:])
		if high != 0 || low > 1<<62 {
			return 1 << 62
		}
		return int64(low)
	}
	s := &accelerator.SMART{
		Source: source, Warning: count(int64(b[0]), ""), Spare: count(int64(b[3]), "%"), SpareLeast: count(int64(b[4]), "%"), Used: count(int64(b[5]), "%"),
		MediaErrors: count(wide(160), ""), Hours: count(wide(128), "h"), Temperature: count(int64(binary.LittleEndian.Uint16(b[1:]))-273, "°C"),
	}
	units := wide(48)
	s.Written = count(min(units, (1<<62)/512000)*512000, "bytes") // the log counts thousands of 512 bytes
	return s
}
