package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

// switchOn presses the power button of a machine.
func (y *yard) switchOn(name string) {
	y.t.Helper()
	y.must(y.host(name).chassis().SetPower(y.t.Context(), ipmi.OpOn))
}

func (y *yard) record(name string) Record {
	y.t.Helper()
	records := y.Inventory()
	return records[slices.IndexFunc(records, func(r Record) bool { return r.Machine.Name == name })]
}

// inbox waits until a machine has been seen so often and is off again.
func (y *yard) inbox(name string, times int) machine.Found {
	y.t.Helper()
	r := y.record(name)
	var f machine.Found
	y.until(name+" in the inbox, and off", yardPatience, func() bool {
		list, err := y.client.Discovered(y.t.Context(), false)
		y.must(err)
		i := slices.IndexFunc(list, func(f machine.Found) bool { return f.Inventory.Hardware.Serial == r.Machine.Hardware.Serial })
		if i < 0 || list[i].Times != times {
			return false
		}
		f = list[i]
		on, err := y.host(name).chassis().Power(y.t.Context())
		return err == nil && !on
	})
	return f
}

// TestStranger: a machine that nobody has enrolled boots, is discovered, approved, ordered and becomes active; another one, which
// the enrolment list names, needs nobody.
func TestStranger(t *testing.T) {
	t.Parallel()
	y := newYard(t, "i", nil, MachineConfig{Unknown: true, Cards: 8}, MachineConfig{BMC: Redfish}, MachineConfig{Unknown: true, BMC: Redfish})
	y.switchOn("n1")
	f := y.inbox("n1", 1)
	r := y.record("n1")
	if f.State != machine.Discovered || f.MAC != r.Machine.Hardware.NICs[0].MAC || len(f.Inventory.Hardware.Accelerators) != 8 || f.Inventory.Ports[0].Neighbour.Port != "n1-prov" ||
		len(f.Proposals) == 0 || f.Proposals[0].Class != "rtx5090x8" || !f.Proposals[0].Fits {
		t.Errorf("found %+v", f)
	}
	y.switchOn("n1")
	if again := y.inbox("n1", 2); again.ID != f.ID {
		t.Errorf("seen again it is %s, was %s", again.ID, f.ID)
	}
	var boots []api.BootTrace
	y.until("both boots on record", yardPatience, func() bool {
		list, err := y.client.Boots(t.Context(), f.ID)
		boots = list
		return err == nil && len(list) == 2 && list[0].Diagnosis.Verdict == trace.Well // written a moment after they happened
	})
	if boots[0].Diagnosis.Code != "reported" || boots[1].Diagnosis.Code != "reported" {
		t.Errorf("boots %+v", boots)
	}

	a := api.Approval{Name: "gpu1", Site: "lab", Class: "rtx5090x8", BMC: api.ApprovalBMC{Username: r.Machine.BMC.Username}, BMCPassword: r.Password, BootAddr: r.Machine.BootAddr.String(),
		ProvisionPort: r.Machine.Hardware.NICs[0].Port, PublicPort: r.Machine.Hardware.NICs[1].Port, Admit: true}
	other := y.record("n2")
	wrong := a
	wrong.BMC, wrong.BMCPassword = api.ApprovalBMC{Protocol: "redfish", Address: other.Machine.BMC.Address, Username: other.Machine.BMC.Username}, other.Password
	if _, err := y.client.Approve(t.Context(), f.ID, wrong); machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), "another machine's") {
		t.Errorf("with the BMC of another machine: %v", err)
	}
	m, err := y.client.Approve(t.Context(), f.ID, a)
	y.must(err)
	if m.State != machine.Available || m.BMC.Address != r.Machine.BMC.Address {
		t.Errorf("approved %+v", m)
	}
	events := y.events("", m.ID)
	if last := events[len(events)-1]; !strings.Contains(last.Text, "its BMC names this machine") {
		t.Errorf("the last event is %+v", last)
	}
	order := request()
	order.Class = "rtx5090x8"
	o, err := y.client.Place(t.Context(), order, "stranger")
	y.must(err)
	o = y.settled(o.ID, machine.OrderActive, machine.Active)
	if o.MachineID != f.ID {
		t.Errorf("the order has machine %s, want %s", o.MachineID, f.ID)
	}
	b, err := y.client.Boot(t.Context(), "gpu1", "latest")
	y.must(err)
	if len(b.Lines) == 0 || b.Lines[0].Proto != trace.BMC {
		t.Errorf("the newest boot: %+v", b)
	}

	named := y.record("n3")
	done, err := y.client.Expect(t.Context(), []api.ExpectedMachine{{BMCPassword: named.Password, Entry: machine.Expected{Name: "n3", Serial: strings.ToLower(named.Machine.Hardware.Serial), Class: "lab", Site: "lab",
		BMC: named.Machine.BMC, BootAddr: named.Machine.BootAddr.String(), Admit: true}}})
	y.must(err)
	if done.Added != 1 {
		t.Errorf("list %+v", done)
	}
	y.switchOn("n3")
	y.until("n3 enrolled by the list", yardPatience, func() bool {
		m, err := y.client.Machine(t.Context(), "n3")
		return err == nil && m.State == machine.Available
	})
}
