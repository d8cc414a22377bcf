package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/bareyard/bareyard/machine"
)

// ataCommand is a command of ACS-4 with its registers.
type ataCommand struct {
	command  uint8
	feature  uint16
	count    uint16
	lba      uint64 // 48 bits
	extended bool   // 48-bit command
	write    bool   // data goes to the disk
	timeout  time.Duration
}

// ataResult is what the registers hold afterwards.
type ataResult struct {
	status, err uint8
	count       uint16
	lba         uint64
	coarse      bool // of count's upper half only whether it is zero
}

// Commands: ATA/ATAPI Command Set - 4 (ACS-4).
const (
	ataIdentify        = 0xec
	ataSanitize        = 0xb4
	ataSetPassword     = 0xf1
	ataUnlock          = 0xf2
	ataErasePrepare    = 0xf3
	ataEraseUnit       = 0xf4
	ataDisablePassword = 0xf6

	sanitizeStatus   = 0x0000
	sanitizeScramble = 0x0011
	sanitizeBlocks   = 0x0012

	scrambleKey = 0x43727970 // "Cryp"
	blocksKey   = 0x426b4572 // "BkEr"

	ataFast = 30 * time.Second

	ataEraseMost = 18 * time.Hour // of a disk's own erasure: the step ends after 48 hours, and the overwriting follows
)

// password locks a disk for the time of its secure erase. It is no secret: whoever finds a disk locked by an erase that was cut off
// unlocks it with this.
const password = "bareyard"

// sgHeader is struct sg_io_hdr of scsi/sg.h.
type sgHeader struct {
	id             int32
	direction      int32
	cmdLen, maxSB  uint8
	iovecs         uint16
	length         uint32
	data, cmd, sb  uintptr
	timeout, flags uint32
	pack           int32
	_              [4]byte
	user           uintptr
	status, masked uint8
	message, sbLen uint8
	host, driver   uint16
	resid          int32
	duration, info uint32
}

const sgIO = 0x2285

// ATA sends a command through SCSI's ATA PASS-THROUGH (16): SAT-4, 12.2.3.
func (kernel) ATA(f *os.File, c ataCommand, data []byte) (ataResult, error) {
	const noData, pioIn, pioOut = 3, 4, 5
	cdb, sense := aligned(16), aligned(32) // on the heap: what the header points to must not move with the stack
	h := sgHeader{id: 'S', direction: -1, cmdLen: uint8(len(cdb)), maxSB: uint8(len(sense)), timeout: uint32(c.timeout / time.Millisecond)}
	protocol, flags := byte(noData), byte(0x20) // CK_COND: the registers come back, as sense data
	if len(data) > 0 {
		h.length, h.data = uint32(len(data)), uintptr(unsafe.Pointer(unsafe.SliceData(data)))
		protocol, h.direction, flags = pioIn, -3, 0x0e // in blocks, as many as count says, from the disk
		if c.write {
			protocol, h.direction, flags = pioOut, -2, 0x06
		}
	}
	cdb[0], cdb[1], cdb[2] = 0x85, protocol<<1, flags
	if c.extended {
		cdb[1] |= 1
	}
	binary.BigEndian.PutUint16(cdb[3:], c.feature)
	binary.BigEndian.PutUint16(cdb[5:], c.count)
	for i, at := range []int{8, 10, 12, 7, 9, 11} {
		cdb[at] = byte(c.lba >> (8 * i))
	}
	cdb[13], cdb[14] = 0x40, c.command
	h.cmd, h.sb = uintptr(unsafe.Pointer(unsafe.SliceData(cdb))), uintptr(unsafe.Pointer(unsafe.SliceData(sense)))
	err := ioctl(f, sgIO, unsafe.Pointer(&h))
	runtime.KeepAlive(data)
	runtime.KeepAlive(cdb)
	runtime.KeepAlive(sense)
	if err != nil {
		return ataResult{}, err
	}
	if len(data) > 0 && h.status == 0 && h.host == 0 {
		return ataResult{}, nil // nobody asks for the registers
	}
	if r, ok := registers(sense); ok && h.host == 0 {
		return r, nil
	}
	return ataResult{}, fmt.Errorf("ATA command %#02x: SCSI status %#x, host status %#x, sense % x", c.command, h.status, h.host, sense[:max(h.sbLen, 22)])
}

