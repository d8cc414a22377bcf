package provisioner_test

import (
	"context"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/manual"
	"github.com/bareyard/bareyard/provisioner"
)

// byHand has people open and close the yard's ports, which are all of one switch.
type byHand struct{ manual.Ports }

func (b byHand) Set(ctx context.Context, port string, open bool) error {
	return b.Ports.Set(ctx, "sw9:"+port, open)
}

// TestHandOverWaitsForThePort: while somebody has yet to shut the provisioning port nothing passes, whoever repairs the edge or changes
// the bandwidth meanwhile; on release the address is withdrawn at once, though somebody has yet to shut the port.
func TestHandOverWaitsForThePort(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	r := y.walk(m.ID, machine.StepValidate)
	y.Ports = byHand{manual.Ports{Tasks: y.db}}
	_, err = r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	r.do()
	step := func() machine.Job {
		t.Helper()
		j := y.job(y.machine(m.ID).JobID)
		y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: j.ID, Turn: j.Turn}))
		return y.job(j.ID)
	}
	shut := func(when string) {
		t.Helper()
		if p, ok := y.edge[m.ID]; ok && p.Mode != network.Off {
			t.Errorf("%s, before the port is known to be shut, the edge is %s", when, p.Mode)
		}
	}
	for n := 0; n < 3 && y.job(y.machine(m.ID).JobID).Step != machine.StepHandOver; n++ {
		step() // what comes between the validation and the hand-over
	}
	for range 3 {
		if j := step(); j.Step != machine.StepHandOver || j.State != machine.JobRunning || j.Attempt != 1 {
			t.Fatalf("the job is %+v", j)
		}
		shut("at hand-over")
	}
	if y.machine(m.ID).PortOpen {
		t.Fatal("the port is not wanted shut: this test proves nothing")
	}
	y.must(y.Engine.Reconcile(t.Context()))
	shut("after a repair")
	y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActPort, MachineID: m.ID, OrderID: o.ID}))
	shut("after a change of bandwidth")

	tasks := func() []network.Task {
		t.Helper()
		open, err := y.db.Tasks(t.Context(), network.TaskOpen)
		y.must(err)
		return open
	}
	open := tasks()
	if len(open) != 1 || open[0].Subject != "sw9:p1" || open[0].Wanted != "closed" {
		t.Fatalf("the tasks are %+v", open)
	}
	_, err = y.db.CloseTask(t.Context(), open[0].ID, network.TaskDone, "operator", "")
	y.must(err)
	if j := step(); j.State != machine.JobSucceeded || y.edge[m.ID].Mode != network.On {
		t.Fatalf("after the port was shut the job is %s, the edge %s", j.State, y.edge[m.ID].Mode)
	}
	y.must(y.Engine.Reconcile(t.Context()))
	if got := y.edge[m.ID].Mode; got != network.On {
		t.Errorf("a repair turned an active machine's edge to %s", got)
	}

	// A port that somebody opened since, and that is shut again by hand: the customer's traffic ends first, at once.
	y.must(byHand{manual.Ports{Tasks: y.db}}.Ports.Tasks.Open(t.Context(), network.Task{ID: "t-elsewhere", Kind: "port", Subject: "sw9:p1", Wanted: "open"}))
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	if j := step(); j.Step != machine.StepIsolate || j.State != machine.JobRunning {
		t.Errorf("the job went on before the port was shut: %+v", j)
	}
	if p, ok := y.edge[m.ID]; ok {
		t.Errorf("the address is still carried: %+v", p)
	}
	if open := tasks(); len(open) != 1 || open[0].Wanted != "closed" {
		t.Errorf("the tasks are %+v", open)
	}
}
