package provisioner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestTrialIsNotRepeated: whatever goes wrong once a machine has been tried for hours, it is not tried again by itself, and what it sent is kept.
func TestTrialIsNotRepeated(t *testing.T) {
	y, b, ms := newAcceptance(t, 4)
	y.ObeyWithin = time.Second
	run := y.begin(nil, "n1", "n2", "n3", "n4")
	y.tend()
	var rams []*ram
	for _, m := range ms {
		rams = append(rams, y.toTrial(m.ID))
	}
	b.broken[ms[0].BMC.Address] = ipmi.ErrCredentials
	b.mute[ms[1].BMC.Address] = true
	y.fail[ms[2].BMC.Address] = ipmi.ErrUnreachable // when it is to be powered off
	for i, m := range ms[:3] {
		rams[i].finish(trialReport(m, 150))
	}
	_, err := rams[3].report(machine.Report{Step: machine.StepAccept, Phase: machine.Done, Result: encode(trialReport(ms[3], 150))})
	y.must(err)
	y.overdue(ms[3].ID, "1 hour") // nobody came to it
	y.must(y.Expire(t.Context(), ms[3].ID))
	for i, says := range []string{"credentials refused", "unreachable", "shut-down: ", "verdict: not done within"} {
		tr, m := trialOf(y.run(run.ID), ms[i]), y.machine(ms[i].ID)
		j := y.job(tr.JobID)
		text := tr.Reason
		for _, f := range tr.Findings {
			text += "; " + f.Text
		}
		if j.Attempt != 1 || j.State != machine.JobFailed || tr.State != machine.TrialIncomplete || m.State != machine.Quarantined || !strings.Contains(text, says) {
			t.Errorf("%s: job is %s in attempt %d at %s, trial %s, machine %s; want it failed in attempt 1 with %q: %s", m.Name, j.State, j.Attempt, j.Step, tr.State, m.State, says, text)
		}
		kept, err := y.db.Reports(t.Context(), provisioner.ReportFilter{MachineID: m.ID, RunID: run.ID})
		if err != nil || i < 3 && (len(kept) != 1 || kept[0].Cards != 2) {
			t.Errorf("%s: reports %+v, %v", m.Name, kept, err)
		}
	}
}

// overdue makes a machine's step one that began so long ago, and was given up just now.
func (y *yard) overdue(machineID, ago string) {
	y.t.Helper()
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE job SET step_at = now() - $2::interval, seen_at = now() - interval '3 min', due = now() - interval '1 s' WHERE machine_id = $1 AND state = 'running'`, machineID, ago)
	y.must(err)
}

// away is a database that does not say what is overdue.
type away struct{ provisioner.Store }

func (away) Overdue(context.Context, int) ([]string, error) {
	return nil, errors.New("the database is away")
}

// TestDatabaseWasAway: machines that could not report because the database was away are not taken for silent, nor is a verdict given up.
func TestDatabaseWasAway(t *testing.T) {
	y, _, ms := newAcceptance(t, 3)
	run := y.begin(nil, "n1", "n2", "n3")
	y.tend()
	var rams []*ram
	for _, m := range ms {
		rams = append(rams, y.toTrial(m.ID))
	}
	_, err := rams[2].report(machine.Report{Step: machine.StepAccept, Phase: machine.Done, Result: encode(trialReport(ms[2], 150))})
	y.must(err)
	y.overdue(ms[0].ID, "1 hour")
	y.overdue(ms[1].ID, "200 hours")
	y.overdue(ms[2].ID, "1 hour")
	y.Store = away{y.db}
	if err := y.Sweep(t.Context()); err == nil {
		t.Fatal("no error while the database is away")
	}
	y.Store = y.db
	y.must(y.Sweep(t.Context()))
	for i := range 2 {
		rams[i].finish(trialReport(ms[i], 150))
	}
	y.turn(ms[2].ID)
	for _, m := range ms {
		if tr := trialOf(y.run(run.ID), m); tr.State != machine.TrialPassed {
			t.Errorf("%s is %s: %s", m.Name, tr.State, tr.Reason)
		}
	}
}

// TestCancelInALaterAttempt: what an earlier attempt has written does not go into stock unwiped, though the present one has not reached the machine.
func TestCancelInALaterAttempt(t *testing.T) {
	y, _, ms := newAcceptance(t, 1)
	run := y.begin(nil, "n1")
	y.tend()
	y.turn(ms[0].ID)
	r := y.bootAgent(ms[0].ID)
	for r.last.Step != machine.StepVerify {
		r.do()
	}
	_, err := r.report(machine.Report{Step: machine.StepVerify, Phase: machine.Failed, Error: "read back something else"})
	y.must(err)
	if j := y.job(y.machine(ms[0].ID).JobID); j.Attempt != 2 || j.Step != machine.StepIsolate {
		t.Fatalf("the job is at %s in attempt %d", j.Step, j.Attempt)
	}
	y.must(y.CancelRun(t.Context(), run.ID, "", "the power is off tonight"))
	if m := y.machine(ms[0].ID); m.State != machine.Reclaiming {
		t.Errorf("n1 is %s (%s) with the acceptance image on its disk", m.State, m.Reason)
	}
}

// TestNoTrialOfAnOrdersMachine: a machine that was not wiped after its customer is neither tried nor examined, whatever its state.
func TestNoTrialOfAnOrdersMachine(t *testing.T) {
	y, _, ms := newAcceptance(t, 1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(ms[0].ID)
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.fail[ms[0].BMC.Address] = ipmi.ErrCredentials
	y.turn(ms[0].ID)
	if m := y.machine(ms[0].ID); m.State != machine.Quarantined || m.OrderID != o.ID || y.order(o.ID).State != machine.OrderEnded {
		t.Fatalf("n1 is %s, of order %q, which is %s", m.State, m.OrderID, y.order(o.ID).State)
	}
	_, _, err = y.BeginRun(t.Context(), provisioner.RunRequest{Machines: []string{"n1"}, AcceptanceTerms: machine.AcceptanceTerms{Image: "acceptance", Plan: machine.HourlyPlan(1)}})
	if machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), "was not wiped after order "+o.ID) {
		t.Errorf("tried: %v", err)
	}
	if _, err := y.Examine(t.Context(), ms[0].ID); machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), o.ID) {
		t.Errorf("examined: %v", err)
	}
}
