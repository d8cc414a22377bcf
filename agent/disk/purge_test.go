package disk

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// noProtocol is a disk that takes no commands of its own.
type noProtocol struct{}

func (noProtocol) Namespace(*os.File) (uint32, error)        { return 0, unix.ENOTTY }
func (noProtocol) NVMe(*os.File, *nvmeCommand, []byte) error { return unix.ENOTTY }
func (noProtocol) ATA(*os.File, ataCommand, []byte) (ataResult, error) {
	return ataResult{}, unix.ENOTTY
}

// drive is an NVMe drive of the specification, for what QEMU's does not know and for faults. Its second namespace is somebody else's.
type drive struct {
	noProtocol
	sanicap  uint32
	oacs     uint16
	fna      byte
	spaces   []uint32
	runs     int    // how often it answers that the sanitize runs
	status   uint16 // that a sanitize ends with
	refuse   []uint8
	sanact   []uint32
	formats  []uint32
	progress int
	began    bool
	breaks   bool // Format NVM does
}

func (v *drive) Namespace(*os.File) (uint32, error) { return 1, nil }

func (v *drive) NVMe(_ *os.File, c *nvmeCommand, data []byte) error {
	le := binary.LittleEndian
	if slices.Contains(v.refuse, c.opcode) {
		return nvmeStatus(0x4002)
	}
	if (c.opcode == nvmeSanitize || c.opcode == nvmeFormat) && v.began && v.progress < v.runs {
		return nvmeStatus(0x01d) // Sanitize In Progress
	}
	if c.opcode == nvmeFormat && v.breaks {
		return nvmeStatus(0x006) // Internal Error
	}
	switch c.opcode {
	case nvmeIdentify:
		switch c.cdw10 {
		case 0:
			data[26], data[29] = 0x53, 0x0a // LBA format 0x23, metadata beside, protection 2 at the start
		case 1:
			le.PutUint16(data[256:], v.oacs)
			le.PutUint32(data[328:], v.sanicap)
			data[524] = v.fna
		case 2, 0x10:
			for i, n := range v.spaces {
				le.PutUint32(data[4*i:], n)
			}
		}
	case nvmeSanitize:
		v.sanact = append(v.sanact, c.cdw10)
		v.began, v.progress = true, 0
	case nvmeFormat:
		v.formats = append(v.formats, c.cdw10)
	case nvmeGetLog:
		if c.cdw10&0xff != sanitizeLog || c.nsid != math.MaxUint32 || int(c.cdw10>>16+1)*4 != len(data) {
			return errors.New("not the log of sanitize")
		}
		state, done := uint16(sanitizeNever), 0
		if v.began {
			if state = v.status; v.progress < v.runs {
				v.progress++
				state, done = sanitizeRuns, 65536*v.progress/(v.runs+1)
			}
		}
		le.PutUint16(data, uint16(done))
		le.PutUint16(data[2:], state)
	}
	return nil
}

// eraseWith erases one disk with a protocol, in time that does not pass.
func eraseWith(t *testing.T, p protocol) (e machine.Erasure, steps []int64, err error) {
	t.Helper()
	r := newRack(t)
	l := r.add("nvme0n1", "A", 8*mib)
	r.put("devices/pci0000:00/nvme0n1/model", "ACME 990\x00 \n")
	if a, ok := p.(*sata); ok && a.rotates {
		r.put("block/nvme0n1/queue/rotational", "1\n")
	} else {
		r.put("block/nvme0n1/queue/rotational", "0\n")
	}
	r.set.protocol = p
	synctest.Test(t, func(t *testing.T) {
		var all []machine.Erasure
		all, err = r.set.Erase(context.Background(), []machine.Disk{l.Disk}, func(done, total int64) {
			if total != 2*l.Size || done > total {
				t.Errorf("progress %d of %d", done, total)
			}
			steps = append(steps, done)
		})
		if len(all) == 1 {
			e = all[0]
		}
	})
	if err == nil && !allZero(l.read(t, 0, l.Size)) {
		t.Error("the disk is not all zero: what it says it did was believed")
	}
	return e, steps, err
}

