package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// nvmeCommand is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type nvmeCommand struct {
	opcode, flags        uint8
	_                    uint16
	nsid                 uint32
	cdw2, cdw3           uint32
	metadata             uint64
	addr                 uint64
	metadataLen, dataLen uint32
	cdw10, cdw11, cdw12  uint32
	cdw13, cdw14, cdw15  uint32
	timeout              uint32 // ms
	result               uint32
}

const (
	nvmeIoctlID    = 'N'<<8 | 0x40                                            // NVME_IOCTL_ID
	nvmeIoctlAdmin = 3<<30 | unsafe.Sizeof(nvmeCommand{})<<16 | 'N'<<8 | 0x41 // NVME_IOCTL_ADMIN_CMD
)

// Admin commands and what of them is used: NVM Express Base Specification 2.0.
const (
	nvmeGetLog   = 0x02
	nvmeIdentify = 0x06
	nvmeFormat   = 0x80
	nvmeSanitize = 0x84

	sanitizeLog = 0x81 // 5.16.1.25

	nvmeEraseTimeout = 2 * time.Hour // of Format NVM, which answers when it is done
)

// nvmeStatus is a status code that a controller answered, as the kernel passes it on: type and code.
type nvmeStatus uint16

func (s nvmeStatus) Error() string { return fmt.Sprintf("NVMe status %#03x", uint16(s)&0x7ff) }

// answer sorts what the kernel or the controller says of a command: refused are Invalid Opcode, Invalid Field, Operation Denied, Invalid Format and
// Sanitize Prohibited, and what the kernel did not send.
func answer(err error) error {
	var s nvmeStatus
	switch {
	case errors.As(err, &s) && slices.Contains([]nvmeStatus{0x001, 0x002, 0x015, 0x10a, 0x123}, s&0x7ff),
		errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EOPNOTSUPP):
		return refusal{err}
	}
	return err
}

// protocol sends a disk commands of its own, past the kernel's block layer. The kernel is it outside of tests.
type protocol interface {
	// NVMe sends an admin command to the controller of a namespace. Data goes where the command has it go.
	NVMe(f *os.File, c *nvmeCommand, data []byte) error
	// Namespace returns the number of the namespace that f is; an error when it is none.
	Namespace(f *os.File) (uint32, error)
	// ATA sends a command to an ATA disk.
	ATA(f *os.File, c ataCommand, data []byte) (ataResult, error)
}

// kernel is the protocol of real disks.
type kernel struct{}

func (kernel) Namespace(f *os.File) (uint32, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nvmeIoctlID, 0)
	if errno != 0 {
		return 0, errno
	}
	return uint32(n), nil
}

func (kernel) NVMe(f *os.File, c *nvmeCommand, data []byte) error {
	if len(data) > 0 {
		c.addr, c.dataLen = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), uint32(len(data))
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nvmeIoctlAdmin, uintptr(unsafe.Pointer(c)))
	runtime.KeepAlive(data)
	switch {
	case errno != 0:
		return errno
	case status != 0:
		return nvmeStatus(status)
	}
	return nil
}

// nvmeDisk is a namespace with what decides how it can erase itself.
type nvmeDisk struct {
	d         *device
	nsid      uint32
	sanitizes uint32 // SANICAP
	formats   bool   // Format NVM
	crypto    bool   // Format NVM knows cryptographic erase
	others    int    // further namespaces on the same drive, which this machine need not show
	cdw10     uint32 // of Format NVM: the format that the namespace has
}

// nvme asks a disk what it is; ok is false when it is no NVMe namespace.
func (d *device) nvme() (n nvmeDisk, ok bool, err error) {
	if n.nsid, err = d.protocol.Namespace(d.f); err != nil {
		return n, false, nil
	}
	n.d = d
	le := binary.LittleEndian
	identify := func(cns, nsid uint32) ([]byte, error) {
		page := aligned(4096)
		err := d.protocol.NVMe(d.f, &nvmeCommand{opcode: nvmeIdentify, nsid: nsid, cdw10: cns}, page)
		return page, err
	}
	controller, err := identify(1, 0)
	if err != nil {
		return n, true, fmt.Errorf("identify controller: %w", err)
	}
	oacs, fna := le.Uint16(controller[256:]), controller[524]
	n.sanitizes = le.Uint32(controller[328:])
	n.formats, n.crypto = oacs&2 != 0, fna&4 != 0
	list := uint32(0x02)  // namespaces that this controller sees
	if oacs&(1<<3) != 0 { // it manages namespaces: those that other controllers see as well
		list = 0x10
	}
	spaces, err := identify(list, 0)
	if err != nil {
		return n, true, fmt.Errorf("list namespaces: %w", err)
	}
	for i := 0; i < len(spaces) && le.Uint32(spaces[i:]) != 0; i += 4 {
		if le.Uint32(spaces[i:]) != n.nsid {
			n.others++
		}
	}
	space, err := identify(0, n.nsid)
	if err != nil {
		return n, true, fmt.Errorf("identify namespace: %w", err)
	}
	flbas, dps := uint32(space[26]), uint32(space[29])
	n.cdw10 = flbas&0xf | flbas>>4&1<<4 | dps&7<<5 | dps>>3&1<<8 | flbas>>5&3<<12
	return n, true, nil
}

