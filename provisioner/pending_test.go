package provisioner_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// TestStepWaitsForAPerson: a step whose edge is somebody with a list waits for him, counts no try, and holds up nobody else.
func TestStepWaitsForAPerson(t *testing.T) {
	y := newYard(t)
	y.must(y.db.PutLine(t.Context(), network.Line{Name: "bgp", Site: "lab", MinBandwidth: 1, MaxBandwidth: 1000}, time.Hour))
	first, second := y.addMachine(1), y.addMachine(2)
	a, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	b, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	if a.MachineID != first.ID || b.MachineID != second.ID {
		t.Fatal("the orders are on other machines than expected")
	}
	y.mu.Lock()
	y.deaf = fmt.Errorf("port of machine %s: task t-1: %w", first.ID, network.ErrPending)
	y.mu.Unlock()
	look := func() machine.Job {
		j := y.job(y.machine(first.ID).JobID)
		y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: first.ID, JobID: j.ID, Turn: j.Turn}))
		return y.job(j.ID)
	}
	for range 8 { // more often than there are tries
		if j := look(); j.Step != machine.StepIsolate || j.Attempt != 1 || j.Try != 1 || j.State != machine.JobRunning {
			t.Fatalf("waiting job is %+v", j)
		}
	}
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET step_at = step_at - interval '1 hour', seen_at = seen_at - interval '20 hours' WHERE machine_id = $1`, first.ID)
	y.must(err)
	if j := look(); j.Attempt != 1 {
		t.Fatalf("after 20 hours it was given up: %+v", j)
	}
	events, err := y.db.Events(t.Context(), provisioner.EventFilter{OrderID: a.ID})
	y.must(err)
	waits := slices.DeleteFunc(events, func(ev provisioner.Event) bool { return ev.Kind != "job.wait" })
	if len(waits) != 1 {
		t.Errorf("it says %d times that it waits: %+v", len(waits), waits)
	}

	// Nobody else waits: the other order goes on while the first one's edge is not done.
	y.mu.Lock()
	waiting := y.deaf
	y.deaf = nil
	y.mu.Unlock()
	y.install(second.ID)
	if o := y.order(b.ID); o.State != machine.OrderActive {
		t.Errorf("the other order is %s", o.State)
	}
	y.mu.Lock()
	y.deaf = waiting
	y.mu.Unlock()

	// A day is enough.
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET seen_at = seen_at - interval '5 hours' WHERE machine_id = $1 AND state = 'running'`, first.ID)
	y.must(err)
	if j := look(); j.Attempt != 2 {
		t.Errorf("after a day nobody gave up: %+v", j)
	}
	// And when it is done, it goes on.
	y.mu.Lock()
	y.deaf = nil
	y.mu.Unlock()
	y.install(first.ID)
	if o := y.order(a.ID); o.State != machine.OrderActive {
		t.Errorf("the order is %s", o.State)
	}
}
