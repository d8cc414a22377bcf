package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// noAnswer is BMCs that do what they are asked, and whose first answer to it is lost.
type noAnswer struct {
	provisioner.BIOSSettings
	sets atomic.Int32
}

func (n *noAnswer) SetBIOS(ctx context.Context, t ipmi.Target, want map[string]any) (ipmi.BIOSChange, error) {
	c, err := n.BIOSSettings.SetBIOS(ctx, t, want)
	if n.sets.Add(1) == 1 {
		return c, ipmi.ErrUnreachable
	}
	return c, err
}

func (y *yard) wants(policy machine.BIOSPolicy, attributes map[string]any) {
	y.t.Helper()
	_, err := y.PutClassBIOS(y.t.Context(), "rtx5090x2", machine.BIOSProfile{Attributes: attributes, Policy: policy})
	y.must(err)
}

// TestBIOSProfile: a machine gets the settings of its class from the job that looks at it, and goes back to where it was when they hold. One whose BMC
// refuses them, or says yes and does nothing, is kept out of stock with what the BMC said. IPMI is asked nothing.
func TestBIOSProfile(t *testing.T) {
	for _, tt := range []struct {
		name, protocol string
		vendor         bmctest.Vendor
		fault          bmctest.Fault
		policy         machine.BIOSPolicy
		from           machine.State
		lost           bool
		set            map[string]any // beside SriovEnable: Disabled
		want           machine.State
		reason, tells  string
		holds          bool
	}{
		{name: "set and read back", tells: "SriovEnable Enabled → Disabled", holds: true},
		{name: "read back", set: map[string]any{"NumaNodesPerSocket": "4", "ProcTurboMode": false}, tells: "3 BIOS settings as class rtx5090x2 wants, read back", holds: true},
		{name: "a new machine stays new", from: machine.Enrolled, want: machine.Enrolled, tells: "read back", holds: true},
		{name: "one in quarantine stays there", from: machine.Quarantined, want: machine.Quarantined, reason: "passed plan health", holds: true},
		{name: "the answer is lost", lost: true, tells: "read back", holds: true},
		{name: "a job that must be made", vendor: bmctest.IDRAC, tells: "read back", holds: true},
		{name: "completed and failed", fault: bmctest.Fault{BIOSJobFails: true}, want: machine.Quarantined,
			reason: "BIOS setting SriovEnable is Enabled, the class wants Disabled: the BMC took the change and did not apply it: the job is Completed Critical"},
		{name: "forgotten at the start", fault: bmctest.Fault{BIOSDropped: true, TaskPlace: "none"}, want: machine.Quarantined, reason: "the class wants Disabled: the BMC took the settings and does not keep them"},
		{name: "refused by the BMC", fault: bmctest.Fault{BIOSRefuses: "SriovEnable"}, want: machine.Quarantined, reason: "it refuses SriovEnable: HTTP 400: Base.1.18.PropertyValueConflict The property SriovEnable could not"},
		{name: "a value that it cannot have", set: map[string]any{"BootMode": "Maybe"}, want: machine.Quarantined, reason: "BIOS setting BootMode cannot be Maybe: it can be Uefi, Bios"},
		{name: "no such setting", set: map[string]any{"NoSuchSetting": 1}, want: machine.Quarantined, reason: "there is no BIOS setting NoSuchSetting"},
		{name: "a warning", fault: bmctest.Fault{BIOSJobFails: true}, policy: machine.BIOSWarn, tells: "BIOS setting SriovEnable is Enabled"},
		{name: "IPMI", protocol: ipmi.IPMI},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			if tt.protocol == "" {
				tt.protocol = ipmi.Redfish
			}
			if tt.want == "" {
				tt.want = machine.Available
			}
			m, s := y.addSimulated(1, tt.protocol, tt.vendor)
			s.faults.Set(func(f *bmctest.Fault) { *f = tt.fault })
			ctx := t.Context()
			if tt.from != "" {
				_, err := y.db.Conn.Exec(ctx, `UPDATE machine SET state = $1 WHERE id = $2`, tt.from, m.ID)
				y.must(err)
			}
			lost := &noAnswer{BIOSSettings: y.Settings}
			if tt.lost {
				y.Settings = lost
			}
			want := map[string]any{"SriovEnable": "Disabled"}
			for name, value := range tt.set {
				want[name] = value
			}
			y.wants(tt.policy, want)
			if _, err := y.ApplyBIOS(ctx, m.ID); tt.protocol == ipmi.IPMI {
				if machine.CodeOf(err) != machine.Invalid || !strings.Contains(err.Error(), "speaks IPMI only") {
					t.Fatalf("IPMI: %v", err)
				}
				_, err = y.Examine(ctx, m.ID)
				y.must(err)
			} else {
				y.must(err)
			}
			y.examined(m.ID, nil)
			got := y.machine(m.ID)
			events := y.texts(provisioner.EventFilter{MachineID: m.ID})
			if got.State != tt.want || !strings.Contains(got.Reason, tt.reason) || tt.reason == "" && got.Reason != "" {
				t.Fatalf("machine is %s: %q\n%s", got.State, got.Reason, events)
			}
			if strings.Contains(got.Reason+events, s.target.Address) || !strings.Contains(events, tt.tells) {
				t.Errorf("reason %q, events\n%s", got.Reason, events)
			}
			if tt.lost && lost.sets.Load() != 2 {
				t.Errorf("asked %d times", lost.sets.Load())
			}
			if tt.protocol == ipmi.IPMI {
				if strings.Contains(events, "bmc.bios") {
					t.Error("IPMI was asked for BIOS settings")
				}
				return
			}
			if b := s.board.BIOS(); (b["SriovEnable"] == "Disabled") != tt.holds {
				t.Errorf("board has %v", b)
			}
			view, err := y.BIOS(ctx, m.ID, false)
			if y.must(err); len(view.Settings) != len(want) {
				t.Errorf("%+v", view)
			}
			for _, set := range view.Settings {
				if (set.State == provisioner.SettingRight) != tt.holds && set.Name == "SriovEnable" {
					t.Errorf("%+v", set)
				}
			}
		})
	}
}