// registers reads them out of sense data: SAT-4, 12.2.2.6 and 12.2.2.7. The fixed format, which kernels choose by their age, tells of the
// upper half of count only whether it is zero: all its bits are set then.
func registers(sense []byte) (r ataResult, ok bool) {
	switch sense[0] & 0x7f {
	case 0x72:
		if sense[8] != 0x09 {
			return r, false
		}
		r = ataResult{status: sense[21], err: sense[11], count: uint16(sense[12])<<8 | uint16(sense[13])}
		for i, at := range []int{15, 17, 19, 14, 16, 18} {
			r.lba |= uint64(sense[at]) << (8 * i)
		}
		return r, true
	case 0x70:
		const informationAvailable = 0x1d
		if sense[12] != 0 || sense[13] != informationAvailable {
			return r, false
		}
		r = ataResult{status: sense[4], err: sense[3], count: uint16(sense[6]), lba: uint64(sense[9]) | uint64(sense[10])<<8 | uint64(sense[11])<<16, coarse: true}
		if sense[8]&0x40 != 0 {
			r.count |= 0xff00
		}
		return r, true
	}
	return r, false
}

// ataDo sends a command and takes the error bit for an error.
func (d *device) ataDo(c ataCommand, data []byte) (ataResult, error) {
	if c.timeout == 0 {
		c.timeout = ataFast
	}
	r, err := d.protocol.ATA(d.f, c, data)
	if err == nil && r.status&0x21 != 0 { // ERR, DF
		err = fmt.Errorf("ATA command %#02x: status %#02x, error %#02x", c.command, r.status, r.err)
		if r.status&0x20 == 0 && r.err&0x04 != 0 { // ABRT
			err = refusal{err}
		}
	}
	return r, err
}

// ataDisk is what IDENTIFY DEVICE says of erasing.
type ataDisk struct {
	d        *device
	sanitize uint16 // word 59
	security uint16 // word 128
	time     uint16 // word 90: of an enhanced secure erase
}

// Bits of word 128.
const (
	secSupported = 1 << 0
	secEnabled   = 1 << 1
	secLocked    = 1 << 2
	secFrozen    = 1 << 3
	secExpired   = 1 << 4
	secEnhanced  = 1 << 5
)

// ata asks a disk what it is; an error says that it is not ATA.
func (d *device) ata() (a ataDisk, err error) {
	page := aligned(512)
	if _, err := d.ataDo(ataCommand{command: ataIdentify, count: 1}, page); err != nil {
		return a, err
	}
	word := func(n int) uint16 { return binary.LittleEndian.Uint16(page[2*n:]) }
	return ataDisk{d, word(59), word(128), word(90)}, nil
}

// methods returns how the disk, which has no password, can erase itself, the strongest first, and why it cannot do better. A normal secure
// erase is not among them: it reaches no more than overwriting does.
func (a ataDisk) methods(rotates bool) (list []selfErase, lacks []string) {
	_, _, unreadable := a.progress()
	switch known := a.sanitize & (1<<13 | 1<<15); {
	case a.sanitize&(1<<12) == 0:
		lacks = append(lacks, "ATA sanitize: the disk does not know it")
	case known == 0:
		lacks = append(lacks, "ATA sanitize: the disk knows overwriting alone")
	case unreadable != nil: // it would begin, and nobody would know when it ends
		lacks = append(lacks, fmt.Sprintf("ATA sanitize: how far it is cannot be asked: %v", unreadable))
	default:
		if known&(1<<15) != 0 {
			list = append(list, a.sanitizes("ata-sanitize-block", sanitizeBlocks, blocksKey))
		}
		if known&(1<<13) != 0 {
			list = append(list, a.sanitizes("ata-sanitize-crypto", sanitizeScramble, scrambleKey))
		}
	}
	level := machine.Clear // of flash: NIST SP 800-88, table A-8
	if rotates {
		level = machine.Purge
	}
	switch takes := a.eraseTime(rotates); {
	case a.security&secSupported == 0:
		lacks = append(lacks, "ATA secure erase: the disk does not know it")
	case a.security&secFrozen != 0:
		lacks = append(lacks, "ATA secure erase: the firmware has frozen the disk's security settings")
	case a.security&secExpired != 0:
		lacks = append(lacks, "ATA secure erase: too many wrong passwords; the disk wants to be switched off and on")
	case a.security&secEnhanced == 0:
		lacks = append(lacks, "ATA secure erase: the disk knows the normal one alone, which reaches no more than overwriting")
	case takes > ataEraseMost:
		lacks = append(lacks, fmt.Sprintf("ATA secure erase: it would take %s", takes))
	default:
		list = append(list, selfErase{"ata-enhanced-secure-erase", level, func(context.Context, func(float64)) error { return a.secureErase(takes) }})
	}
	return list, lacks
}

