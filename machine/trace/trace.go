// Package trace holds what machines asked while they booted, and says in plain words why a boot stopped.
package trace

import (
	"net/netip"
	"path"
	"strings"
	"time"
	"unicode"
)

// Proto is how a line came about.
type Proto string

// Protocols of a boot.
const (
	BMC   Proto = "bmc"   // we switched the machine on
	DHCP  Proto = "dhcp"  // firmware, loader, agent or an installed system
	TFTP  Proto = "tftp"  // firmware
	HTTP  Proto = "http"  // firmware or loader
	Agent Proto = "agent" // the RAM disk's own word
)

// Outcome says what became of a question.
type Outcome string

// Outcomes.
const (
	Answered Outcome = "answered" // it got all of it
	Probed   Outcome = "probed"   // TFTP: it wanted to know the size only, as UEFI firmware does before each transfer
	Silent   Outcome = "silent"   // DHCP: there must be no answer
	Refused  Outcome = "refused"  // it may not have it, or there is no such thing; DHCP: a NAK
	Broken   Outcome = "broken"   // the transfer began and did not end
	Failed   Outcome = "failed"   // we could not answer
)

// Who asks by DHCP.
const (
	StagePXE    = "pxe"       // firmware that loads by TFTP
	StageHTTP   = "http-boot" // firmware that loads by HTTP
	StageIPXE   = "ipxe"      // a loader, or a card's own
	StageSystem = "system"    // the agent or an installed system
)

// What the script told a machine to boot: Line.Boots.
const (
	BootsDisk  = "disk"
	BootsAgent = "agent"
)

// Line is one exchange of a boot, or several equal ones in a row. Asked, Got and Why are for people's eyes; they come from a
// machine that is not to be trusted, and are printable and short.
type Line struct {
	At      time.Time     `json:"at"`             // when the first of them came
	Last    time.Time     `json:"last,omitzero"`  // when the last of them came; zero for one
	Times   int           `json:"times"`          // how many
	Took    time.Duration `json:"took,omitempty"` // until the answer had left, nanoseconds; of several: of the last
	Node    string        `json:"node,omitempty"` // the server that heard it
	MAC     string        `json:"mac"`            // lower case with colons
	From    netip.Addr    `json:"from,omitzero"`  // the machine's address then
	Proto   Proto         `json:"proto"`
	Asked   string        `json:"asked"` // e.g. "DISCOVER pxe arch 7", "/boot/vmlinuz"
	Got     string        `json:"got"`   // e.g. "OFFER 10.99.0.64 snponly.efi", "200"
	Outcome Outcome       `json:"outcome"`
	Why     string        `json:"why,omitempty"`   // of a silence, a refusal or a failure
	File    string        `json:"file,omitempty"`  // what a DHCP answer tells it to load; TFTP and HTTP: what it asked for
	Boots   string        `json:"boots,omitempty"` // HTTP: what the script told it to boot
	Bytes   int64         `json:"bytes,omitempty"` // sent; of several: of all
	Size    int64         `json:"size,omitempty"`  // bytes of the whole file, where it is known
	DHCP    *DHCPFacts    `json:"dhcp,omitempty"`
}

// DHCPFacts are what a DHCP question said of the machine and what the answer gives it.
type DHCPFacts struct {
	Message string     `json:"message"`          // DISCOVER, REQUEST, INFORM, DECLINE, RELEASE
	Answer  string     `json:"answer,omitempty"` // OFFER, ACK, NAK
	Stage   string     `json:"stage"`
	Arch    int        `json:"arch"` // option 93; -1 when it says none
	Addr    netip.Addr `json:"addr,omitzero"`
	Relay   netip.Addr `json:"relay,omitzero"`    // the relay that passed it on
	Circuit string     `json:"circuit,omitempty"` // the relay's name of the port
	Server  netip.Addr `json:"server,omitzero"`   // REQUEST: the server that it chose
	Proxied bool       `json:"proxied,omitempty"` // another server gives the address, we say what to boot
}

// Boot is one time that a machine tried to start.
type Boot struct {
	Number int64     `json:"number"` // counts the boots of all machines
	MAC    string    `json:"mac"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`         // the last line so far
	Cut    int       `json:"cut,omitempty"` // lines left out after the first few, because there were too many
	Lines  []Line    `json:"lines,omitempty"`
}

// role is what a file is in a boot.
type role string

const (
	noRole  role = ""
	loader  role = "loader"
	shim    role = "shim"   // what Secure Boot lets in
	grub    role = "grub"   // what shim lets in
	config  role = "config" // what GRUB reads
	script  role = "script" // what iPXE runs
	kernel  role = "kernel"
	ramdisk role = "RAM disk"
	archive role = "archive" // of this one boot: CA and nonce
)

// roleOf goes by the name under which this server hands a file out.
func roleOf(file string) role {
	dir, base := path.Split(strings.ToLower(file))
	switch {
	case strings.HasPrefix(dir, "/images/"), strings.HasPrefix(base, "revocations"), strings.HasPrefix(base, "shim_certificate"):
		return noRole
	case strings.HasSuffix(dir, "/archive/"):
		return archive
	case strings.HasSuffix(base, ".ipxe"):
		return script
	case strings.HasSuffix(base, ".cfg"):
		return config
	case strings.HasPrefix(base, "vmlinuz"):
		return kernel
	case strings.HasPrefix(base, "ramdisk"):
		return ramdisk
	case strings.HasPrefix(base, "shim"), strings.HasPrefix(base, "bootx64"), strings.HasPrefix(base, "bootaa64"):
		return shim
	case strings.HasPrefix(base, "grub") && strings.Contains(base, ".efi"):
		return grub
	case strings.HasSuffix(base, ".efi"), strings.HasSuffix(base, ".kpxe"), strings.HasSuffix(base, ".pxe"), strings.HasSuffix(base, ".0"):
		return loader
	}
	return noRole
}

// maxText bounds a text in a line, bytes.
const maxText = 300

// Clean returns the line fit to be kept and shown: what machines sent may hold anything.
func (l Line) Clean() Line {
	l.Asked, l.Got, l.Why, l.File = clean(l.Asked), clean(l.Got), clean(l.Why), clean(l.File)
	l.At, l.Last = l.At.Truncate(time.Microsecond), l.Last.Truncate(time.Microsecond) // as fine as the database's clock
	l.Times, l.Bytes, l.Size = max(l.Times, 1), max(l.Bytes, 0), max(l.Size, 0)
	if l.DHCP != nil {
		d := *l.DHCP
		d.Circuit, d.Message, d.Answer, d.Stage = clean(d.Circuit), clean(d.Message), clean(d.Answer), clean(d.Stage)
		l.DHCP = &d
	}
	return l
}

// clean keeps what can be printed. Text of ours may hold more than ASCII.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s), "?")
}
