package provisioner_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/postgres/postgrestest"
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

// TestFullLogOfABMC: thousands of new entries in a BMC's log are judged, the newest are kept, and the run comes to its end.
func TestFullLogOfABMC(t *testing.T) {
	y, b, ms := newAcceptance(t, 2)
	run := y.begin(nil, "n1", "n2")
	y.tend()
	rams := []*ram{y.toTrial(ms[0].ID), y.toTrial(ms[1].ID)}
	b.add(ms[0], ipmi.Critical, "uncorrectable memory error")
	for range 5000 {
		b.add(ms[0], ipmi.Warning, "correctable memory error")
		b.add(ms[1], ipmi.OK, "the fan turns")
	}
	for i, r := range rams {
		r.finish(trialReport(ms[i], 150))
	}
	y.tend()
	got := y.run(run.ID)
	if got.State != machine.RunFinished || trialOf(got, ms[0]).State != machine.TrialFailed || trialOf(got, ms[1]).State != machine.TrialPassed {
		t.Errorf("the run is %s, n1 %s, n2 %s", got.State, trialOf(got, ms[0]).Reason, trialOf(got, ms[1]).Reason)
	}
	for _, m := range ms {
		k := y.newest(provisioner.ReportFilter{MachineID: m.ID, RunID: run.ID})
		if n := len(k.Report.BMC.Events); n != 200 {
			t.Errorf("the report of %s holds %d entries", m.Name, n)
		}
		for _, c := range k.Report.Checks {
			if c.ID == "host.sel" && (len(c.Evidence) > 201 || m.Name == "n1" && !strings.Contains(c.Evidence[0], "uncorrectable")) {
				t.Errorf("%s quotes %d entries, first %q", m.Name, len(c.Evidence), c.Evidence[0])
			}
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

// diesAfter is a server that dies once it has written what becomes of so many machines.
type diesAfter struct {
	provisioner.Acceptances
	left *int
}

var errDied = errors.New("the server has died")

func (d diesAfter) OnTrial(ctx context.Context, runID, machineID string, fn func(*provisioner.Work) error) error {
	if *d.left == 0 {
		return errDied
	}
	*d.left--
	if err := d.Acceptances.OnTrial(ctx, runID, machineID, fn); err != nil || *d.left > 0 {
		return err
	}
	return errDied
}

// TestDeathWhileARunIsChanged: a server that dies while it calls a run off, or has a machine tried again, leaves no machine held for ever.
func TestDeathWhileARunIsChanged(t *testing.T) {
	y, _, ms := newAcceptance(t, 3)
	run := y.begin(nil, "n1", "n2", "n3")
	dying := func(after int) func() {
		y.Acceptances = diesAfter{y.db, &after}
		return func() { y.Acceptances = y.db }
	}
	back := dying(1)
	if err := y.CancelRun(t.Context(), run.ID, "", "the power is off tonight"); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	back()
	if y.machine(ms[0].ID).State != machine.Available || y.machine(ms[2].ID).State != machine.Accepting {
		t.Fatalf("n1 is %s, n3 %s", y.machine(ms[0].ID).State, y.machine(ms[2].ID).State)
	}
	if err := y.RetryTrial(t.Context(), run.ID, "n1"); machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), "is being called off") {
		t.Errorf("tried again in the middle of it: %v", err)
	}
	back = dying(1)
	if err := y.CancelRun(t.Context(), run.ID, "", "never mind"); !errors.Is(err, errDied) { // whoever got no answer says it again
		t.Errorf("called off again: %v", err)
	}
	back()
	y.tend()
	got := y.run(run.ID)
	for _, m := range ms {
		if tr := trialOf(got, m); tr.State != machine.TrialCancelled || y.machine(m.ID).State != machine.Available || m.Name == "n3" && tr.Reason != "the power is off tonight" {
			t.Errorf("%s is %s (%s) and %s", m.Name, tr.State, tr.Reason, y.machine(m.ID).State)
		}
	}
	signed, err := y.db.SignedReport(t.Context(), run.ID)
	y.must(err)
	doc, err := document.VerifyRun(signed, y.ReportKey.Public().(ed25519.PublicKey))
	if err != nil || got.State != machine.RunCancelled || doc.State != machine.RunCancelled || doc.Incomplete != 3 || doc.Open != 0 {
		t.Errorf("the run is %s; its report: %v, %s, %d incomplete", got.State, err, doc.State, doc.Incomplete)
	}
	if open, err := y.db.OpenRuns(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("%d runs are open, %v", len(open), err)
	}

	back = dying(1)
	if err := y.RetryTrial(t.Context(), run.ID, "n2"); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	back()
	if got := y.run(run.ID); got.State != machine.RunUnderWay || got.Why != "" {
		t.Errorf("the run is %s (%s) with a machine that waits", got.State, got.Why)
	}
	// As a server of an older version may have left it.
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE acceptance_run SET state = 'finished', finished = now()`)
	y.must(err)
	y.tend()
	if got := y.run(run.ID); got.State != machine.RunUnderWay || trialOf(got, ms[1]).State != machine.TrialRunning {
		t.Errorf("the run is %s, n2 %s", got.State, trialOf(got, ms[1]).State)
	}
}

// calledOff is a run that somebody calls off just before what becomes of a machine is written.
type calledOff struct{ *postgrestest.DB }

func (c calledOff) OnTrial(ctx context.Context, runID, machineID string, fn func(*provisioner.Work) error) error {
	if err := c.CallOff(ctx, runID, "the power is off tonight"); err != nil {
		return err
	}
	return c.DB.OnTrial(ctx, runID, machineID, fn)
}

// TestRetryWhileARunIsCalledOff: a run that is called off while a machine of it is to be tried again stays so.
func TestRetryWhileARunIsCalledOff(t *testing.T) {
	y, _, ms := newAcceptance(t, 2)
	run := y.begin(nil, "n1", "n2")
	y.must(y.CancelRun(t.Context(), run.ID, "n1", "it is needed"))
	y.Acceptances = calledOff{y.db}
	if err := y.RetryTrial(t.Context(), run.ID, "n1"); machine.CodeOf(err) != machine.Conflict || !strings.Contains(err.Error(), "is being called off") {
		t.Errorf("tried again: %v", err)
	}
	y.Acceptances = y.db
	y.tend()
	got := y.run(run.ID)
	for _, m := range ms {
		if tr := trialOf(got, m); got.State != machine.RunCancelled || got.Why != "the power is off tonight" || tr.State != machine.TrialCancelled || y.machine(m.ID).State != machine.Available {
			t.Errorf("the run is %s (%s), %s %s and %s", got.State, got.Why, m.Name, tr.State, y.machine(m.ID).State)
		}
	}
	y.must(y.RetryTrial(t.Context(), run.ID, "n1"))
}

// TestAdmitWaitsForThePeers: what has passed is admitted when all are done; a machine that is named, at once. Where another run has a machine by then
// that holds up nobody.
func TestAdmitWaitsForThePeers(t *testing.T) {
	y, _, ms := newAcceptance(t, 3)
	run := y.begin(func(r *provisioner.RunRequest) { r.Accept = true }, "n1", "n2", "n3")
	y.tend()
	y.toTrial(ms[0].ID).finish(trialReport(ms[0], 150))
	y.toTrial(ms[1].ID).finish(trialReport(ms[1], 150, accelerator.Check{ID: "load.memory", Outcome: accelerator.Fail, Required: true, Summary: "12 wrong words", Action: accelerator.ActReplace}))
	var refused *machine.Error
	if _, err := y.AdmitRun(t.Context(), run.ID, ""); !errors.As(err, &refused) || refused.Code != machine.Conflict || !strings.Contains(refused.Hint, "admit "+run.ID+" MACHINE") {
		t.Errorf("all are admitted while n3 is being tried: %v", err)
	}
	if names, err := y.AdmitRun(t.Context(), run.ID, "n1"); err != nil || len(names) != 1 {
		t.Errorf("n1 alone: %v, %v", names, err)
	}
	_, err := y.db.Conn.Exec(t.Context(), `UPDATE trial SET findings = '[{"part": "", "level": "warn", "check": "fleet.firmware", "text": "x"}]' WHERE machine_id = $1`, ms[1].ID)
	y.must(err)
	other := y.begin(nil, "n2") // after its memory was exchanged
	y.toTrial(ms[2].ID).finish(trialReport(ms[2], 150))
	y.tend()
	if got := y.run(run.ID); got.State != machine.RunFinished {
		t.Errorf("the run is %s while run %s has one of its machines", got.State, other.ID)
	}
}

// TestDrawByOwnProfiles: what a card draws is as the operator's profile says.
func TestDrawByOwnProfiles(t *testing.T) {
	y, _, _ := newAcceptance(t, 1)
	y.Validation.Profiles = t.TempDir()
	y.must(os.WriteFile(filepath.Join(y.Validation.Profiles, "rtx5090.yaml"), []byte(`schema: bareyard.profile/1
profiles:
  - name: RTX 5090
    revision: 2
    match: [{device: "10de:2b85"}]
    power: {value: 400, unit: W, status: published, source: our caps}
`), 0o600))
	run := y.begin(nil, "n1")
	if w := run.Trials[0].Watts; w != 1500+2*400 {
		t.Errorf("n1 draws %d W", w)
	}
}