// eraseTime is what an enhanced secure erase takes: as the disk says, in units of two minutes (ACS-4, 9.11.5.4), or as long as writing it whole at 150 MB/s
// where it says nothing, or no more than "long".
func (a ataDisk) eraseTime(rotates bool) time.Duration {
	units, most := a.time&0xff, uint16(0xff)
	if a.time&(1<<15) != 0 {
		units, most = a.time&0x7fff, 0x7fff
	}
	says := time.Duration(units) * 2 * time.Minute
	if units == 0 || units == most {
		says = 10 * time.Minute
		if rotates {
			says = max(says, time.Duration(a.d.Size/150e6)*time.Second)
		}
	}
	return says
}

func (a ataDisk) sanitizes(name string, feature uint16, key uint64) selfErase {
	return selfErase{name, machine.Purge, func(ctx context.Context, share func(float64)) error {
		if state, _, err := a.progress(); err == nil && state == sanitizeRuns { // begun by an agent that died
			if err := a.await(ctx, share); err != nil && !errors.Is(err, errEraseFailed) {
				return err
			}
		}
		if _, err := a.d.ataDo(ataCommand{command: ataSanitize, feature: feature, lba: key, extended: true}, nil); err != nil {
			return outcome(err)
		}
		return a.await(ctx, share)
	}}
}

func (a ataDisk) await(ctx context.Context, share func(float64)) error {
	for {
		state, done, err := a.progress()
		switch {
		case err != nil:
			return fmt.Errorf("%w: ask how far it is: %w", errEraseFailed, err)
		case state == sanitizeDone:
			return nil
		case state != sanitizeRuns:
			return fmt.Errorf("%w: the disk says that its sanitize failed", errEraseFailed)
		}
		share(done)
		if err := pause(ctx, sanitizePoll); err != nil {
			return err
		}
	}
}

// progress asks for SANITIZE STATUS EXT: ACS-4, 7.36.
func (a ataDisk) progress() (state int, done float64, err error) {
	r, err := a.d.ataDo(ataCommand{command: ataSanitize, feature: sanitizeStatus, extended: true}, nil)
	switch {
	case err != nil:
		return sanitizeFailed, 0, err
	case r.count&(1<<14) != 0 && !(r.coarse && r.lba&0xffff == 0xffff): // all ones: nothing runs
		return sanitizeRuns, float64(r.lba&0xffff) / 65536, nil
	case r.count&(1<<15) != 0:
		return sanitizeDone, 1, nil
	}
	return sanitizeFailed, 0, nil
}

// open takes off the password that an erase of ours which was cut off has left. A disk that somebody else has given one locks itself at its
// next start: it is not fit for stock.
func (a *ataDisk) open() error {
	if a.security&secEnabled == 0 {
		return nil
	}
	const theirs = "the disk has a password that is not ours, set by whoever had it before: take it off by hand, or replace the disk: %w"
	if a.security&secLocked != 0 {
		if _, err := a.d.ataDo(ataCommand{command: ataUnlock, count: 1, write: true}, secret(0)); err != nil {
			return fmt.Errorf(theirs, err)
		}
	}
	if _, err := a.d.ataDo(ataCommand{command: ataDisablePassword, count: 1, write: true}, secret(0)); err != nil {
		return fmt.Errorf(theirs, err)
	}
	a.security &^= secEnabled | secLocked
	return nil
}

// secureErase sets a password, without which the command is refused, and erases; a successful erase takes the password off again.
func (a ataDisk) secureErase(takes time.Duration) error {
	if _, err := a.d.ataDo(ataCommand{command: ataSetPassword, count: 1, write: true}, secret(0)); err != nil {
		return err
	}
	const enhanced = 1 << 1
	_, err := a.d.ataDo(ataCommand{command: ataErasePrepare}, nil)
	if err == nil {
		_, err = a.d.ataDo(ataCommand{command: ataEraseUnit, count: 1, write: true, timeout: 2*takes + time.Hour}, secret(enhanced))
	}
	if err == nil {
		return nil
	}
	_, unlocked := a.d.ataDo(ataCommand{command: ataDisablePassword, count: 1, write: true}, secret(0))
	if unlocked != nil {
		return fmt.Errorf("%w: %w; the password %q stays on the disk: %w", errEraseFailed, err, password, unlocked)
	}
	return outcome(err)
}

// secret is the block that goes with the security commands: a word of flags and the password.
func secret(flags uint16) []byte {
	b := aligned(512)
	binary.LittleEndian.PutUint16(b, flags)
	copy(b[2:34], password)
	return b
}
