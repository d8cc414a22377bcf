package provisioner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// TestPortsOpenOnlyWithoutTenant: while a tenant's system can run, the provisioning port is shut; while it is open, nothing
// passes on the public side.
func TestPortsOpenOnlyWithoutTenant(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.walk(m.ID, machine.StepPowerOff)
	if y.ports["p1"] {
		t.Error("the port is open before the machine was seen off")
	}
	y.walk(m.ID, machine.StepHello)
	if !y.ports["p1"] {
		t.Error("the port is shut while the machine is to boot from the network")
	}
}

// TestCustomerGetsInAtHandOver: the edge is programmed before validation, and lets traffic pass only after hand-over.
func TestCustomerGetsInAtHandOver(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	r := y.walk(m.ID, machine.StepValidate)
	if p := y.edge[m.ID]; p.Mode != network.Off || len(p.Addrs) != 1 {
		t.Errorf("before hand-over the edge carries %+v, want the address and nothing passing", p)
	}
	_, err = r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	r.do()
	y.turn(m.ID)
	if p := y.edge[m.ID]; p.Mode != network.On || y.ports["p1"] {
		t.Errorf("after hand-over the edge is %s, the provisioning port open: %t", p.Mode, y.ports["p1"])
	}
}

// TestBadOrderDoesNotEmptyAClass: an order that brings down one machine after another is given up.
func TestBadOrderDoesNotEmptyAClass(t *testing.T) {
	y := newYard(t)
	for n := range 5 {
		y.fail[y.addMachine(n+1).BMC.Address] = ipmi.ErrLocked
	}
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	for range 5 {
		if o = y.order(o.ID); o.State == machine.OrderFailed {
			break
		}
		y.turn(o.MachineID)
		y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPlace, OrderID: o.ID}))
	}
	if o = y.order(o.ID); o.State != machine.OrderFailed || len(o.Tried) != 3 || !strings.Contains(o.Reason, "3 machines failed") {
		t.Errorf("order is %s after %d machines: %s", o.State, len(o.Tried), o.Reason)
	}
	if n := y.count(`SELECT count(*) FROM machine WHERE state = 'available'`); n != 2 {
		t.Errorf("%d machines are left in stock, want 2", n)
	}
	if n := y.count(`SELECT count(*) FROM address WHERE order_id IS NOT NULL`); n != 0 {
		t.Errorf("%d addresses still held", n)
	}
}

// TestNobodyComesToAReservedMachine: an order whose first step no server takes up moves on, and the untouched machine stays in
// stock.
func TestNobodyComesToAReservedMachine(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	for range machine.MaxAttempts {
		_, err := y.db.Conn.Exec(t.Context(), `UPDATE job SET due = now() - interval '1 hour', step_at = now() - interval '2 hours' WHERE state = 'running'`)
		y.must(err)
		y.must(y.Expire(t.Context(), m.ID))
	}
	if got := y.machine(m.ID); got.State != machine.Available || got.OrderID != "" {
		t.Fatalf("untouched machine is %s, held by %q", got.State, got.OrderID)
	}
	if got := y.order(o.ID); got.State != machine.OrderPlaced || got.MachineID != "" {
		t.Errorf("order is %s on %q", got.State, got.MachineID)
	}
}

// TestReleaseOfAQuarantinedMachine: it stays in quarantine, cut off and without power.
func TestReleaseOfAQuarantinedMachine(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(m.ID)
	y.must(y.Move(t.Context(), m.ID, machine.Quarantine, "smells of smoke"))
	if err := y.Move(t.Context(), m.ID, machine.Retire, "gone"); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("a machine that a customer holds is retired: %v", err)
	}
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	if got := y.machine(m.ID); got.State != machine.Quarantined || got.Public {
		t.Fatalf("machine is %s, public: %t", got.State, got.Public)
	}
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActFence, MachineID: m.ID}))
	if _, exposed := y.edge[m.ID]; exposed || y.power[m.BMC.Address] != ipmi.Off {
		t.Error("the former tenant is still online")
	}
}

// TestStaleTokenWritesNothing: the token of a job that is long over does not even reach the log.
func TestStaleTokenWritesNothing(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	r := y.walk(m.ID, machine.StepHandOver)
	y.turn(m.ID)
	before := y.count(`SELECT count(*) FROM event`)
	for range 3 {
		in, err := r.report(machine.Report{Step: machine.StepName(strings.Repeat("x", 1<<20)), Phase: machine.Done})
		if !errors.Is(err, provisioner.ErrStale) || in.Do != machine.DoPowerOff {
			t.Fatalf("got %+v, %v", in, err)
		}
	}
	if after := y.count(`SELECT count(*) FROM event`); after != before {
		t.Errorf("%d events were written", after-before)
	}
}

// TestReconcileGoesOn: a machine whose port the edge refuses to withdraw does not keep the others from being repaired.
func TestReconcileGoesOn(t *testing.T) {
	y := newYard(t)
	y.stuck = "a-first"
	for _, id := range []string{"a-first", "b-second"} {
		y.edge[id] = network.Port{Machine: id}
	}
	if err := y.Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "a-first") {
		t.Errorf("the machine that could not be repaired is not named: %v", err)
	}
	if _, exposed := y.edge["b-second"]; exposed {
		t.Error("the other machine stays exposed")
	}
}

// TestProgressIsBounded: what a machine says of its progress is fit to be shown.
func TestProgressIsBounded(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	r := y.walk(m.ID, machine.StepWrite)
	_, err = r.report(machine.Report{Step: machine.StepWrite, Phase: machine.Working, Progress: machine.Progress{Done: -5, Total: 10, Rate: -1}})
	y.must(err)
	if p := y.job(y.order(o.ID).JobID).Progress; p.Done != 0 || p.Rate != 0 || p.Total != 10 {
		t.Errorf("progress is %+v", p)
	}
}
