package trace

import (
	"fmt"
	"strings"
	"time"
)

// Verdict says whether somebody has to do something.
type Verdict string

// Verdicts.
const (
	Well     Verdict = "well"      // it came where it was to come
	UnderWay Verdict = "under-way" // it may still come: no longer silent than is usual at this point
	Stopped  Verdict = "stopped"   // it stands still
)

// Diagnosis is where a boot stands, in plain words.
type Diagnosis struct {
	Verdict Verdict `json:"verdict"`
	Code    string  `json:"code"` // names the situation, e.g. tftp-stalled; the same for as long as this software lives
	Text    string  `json:"text"`
	Hint    string  `json:"hint,omitempty"` // what to look at, or to do
}

// String is the diagnosis in one line.
func (d Diagnosis) String() string {
	if d.Hint == "" {
		return d.Text
	}
	return d.Text + "; " + d.Hint
}

// Context is what a boot's lines do not say.
type Context struct {
	Now     time.Time
	Waiting bool // a job waits for the agent: booting from disk is not what is wanted
}

// Diagnose says where a boot stands. It is a pure function of its arguments.
func Diagnose(b Boot, c Context) Diagnosis {
	d := digestOf(b.Lines)
	v := d.situation(c)
	if v.Verdict == Stopped && len(b.Lines) > 0 {
		last := b.Lines[0].last()
		for i := range b.Lines {
			if t := b.Lines[i].last(); t.After(last) {
				last = t
			}
		}
		if c.Now.Sub(last) < patience(v.Code) {
			v.Verdict, v.Text, v.Hint = UnderWay, "under way: "+v.Text, ""
		}
	}
	return v
}

// patience is how long the silence after a situation's last line is nothing unusual. Servers with many cards and much memory
// take minutes from power on to the first packet; a kernel and a RAM disk take a while to unpack.
func patience(code string) time.Duration {
	switch code {
	case "never-asked":
		return 8 * time.Minute
	case "agent-silent":
		return 2 * time.Minute
	case "loop", "hello-refused", "chose-other-server":
		return 0
	}
	return 45 * time.Second
}

func stopped(code, hint, format string, a ...any) Diagnosis {
	return Diagnosis{Verdict: Stopped, Code: code, Text: fmt.Sprintf(format, a...), Hint: hint}
}

func well(code, format string, a ...any) Diagnosis {
	return Diagnosis{Verdict: Well, Code: code, Text: fmt.Sprintf(format, a...)}
}

// loopTimes is how often a loader may be loaded without its script before it is a loop.
const loopTimes = 4

// situation looks from the end of a boot to its beginning: the furthest that it came is where it stopped.
func (d *digest) situation(c Context) Diagnosis {
	switch {
	case d.reported != nil:
		return well("reported", "the agent has reported what the machine is made of")
	case d.helloNo != nil && (d.helloOK == nil || d.helloNo.last().After(d.helloOK.last())):
		return stopped("hello-refused", "it may be another machine than the one on record, or two servers may have the same boot; compare its ports with `bareyard machine show`",
			"the agent said hello and was refused: %s", orUnknown(d.helloNo.Why))
	case d.helloOK != nil:
		return well("hello", "the agent said hello")
	}
	for _, step := range []func(Context) (Diagnosis, bool){d.afterFiles, d.atScript, d.atLoader, d.atFirmware} {
		if v, ok := step(c); ok {
			return v
		}
	}
	if d.systemAsk != nil {
		return well("system", "an installed system asked for its address; the firmware asked for nothing before")
	}
	return stopped("never-asked",
		"look at the boot order in the firmware, whether PXE is on for this port, the port's cable and VLAN, and, behind a router, its DHCP relay",
		"switched on, and no DHCP request of its port has arrived%s", since(d.powered, c.Now))
}

func since(l *Line, now time.Time) string {
	if l == nil || !now.After(l.last()) {
		return ""
	}
	return " in " + now.Sub(l.last()).Round(time.Second).String()
}

func orUnknown(why string) string {
	if why == "" {
		return "no reason is on record"
	}
	return why
}

// afterFiles: kernel, RAM disk and archive, and what follows from them.
func (d *digest) afterFiles(Context) (Diagnosis, bool) {
	k, r, a := d.fetch[kernel], d.fetch[ramdisk], d.fetch[archive]
	if k.last() == nil && r.last() == nil && a.last() == nil {
		return Diagnosis{}, false
	}
	for _, x := range []struct {
		role role
		f    *fetch
	}{{archive, a}, {ramdisk, r}, {kernel, k}} {
		last := x.f.last()
		if last == nil {
			continue
		}
		switch {
		case last == x.f.refused && x.role == archive:
			return stopped("archive-refused", "another machine may use its address or its MAC address, or its job was over when it got there; the loader tries again and then gives up",
				"it fetched kernel and RAM disk and was refused the archive of its boot: %s", orUnknown(last.Why)), true
		case last == x.f.refused:
			return stopped("file-refused", "is the file there, as boot.kernel and boot.ramdisk in the configuration have it?", "it was refused the %s: %s", x.role, orUnknown(last.Why)), true
		case last == x.f.broken:
			return stalled(x.role, last), true
		}
	}
	switch {
	case a.sent != nil && d.systemAck != nil && d.systemAck.last().After(a.sent.last()):
		return stopped("agent-no-hello", "can machines reach the API's port at this server's address (boot.address, api_listen)? The machine's console has the agent's own words",
			"the agent is up and has the address %s, and has not said hello", d.systemAck.DHCP.Addr), true
	case a.sent != nil:
		return stopped("agent-silent", "the kernel did not start, or has no driver for this port; look at the machine's console, and at kernel_args for one on its serial port",
			"it has kernel, RAM disk and archive, and the agent has asked for no address"), true
	case r.sent != nil:
		return stopped("no-archive", "look at the machine's console for what the loader says", "it fetched kernel and RAM disk, and not the archive of its boot"), true
	}
	return stopped("no-ramdisk", "the loader may have run out of memory: look at the machine's console", "it fetched the kernel, and not the RAM disk"), true
}

