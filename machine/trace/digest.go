package trace

import (
	"net/netip"
	"time"
)

// digest is a boot in numbers: what was asked, what was answered, and the last of each kind.
type digest struct {
	powered *Line // the last time that we switched it on

	discovers, offers int   // DISCOVERs of firmware; those that we answered
	firstAsk, lastAsk *Line // of firmware
	requests          int   // REQUESTs of firmware that were for us
	fwAck, fwNak      *Line
	fwSilent          *Line // the last question of firmware that we left unanswered
	chose             *Line // the last REQUEST for another server
	declined          *Line

	ipxeDiscovers, ipxeOffers int
	ipxeAck, ipxeSilent       *Line
	systemAck                 *Line
	systemAsk                 *Line

	fetch  map[role]*fetch
	loads  int // loaders that were sent whole since the last script
	loaded *Line

	helloOK, helloNo *Line
	reported         *Line // a discovery's inventory
}

// fetch is the story of one kind of file.
type fetch struct {
	probed, sent, broken, refused *Line
}

// last is what became of it last.
func (f *fetch) last() *Line {
	var l *Line
	for _, x := range []*Line{f.probed, f.sent, f.broken, f.refused} {
		if x != nil && (l == nil || x.last().After(l.last())) {
			l = x
		}
	}
	return l
}

// last is when the last of equal lines came.
func (l *Line) last() time.Time {
	if l.Last.After(l.At) {
		return l.Last
	}
	return l.At
}

func (l *Line) times() int { return max(l.Times, 1) }

func digestOf(lines []Line) *digest {
	d := &digest{fetch: map[role]*fetch{}}
	for _, r := range []role{loader, shim, grub, config, script, kernel, ramdisk, archive} {
		d.fetch[r] = &fetch{}
	}
	for i := range lines {
		l := &lines[i]
		switch l.Proto {
		case BMC:
			d.powered = l
		case DHCP:
			if l.DHCP != nil {
				d.dhcp(l)
			}
		case TFTP, HTTP:
			d.file(l)
		case Agent:
			switch {
			case l.Outcome != Answered:
				d.helloNo = l
			case l.Asked == AskedReport:
				d.reported = l
			default:
				d.helloOK = l
			}
		}
	}
	return d
}

// What an agent's line may ask.
const (
	AskedHello  = "hello"
	AskedReport = "inventory" // of a machine that nobody has enrolled
)

func (d *digest) dhcp(l *Line) {
	answered := l.Outcome == Answered
	switch l.DHCP.Stage {
	case StageSystem:
		d.systemAsk = l
		if answered && l.DHCP.Answer == "ACK" {
			d.systemAck = l
		}
		return
	case StageIPXE:
		if l.DHCP.Message == "DISCOVER" {
			d.ipxeDiscovers += l.times()
			if answered {
				d.ipxeOffers += l.times()
			}
		}
		if answered && l.DHCP.Answer == "ACK" {
			d.ipxeAck = l
		}
		if l.Outcome == Silent || l.Outcome == Failed {
			d.ipxeSilent = l
			d.choice(l)
		}
		return
	}
	if d.firstAsk == nil {
		d.firstAsk = l
	}
	d.lastAsk = l
	switch l.DHCP.Message {
	case "DISCOVER":
		d.discovers += l.times()
		if answered {
			d.offers += l.times()
		}
	case "REQUEST":
		if d.choice(l) {
			return
		}
		d.requests += l.times()
	case "DECLINE":
		d.declined = l
		return
	}
	switch {
	case l.DHCP.Answer == "NAK":
		d.fwNak = l
	case answered && l.DHCP.Answer == "ACK":
		d.fwAck = l
	case l.Outcome == Silent, l.Outcome == Failed:
		d.fwSilent = l
	}
}

// choice notes a REQUEST that is for another server.
func (d *digest) choice(l *Line) bool {
	if l.DHCP.Message != "REQUEST" || l.Outcome != Silent || !l.DHCP.Server.IsValid() {
		return false
	}
	d.chose = l
	return true
}

func (d *digest) file(l *Line) {
	r := roleOf(l.path())
	f := d.fetch[r]
	if f == nil {
		return
	}
	switch l.Outcome {
	case Probed:
		f.probed = l
	case Answered:
		f.sent = l
	case Broken, Failed:
		f.broken = l
	case Refused:
		f.refused = l
	}
	switch {
	case r == script && l.Outcome == Answered:
		d.loads = 0
	case (r == loader || r == shim) && l.Outcome == Answered:
		d.loads += l.times()
		d.loaded = l
	}
}

// relay is the relay that the firmware's questions came through.
func (d *digest) relay() netip.Addr {
	if d.lastAsk == nil {
		return netip.Addr{}
	}
	return d.lastAsk.DHCP.Relay
}