// TestBIOSUnseen: a BMC that was asked for settings and shows none after the start has not done it; one that never showed any is left as it is.
func TestBIOSUnseen(t *testing.T) {
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprintf("asked %t", asked), func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, ipmi.Redfish, "")
			y.wants("", map[string]any{"SriovEnable": "Disabled"})
			_, err := y.ApplyBIOS(t.Context(), m.ID)
			y.must(err)
			if asked {
				y.turn(m.ID)
			}
			for name := range s.board.BIOS() {
				s.board.SetBIOS(name, nil)
			}
			y.examined(m.ID, nil)
			got := y.machine(m.ID)
			if asked && (got.State != machine.Quarantined || !strings.Contains(got.Reason, "were asked for and are not known to hold")) || !asked && got.State != machine.Available {
				t.Errorf("machine is %s: %q\n%s", got.State, got.Reason, y.texts(provisioner.EventFilter{MachineID: m.ID}))
			}
			b, err := y.db.BMC(t.Context(), m.ID)
			if y.must(err); b.BIOSUntil.IsZero() == asked {
				t.Errorf("must hold by %s", b.BIOSUntil)
			}
		})
	}
}

// TestBIOSAtReturn: a customer's machine is left as it is while he has it, gets the settings when it comes back, and that is not held against him; what he
// changed himself is.
func TestBIOSAtReturn(t *testing.T) {
	for _, tampered := range []bool{false, true} {
		t.Run(map[bool]string{false: "as it was", true: "tampered with"}[tampered], func(t *testing.T) {
			t.Parallel()
			y := newYard(t)
			m, s := y.addSimulated(1, ipmi.Redfish, "")
			ctx := t.Context()
			o, err := y.Place(ctx, y.request(), "")
			y.must(err)
			y.install(m.ID)
			y.wants("", map[string]any{"SriovEnable": "Disabled"})
			if _, err := y.ApplyBIOS(ctx, m.ID); machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), "is active") {
				t.Fatalf("rented: %v", err)
			}
			_, err = y.Reinstall(ctx, o.ID, "debian-12", "gpu1", false, "")
			y.must(err)
			y.install(m.ID)
			if b := s.board.BIOS(); b["SriovEnable"] != "Enabled" {
				t.Fatal("changed in a customer's time")
			}
			if tampered {
				s.board.SetBIOS("ProcTurboMode", false)
			}
			_, err = y.Release(ctx, o.ID)
			y.must(err)
			got := y.reclaim(m.ID)
			if tampered {
				if got.State != machine.Quarantined || !strings.Contains(got.Reason, "ProcTurboMode") || s.board.BIOS()["SriovEnable"] != "Enabled" {
					t.Errorf("machine is %s: %s", got.State, got.Reason)
				}
				return
			}
			if got.State != machine.Available || got.Reason != "" || s.board.BIOS()["SriovEnable"] != "Disabled" {
				t.Errorf("machine is %s: %s, board %v", got.State, got.Reason, s.board.BIOS())
			}
			if customer := y.texts(provisioner.EventFilter{OrderID: o.ID}); strings.Contains(customer, "SriovEnable") {
				t.Errorf("the customer reads %s", customer)
			}
		})
	}
	t.Run("refused, wiped all the same", func(t *testing.T) {
		t.Parallel()
		y := newYard(t)
		m, s := y.addSimulated(1, ipmi.Redfish, "")
		o, err := y.Place(t.Context(), y.request(), "")
		y.must(err)
		y.install(m.ID)
		y.wants("", map[string]any{"SriovEnable": "Disabled"})
		s.faults.Set(func(f *bmctest.Fault) { f.BIOSRefuses = "SriovEnable" })
		_, err = y.Release(t.Context(), o.ID)
		y.must(err)
		got := y.reclaim(m.ID)
		if events := y.texts(provisioner.EventFilter{MachineID: m.ID}); got.State != machine.Quarantined || !strings.Contains(got.Reason, "refuses SriovEnable") || !strings.Contains(events, "disk.prove") {
			t.Errorf("machine is %s: %s\n%s", got.State, got.Reason, events)
		}
	})
}

