package lab

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
)

// bmcFault is a row of the table in docs/bmc.md: a way in which a BMC misbehaves, and what becomes of an order and its release.
type bmcFault struct {
	name    string
	on      []BMCKind // empty: both protocols
	set     func(*bmctest.Fault)
	machine MachineConfig
	locked  bool           // the record has another password than the BMC
	left    bool           // somebody left a disc in the drive
	wants   map[string]any // the firmware's settings by the machine's class

	// told is what an operator reads in the machine's events, and where; "" where nothing is worth telling.
	kind, told string
	mends      bool          // the fault is repaired when it was told: a job has to be able to go on
	keeps      machine.State // of the machine after its release; "" is back in stock
	ends       machine.State // of the machine; "" is that the order becomes active, and the machine goes back to stock at release
}

// bmcFaults is the table.
var bmcFaults = []bmcFault{
	{name: "the firmware ignores an override for one boot", machine: MachineConfig{Order: []Device{FromDisk, FromNetwork}}, kind: "bmc.boot", told: `boots from the network by method "persistent"`,
		set: func(f *bmctest.Fault) { f.IgnoreBoot = []string{bmctest.IgnoreOnce} }},
	{name: "the firmware ignores every override", on: []BMCKind{IPMI}, machine: MachineConfig{Order: []Device{FromDisk, FromNetwork}}, kind: "job.fail", told: "ignores the boot override, or its port, its cable", ends: machine.Maintenance,
		set: func(f *bmctest.Fault) { f.IgnoreBoot = []string{bmctest.IgnoreOnce, bmctest.IgnorePersistent} }},
	{name: "an override is accepted and not kept", kind: "job.try", told: "set next boot: accepted but not done", mends: true, set: func(f *bmctest.Fault) { f.DropBoot = true }},
	{name: "an override is refused while the host is off", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.RefuseBootOff = true }},
	{name: "a power-on is accepted and ignored", kind: "job.try", told: "accepted but not done", mends: true, set: func(f *bmctest.Fault) { f.IgnorePowerOn = true }},
	{name: "the power state is stale, or nothing is answered, after a command",
		set: func(f *bmctest.Fault) {
			f.StalePolls, f.PowerReads = 2, []bmctest.Read{bmctest.ReadOff, bmctest.ReadLost, bmctest.ReadOn, bmctest.ReadOff}
		}},
	{name: "a power-off takes seconds", set: func(f *bmctest.Fault) { f.SlowOff = 2 * time.Second }},
	{name: "every session slot is taken", on: []BMCKind{IPMI}, kind: "job.try", told: "busy", mends: true, set: func(f *bmctest.Fault) { f.SessionsFull = true }},
	{name: "every session slot is taken, and Basic works", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.SessionsFull = true }},
	{name: "every session slot is taken, and Basic is refused", on: []BMCKind{Redfish}, kind: "job.try", told: "busy", mends: true, set: func(f *bmctest.Fault) { f.SessionsFull, f.NoBasic = true, true }},
	{name: "nothing is answered", kind: "job.try", told: "unreachable", mends: true, set: func(f *bmctest.Fault) { f.Unreachable = true }},
	{name: "the password on record is refused", locked: true, kind: "job.fail", told: "credentials refused", ends: machine.Maintenance},
	{name: "the account is locked out", locked: true, kind: "job.fail", told: "refused", ends: machine.Maintenance, set: func(f *bmctest.Fault) { f.LockAfter = 1 }},
	{name: "cipher suite 17 is listed and refused", on: []BMCKind{IPMI}, set: func(f *bmctest.Fault) { f.RefuseSuites = []int{17} }},
	{name: "cipher suites are not listed, and only 17 works", on: []BMCKind{IPMI}, set: func(f *bmctest.Fault) { f.NoSuiteList, f.OnlySuite = true, 17 }},
	{name: "boot flags expire, and stay valid after use", on: []BMCKind{IPMI}, set: func(f *bmctest.Fault) { f.NoBootClearing, f.NoPersistReset = true, true }},
	{name: "a PATCH needs the ETag, which changes with every GET", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.RequireETag, f.StaleETags, f.ETagInBody = true, 1, true }},
	{name: "503 with Retry-After", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.RetryAfter, f.RetryHint = 3, "1" }},
	{name: "each resource is redirected", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.Redirect = true }},
	{name: "a session is dropped (401)", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.Unauthorized = 1 }},
	{name: "the boot mode is read-only", on: []BMCKind{Redfish}, machine: MachineConfig{Firmware: machine.UEFI}, set: func(f *bmctest.Fault) { f.Mode = bmctest.ModeReadOnly }},
	{name: "the boot mode is required", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.Mode = bmctest.ModeRequired }},
	{name: "reset types are missing, and a restart while off gets 500", on: []BMCKind{Redfish},
		set: func(f *bmctest.Fault) {
			f.ResetTypes, f.ResetList, f.ResetWhenOff500 = []string{"On", "ForceOff", "GracefulRestart", "GracefulShutdown"}, "actioninfo", true
		}},
	{name: "odd JSON types and a BOM", on: []BMCKind{Redfish}, set: func(f *bmctest.Fault) { f.OddTypes = true }},
	{name: "a login page instead of a resource", on: []BMCKind{Redfish}, kind: "job.try", told: "BMC of", mends: true, set: func(f *bmctest.Fault) { f.LoginPage = true }},
	{name: "a BIOS task is Completed, and failed", on: []BMCKind{Redfish}, wants: map[string]any{"SriovEnable": "Disabled"}, kind: "bmc.bios", told: "the job is Completed Critical", keeps: machine.Quarantined,
		set: func(f *bmctest.Fault) { f.BIOSJobFails = true }},
	{name: "like OpenBMC", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.OpenBMC}},
	{name: "like Dell", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.IDRAC}},
	{name: "like HPE", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.ILO, Firmware: machine.UEFI}},
	{name: "like AMI: overrides go to another resource", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.AMI}},
	{name: "like Supermicro", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.Supermicro}},
	{name: "HGX_Baseboard_0 is listed before the host", on: []BMCKind{Redfish}, machine: MachineConfig{Vendor: bmctest.HGX}},
	{name: "there is no boot from the network, and virtual media is offered", on: []BMCKind{Redfish}, machine: MachineConfig{NoPXE: true}, kind: "job.reboot", told: "started again, from virtual media"},
	{name: "virtual media: a disc is in the drive already", on: []BMCKind{Redfish}, machine: MachineConfig{Media: true}, left: true},
	{name: "virtual media: without actions, by PATCH", on: []BMCKind{Redfish}, machine: MachineConfig{Media: true, Vendor: bmctest.OpenBMC}, set: func(f *bmctest.Fault) { f.MediaPatchOnly = true }},
	{name: "virtual media: a disc is accepted and never fetched", on: []BMCKind{Redfish}, machine: MachineConfig{Media: true}, kind: "job.try", told: "insert virtual media: accepted but not done", mends: true,
		set: func(f *bmctest.Fault) { f.MediaIgnored = true }},
	{name: "virtual media: a disc is refused", on: []BMCKind{Redfish}, machine: MachineConfig{Media: true}, kind: "job.try", told: "insert virtual media", mends: true,
		set: func(f *bmctest.Fault) { f.MediaRefused = true }},
}

