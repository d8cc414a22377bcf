package trace

import (
	"net/url"
	"time"
)

// Reach is how far a boot has come.
type Reach int

// How far a boot can come. The order counts.
const (
	Nowhere Reach = iota
	Powered
	AtFirmware
	AtLoader // the loader is loaded, or being loaded
	AtIPXE
	AtScript
	AtKernel
	AtSystem // the agent, or an installed system
)

// Open is what is remembered of a machine's newest boot, to tell whether a line belongs to it.
type Open struct {
	Last  time.Time // of its lines
	Reach Reach
}

// forgotten is how long a machine may be silent before a new question of its firmware is another boot. Firmware that finds
// nothing to boot goes round all its devices and comes back within minutes.
const forgotten = 10 * time.Minute

// Begins reports whether a line is the first of a new boot, given the newest one so far. A loader that is loaded again and
// again is one boot: that it never gets further is what matters about it.
func (o Open) Begins(l Line) bool {
	if l.Proto == BMC {
		return o.Reach > Powered
	}
	if l.DHCP == nil || l.DHCP.Message != "DISCOVER" || l.DHCP.Stage == StageSystem {
		return false
	}
	return o.Reach >= AtScript || o.Reach > Powered && l.At.Sub(o.Last) > forgotten
}

// Add takes a line into account.
func (o *Open) Add(l Line) {
	if l.At.After(o.Last) {
		o.Last = l.At
	}
	if l.Last.After(o.Last) {
		o.Last = l.Last
	}
	o.Reach = max(o.Reach, l.reach())
}

func (l Line) reach() Reach {
	switch l.Proto {
	case BMC:
		return Powered
	case Agent:
		return AtSystem
	case DHCP:
		if l.DHCP == nil {
			return AtFirmware
		}
		switch l.DHCP.Stage {
		case StageIPXE:
			return AtIPXE
		case StageSystem:
			return AtSystem
		}
		return AtFirmware
	}
	switch roleOf(l.path()) {
	case loader, shim, grub:
		return AtLoader
	case config, script:
		return AtScript
	case kernel, ramdisk, archive:
		return AtKernel
	}
	return AtFirmware
}

// path is the file without the server that it is on.
func (l Line) path() string {
	if u, err := url.Parse(l.File); err == nil && u.Host != "" {
		return u.Path
	}
	return l.File
}

// Repeats reports whether a line says the same as the one before it, so that both can be one.
func (l Line) Repeats(before Line) bool {
	if l.Proto == BMC || l.MAC != before.MAC || l.Proto != before.Proto || l.Outcome != before.Outcome || l.Boots != before.Boots || l.Node != before.Node {
		return false
	}
	if l.Proto == HTTP && chunk(l.File) && chunk(before.File) {
		return true
	}
	same := l.Asked == before.Asked && l.Got == before.Got && l.Why == before.Why
	if l.DHCP != nil && before.DHCP != nil {
		return same && *l.DHCP == *before.DHCP
	}
	return same && l.DHCP == before.DHCP
}

// chunk reports whether a file is one of the thousands that an image is made of.
func chunk(file string) bool {
	const dir = "/images/chunk/"
	return len(file) > len(dir) && file[:len(dir)] == dir
}

// Merge makes one line of two that are the same; l came after before.
func (l Line) Merge(before Line) Line {
	m := before
	m.Times = max(before.Times, 1) + max(l.Times, 1)
	m.Last = l.At
	if l.Last.After(m.Last) {
		m.Last = l.Last
	}
	m.Bytes, m.Took = before.Bytes+l.Bytes, l.Took
	if chunk(l.File) {
		m.Asked, m.File, m.Size = "/images/chunk/…", l.File, 0
	}
	return m
}