// methods returns how the namespace, the only one of its drive, can erase itself, the strongest first, and why it cannot do better.
func (n nvmeDisk) methods() (list []selfErase, lacks []string) {
	switch {
	case n.sanitizes&7 == 0:
		lacks = append(lacks, "NVMe sanitize: the drive does not know it")
	case n.sanitizes&3 == 0:
		lacks = append(lacks, "NVMe sanitize: the drive knows overwriting alone")
	}
	for _, s := range []struct {
		name        string
		bit, sanact uint32
	}{{"nvme-sanitize-block", 1 << 1, 2}, {"nvme-sanitize-crypto", 1 << 0, 4}} {
		if n.sanitizes&s.bit != 0 {
			list = append(list, selfErase{s.name, machine.Purge, func(ctx context.Context, share func(float64)) error { return n.sanitize(ctx, s.sanact, share) }})
		}
	}
	if !n.formats {
		return list, append(lacks, "NVMe format: the drive does not know it")
	}
	if n.crypto {
		list = append(list, selfErase{"nvme-format-crypto", machine.Purge, func(context.Context, func(float64)) error { return n.format(2) }})
	}
	return append(list, selfErase{"nvme-format-erase", machine.Purge, func(context.Context, func(float64)) error { return n.format(1) }}), lacks
}

// format formats the namespace as it is formatted, with a secure erase setting.
func (n nvmeDisk) format(ses uint32) error {
	return outcome(answer(n.d.protocol.NVMe(n.d.f, &nvmeCommand{opcode: nvmeFormat, nsid: n.nsid, cdw10: n.cdw10 | ses<<9, timeout: uint32(nvmeEraseTimeout / time.Millisecond)}, nil)))
}

// Status of a sanitize operation, SSTAT bits 2:0.
const (
	sanitizeNever     = 0
	sanitizeDone      = 1
	sanitizeRuns      = 2
	sanitizeFailed    = 3
	sanitizeDoneAsWas = 4 // done, without deallocating
)

// sanitizePoll is how often a disk is asked how far it is.
const sanitizePoll = time.Second

// sanitize has the whole drive erase itself, and waits. One that runs already, begun by an agent that died, is waited for first: a drive
// goes on with it through any loss of power.
func (n nvmeDisk) sanitize(ctx context.Context, sanact uint32, share func(float64)) error {
	if state, _, err := n.progress(); err == nil && state == sanitizeRuns {
		if err := n.await(ctx, share); err != nil && !errors.Is(err, errEraseFailed) {
			return err
		}
	}
	const unrestricted = 1 << 3 // AUSE: after a failure the drive can be brought back
	if err := outcome(answer(n.d.protocol.NVMe(n.d.f, &nvmeCommand{opcode: nvmeSanitize, cdw10: sanact | unrestricted}, nil))); err != nil {
		return err
	}
	return n.await(ctx, share)
}

// await waits for the end of a sanitize operation.
func (n nvmeDisk) await(ctx context.Context, share func(float64)) error {
	for {
		state, done, err := n.progress()
		switch {
		case err != nil:
			return fmt.Errorf("%w: ask how far it is: %w", errEraseFailed, err)
		case state == sanitizeDone, state == sanitizeDoneAsWas:
			return nil
		case state == sanitizeRuns:
			share(done)
		default: // never: it said that it would
			return fmt.Errorf("%w: the drive says that its sanitize failed (status %d)", errEraseFailed, state)
		}
		if err := pause(ctx, sanitizePoll); err != nil {
			return err
		}
	}
}

// progress reads the sanitize status log: SPROG and SSTAT.
func (n nvmeDisk) progress() (state int, done float64, err error) {
	log := aligned(512)
	if err := n.d.protocol.NVMe(n.d.f, &nvmeCommand{opcode: nvmeGetLog, nsid: 0xffffffff, cdw10: sanitizeLog | uint32(len(log)/4-1)<<16}, log); err != nil {
		return 0, 0, err
	}
	le := binary.LittleEndian
	return int(le.Uint16(log[2:]) & 7), float64(le.Uint16(log)) / 65536, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
