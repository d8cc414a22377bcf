package trace

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite golden files")

// tape is a boot in the making, one second a line.
type tape struct {
	at    time.Time
	lines []Line
}

func newTape() *tape { return &tape{at: time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)} }

func (p *tape) add(l Line) *tape {
	p.at = p.at.Add(time.Second)
	l.At, l.MAC, l.Times = p.at, "52:54:00:0b:01:01", max(l.Times, 1)
	if l.Outcome == "" {
		l.Outcome = Answered
	}
	p.lines = append(p.lines, l)
	return p
}

func (p *tape) on() *tape { return p.add(Line{Proto: BMC, Asked: "power on", Got: "on"}) }

// ask adds a DHCP exchange: stage, message, and the file of the answer; change may say more.
func (p *tape) ask(stage, message, file string, change ...func(*Line)) *tape {
	l := Line{Proto: DHCP, File: file, DHCP: &DHCPFacts{Stage: stage, Message: message, Arch: 7, Addr: netip.MustParseAddr("10.77.0.11")}}
	switch message {
	case "DISCOVER":
		l.DHCP.Answer = "OFFER"
	case "REQUEST":
		l.DHCP.Answer = "ACK"
	}
	for _, c := range change {
		c(&l)
	}
	l.Asked, l.Got = message+" "+stage, strings.TrimSpace(l.DHCP.Answer+" "+l.File)
	return p.add(l)
}

// dora is a whole DHCP conversation.
func (p *tape) dora(stage, file string, change ...func(*Line)) *tape {
	return p.ask(stage, "DISCOVER", file, change...).ask(stage, "REQUEST", file, change...)
}

func silent(why string) func(*Line) {
	return func(l *Line) { l.Outcome, l.Why, l.DHCP.Answer, l.File = Silent, why, "", "" }
}

func often(n int) func(*Line) {
	return func(l *Line) { l.Times, l.Last = n, l.At.Add(time.Duration(n)*7*time.Second) }
}

func (p *tape) get(proto Proto, file string, change ...func(*Line)) *tape {
	l := Line{Proto: proto, Asked: file, File: file, Got: "sent", Bytes: 1000, Size: 1000}
	for _, c := range change {
		c(&l)
	}
	return p.add(l)
}

func outcome(o Outcome, why string, bytes int64) func(*Line) {
	return func(l *Line) { l.Outcome, l.Why, l.Bytes, l.Got = o, why, bytes, string(o) }
}

func boots(what string) func(*Line) { return func(l *Line) { l.Boots = what } }

const (
	scriptPath  = "/boot/ipxe/52:54:00:0b:01:01.ipxe"
	archivePath = "/boot/archive/52:54:00:0b:01:01"
	scriptURL   = "http://10.77.0.1" + scriptPath
	loaderName  = "snponly.efi"
)

// toScript takes a boot to its script, by PXE and a loader.
func (p *tape) toScript(what string) *tape {
	return p.on().dora(StagePXE, loaderName).get(TFTP, loaderName).dora(StageIPXE, scriptURL).get(HTTP, scriptPath, boots(what))
}

func (p *tape) toArchive() *tape {
	return p.toScript(BootsAgent).get(HTTP, "/boot/vmlinuz").get(HTTP, "/boot/ramdisk").get(HTTP, archivePath)
}

func arch(n int) func(*Line) { return func(l *Line) { l.DHCP.Arch = n } }

func relayed(l *Line) { l.DHCP.Relay = netip.MustParseAddr("10.15.64.1") }

func proxied(l *Line) { l.DHCP.Proxied, l.DHCP.Addr = true, netip.Addr{} }

func chose(l *Line) {
	l.DHCP.Server = netip.MustParseAddr("10.77.0.254")
	silent("it chose the server 10.77.0.254")(l)
}

func nak(l *Line) {
	l.DHCP.Answer, l.Outcome, l.File, l.Why = "NAK", Refused, "", "asked for another address than its own, 10.77.0.11"
}