// TestBIOSProfileIsChecked: what cannot be a profile is refused with the field; what changed is told.
func TestBIOSProfileIsChecked(t *testing.T) {
	y := newYard(t)
	y.Profiles = y.db
	ctx := t.Context()
	for name, bad := range map[string]machine.BIOSProfile{
		"password": {Attributes: map[string]any{"SystemPassword": "x"}},
		"empty":    {Attributes: map[string]any{"SriovEnable": ""}},
		"list":     {Attributes: map[string]any{"SriovEnable": []any{"x"}}},
		"name":     {Attributes: map[string]any{"a\x1bb": "x"}},
		"policy":   {Attributes: map[string]any{"SriovEnable": "x"}, Policy: "ignore"},
	} {
		var me *machine.Error
		if _, err := y.PutClassBIOS(ctx, "rtx5090x2", bad); !errors.As(err, &me) || me.Code != machine.Invalid || me.Field == "" || me.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := y.PutClassBIOS(ctx, "none", machine.BIOSProfile{}); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("class that there is not: %v", err)
	}
	y.wants("", map[string]any{"SriovEnable": "Enabled", "NumaNodesPerSocket": 2.0})
	y.wants("warn", map[string]any{"SriovEnable": "Disabled"})
	y.wants("warn", map[string]any{"SriovEnable": "Disabled"})
	y.wants("", nil)
	want := `class.bios class rtx5090x2: BIOS profile changed: NumaNodesPerSocket 2; SriovEnable Enabled
class.bios class rtx5090x2: BIOS profile changed: NumaNodesPerSocket 2 taken off; SriovEnable Enabled → Disabled; policy warn
class.bios class rtx5090x2: BIOS profile changed: SriovEnable Disabled taken off
`
	if got := y.texts(provisioner.EventFilter{}); got != want {
		t.Errorf("events:\n%s", got)
	}
	if n := y.count(`SELECT count(*) FROM class_bios`); n != 0 {
		t.Errorf("%d profiles left", n)
	}
}
