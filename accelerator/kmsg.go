package accelerator

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// EventKind says what kind of line an event was read from.
type EventKind string

// Kinds of event.
const (
	EventXID  EventKind = "xid"  // NVRM: Xid (PCI:0000:05:00): 79, …
	EventSXID EventKind = "sxid" // nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, …
	EventLost EventKind = "lost" // GPU … has fallen off the bus, without a code
	EventInit EventKind = "init" // RmInitAdapter failed: the driver could not start a card
	EventPPU  EventKind = "ppu"  // T-Head's XIDs, which are not NVIDIA's
	EventHost EventKind = "host" // machine check, memory controller, PCIe root, NVMe: Code is a HostFault
)

// Codes of an EventHost.
const (
	HostCheck       = iota + 1 // machine check, corrected
	HostCheckFatal             // machine check, uncorrected
	HostMemory                 // memory controller: corrected errors
	HostMemoryFatal            // uncorrected
	HostBus                    // PCIe: uncorrected, not fatal
	HostBusFatal               // uncorrected, fatal
	HostDrive                  // NVMe: a command timed out
	HostDriveFatal             // NVMe controller down, or a medium error
	HostDriverUECC             // T-Head's driver: uncorrected memory error of a card
)

// Event is what the kernel said about a card; the same thing said again only counts.
type Event struct {
	Kind  EventKind `json:"kind"`
	Code  int       `json:"code,omitempty"` // xid, sxid
	Slot  string    `json:"slot"`           // 0000:05:00.0; "" when the line names none
	Text  string    `json:"text"`           // the first such line, 300 bytes at most
	Count int64     `json:"count"`
	First float64   `json:"first"` // seconds since boot, 0 when the log has no times
	Last  float64   `json:"last"`
}

// KernelLog is what this boot's kernel log says about cards.
type KernelLog struct {
	Records int64   `json:"records"` // of this boot that were read
	Missed  int64   `json:"missed"`  // of this boot that the kernel's buffer no longer held
	Events  []Event `json:"events"`
	Dropped int64   `json:"dropped,omitempty"` // events beyond the first maxEvents different ones
	Error   string  `json:"error,omitempty"`   // why the log could not be read
}

const (
	maxEvents = 512 // different ones; 16 cards with 32 kinds of trouble each
	maxLine   = 8 << 10
	maxText   = 300
)