func (f bmcFault) protocols() []BMCKind {
	if len(f.on) == 0 {
		return []BMCKind{IPMI, Redfish}
	}
	return f.on
}

// row is the fault's line in the table.
func (f bmcFault) row() string {
	var by []string
	for _, p := range f.protocols() {
		by = append(by, map[BMCKind]string{IPMI: "IPMI", Redfish: "Redfish"}[p])
	}
	becomes := "active, then back in stock"
	if f.keeps != "" {
		becomes = "active, then wiped and " + string(f.keeps)
	}
	switch {
	case f.ends != "":
		becomes = "the order fails or takes another machine; this one is in " + string(f.ends)
	case f.mends:
		becomes = "tried again; " + becomes + " once the BMC is mended"
	}
	told := "-"
	if f.told != "" {
		told = fmt.Sprintf("`%s`: … %s …", f.kind, f.told)
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", f.name, strings.Join(by, ", "), becomes, told)
}

// TestBMCFaults takes one machine for each fault and protocol through an order and its release, with the real server, all at once; and
// holds the table in docs/bmc.md against what happened.
func TestBMCFaults(t *testing.T) {
	t.Parallel()
	needRoot(t)
	var cases []bmcCase
	var machines []MachineConfig
	for i, f := range bmcFaults {
		for _, p := range f.protocols() {
			m := f.machine
			m.Name, m.BMC = fmt.Sprintf("f%d%s", i, p[:1]), p
			m.Class = m.Name
			machines = append(machines, m)
			cases = append(cases, bmcCase{bmcFault: f, by: p, name: m.Name})
		}
	}
	disc := tinyDisc(t)
	y := newYardWith(t, "bf", func(s *ServerConfig) {
		s.Disc, s.Extra = disc, map[string]any{"bmc": map[string]any{"seen_within": "6s", "obey_within": "8s", "poll": "off"}}
	}, func(records []Record) {
		for i, r := range records {
			if slices.ContainsFunc(cases, func(c bmcCase) bool { return c.name == r.Machine.Name && c.locked }) {
				records[i].Password = "not this one"
			}
		}
	}, machines...)
	began := time.Now()
	for i := range cases {
		c := &cases[i]
		if c.set != nil {
			y.Faults(c.name).Set(c.set)
		}
		if c.left {
			y.Simulated(c.name).leave("http://192.0.2.1/somebody-elses.iso")
		}
		if c.wants != nil {
			_, err := y.client.PutClassBIOS(t.Context(), c.name, api.NewBIOSProfile{Attributes: c.wants})
			y.must(err)
		}
		c.order = y.placeClass(c.name)
	}
	for _, c := range cases {
		if c.mends {
			c.until(y, "told", func() bool { return c.heard(y) != "" })
			y.Faults(c.name).Set(func(now *bmctest.Fault) { *now = bmctest.Fault{} })
			t.Logf("%6s told: %s", time.Since(began).Round(100*time.Millisecond), c.title())
		}
	}
	for i := range cases {
		c := &cases[i]
		if c.ends == "" {
			c.active(y)
			t.Logf("%6s active: %s", time.Since(began).Round(100*time.Millisecond), c.title())
			_, err := y.client.Act(t.Context(), c.order.ID, "release")
			y.must(err)
		}
	}
	for _, c := range cases {
		t.Run(c.title(), func(t *testing.T) { c.check(y.with(t)) })
	}
	t.Logf("%d machines after %s", len(cases), time.Since(began).Round(100*time.Millisecond))
	if !t.Failed() {
		compareTable(t)
	}
}

// tinyDisc is a disc with nothing on it that boots.
func tinyDisc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "nothing"), filepath.Join(dir, "disc.iso")
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ramdisk.BuildISO(t.Context(), ramdisk.ISOOptions{Kernel: file, RAMDisk: file, Out: out}); err != nil {
		t.Fatal(err)
	}
	return out
}

