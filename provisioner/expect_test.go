package provisioner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

func entry(name, mac, serial string) provisioner.Expectation {
	return provisioner.Expectation{Password: "secret", Expected: machine.Expected{Name: name, MAC: mac, Serial: serial, Class: "rtx5090x2", Site: "sha1",
		BMC: machine.BMC{Protocol: "ipmi", Address: "10.78.9." + name[len(name)-1:], Username: "admin"}, Admit: true}}
}

// TestExpected: a machine that the list names is enrolled by itself when it is seen, or at once when it waits in the inbox.
func TestExpected(t *testing.T) {
	y := newInboxYard(t)
	waits := y.discover(1)
	byMAC, bySerial := entry("gpu1", "3C-EC-EF-00-01-02", ""), entry("gpu2", "", "srv-2")
	byMAC.BootAddr = "10.77.0.61"
	done, err := y.Expect(t.Context(), []provisioner.Expectation{byMAC, bySerial})
	y.must(err)
	if done != (provisioner.ExpectResult{Added: 2, Found: 1}) {
		t.Errorf("done %+v", done)
	}
	if f := y.inbox(); len(f) != 1 || f[0].Expected != "gpu1" {
		t.Errorf("inbox %+v", f)
	}
	if n := y.count(`SELECT count(*) FROM river_job WHERE args->'action'->>'kind' = 'enrol' AND args->'action'->>'machine_id' = '` + waits.ID + `'`); n != 2 { // its sighting, and the list
		t.Errorf("%d actions to enrol it", n)
	}
	y.enrolByList(waits.ID, 1)
	y.enrolByList(waits.ID, 1) // the other one
	m := y.machine("gpu1")
	if m.ID != waits.ID || m.State != machine.Available || m.BootAddr.String() != "10.77.0.61" || m.BMC.Address != "10.78.9.1:623" {
		t.Errorf("enrolled %+v", m)
	}
	secret, err := y.db.Secrets(t.Context(), m.ID)
	if err != nil || secret.Current != "secret" {
		t.Errorf("its BMC's password: %v", err)
	}
	f := y.discover(2)
	y.enrolByList(f.ID, 1)
	if m := y.machine("gpu2"); m.ID != f.ID || m.BootAddr != addrOf(2) || m.Site != "sha1" {
		t.Errorf("enrolled %+v", m)
	}
	if list, err := y.db.Expected(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("still expected: %+v, %v", list, err)
	}
	// The same list again: all of it is there.
	if done, err = y.Expect(t.Context(), []provisioner.Expectation{byMAC, bySerial}); err != nil || done != (provisioner.ExpectResult{Enrolled: 2}) {
		t.Errorf("the same list again: %+v, %v", done, err)
	}
}

// TestExpectedAgain: a list that is given again changes what has changed.
func TestExpectedAgain(t *testing.T) {
	y := newInboxYard(t)
	list := []provisioner.Expectation{entry("gpu1", "3c:ec:ef:00:01:01", ""), entry("gpu2", "", "SRV-2")}
	_, err := y.Expect(t.Context(), list)
	y.must(err)
	if done, err := y.Expect(t.Context(), list); err != nil || done != (provisioner.ExpectResult{Same: 2}) {
		t.Errorf("the same again: %+v, %v", done, err)
	}
	list[0].Rack, list[1].Password = "r9", "another"
	if done, err := y.Expect(t.Context(), list); err != nil || done != (provisioner.ExpectResult{Changed: 2}) {
		t.Errorf("changed: %+v, %v", done, err)
	}
	got, err := y.db.Matching(t.Context(), nil, "srv-2")
	if err != nil || len(got) != 1 || got[0].Password != "another" {
		t.Errorf("%+v, %v", got, err)
	}
	y.must(y.db.Unexpect(t.Context(), "gpu2"))
	if err := y.db.Unexpect(t.Context(), "gpu2"); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("taken off twice: %v", err)
	}
}