var situations = []struct {
	name    string
	lines   *tape
	later   time.Duration // after the last line; zero means 20 minutes
	waiting bool
	verdict Verdict
	code    string
}{
	{name: "never asked at all, though powered on", lines: newTape().on(), waiting: true, verdict: Stopped, code: "never-asked"},
	{name: "powered on three minutes ago", lines: newTape().on(), later: 3 * time.Minute, waiting: true, verdict: UnderWay, code: "never-asked"},
	{name: "asked 4 times, never requested", lines: newTape().on().ask(StagePXE, "DISCOVER", loaderName, often(4)), verdict: Stopped, code: "never-requested"},
	{name: "asked 4 times, ignores proxy offers", lines: newTape().ask(StagePXE, "DISCOVER", loaderName, proxied, often(4)), verdict: Stopped, code: "ignores-proxy"},
	{name: "relay without reply", lines: newTape().ask(StagePXE, "DISCOVER", loaderName, relayed, often(4)), verdict: Stopped, code: "relay-silent"},
	{name: "chose another server", lines: newTape().ask(StagePXE, "DISCOVER", loaderName).ask(StagePXE, "REQUEST", "", chose), verdict: Stopped, code: "chose-other-server"},
	{name: "nobody has enrolled it", lines: newTape().ask(StagePXE, "DISCOVER", "", silent("no machine with this MAC address is known"), often(3)), verdict: Stopped, code: "unanswered"},
	{name: "on the wrong network", lines: newTape().ask(StagePXE, "DISCOVER", "", silent("seen on the network of 10.15.64.1, its reserved address is 10.77.0.11/24")), verdict: Stopped, code: "unanswered"},
	{name: "the database was away", lines: newTape().ask(StagePXE, "DISCOVER", "", func(l *Line) { silent("look-up failed")(l); l.Outcome = Failed }), verdict: Stopped, code: "look-up-failed"},
	{name: "asks for an address from elsewhere", lines: newTape().ask(StagePXE, "DISCOVER", loaderName).ask(StagePXE, "REQUEST", "", nak, often(5)), verdict: Stopped, code: "refused"},
	{name: "another host has its address", lines: newTape().dora(StagePXE, loaderName).ask(StagePXE, "DECLINE", "", silent("declined")), verdict: Stopped, code: "declined"},
	{name: "no loader for the architecture", lines: newTape().dora(StagePXE, "", arch(39)), verdict: Stopped, code: "no-loader"},
	{name: "UEFI HTTP client given no URL", lines: newTape().dora(StageHTTP, "", arch(19)), verdict: Stopped, code: "no-url"},
	{name: "UEFI HTTP client given a URL, never asked for it", lines: newTape().dora(StageHTTP, "http://10.77.0.1/boot/snponly.efi", arch(16)), verdict: Stopped, code: "loader-not-asked"},
	{name: "got the loader's name, never asked TFTP", lines: newTape().dora(StagePXE, loaderName), verdict: Stopped, code: "loader-not-asked"},
	{name: "TFTP size probe only", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName, outcome(Probed, "", 0)), verdict: Stopped, code: "probe-only"},
	{name: "TFTP stalled at the first block", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName, outcome(Broken, "client stopped answering", 0)), verdict: Stopped, code: "tftp-stalled"},
	{name: "TFTP stalled half-way", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName, outcome(Broken, "client stopped answering", 512)), verdict: Stopped, code: "tftp-stalled"},
	{name: "TFTP probe, then all of it, then nothing", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName, outcome(Probed, "", 0)).get(TFTP, loaderName), verdict: Stopped, code: "loader-silent"},
	{name: "no such loader", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName, outcome(Refused, "open loader: file does not exist", 0)), verdict: Stopped, code: "file-refused"},
	{name: "loader fetched, no second DHCP, BIOS", lines: newTape().dora(StagePXE, "undionly.kpxe", arch(0)).get(TFTP, "undionly.kpxe"), verdict: Stopped, code: "loader-silent"},
	{name: "Secure Boot refused: shim fetched, GRUB never", lines: newTape().dora(StagePXE, "shimx64.efi").get(TFTP, "shimx64.efi"), verdict: Stopped, code: "secure-boot"},
	{name: "shim asks for its revocations and not for GRUB", lines: newTape().dora(StagePXE, "shimx64.efi").get(TFTP, "shimx64.efi").get(TFTP, "revocations.efi", outcome(Refused, "not found", 0)), verdict: Stopped, code: "secure-boot"},
	{name: "GRUB fetched, no configuration", lines: newTape().dora(StagePXE, "shimx64.efi").get(TFTP, "shimx64.efi").get(TFTP, "grubx64.efi"), verdict: Stopped, code: "no-config"},
	{name: "GRUB has its configuration, no kernel", lines: newTape().dora(StagePXE, "shimx64.efi").get(TFTP, "shimx64.efi").get(TFTP, "grubx64.efi").get(HTTP, "/grub/grub.cfg"), verdict: Stopped, code: "no-kernel"},
	{name: "loop: the same loader over and over", lines: newTape().on().dora(StagePXE, "undionly.kpxe").get(TFTP, "undionly.kpxe").dora(StagePXE, "undionly.kpxe").get(TFTP, "undionly.kpxe").
		dora(StagePXE, "undionly.kpxe").get(TFTP, "undionly.kpxe").dora(StagePXE, "undionly.kpxe").get(TFTP, "undionly.kpxe"), later: time.Second, verdict: Stopped, code: "loop"},
	{name: "iPXE is not answered", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName).ask(StageIPXE, "DISCOVER", "", silent("seen on the network of 10.1.1.1, its reserved address is 10.77.0.11/24")), verdict: Stopped, code: "unanswered"},
	{name: "iPXE never takes its address", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName).ask(StageIPXE, "DISCOVER", scriptURL, often(4)), verdict: Stopped, code: "ipxe-no-request"},
	{name: "iPXE chose another server", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName).ask(StageIPXE, "DISCOVER", scriptURL).ask(StageIPXE, "REQUEST", "", chose), verdict: Stopped, code: "chose-other-server"},
	{name: "iPXE asked no script", lines: newTape().dora(StagePXE, loaderName).get(TFTP, loaderName).dora(StageIPXE, scriptURL), verdict: Stopped, code: "no-script"},
	{name: "iPXE in the card's ROM asked no script", lines: newTape().on().dora(StageIPXE, scriptURL, arch(0)), verdict: Stopped, code: "no-script"},
	{name: "script refused", lines: newTape().dora(StageIPXE, scriptURL).get(HTTP, scriptPath, outcome(Refused, "script asked for from 10.77.0.99", 0)), verdict: Stopped, code: "script-refused"},
	{name: "script fetched, no kernel", lines: newTape().toScript(BootsAgent), verdict: Stopped, code: "no-kernel"},
	{name: "kernel refused", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz", outcome(Refused, "no such file", 0)), verdict: Stopped, code: "file-refused"},
	{name: "kernel stalled (C09)", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz", outcome(Broken, "stalled at 524288 bytes: i/o timeout", 524288), func(l *Line) { l.Size = 8 << 20 }), verdict: Stopped, code: "http-stalled"},
	{name: "kernel fetched, no RAM disk", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz"), verdict: Stopped, code: "no-ramdisk"},
	{name: "RAM disk stalled", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz").get(HTTP, "/boot/ramdisk", outcome(Broken, "connection reset by peer", 77)), verdict: Stopped, code: "http-stalled"},
	{name: "RAM disk fetched, no archive", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz").get(HTTP, "/boot/ramdisk"), verdict: Stopped, code: "no-archive"},
	{name: "archive refused", lines: newTape().toScript(BootsAgent).get(HTTP, "/boot/vmlinuz").get(HTTP, "/boot/ramdisk").get(HTTP, archivePath, outcome(Refused, "not in its boot window", 0)), verdict: Stopped, code: "archive-refused"},
	{name: "the agent never asks for an address", lines: newTape().toArchive(), verdict: Stopped, code: "agent-silent"},
	{name: "the agent's kernel is just starting", lines: newTape().toArchive(), later: 30 * time.Second, verdict: UnderWay, code: "agent-silent"},
	{name: "the agent never said hello", lines: newTape().toArchive().dora(StageSystem, ""), verdict: Stopped, code: "agent-no-hello"},
	{name: "the agent says hello with a wrong MAC address", lines: newTape().toArchive().dora(StageSystem, "").add(Line{Proto: Agent, Asked: AskedHello, Outcome: Refused, Why: "none of its ports is one of machine n1"}), later: time.Second, verdict: Stopped, code: "hello-refused"},
	{name: "hello", lines: newTape().toArchive().dora(StageSystem, "").add(Line{Proto: Agent, Asked: AskedHello, Got: "token"}), verdict: Well, code: "hello"},
	{name: "discovered", lines: newTape().toArchive().dora(StageSystem, "").add(Line{Proto: Agent, Asked: AskedHello}).add(Line{Proto: Agent, Asked: AskedReport}), verdict: Well, code: "reported"},
	{name: "booted from disk as instructed", lines: newTape().toScript(BootsDisk), verdict: Well, code: "disk"},
	{name: "told its disk while a job waits", lines: newTape().toScript(BootsDisk), waiting: true, verdict: Stopped, code: "disk-while-waiting"},
	{name: "an installed system renews its lease", lines: newTape().dora(StageSystem, ""), verdict: Well, code: "system"},
	{name: "nothing at all", lines: newTape(), verdict: Stopped, code: "never-asked"},
}

// TestDiagnose: each situation has its own words; docs/discovery.md quotes them.
func TestDiagnose(t *testing.T) {
	var golden strings.Builder
	for _, s := range situations {
		later := s.later
		if later == 0 {
			later = 20 * time.Minute
		}
		got := Diagnose(Boot{Lines: s.lines.lines}, Context{Now: s.lines.at.Add(later), Waiting: s.waiting})
		if got.Verdict != s.verdict || got.Code != s.code {
			t.Errorf("%s: %s %s (%s), want %s %s", s.name, got.Verdict, got.Code, got.Text, s.verdict, s.code)
		}
		if got.Verdict == Stopped && got.Hint == "" || got.Text == "" || strings.Contains(got.String(), "%!") {
			t.Errorf("%s: %q does not say what to do", s.name, got)
		}
		fmt.Fprintf(&golden, "%s\n  %s %s: %s\n", s.name, got.Verdict, got.Code, got.Text)
		if got.Hint != "" {
			fmt.Fprintf(&golden, "  → %s\n", got.Hint)
		}
	}
	compare(t, "testdata/diagnoses.golden", golden.String())
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what is said now; look at it, then run with -update\n%s", file, got)
	}
}

// TestDiagnoseAnyPart: wherever a tape is cut, and whatever order its lines are in, there is a diagnosis and no panic.
func TestDiagnoseAnyPart(t *testing.T) {
	now := newTape().at.Add(time.Hour)
	for _, s := range situations {
		lines := s.lines.lines
		for from := range lines {
			for to := from; to <= len(lines); to++ {
				if d := Diagnose(Boot{Lines: lines[from:to]}, Context{Now: now}); d.Code == "" || d.Text == "" {
					t.Fatalf("%s, lines %d to %d: nothing to say", s.name, from, to)
				}
			}
		}
	}
	for _, p := range []Proto{BMC, DHCP, TFTP, HTTP, Agent, "", "x"} { // a newer server's lines, or a broken record
		if d := Diagnose(Boot{Lines: []Line{{Proto: p}}}, Context{Now: now}); d.Text == "" {
			t.Errorf("a bare %q line: nothing to say", p)
		}
	}
}

// TestBegins: what is one boot and what is the next.
func TestBegins(t *testing.T) {
	count := func(lines []Line) (n int) {
		var o Open
		for i, l := range lines {
			if i == 0 || o.Begins(l) {
				o, n = Open{}, n+1
			}
			o.Add(l)
		}
		return n
	}
	again := func(a, b *tape, gap time.Duration) []Line {
		lines := append([]Line{}, a.lines...)
		shift := a.at.Add(gap).Sub(newTape().at)
		for _, l := range b.lines {
			l.At = l.At.Add(shift)
			lines = append(lines, l)
		}
		return lines
	}
	loop := newTape().on()
	for range 9 {
		loop.dora(StagePXE, loaderName).get(TFTP, loaderName)
	}
	for _, tt := range []struct {
		name  string
		lines []Line
		want  int
	}{
		{"a whole boot", newTape().toArchive().dora(StageSystem, "").lines, 1},
		{"next boot set, then powered on", newTape().on().on().dora(StagePXE, "x").lines, 1},
		{"two power-ons with a boot between", again(newTape().toArchive(), newTape().toArchive(), time.Second), 2},
		{"reset after the script, without our doing", again(newTape().toScript(BootsDisk), newTape().dora(StagePXE, loaderName), time.Second), 2},
		{"the card's iPXE starts over after its script", again(newTape().dora(StageIPXE, scriptURL).get(HTTP, scriptPath), newTape().dora(StageIPXE, scriptURL), time.Second), 2},
		{"loader over and over is one boot", loop.lines, 1},
		{"firmware asks again and again", again(newTape().ask(StagePXE, "DISCOVER", "x"), newTape().ask(StagePXE, "DISCOVER", "x"), 4*time.Minute), 1},
		{"firmware asks again the next day", again(newTape().ask(StagePXE, "DISCOVER", "x"), newTape().ask(StagePXE, "DISCOVER", "x"), 24*time.Hour), 2},
		{"a server that takes a quarter of an hour to its first packet", again(newTape().on(), newTape().dora(StagePXE, "x"), 15*time.Minute), 1},
		{"the agent renews its lease for days", again(newTape().toArchive(), newTape().ask(StageSystem, "REQUEST", ""), 48*time.Hour), 1},
	} {
		if got := count(tt.lines); got != tt.want {
			t.Errorf("%s: %d boots, want %d", tt.name, got, tt.want)
		}
	}
}

// TestRepeats: equal questions in a row are one line with a count, and an image's thousands of chunks, too.
func TestRepeats(t *testing.T) {
	lines := newTape().ask(StagePXE, "DISCOVER", "x").ask(StagePXE, "DISCOVER", "x").ask(StagePXE, "REQUEST", "x").on().on().
		get(HTTP, "/images/chunk/aa").get(HTTP, "/images/chunk/bb").get(HTTP, "/images/chunk/cc").get(HTTP, "/images/manifest/dd").lines
	var got []string
	var kept []Line
	for _, l := range lines {
		if n := len(kept); n > 0 && l.Repeats(kept[n-1]) {
			kept[n-1] = l.Merge(kept[n-1])
			continue
		}
		kept = append(kept, l)
	}
	for _, l := range kept {
		got = append(got, fmt.Sprintf("%s ×%d %d", l.Asked, l.Times, l.Bytes))
	}
	want := "DISCOVER pxe ×2 0|REQUEST pxe ×1 0|power on ×1 0|power on ×1 0|/images/chunk/… ×3 3000|/images/manifest/dd ×1 1000"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