func TestNVMeErasesItself(t *testing.T) {
	const ause = 8
	for name, c := range map[string]struct {
		drive   drive
		method  string
		level   machine.ErasureLevel
		lacks   []string
		sanact  []uint32
		formats []uint32
	}{
		"BlocksBeforeKeys": {drive{sanicap: 3, oacs: 2, fna: 4, spaces: []uint32{1}, runs: 3, status: sanitizeDone}, "nvme-sanitize-block", machine.Purge, nil, []uint32{2 | ause}, nil},
		"KeysAlone":        {drive{sanicap: 1, spaces: []uint32{1}, status: sanitizeDoneAsWas}, "nvme-sanitize-crypto", machine.Purge, []string{"NVMe format: the drive does not know it"}, []uint32{4 | ause}, nil},
		"FormatsWithKeys":  {drive{oacs: 2, fna: 4, spaces: []uint32{1}}, "nvme-format-crypto", machine.Purge, []string{"NVMe sanitize: the drive does not know it"}, nil, []uint32{2<<9 | 0x2153 | 1<<8}},
		"Formats":          {drive{oacs: 2, spaces: []uint32{1}}, "nvme-format-erase", machine.Purge, []string{"NVMe sanitize: the drive does not know it"}, nil, []uint32{1<<9 | 0x2153 | 1<<8}},
		"Refused":          {drive{sanicap: 2, oacs: 2, spaces: []uint32{1}, refuse: []uint8{nvmeSanitize, nvmeFormat}}, "", machine.Clear, []string{"nvme-sanitize-block: NVMe status 0x002", "nvme-format-erase: NVMe status 0x002"}, nil, nil},
		"OverwritesAlone":  {drive{sanicap: 4, spaces: []uint32{1}}, "", machine.Clear, []string{"NVMe sanitize: the drive knows overwriting alone", "NVMe format: the drive does not know it"}, nil, nil},
		"KnowsNothing":     {drive{spaces: []uint32{1}}, "", machine.Clear, []string{"NVMe sanitize: the drive does not know it", "NVMe format: the drive does not know it"}, nil, nil},
		"WasAtIt":          {drive{sanicap: 2, spaces: []uint32{1}, runs: 2, status: sanitizeDone, began: true}, "nvme-sanitize-block", machine.Purge, []string{"NVMe format: the drive does not know it"}, []uint32{2 | ause}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e, steps, err := eraseWith(t, &c.drive)
			if err != nil {
				t.Fatal(err)
			}
			if e.Level != c.level || !strings.HasPrefix(e.Method, c.method) || c.method == "" && strings.Contains(e.Method, "nvme") || !slices.Equal(e.Lacks, c.lacks) || e.Model != "ACME 990" {
				t.Errorf("erased: %+v", e)
			}
			if !slices.Equal(c.drive.sanact, c.sanact) || !slices.Equal(c.drive.formats, c.formats) {
				t.Errorf("sanitize %#x, format %#x; want %#x, %#x", c.drive.sanact, c.drive.formats, c.sanact, c.formats)
			}
			if steps[len(steps)-1] != 16*mib || c.drive.runs > 2 && len(steps) < 4 {
				t.Errorf("progress: %d", steps)
			}
		})
	}
}

