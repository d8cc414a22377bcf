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
}

func (v *drive) Namespace(*os.File) (uint32, error) { return 1, nil }

func (v *drive) NVMe(_ *os.File, c *nvmeCommand, data []byte) error {
	le := binary.LittleEndian
	if slices.Contains(v.refuse, c.opcode) {
		return nvmeStatus(0x4002)
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
		"OthersAreSpared":  {drive{sanicap: 3, oacs: 2 | 8, fna: 2, spaces: []uint32{1, 2}}, "", machine.Clear, []string{"NVMe sanitize: 1 further namespaces on the drive would go with it", "NVMe format: 1 further namespaces on the drive would go with it"}, nil, nil},
		"OneOfTwoFormats":  {drive{sanicap: 3, oacs: 2, spaces: []uint32{1, 2}}, "nvme-format-erase", machine.Purge, []string{"NVMe sanitize: 1 further namespaces on the drive would go with it"}, nil, []uint32{1<<9 | 0x2153 | 1<<8}},
		"Refused":          {drive{sanicap: 2, oacs: 2, spaces: []uint32{1}, refuse: []uint8{nvmeSanitize, nvmeFormat}}, "", machine.Clear, []string{"nvme-sanitize-block: NVMe status 0x002", "nvme-format-erase: NVMe status 0x002"}, nil, nil},
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
	fails              bool
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
			if a.fails {
				return aborted, nil
			}
			return a.end, nil
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
		if !ready || given != a.password || given == "" || a.fails || c.timeout < time.Hour {
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
	for name, c := range map[string]struct {
		disk   sata
		method string
		did    string
		level  machine.ErasureLevel
		lack   string
	}{
		"Blocks":    {sata{sanitize: 1<<12 | 1<<13 | 1<<15, security: secSupported, runs: 2, end: ataResult{count: 1 << 15, lba: 0xffff}}, "ata-sanitize-block", "blocks", machine.Purge, ""},
		"Keys":      {sata{sanitize: 1<<12 | 1<<13, security: secSupported | secFrozen, end: ataResult{count: 0xff00, lba: 0xffff}}, "ata-sanitize-crypto", "keys", machine.Purge, "frozen"},
		"Enhanced":  {sata{security: secSupported | secEnhanced}, "ata-enhanced-secure-erase", "enhanced", machine.Purge, "ATA sanitize: the disk does not know it"},
		"Plain":     {sata{security: secSupported}, "ata-secure-erase", "erase", machine.Purge, "ATA sanitize: the disk does not know it"},
		"Frozen":    {sata{security: secSupported | secFrozen}, "", "", machine.Clear, "the firmware has frozen"},
		"Old":       {sata{}, "", "", machine.Clear, "ATA secure erase: the disk does not know it"},
		"CutOff":    {sata{security: secSupported | secLocked, password: password}, "ata-secure-erase", "erase", machine.Purge, ""},
		"Unlocked":  {sata{security: secSupported, password: "theirs"}, "ata-secure-erase", "erase", machine.Purge, ""}, // by a firmware that knows it
		"Refuses":   {sata{security: secSupported, fails: true}, "", "", machine.Clear, "ata-secure-erase: ATA command 0xf4"},
		"Exhausted": {sata{security: secSupported | secExpired}, "", "", machine.Clear, "too many wrong passwords"},
	} {
		t.Run(name, func(t *testing.T) {
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

// A tenant may have locked a disk: nobody can say that it is clean, nor write to it.
func TestATALockedBySomebodyElse(t *testing.T) {
	a := &sata{security: secSupported | secLocked, password: "theirs"}
	if _, _, err := eraseWith(t, a); err == nil || !strings.Contains(err.Error(), "locked by a password that is not ours") || a.did != nil {
		t.Errorf("error %v, did %q", err, a.did)
	}
	a = &sata{sanitize: 1<<12 | 1<<15, fails: true}
	if _, _, err := eraseWith(t, a); !errors.Is(err, errEraseFailed) {
		t.Errorf("a sanitize that failed: %v", err)
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
		"Fixed":        {"f000010050400000c0ffff00001d00000000 00000000", ataResult{status: 0x50, count: 0xff00, lba: 0xffff}, true},
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