// bmcCase is a row with one protocol.
type bmcCase struct {
	bmcFault
	by    BMCKind
	name  string
	order machine.Order
}

func (c bmcCase) title() string { return string(c.by) + "/" + c.bmcFault.name }

// heard is what the machine's events say of the fault, if they do.
func (c bmcCase) heard(y *yard) string {
	for _, e := range y.events("", y.machine(c.name).ID) {
		if e.Kind == c.kind && strings.Contains(e.Text, c.told) {
			return e.Text
		}
	}
	return ""
}

// until waits for something of a case, and shows its order's history where it does not come.
func (c bmcCase) until(y *yard, what string, is func() bool) {
	y.t.Helper()
	defer func() {
		if y.t.Failed() {
			y.history(c.order.ID)
		}
	}()
	y.until(c.title()+": "+what, yardPatience, is)
}

// active waits until the order is active, or cannot become so.
func (c bmcCase) active(y *yard) {
	y.t.Helper()
	c.until(y, "active", func() bool {
		o := y.order(c.order.ID)
		if o.State == machine.OrderFailed {
			y.t.Fatalf("%s: order failed: %s", c.title(), o.Reason)
		}
		return o.State == machine.OrderActive && y.machine(c.name).JobID == ""
	})
}

func (c bmcCase) check(y *yard) {
	t, o, m := y.t, c.order, y.machine(c.name)
	if c.ends != "" {
		y.until("out of stock", 2*yardPatience, func() bool { m = y.machine(c.name); return m.State == c.ends && m.JobID == "" })
		o = y.order(o.ID)
		if o.State == machine.OrderActive || m.OrderID != "" || y.charges(o) != 0 {
			t.Errorf("order %s is %s, machine held by %q, %d charges", o.ID, o.State, m.OrderID, y.charges(o))
		}
	} else {
		o = y.settled(o.ID, machine.OrderEnded, cmp.Or(c.keeps, machine.Available))
		s := y.Simulated(c.name)
		if s.Writes() != 1 || s.Dirty() {
			t.Errorf("%d images written, dirty %v", s.Writes(), s.Dirty())
		}
		if s.disc != nil && s.disc() != "" {
			t.Errorf("%s is still in the drive", s.disc())
		}
	}
	if text := c.heard(y); c.told != "" && (text == "" || c.kind != "job.reboot" && !strings.Contains(text, c.name)) {
		t.Errorf("no %s of %s says %q: %q", c.kind, c.name, c.told, text)
		y.history(o.ID)
	}
	// What a customer reads: his order's events, and why it failed.
	texts := []string{o.Reason}
	for _, e := range y.events(o.ID, "") {
		texts = append(texts, e.Text)
	}
	host := strings.TrimSuffix(BMCNet.Addr().String(), "0")
	if i := slices.IndexFunc(texts, func(s string) bool { return strings.Contains(s, host) }); i >= 0 {
		t.Errorf("the customer reads where the BMC is: %s", texts[i])
	}
}

// compareTable holds the table in the documents against the one here.
func compareTable(t *testing.T) {
	const begin, end = "<!-- TestBMCFaults writes this table: go test ./lab -run TestBMCFaults -update -->\n", "<!-- end of the table -->\n"
	path := "../docs/bmc.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	table := "| the BMC | by | what becomes of an order and its release | what the operator reads |\n|---|---|---|---|\n"
	for _, f := range bmcFaults {
		table += f.row() + "\n"
	}
	if old == table {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is not the one that was tested (run with -update):\n%s", path, table)
	}
	if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