// TestExpectAllOrNothing: what is wrong is named by line and field, all of it, and nothing is taken.
func TestExpectAllOrNothing(t *testing.T) {
	y := newInboxYard(t)
	y.addMachine(1)
	good := entry("gpu1", "3c:ec:ef:00:01:01", "")
	y.must(y.db.PutClass(t.Context(), machine.Class{Name: "c", Currency: "CNY"}))
	_, err := y.Expect(t.Context(), []provisioner.Expectation{entry("there", "3c:ec:ef:00:00:99", "")})
	y.must(err)
	with := func(change func(*provisioner.Expectation)) provisioner.Expectation {
		x := entry("bad9", "3c:ec:ef:00:00:09", "")
		change(&x)
		return x
	}
	for want, x := range map[string]provisioner.Expectation{
		"line 2: name":        with(func(x *provisioner.Expectation) { x.Name = "Bad Name" }),
		"line 2: mac":         with(func(x *provisioner.Expectation) { x.MAC = "3c:ec:ef" }),
		"mac: neither":        with(func(x *provisioner.Expectation) { x.MAC, x.Serial = "", "To be filled by O.E.M." }),
		"class: no class":     with(func(x *provisioner.Expectation) { x.Class = "none" }),
		"class: no class is":  with(func(x *provisioner.Expectation) { x.Class = "" }),
		"bmc.protocol":        with(func(x *provisioner.Expectation) { x.BMC.Protocol = "snmp" }),
		"bmc.address":         with(func(x *provisioner.Expectation) { x.BMC.Address = "" }),
		"bmc_user":            with(func(x *provisioner.Expectation) { x.BMC.Username = "" }),
		"boot_addr":           with(func(x *provisioner.Expectation) { x.BootAddr = "10.77.0" }),
		"public_mac":          with(func(x *provisioner.Expectation) { x.PublicMAC = "00:00:00:00:00:00" }),
		"in line 1 already":   with(func(x *provisioner.Expectation) { x.MAC = good.MAC }),
		"name: gpu1 is in":    with(func(x *provisioner.Expectation) { x.Name = good.Name }),
		"machine n1 is there": with(func(x *provisioner.Expectation) { x.Name = "n1" }),
		"that of machine n1":  with(func(x *provisioner.Expectation) { x.MAC = "02:00:5e:10:00:01" }),
		"is that of machine":  with(func(x *provisioner.Expectation) { x.BootAddr = "10.77.0.11" }),
		"that of there":       with(func(x *provisioner.Expectation) { x.MAC = "3c:ec:ef:00:00:99" }),
	} {
		_, err := y.Expect(t.Context(), []provisioner.Expectation{good, x})
		var me *machine.Error
		if !errors.As(err, &me) || me.Code != machine.Invalid || !strings.Contains(me.Message, want) || !strings.Contains(me.Message, "nothing was enrolled") || !strings.HasPrefix(me.Field, "line 2: ") {
			t.Errorf("%s: %v (%+v)", want, err, me)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Error("the password is in the error (K05)")
		}
	}
	if n := y.count(`SELECT count(*) FROM expected`); n != 1 {
		t.Errorf("%d entries are left, want the one from before", n)
	}
	if _, err := y.Expect(t.Context(), nil); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("an empty list: %v", err)
	}
}

// TestExpectedInTheWay: what keeps a machine that the list names from being enrolled is said in the inbox.
func TestExpectedInTheWay(t *testing.T) {
	y := newInboxYard(t)
	y.must(y.db.PutClass(t.Context(), machine.Class{Name: "rtx5090x8", Accelerator: "10de:2b85", Count: 8, Currency: "CNY"}))
	eight := entry("gpu1", "3c:ec:ef:00:01:01", "")
	eight.Class = "rtx5090x8"
	_, err := y.Expect(t.Context(), []provisioner.Expectation{eight, entry("gpu2", "3c:ec:ef:00:02:01", ""), entry("gpu3", "", "SRV-2"), entry("gpu4", "3c:ec:ef:00:04:01", "")})
	y.must(err)
	reason := func(n int) string {
		t.Helper()
		f := y.discover(n)
		y.enrolByList(f.ID, 1)
		f, err := y.db.Found(t.Context(), f.ID)
		y.must(err)
		return f.Reason
	}
	if got := reason(1); !strings.Contains(got, "names it gpu1") || !strings.Contains(got, "2 cards are recorded, class rtx5090x8 has 8") {
		t.Errorf("the wrong class: %q", got)
	}
	if got := reason(2); !strings.Contains(got, "gpu2 and gpu3 both name it") {
		t.Errorf("two entries: %q", got)
	}
	y.bmcNo["10.78.9.4:623"] = ipmi.ErrUnreachable
	f := y.discover(4)
	for try := 1; try <= 10; try++ {
		y.enrolByList(f.ID, try)
	}
	if n := y.count(`SELECT count(*) FROM river_job WHERE args->'action'->>'kind' = 'enrol' AND (args->'action'->>'turn')::int > 1`); n != 9 {
		t.Errorf("a BMC that does not answer is asked again %d times, want 9", n)
	}
	delete(y.bmcNo, "10.78.9.4:623")
	y.enrolByList(f.ID, 10)
	if m := y.machine("gpu4"); m.ID != f.ID {
		t.Errorf("when it answers: %+v", m)
	}
}

// TestPropose: classes by cards, memory and disks, the best first, and what is missing.
func TestPropose(t *testing.T) {
	classes := []machine.Class{{Name: "cpu"}, {Name: "x2", Accelerator: "10de:2b85", Count: 2}, {Name: "x2-1t", Accelerator: "10de:2b85", Count: 2},
		{Name: "x2-2t", Accelerator: "10de:2b85", Count: 2}, {Name: "x8", Accelerator: "10de:2b85", Count: 8}, {Name: "ascend", Accelerator: "19e5:d802", Count: 8}}
	facts := map[string]machine.ClassFacts{"x2-1t": {Memory: 1 << 40, Disks: 2, DiskSize: 7 << 40}, "x2-2t": {Memory: 2 << 40}}
	var got []string
	for _, p := range provisioner.Propose(stranger(1), classes, facts) {
		fits := "no"
		if p.Fits {
			fits = "fits"
		}
		got = append(got, p.Class+" "+fits+": "+strings.Join(p.Facts, ", "))
	}
	want := []string{
		"x2-1t fits: 2 cards 10de:2b85, 1 TiB of memory, at least 1 TiB, 2 disks, at least 2, 7.9 TiB of disk, at least 7 TiB",
		"x2 fits: 2 cards 10de:2b85",
		"x2-2t no: 2 cards 10de:2b85, 1 TiB of memory, at least 2 TiB",
		"x8 no: 2 of 8 cards 10de:2b85",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	bare := stranger(2)
	bare.Hardware.Accelerators = nil
	if p := provisioner.Propose(bare, classes, facts); len(p) != 1 || p[0].Class != "cpu" || !p[0].Fits {
		t.Errorf("without cards: %+v", p)
	}
}
