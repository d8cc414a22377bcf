package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// simulated is a BMC of ipmi/bmctest under a machine of the yard.
type simulated struct {
	board   *bmctest.Board
	faults  *bmctest.Faults
	addUser func(name, password string, p ipmi.Privilege) error
	target  ipmi.Target
}

// addSimulated enrols machine number n with a simulated BMC, which the engine drives by the real Controller.
func (y *yard) addSimulated(n int, protocol string, vendor bmctest.Vendor) (machine.Machine, *simulated) {
	y.t.Helper()
	s := &simulated{board: bmctest.NewBoard(), faults: &bmctest.Faults{}}
	chassis := bmctest.NewMemory(bmctest.Identity{UUID: fmt.Sprintf("00112233-4455-6677-8899-0000000000%02x", n), Serial: fmt.Sprintf("SN%d", n)})
	var sim interface {
		Run(context.Context) error
		Target() ipmi.Target
	}
	if protocol == ipmi.IPMI {
		b := &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "Secret-pass-1", Chassis: chassis, Board: s.board, Faults: s.faults}
		sim, s.addUser = b, b.AddUser
	} else {
		b := &bmctest.Redfish{Addr: "127.0.0.1:0", TLS: true, User: "admin", Password: "Secret-pass-1", Vendor: vendor, Chassis: chassis, Board: s.board, Faults: s.faults}
		sim, s.addUser = b, b.AddUser
	}
	s.target = sim.Target()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx) }()
	y.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			y.t.Error(err)
		}
	})
	m := y.addMachine(n)
	// The record of addMachine, with the simulated BMC.
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE machine SET firmware = 'uefi', bmc = bmc || jsonb_build_object('protocol', $2::text, 'address', $3::text, 'cert_pin', $4::text) WHERE id = $1`,
		m.ID, s.target.Protocol, s.target.Address, s.target.CertPin)
	y.must(err)
	y.must(y.db.Replace(y.t.Context(), m.ID, "admin", "Secret-pass-1"))
	c := &ipmi.Controller{Poll: 5 * time.Millisecond, Settle: 20 * time.Millisecond}
	y.Engine.Power, y.Accounts, y.Memory, y.Baselines, y.HostAccess = c, c, c, c, c
	y.Settings, y.Profiles = c, y.db
	return y.machine(m.ID), s
}

// reclaim takes a released machine through its reclaim job, as far as that goes.
func (y *yard) reclaim(id string) machine.Machine {
	y.t.Helper()
	y.turn(id)
	if m := y.machine(id); m.JobID == "" {
		return m
	}
	y.bootAgent(id).until()
	y.turn(id)
	return y.machine(id)
}

func (y *yard) texts(f provisioner.EventFilter) string {
	y.t.Helper()
	list, err := y.db.Events(y.t.Context(), f)
	y.must(err)
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintln(&b, e.Kind, e.Text)
	}
	return b.String()
}

// TestK07Return: what a customer changed about a BMC keeps the machine from being sold again, in words that say what it is, until an
// operator has looked; the customer reads none of it. A machine that comes back as it was has a new password.
func TestK07Return(t *testing.T) {
	for _, tt := range []struct {
		name, protocol string
		vendor         bmctest.Vendor
		tamper         func(*simulated) error
		want           []string
	}{
		{"IPMI account", ipmi.IPMI, "", func(s *simulated) error { return s.addUser("back\x1bdoor", "Tenant-pass-1", ipmi.PrivilegeAdmin) },
			[]string{`user "backdoor" (id 3, administrator, enabled) appeared`}},
		{"Redfish account and firmware", ipmi.Redfish, bmctest.Supermicro, func(s *simulated) error {
			s.board.Flash(ipmi.Firmware{ID: "BIOS", Name: "BIOS", Version: "2.6-tenant"})
			return s.addUser("backdoor", "Tenant-pass-1", ipmi.PrivilegeAdmin)
		}, []string{`user "backdoor" (id `, "administrator, enabled) appeared", "firmware BIOS 2.7 → 2.6-tenant"}},
		{"LAN", ipmi.IPMI, "", func(s *simulated) error {
			lan := s.board.LAN()
			lan.Address = netip.MustParsePrefix("192.0.2.66/24")
			s.board.SetLAN(lan)
			return nil
		}, []string{"LAN ", "address is now 192.0.2.66/24"}},
		{"a part that it cannot tell now", ipmi.Redfish, "", func(s *simulated) error {
			for name := range s.board.BIOS() {
				s.board.SetBIOS(name, nil)
			}
			return nil
		}, []string{"BIOS settings could be read before and cannot be now"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, tt.protocol, tt.vendor)
			ctx := t.Context()
			o, err := y.Place(ctx, y.request(), "")
			y.must(err)
			y.install(m.ID)
			if c, err := y.Baseline(ctx, m.ID, true, false); err != nil || c.Baseline == nil || len(c.Differences) != 0 {
				t.Fatalf("handed over: %+v, %v", c.Words, err)
			}
			y.must(tt.tamper(s))
			// A reinstallation by the customer does not hide it.
			_, err = y.Reinstall(ctx, o.ID, "debian-12", "gpu1", false, "")
			y.must(err)
			y.install(m.ID)
			_, err = y.Release(ctx, o.ID)
			y.must(err)
			got := y.reclaim(m.ID)
			if got.State != machine.Quarantined {
				t.Fatalf("machine is %s, its job %+v", got.State, y.job(y.order(o.ID).JobID))
			}
			customer, operator := y.texts(provisioner.EventFilter{OrderID: o.ID}), y.texts(provisioner.EventFilter{MachineID: m.ID})
			for _, want := range tt.want {
				if !strings.Contains(got.Reason, want) || !strings.Contains(operator, want) {
					t.Errorf("reason %q, want %q in it, and in the machine's events", got.Reason, want)
				}
				if strings.Contains(customer, want) {
					t.Errorf("the customer reads %q", want)
				}
			}
			if strings.Contains(got.Reason, "\x1b") || !strings.Contains(customer, "not as it was at hand-over") {
				t.Errorf("reason %q; the customer reads %s", got.Reason, customer)
			}
			// It does not go back by itself, and does once somebody has accepted what is there.
			y.must(y.Return(ctx, m.ID))
			if got := y.reclaim(m.ID); got.State != machine.Quarantined {
				t.Fatalf("returned without a look, machine is %s", got.State)
			}
			c, err := y.Baseline(ctx, m.ID, true, true)
			if y.must(err); len(c.Words) == 0 {
				t.Error("nothing to accept")
			}
			y.must(y.Return(ctx, m.ID))
			if got := y.reclaim(m.ID); got.State != machine.Available || got.Reason != "" {
				t.Fatalf("accepted, machine is %s: %s", got.State, got.Reason)
			}
			secrets, err := y.db.Secrets(ctx, m.ID)
			if y.must(err); secrets.Current == "Secret-pass-1" || secrets.Next != "" {
				t.Error("the password was not changed at return")
			}
			if says, err := y.CheckBMC(ctx, m.ID); err != nil || !strings.Contains(says, "takes user admin") {
				t.Errorf("%q, %v", says, err)
			}
			if !strings.Contains(y.texts(provisioner.EventFilter{MachineID: m.ID}), "an operator accepted the BMC as it is") {
				t.Error("what was accepted is not in the events")
			}
		})
	}
}

// TestReturnUnchanged: what an installation, a restart by the customer and the weather change is no difference, and a machine that no
// customer had is not held against one.
func TestReturnUnchanged(t *testing.T) {
	for _, v := range []bmctest.Vendor{"ipmi", bmctest.Supermicro, bmctest.IDRAC, bmctest.ILO, bmctest.AMI} {
		t.Run("vendor "+string(v), func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			protocol := ipmi.Redfish
			if v == "ipmi" {
				protocol, v = ipmi.IPMI, ""
			}
			m, s := y.addSimulated(1, protocol, v)
			ctx := t.Context()
			for round := range 2 {
				o, err := y.Place(ctx, y.request(), "")
				y.must(err)
				y.install(m.ID)
				if round == 0 {
					y.must(y.Engine.SetPower(ctx, o.ID, "cycle"))
					s.board.Set(bmctest.Sensor{Name: "CPU1 Temp", Kind: ipmi.Temperature, Value: 71, State: ipmi.OK})
				}
				_, err = y.Release(ctx, o.ID)
				y.must(err)
				if got := y.reclaim(m.ID); got.State != machine.Available {
					t.Fatalf("round %d: machine is %s: %s", round, got.State, got.Reason)
				}
				if !s.board.HostAccess() {
					t.Error("in stock, and the machine's own way to its BMC is still shut")
				}
			}
			// Called off in the middle of the installation.
			o, err := y.Place(ctx, y.request(), "")
			y.must(err)
			y.walk(m.ID, machine.StepWipe)
			_, err = y.Cancel(ctx, o.ID)
			y.must(err)
			if got := y.reclaim(m.ID); got.State != machine.Available {
				t.Fatalf("called off: machine is %s: %s", got.State, got.Reason)
			}
		})
	}
}

// TestK07InBand: the machine's own way is shut while a customer has it where the BMC has a switch, what the RAM disk saw is kept, and
// nothing of it stops an installation.
func TestK07InBand(t *testing.T) {
	for _, tt := range []struct {
		name, protocol string
		report         machine.Report
		fault          bmctest.Fault
		want           machine.InBandState
		shut, text     string
	}{
		{"closed", ipmi.Redfish, machine.Report{Phase: machine.Done, Result: encode(machine.InBand{State: machine.InBandClosed, Why: "/dev/ipmi0: D4h"})}, bmctest.Fault{}, machine.InBandClosed, "HostInterface 1", "in-band closed"},
		{"said to be closed", ipmi.Redfish, machine.Report{Phase: machine.Done, Result: encode(machine.InBand{State: machine.InBandOpen})}, bmctest.Fault{KeepHost: true}, machine.InBandOpen, "HostInterface 1",
			"in-band open: the tenant's root can reach its BMC; baseline compared at return"},
		{"taken and not done", ipmi.Redfish, machine.Report{Phase: machine.Done, Result: encode(machine.InBand{State: machine.InBandOpen})}, bmctest.Fault{DropHost: true}, machine.InBandOpen, "", "not shut: "},
		{"no switch", ipmi.IPMI, machine.Report{Phase: machine.Done, Result: encode(machine.InBand{State: machine.InBandOpen})}, bmctest.Fault{}, machine.InBandOpen, "", "in-band open"},
		{"an older RAM disk", ipmi.IPMI, machine.Report{Phase: machine.Failed, Fatal: true, Error: "not a step of this agent"}, bmctest.Fault{}, "", "", "in-band not known"},
		{"nonsense", ipmi.IPMI, machine.Report{Phase: machine.Done, Result: []byte(`{"state":"ajar\u001b[2J"}`)}, bmctest.Fault{}, "", "", "in-band not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, tt.protocol, "")
			s.faults.Set(func(f *bmctest.Fault) { *f = tt.fault })
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			r := y.walk(m.ID, machine.StepInBand)
			tt.report.Step = machine.StepInBand
			in, err := r.report(tt.report)
			if y.must(err); in.Step != machine.StepWipe {
				t.Fatalf("the agent is told %+v", in)
			}
			b, err := y.db.BMC(t.Context(), m.ID)
			y.must(err)
			if b.InBand.State != tt.want || b.InBand.At.IsZero() || b.Shut != tt.shut {
				t.Errorf("kept: %+v, shut %q", b.InBand, b.Shut)
			}
			if all := y.texts(provisioner.EventFilter{MachineID: m.ID}); !strings.Contains(all, tt.text) || strings.Contains(all, "\x1b") {
				t.Errorf("no %q in %s", tt.text, all)
			}
			if strings.Contains(y.texts(provisioner.EventFilter{OrderID: o.ID}), "bmc.in-band") {
				t.Error("the customer reads whether his root reaches the BMC")
			}
		})
	}
}

// TestOnlyOurWaysAreOpened: what was shut before we came stays so, what failed half-way is on record and is opened at the end all the same.
func TestOnlyOurWaysAreOpened(t *testing.T) {
	y := newYard(t)
	m, s := y.addSimulated(1, ipmi.Redfish, bmctest.Supermicro)
	ctx := t.Context()
	y.Care.KeepPassword = true
	shut := func(want string) {
		t.Helper()
		b, err := y.db.BMC(ctx, m.ID)
		if y.must(err); b.Shut != want {
			t.Errorf("on record as shut by us: %q, want %q", b.Shut, want)
		}
	}
	ways := func(open bool) []string {
		t.Helper()
		target := s.target
		got, err := y.HostAccess.SetHostAccess(ctx, target, open, nil)
		y.must(err)
		return got
	}
	_, err := y.HostAccess.SetHostAccess(ctx, s.target, false, []string{"HostInterface 1"}) // an operator's doing
	y.must(err)
	s.faults.Set(func(f *bmctest.Fault) { f.DropHostAt = "KCSInterface" })
	o, err := y.Place(ctx, y.request(), "")
	y.must(err)
	y.install(m.ID)
	shut("")
	s.faults.Set(func(f *bmctest.Fault) { f.DropHostAt = "" })
	_, err = y.Reinstall(ctx, o.ID, "debian-12", "gpu1", false, "")
	y.must(err)
	y.install(m.ID)
	shut("Supermicro KCSInterface")
	_, err = y.Reinstall(ctx, o.ID, "debian-12", "gpu1", false, "")
	y.must(err)
	y.install(m.ID)
	shut("Supermicro KCSInterface")
	_, err = y.Release(ctx, o.ID)
	y.must(err)
	if got := y.reclaim(m.ID); got.State != machine.Available {
		t.Fatalf("machine is %s: %s", got.State, got.Reason)
	}
	shut("")
	if got := ways(false); !slices.Equal(got, []string{"Supermicro KCSInterface"}) {
		t.Errorf("open in stock: %q", got)
	}
}

// TestReinstallIsHandedOver: what an operator accepted while the machine was out of its customer's hands is no word about what he does with it after a
// reinstallation.
func TestReinstallIsHandedOver(t *testing.T) {
	y := newYard(t)
	m, _ := y.addSimulated(1, ipmi.Redfish, "")
	ctx := t.Context()
	o, err := y.Place(ctx, y.request(), "")
	y.must(err)
	y.install(m.ID)
	y.must(y.db.PutBMC(ctx, m.ID, func(b *provisioner.BMC) ([]provisioner.Event, error) {
		b.Compared = b.Baseline.Taken.Add(time.Second)
		return nil, nil
	}))
	_, err = y.Reinstall(ctx, o.ID, "debian-12", "gpu1", false, "")
	y.must(err)
	y.install(m.ID)
	b, err := y.db.BMC(ctx, m.ID)
	if y.must(err); b.Baseline == nil || !b.Compared.IsZero() {
		t.Errorf("compared %s", b.Compared)
	}
	y.must(y.Move(ctx, m.ID, machine.Park, "a fan is loud"))
	_, err = y.Baseline(ctx, m.ID, true, true)
	y.must(err)
	if b, err = y.db.BMC(ctx, m.ID); err != nil || !b.Compared.IsZero() {
		t.Errorf("accepted under its customer: compared %s, %v", b.Compared, err)
	}
}

// TestReturnRotation: a BMC that refuses a new password, or is silent, keeps its machine out of stock without another erasure, and no
// password that may hold is forgotten; operators may do without.
func TestReturnRotation(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault bmctest.Fault
		care  provisioner.Care
		state machine.State
		text  string
		early bool // the BMC was like that at hand-over
	}{
		{"as it should", bmctest.Fault{}, provisioner.Care{}, machine.Available, "", false},
		{"refused", bmctest.Fault{RefuseWeak: true}, provisioner.Care{}, machine.Quarantined, "password not possible", false},
		{"lied", bmctest.Fault{DropPassword: true}, provisioner.Care{}, machine.Quarantined, "accepted but not done", false},
		{"no privilege", bmctest.Fault{OperatorOnly: true}, provisioner.Care{}, machine.Quarantined, "not allowed to this user", true},
		{"lied, and not wanted", bmctest.Fault{DropPassword: true}, provisioner.Care{KeepPassword: true}, machine.Available, "", false},
		{"lied, and not wanted there", bmctest.Fault{DropPassword: true}, provisioner.Care{KeepPasswordAt: []string{"lab"}}, machine.Available, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, ipmi.IPMI, "")
			y.Care = tt.care
			if tt.early {
				s.faults.Set(func(f *bmctest.Fault) { *f = tt.fault })
			}
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			y.install(m.ID)
			_, err = y.Release(t.Context(), o.ID)
			y.must(err)
			y.turn(m.ID)
			r := y.bootAgent(m.ID)
			s.faults.Set(func(f *bmctest.Fault) { *f = tt.fault })
			r.until()
			y.turn(m.ID)
			got := y.machine(m.ID)
			if got.State != tt.state || !strings.Contains(got.Reason, tt.text) || strings.Contains(got.Reason, s.target.Address) {
				t.Errorf("machine is %s: %s", got.State, got.Reason)
			}
			if j := y.job(y.order(o.ID).JobID); j.Attempt != 1 {
				t.Errorf("%d attempts: the disks are erased again for a password", j.Attempt)
			}
			secrets, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			s.faults.Set(func(f *bmctest.Fault) { *f = bmctest.Fault{} })
			s.target.Password = secrets.Current
			if err := y.Accounts.Check(t.Context(), s.target); err != nil {
				t.Errorf("the password on record does not log in: %v", err)
			}
			if changed := secrets.Current != "Secret-pass-1"; changed != (tt.name == "as it should") || secrets.Next != "" {
				t.Errorf("changed %v, next %q", changed, secrets.Next)
			}
		})
	}
}

// TestReturnCrash kills the server between any two steps of the change of a password at return; the next one brings the job to its end.
func TestReturnCrash(t *testing.T) {
	for _, at := range []string{"before it is kept", "after it is kept", "before the change", "after the change", "after the test",
		"before the old one is forgotten", "after the old one is forgotten"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m := y.addMachine(1)
			a := &account{password: "secret"}
			y.Accounts, y.Vault, y.Engine.Power = a, dyingVault{y.db, a}, (*gate)(a)
			o, err := y.Place(t.Context(), y.request(), "")
			y.must(err)
			y.install(m.ID)
			_, err = y.Release(t.Context(), o.ID)
			y.must(err)
			y.turn(m.ID)
			y.bootAgent(m.ID).until()
			a.dies = at
			killed := ""
			func() {
				defer func() {
					if d, ok := recover().(death); ok {
						killed = d.at
					}
				}()
				y.turn(m.ID)
			}()
			if killed != at {
				t.Fatalf("killed at %q", killed)
			}
			y.turn(m.ID)
			s, err := y.db.Secrets(t.Context(), m.ID)
			y.must(err)
			if got := y.machine(m.ID); got.State != machine.Available || s.Current != a.password || s.Next != "" || s.Current == "secret" {
				t.Errorf("machine is %s: %s; the password on record holds: %v, changed: %v", got.State, got.Reason, s.Current == a.password, s.Current != "secret")
			}
			if a.failures > 2 {
				t.Errorf("%d logins were refused on the way", a.failures)
			}
		})
	}
}

// TestRotateDoubt: what the BMC says about a change is not taken for which password holds.
func TestRotateDoubt(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	for name, tt := range map[string]struct {
		account account
		holds   string // the password on record afterwards: "old", "new" or "both"
	}{
		"lied, and the old one is gone":      {account{password: "secret", lies: true}, "new"},
		"lied, and neither logs in":          {account{password: "secret", lies: true, breaks: true}, "both"},
		"lied, and the old one holds":        {account{password: "secret", refuses: ipmi.ErrLied}, "old"},
		"no privilege to change it":          {account{password: "secret", refuses: errors.Join(ipmi.ErrCredentials, ipmi.ErrForbidden)}, "old"},
		"no privilege to look, after change": {account{password: "secret", lies: true, forbids: true}, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			a := tt.account
			y.Accounts, y.Vault = &a, y.db
			_, err := y.rotates(m.ID)
			s, secretsErr := y.db.Secrets(t.Context(), m.ID)
			y.must(secretsErr)
			got := "both"
			switch {
			case s.Next == "" && s.Current == "secret":
				got = "old"
			case s.Next == "":
				got = "new"
			}
			if got != tt.holds || (err == nil) != (tt.holds == "new") {
				t.Errorf("on record: %s, want %s; %v", got, tt.holds, err)
			}
			if tt.holds != "both" && s.Current != a.password {
				t.Error("the password on record does not hold")
			}
			y.must(y.db.Replace(t.Context(), m.ID, "admin", "secret"))
		})
	}
}

// TestCheckBMC: what was refused, and by whom, is said; a change that was cut short comes to its end.
func TestCheckBMC(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	for name, tt := range map[string]struct {
		account account
		next    string
		want    string
		ok      bool
	}{
		"good":                        {account{password: "secret"}, "", "takes user admin and the password on record", true},
		"refused":                     {account{password: "another"}, "", "user admin: BMC of n1: check: credentials refused", false},
		"the new one of a cut change": {account{password: "Next-pass-word1"}, "Next-pass-word1", "cut short", true},
		"neither":                     {account{password: "another"}, "Next-pass-word1", "neither the password on record", false},
		"silent":                      {account{password: "secret", silent: true}, "", "unreachable", false},
		"no privilege":                {account{password: "secret", forbids: true}, "", "does not let him read", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := tt.account
			y.Accounts = &a
			if tt.next != "" {
				_, err := y.db.Propose(t.Context(), m.ID, tt.next)
				y.must(err)
			}
			says, err := y.CheckBMC(t.Context(), m.ID)
			text := says
			var me *machine.Error
			if errors.As(err, &me) {
				text = me.Message
				if me.Hint == "" {
					t.Error("no hint")
				}
			}
			if (err == nil) != tt.ok || !strings.Contains(text, tt.want) || strings.Contains(text, "10.78.") {
				t.Errorf("%q, %v", says, err)
			}
			s, err := y.db.Secrets(t.Context(), m.ID)
			if y.must(err); tt.ok && (s.Current != a.password || s.Next != "") {
				t.Errorf("on record: %+v", s)
			}
			y.must(y.db.Replace(t.Context(), m.ID, "admin", "secret"))
		})
	}
	if all := y.texts(provisioner.EventFilter{MachineID: m.ID}); strings.Count(all, "bmc.check") != 6 || slices.ContainsFunc([]string{"secret", "Next-pass"}, func(s string) bool { return strings.Contains(all, s) }) {
		t.Errorf("events: %s", all)
	}
}