// stalled is a transfer that ended before its end.
func stalled(r role, l *Line) Diagnosis {
	of := ""
	if l.Size > 0 {
		of = fmt.Sprintf(" of %d", l.Size)
	}
	if l.Proto == TFTP {
		hint := "packets are lost on the way: look at the errors of its switch port, and at firewalls between"
		if l.Bytes == 0 {
			hint = "the first full-sized packet never arrives, or its acknowledgement never comes back: a link with a smaller MTU on the way, or a firewall that lets only port 69 pass"
		}
		return stopped("tftp-stalled", hint, "TFTP of the %s stalled at byte %d%s: %s", r, l.Bytes, of, orUnknown(l.Why))
	}
	return stopped("http-stalled", "some loaders' network drivers never recover from a lost packet: look at the errors of its switch port, or try another loader",
		"the %s stalled at byte %d%s: %s", r, l.Bytes, of, orUnknown(l.Why))
}

// atScript: iPXE or GRUB runs, or should.
func (d *digest) atScript(c Context) (Diagnosis, bool) {
	s, g := d.fetch[script], d.fetch[config]
	last := s.last()
	if g := g.last(); g != nil && (last == nil || g.last().After(last.last())) {
		last = g
	}
	switch {
	case last == nil:
	case last == s.refused || last == g.refused:
		return stopped("script-refused", "the address that it asks from must be the one that it was given here: another DHCP server may have given it one",
			"the loader was refused its script: %s", orUnknown(last.Why)), true
	case last == s.broken || last == g.broken:
		return stalled(script, last), true
	case last.Boots == BootsDisk && c.Waiting:
		return stopped("disk-while-waiting", "it asked outside of its boot window: it was on, or was reset, before the job had come so far. The next attempt begins with power off",
			"it asked what to boot and was told its disk, while a job waits for the agent"), true
	case last.Boots == BootsDisk:
		return well("disk", "it was told to boot from its disk: no job wants the agent"), true
	default:
		return stopped("no-kernel", "look at the machine's console for what the loader says; BIOS iPXE and little memory, or a firewall between, may be the cause",
			"the loader has its script, and fetched no kernel"), true
	}
	if d.loads >= loopTimes {
		return d.loop(), true
	}
	if d.ipxeAck != nil && (d.loaded == nil || d.ipxeAck.last().After(d.loaded.last())) {
		return stopped("no-script", "can it reach this server's boot port (boot.http_port) by TCP? TFTP and DHCP went well, so look at firewalls",
			"iPXE runs and has the address %s, and has not asked for its script", d.ipxeAck.DHCP.Addr), true
	}
	if d.ipxeDiscovers == 0 {
		return Diagnosis{}, false
	}
	if d.chose != nil && d.chose.DHCP.Stage == StageIPXE {
		return d.choseOther(), true
	}
	if d.ipxeOffers == 0 {
		return unanswered("iPXE", d.ipxeDiscovers, d.ipxeSilent), true
	}
	return stopped("ipxe-no-request", "the switch port may come up slowly (spanning tree: set it to edge or portfast), or another DHCP server answers on this network",
		"iPXE asked %s for an address, was offered one, and never took it", times(d.ipxeDiscovers)), true
}

// loop is A09 of the field: a card's iPXE that does not say so, or firmware that starts over.
func (d *digest) loop() Diagnosis {
	return stopped("loop", "a card with an iPXE of its own that does not say so chains back into itself; after five rounds this server offers the script instead of the loader",
		"it loaded %s %s and never asked for its script", name(d.loaded), times(d.loads))
}

func name(l *Line) string {
	if l == nil {
		return "the loader"
	}
	return l.path()[strings.LastIndex(l.path(), "/")+1:]
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	if n == 2 {
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// unanswered is a question that we left alone.
func unanswered(who string, n int, l *Line) Diagnosis {
	if l == nil {
		return stopped("unanswered", "see the server's log", "%s asked %s for an address and got no answer", who, times(n))
	}
	if l.Outcome == Failed {
		return stopped("look-up-failed", "see the server's log: the database may have been away", "%s asked %s for an address, and this server could not look it up", who, times(n))
	}
	hint := "is this the right network for it? compare the record with `bareyard machine show`"
	if strings.Contains(l.Why, "no machine") {
		hint = "enrol it, or turn discovery on (boot.discovery)"
	}
	return stopped("unanswered", hint, "%s asked %s for an address and got no answer on purpose: %s", who, times(n), orUnknown(l.Why))
}

func (d *digest) choseOther() Diagnosis {
	return stopped("chose-other-server", "another DHCP server answers on this network; let it pass boot on to us (its next-server), set ours up as a proxy beside it, or turn it off here",
		"it was offered an address and chose another server, %s", d.chose.DHCP.Server)
}