var (
	// A lost or misread card gives long, odd and cut-off lines, so nothing is asked of a line beyond the code.
	xidLine  = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d{1,9})\b`)
	sxidLine = regexp.MustCompile(`SXid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d{1,9})\b`)
	lostLine = regexp.MustCompile(`(?i)\bfallen off the bus\b`)
	initLine = regexp.MustCompile(`NVRM: .*\bRmInitAdapter failed\b`)
	slotText = regexp.MustCompile(`\b(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)\b`)
	dmesgAt  = regexp.MustCompile(`^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(.*)$`)
)

var (
	ppuLine    = regexp.MustCompile(`(?i)\balixpu\b.*?\bxid\b[^0-9]{0,20}(\d{1,9})\b`)
	ppuECCLine = regexp.MustCompile(`(?i)\balixpu\b.*\buncorrected ECC error detected\b`)
	checkLine  = regexp.MustCompile(`\[Hardware Error\]`)
	checkFatal = regexp.MustCompile(`(?i)\bseverity: (?:fatal|recoverable)\b|\bUncorrected\b|\buncorrectable\b|\bUC\|`)
	oldErrors  = regexp.MustCompile(`BERT: .*previous boot`)
	edacLine   = regexp.MustCompile(`\bEDAC (?:[a-z0-9_-]+ )?MC\d+: \d+ (UE|CE)\b`)
	aerLine    = regexp.MustCompile(`\bAER: .*\bUncorrect(?:ed|able) \((Fatal|Non-Fatal)\)`)
	nvmeLine   = regexp.MustCompile(`\bnvme nvme\d+: .*\b(timeout|timed out)\b`)
	nvmeDown   = regexp.MustCompile(`\bnvme nvme\d+: .*\b(controller is down|Device not ready|Removing after probe failure|Disabling device after reset failure)\b|\bcritical medium error, dev\b`)
)

// hostFault tells the lines about the machine around the cards; 0 for a line that is none.
func (p *logParser) hostFault(text string) int {
	switch {
	case oldErrors.MatchString(text): // what follows happened before this boot: firmware kept it
		p.old = true
		return 0
	case checkLine.MatchString(text):
		switch {
		case p.old:
			return 0
		case checkFatal.MatchString(text):
			return HostCheckFatal
		}
		return HostCheck
	}
	p.old = false
	if m := edacLine.FindStringSubmatch(text); m != nil {
		if m[1] == "UE" {
			return HostMemoryFatal
		}
		return HostMemory
	}
	if m := aerLine.FindStringSubmatch(text); m != nil {
		if m[1] == "Fatal" {
			return HostBusFatal
		}
		return HostBus
	}
	switch {
	case nvmeDown.MatchString(text):
		return HostDriveFatal
	case nvmeLine.MatchString(text):
		return HostDrive
	case ppuECCLine.MatchString(text):
		return HostDriverUECC
	}
	return 0
}

// ParseKernelLog reads kernel messages in the form of /dev/kmsg ("6,1234,5678901,-;text") or of dmesg ("[ 5.678901] text").
//
// Only this boot counts: a captured log may hold several, and each begins with the kernel's own "Linux version". Only the kernel counts: records
// that programs wrote carry another facility than 0 and could say anything.
func ParseKernelLog(r io.Reader) (KernelLog, error) {
	p := logParser{seen: map[eventKey]int{}}
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			p.line(strings.TrimRight(string(line), "\r\n"))
		}
		for err == bufio.ErrBufferFull { // the rest of an over-long line says nothing new
			_, err = lines.ReadSlice('\n')
		}
		if err == io.EOF {
			return p.log, nil
		}
		if err != nil {
			return p.log, fmt.Errorf("read kernel log: %w", err)
		}
	}
}

// eventKey tells events apart. Fatal and non-fatal are different things under one code, and so is what 154 asks for.
type eventKey struct {
	kind EventKind
	code int
	slot string
	mark string
}

func (e Event) key() eventKey {
	k := eventKey{e.Kind, e.Code, e.Slot, ""}
	switch {
	case e.Kind == EventXID && e.Code == 154:
		k.mark = recoveryAsked(e.Text)
	case e.Kind == EventSXID:
		k.mark = sxidSeverity(e.Text)
	}
	return k
}

// Name returns what the event is called: "XID 79".
func (e Event) Name() string {
	switch e.Kind {
	case EventXID:
		return fmt.Sprintf("XID %d", e.Code)
	case EventSXID:
		return fmt.Sprintf("SXID %d", e.Code)
	case EventPPU:
		return fmt.Sprintf("PPU XID %d", e.Code)
	}
	return "kernel log"
}

type logParser struct {
	log  KernelLog
	seen map[eventKey]int // index in log.Events
	seq  int64            // next sequence number that should come, 0 before the first record
	old  bool             // the lines are about a boot before this one
}

func (p *logParser) line(line string) {
	if line == "" || line[0] == ' ' { // " KEY=value" continues a kmsg record
		return
	}
	text, at := line, 0.0
	if head, body, ok := kmsgRecord(line); ok {
		if head.priority>>3 != 0 {
			p.count(head.seq)
			return
		}
		text, at = body, float64(head.micros)/1e6
		p.begin(text)
		p.count(head.seq)
	} else {
		if m := dmesgAt.FindStringSubmatch(line); m != nil {
			text = m[2]
			at, _ = strconv.ParseFloat(m[1], 64) // digits and a dot, by the pattern
		}
		p.begin(text)
		p.log.Records++
	}
	p.event(text, at)
}

// begin forgets what was read so far when a new boot begins.
func (p *logParser) begin(text string) {
	if strings.HasPrefix(text, "Linux version ") {
		*p = logParser{seen: map[eventKey]int{}}
	}
}

// count keeps the books of sequence numbers: a gap is records that the kernel overwrote.
func (p *logParser) count(seq int64) {
	if seq > p.seq {
		p.log.Missed += seq - p.seq
	}
	p.seq = seq + 1
	p.log.Records++
}

func (p *logParser) event(text string, at float64) {
	e := Event{Text: text, Count: 1, First: at, Last: at}
	if len(e.Text) > maxText {
		e.Text = e.Text[:maxText]
	}
	e.Text = printable(e.Text)
	if m := sxidLine.FindStringSubmatch(text); m != nil {
		e.Kind, e.Slot = EventSXID, Slot(m[1])
		e.Code, _ = strconv.Atoi(m[2]) // up to nine digits, by the pattern
	} else if m := xidLine.FindStringSubmatch(text); m != nil {
		e.Kind, e.Slot = EventXID, Slot(m[1])
		e.Code, _ = strconv.Atoi(m[2])
	} else if lostLine.MatchString(text) && strings.Contains(text, "GPU") {
		e.Kind = EventLost
	} else if initLine.MatchString(text) {
		e.Kind = EventInit
	} else if m := ppuLine.FindStringSubmatch(text); m != nil {
		e.Kind = EventPPU
		e.Code, _ = strconv.Atoi(m[1])
	} else if fault := p.hostFault(text); fault != 0 {
		e.Kind, e.Code = EventHost, fault
	} else {
		return
	}
	if e.Slot == "" {
		if m := slotText.FindStringSubmatch(text); m != nil {
			e.Slot = Slot(m[1])
		}
	}
	k := e.key()
	if i, ok := p.seen[k]; ok {
		p.log.Events[i].Count++
		p.log.Events[i].Last = at
		return
	}
	if len(p.log.Events) >= maxEvents {
		p.log.Dropped++
		return
	}
	p.seen[k] = len(p.log.Events)
	p.log.Events = append(p.log.Events, e)
}

// kmsgHead is what stands before the text of a /dev/kmsg record.
type kmsgHead struct {
	priority int64 // level in the low three bits, facility above
	seq      int64
	micros   int64 // since boot
}

// kmsgRecord splits a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).
func kmsgRecord(line string) (kmsgHead, string, bool) {
	head, text, ok := strings.Cut(line, ";")
	if !ok {
		return kmsgHead{}, "", false
	}
	fields := strings.Split(head, ",")
	if len(fields) < 4 {
		return kmsgHead{}, "", false
	}
	var n [3]int64
	for i := range n {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || v < 0 || v > 1<<60 {
			return kmsgHead{}, "", false
		}
		n[i] = v
	}
	return kmsgHead{n[0], n[1], n[2]}, text, true
}

// Slot brings a PCI address into the kernel's form: NVML writes 00000000:05:00.0 and XID lines 0000:05:00. It returns "" for what is none.
func Slot(s string) string {
	m := pciAddress.FindStringSubmatch(strings.ToLower(strings.TrimSpace(s)))
	if m == nil {
		return ""
	}
	domain := m[1]
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	function := m[4]
	if function == "" {
		function = "0"
	}
	return domain + ":" + m[2] + ":" + m[3] + "." + function
}

var pciAddress = regexp.MustCompile(`^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$`)

// printable replaces what could steer a terminal: names and log lines come from firmware and from whoever writes to the log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 { // the last two turn the direction of writing
			return '?'
		}
		return r
	}, s)
}