// A drive that took the command and failed is not saved by zeros: nobody knows what it still holds.
func TestNVMeFailsToEraseItself(t *testing.T) {
	v := &drive{sanicap: 2, spaces: []uint32{1}, runs: 1, status: sanitizeFailed}
	if _, _, err := eraseWith(t, v); err == nil || !strings.Contains(err.Error(), "sanitize failed") {
		t.Errorf("error %v", err)
	}
	if _, _, err := eraseWith(t, &drive{oacs: 2, spaces: []uint32{1}, breaks: true}); !errors.Is(err, errEraseFailed) {
		t.Errorf("a format that broke off: %v", err)
	}
	// What is in a namespace that nobody has on record would stay.
	for _, oacs := range []uint16{2, 2 | 8} {
		v := &drive{sanicap: 3, oacs: oacs, fna: 4, spaces: []uint32{1, 2}}
		if _, _, err := eraseWith(t, v); err == nil || !strings.Contains(err.Error(), "1 further namespaces that are not on record") || v.sanact != nil || v.formats != nil {
			t.Errorf("two namespaces: %v, %+v", err, v)
		}
	}
	// One that succeeds by its next method is clean.
	v = &drive{sanicap: 2, oacs: 2, spaces: []uint32{1}, status: sanitizeFailed}
	if e, _, err := eraseWith(t, v); err != nil || !strings.HasPrefix(e.Method, "nvme-format-erase") || len(e.Lacks) != 1 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestSanitizeStopsWhenToldTo(t *testing.T) {
	r := newRack(t)
	l := r.add("nvme0n1", "A", 8*mib)
	r.set.protocol = &drive{sanicap: 2, spaces: []uint32{1}, runs: math.MaxInt, status: sanitizeDone}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := r.set.Erase(ctx, []machine.Disk{l.Disk}, quiet); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

// sata is an ATA disk of ACS-4.
type sata struct {
	noProtocol
	sanitize, security uint16 // words 59 and 128
	password           string
	ready              bool // ERASE PREPARE was the command before
	runs               int
	end                ataResult
	fails, refuses     bool
	mute               bool // its controller passes no registers on
	wasAt              bool // the sanitize of an agent that died runs
	rotates            bool
	time               uint16 // word 90
	did                []string
}

func (a *sata) ATA(_ *os.File, c ataCommand, data []byte) (ataResult, error) {
	aborted := ataResult{status: 0x51, err: 0x04}
	given := ""
	if len(data) == 512 && c.write {
		given = strings.TrimRight(string(data[2:34]), "\x00")
	}
	ready := a.ready
	a.ready = false
	switch c.command {
	case ataIdentify:
		security := a.security
		if a.password != "" {
			security |= 1 << 1 // enabled
		}
		binary.LittleEndian.PutUint16(data[118:], a.sanitize)
		binary.LittleEndian.PutUint16(data[180:], a.time)
		binary.LittleEndian.PutUint16(data[256:], security)
	case ataSanitize:
		if !c.extended {
			return aborted, nil
		}
		if c.feature == sanitizeStatus {
			if a.runs > 0 {
				a.runs--
				return ataResult{count: 1 << 14, lba: 0x8000}, nil
			}
			if a.mute {
				return ataResult{}, errors.New("no registers")
			}
			if a.fails {
				return ataResult{}, nil
			}
			return a.end, nil
		}
		if a.runs > 0 && a.did != nil || a.wasAt && a.runs > 0 {
			return aborted, nil
		}
		if c.feature == sanitizeBlocks && c.lba != 0x426b4572 || c.feature == sanitizeScramble && c.lba != 0x43727970 {
			return aborted, nil
		}
		a.did = append(a.did, map[uint16]string{sanitizeBlocks: "blocks", sanitizeScramble: "keys"}[c.feature])
	case ataSetPassword:
		a.password = given
	case ataUnlock, ataDisablePassword:
		if given != a.password {
			return aborted, nil
		}
		a.security &^= secLocked
		if c.command == ataDisablePassword {
			a.password = ""
		}
	case ataErasePrepare:
		a.ready = true
	case ataEraseUnit:
		if !ready || given != a.password || given == "" || c.timeout < time.Hour {
			return aborted, nil
		}
		if a.fails {
			return ataResult{status: 0x51, err: 0x10}, nil
		}
		if a.refuses {
			return aborted, nil
		}
		a.password = ""
		a.did = append(a.did, map[byte]string{0: "erase", 2: "enhanced"}[data[0]])
	default:
		return aborted, nil
	}
	return ataResult{status: 0x50}, nil
}

func TestATAErasesItself(t *testing.T) {
	const enhanced = secSupported | secEnhanced
	done := ataResult{count: 1 << 15, lba: 0xffff}
	for name, c := range map[string]struct {
		disk    sata
		rotates bool
		method  string
		did     string
		level   machine.ErasureLevel
		lack    string
	}{
		"Blocks":    {sata{sanitize: 1<<12 | 1<<13 | 1<<15, security: enhanced, runs: 2, end: done}, false, "ata-sanitize-block", "blocks", machine.Purge, ""},
		"Keys":      {sata{sanitize: 1<<12 | 1<<13, security: secSupported | secFrozen, end: ataResult{count: 0xff00, lba: 0xffff, coarse: true}}, false, "ata-sanitize-crypto", "keys", machine.Purge, "frozen"},
		"WasAtIt":   {sata{sanitize: 1<<12 | 1<<15, runs: 3, wasAt: true, end: done}, false, "ata-sanitize-block", "blocks", machine.Purge, ""},
		"Mute":      {sata{sanitize: 1<<12 | 1<<15, mute: true}, false, "", "", machine.Clear, "ATA sanitize: how far it is cannot be asked: no registers"},
		"Overwrite": {sata{sanitize: 1<<12 | 1<<14, end: done}, true, "", "", machine.Clear, "ATA sanitize: the disk knows overwriting alone"},
		"Flash":     {sata{security: enhanced, time: 2}, false, "ata-enhanced-secure-erase", "enhanced", machine.Clear, "ATA sanitize: the disk does not know it"},
		"Platters":  {sata{security: enhanced, time: 150}, true, "ata-enhanced-secure-erase", "enhanced", machine.Purge, "ATA sanitize: the disk does not know it"},
		"TooLong":   {sata{security: enhanced, time: 1<<15 | 600}, true, "", "", machine.Clear, "ATA secure erase: it would take"},
		"Plain":     {sata{security: secSupported}, true, "", "", machine.Clear, "which reaches no more than overwriting"},
		"Frozen":    {sata{security: enhanced | secFrozen}, true, "", "", machine.Clear, "the firmware has frozen"},
		"Old":       {sata{}, true, "", "", machine.Clear, "ATA secure erase: the disk does not know it"},
		"CutOff":    {sata{security: enhanced | secLocked, password: password}, true, "ata-enhanced-secure-erase", "enhanced", machine.Purge, ""},
		"LeftOpen":  {sata{sanitize: 1<<12 | 1<<15, security: secSupported, password: password, end: done}, false, "ata-sanitize-block", "blocks", machine.Purge, ""},
		"Refuses":   {sata{security: enhanced, refuses: true}, true, "", "", machine.Clear, "ata-enhanced-secure-erase: ATA command 0xf4"},
		"Exhausted": {sata{security: enhanced | secExpired}, true, "", "", machine.Clear, "too many wrong passwords"},
	} {
		t.Run(name, func(t *testing.T) {
			c.disk.rotates = c.rotates
			e, _, err := eraseWith(t, &c.disk)
			if err != nil {
				t.Fatal(err)
			}
			if e.Level != c.level || !strings.HasPrefix(e.Method, c.method) || c.method == "" && strings.Contains(e.Method, "ata") || !strings.Contains(strings.Join(e.Lacks, "\n"), c.lack) {
				t.Errorf("erased: %+v", e)
			}
			if strings.Join(c.disk.did, " ") != c.did || c.disk.password != "" {
				t.Errorf("it did %q, and is left with the password %q", c.disk.did, c.disk.password)
			}
		})
	}
}

// A disk that a tenant has given a password locks itself at its next start, if it has not yet: nobody can say that it is fit for stock.
func TestATAHasAPassword(t *testing.T) {
	for name, a := range map[string]*sata{
		"Locked":   {security: secSupported | secEnhanced | secLocked, password: "theirs"},
		"Unlocked": {sanitize: 1<<12 | 1<<15, security: secSupported | secEnhanced, password: "theirs"}, // by a firmware that knows it
		"Frozen":   {security: secSupported | secFrozen, password: "theirs"},
	} {
		if _, _, err := eraseWith(t, a); err == nil || !strings.Contains(err.Error(), "has a password that is not ours") || a.did != nil {
			t.Errorf("%s: error %v, did %q", name, err, a.did)
		}
	}
}

func TestATAFailsToEraseItself(t *testing.T) {
	for name, a := range map[string]*sata{
		"Sanitize":    {sanitize: 1<<12 | 1<<15, fails: true},
		"SecureErase": {security: secSupported | secEnhanced, fails: true},
	} {
		if _, _, err := eraseWith(t, a); !errors.Is(err, errEraseFailed) || a.password != "" {
			t.Errorf("%s: %v, password %q", name, err, a.password)
		}
	}
}

// Sense data as SAT-4 has it, in both formats.
func TestRegisters(t *testing.T) {
	for name, c := range map[string]struct {
		sense string
		want  ataResult
		ok    bool
	}{
		"Descriptor":   {"7201001d0000000e 090c0100800000ff00ff00004050", ataResult{status: 0x50, count: 0x8000, lba: 0xffff}, true},
		"Error":        {"720b00000000000e 090c000400010003000200014051", ataResult{status: 0x51, err: 4, count: 1, lba: 0x010203}, true},
		"Fixed":        {"f000010050400000c0ffff00001d00000000 00000000", ataResult{status: 0x50, count: 0xff00, lba: 0xffff, coarse: true}, true},
		"FixedOther":   {"70000500000000 0a00000000240000000000 000000", ataResult{}, false},
		"OtherSegment": {"7205200000000000 0000000000000000000000000000", ataResult{}, false},
		"None":         {"00000000000000000000000000000000000000000000", ataResult{}, false},
	} {
		sense := make([]byte, 32)
		raw, err := hex.DecodeString(strings.ReplaceAll(c.sense, " ", ""))
		if err != nil {
			t.Fatal(name, err)
		}
		copy(sense, raw)
		if r, ok := registers(sense); ok != c.ok || r != c.want {
			t.Errorf("%s: %+v, %v", name, r, ok)
		}
	}
}
