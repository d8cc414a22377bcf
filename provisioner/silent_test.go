package provisioner_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestSilentBMCsKeepNobodyWaiting: with four workers and twenty machines to fence whose BMCs answer nothing, an order gets its machine off, set and on in
// seconds; the fences go on being tried.
func TestSilentBMCsKeepNobodyWaiting(t *testing.T) {
	const dead = 20
	y := newYard(t)
	hole, err := net.ListenPacket("udp", "127.0.0.1:0") // takes everything and says nothing
	y.must(err)
	defer func() { _ = hole.Close() }()
	good, _ := y.addSimulated(1, ipmi.IPMI, "")
	c := &ipmi.Controller{Poll: 20 * time.Millisecond, Settle: 20 * time.Millisecond, Answer: 500 * time.Millisecond, Silence: 500 * time.Millisecond}
	y.Engine.Power, y.Accounts, y.Memory, y.Baselines, y.HostAccess, y.Settings = c, c, c, c, c, c
	ctx := t.Context()
	for n := range dead {
		m := y.addMachine(n + 2)
		_, err := y.db.Conn.Exec(ctx, `UPDATE machine SET state = 'quarantined', bmc = bmc || jsonb_build_object('address', $2::text) WHERE id = $1`, m.ID, hole.LocalAddr().String())
		y.must(err)
		y.must(y.db.OnMachine(ctx, m.ID, func(w *provisioner.Work) error {
			w.Actions = append(w.Actions, provisioner.Action{Kind: provisioner.ActFence, MachineID: m.ID})
			return nil
		}))
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- y.db.Work(working, "me", 4, y.Act) }()
	defer func() {
		stop()
		y.must(<-ended)
	}()
	until := func(what string, within time.Duration, done func() bool) {
		t.Helper()
		begun, tick := time.Now(), time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for !done() {
			if time.Since(begun) > within {
				t.Fatalf("%s: not within %s", what, within)
			}
			<-tick.C
		}
		t.Logf("%s after %s", what, time.Since(begun).Round(time.Millisecond))
	}
	until("the first fences are on their way", 20*time.Second, func() bool { return y.count(`SELECT count(*) FROM river_job WHERE attempt > 0`) >= 4 })
	_, err = y.Place(ctx, y.request(), "")
	y.must(err)
	until("the order's machine is on", 20*time.Second, func() bool { return y.job(y.machine(good.ID).JobID).Step == machine.StepHello })
	until("each fence waits among its like", 40*time.Second, func() bool {
		return y.count(`SELECT count(DISTINCT args->'action'->>'machine_id') FROM river_job WHERE queue = 'slow' AND state <> 'completed'`) == dead
	})
}

// TestSilentStepWaitsAside: the second try of a step whose BMC was silent is among its like, and later than that of one that was refused. It keeps its place there: no
// lease puts it back among the others.
func TestSilentStepWaitsAside(t *testing.T) {
	for _, silent := range []bool{true, false} {
		y := newYard(t)
		m := y.addMachine(1)
		_, err := y.Place(t.Context(), y.request(), "")
		y.must(err)
		y.walk(m.ID, machine.StepPowerOff)
		y.fail[m.BMC.Address] = ipmi.ErrBusy
		if silent {
			y.fail[m.BMC.Address] = ipmi.ErrUnreachable
		}
		j := y.job(y.machine(m.ID).JobID)
		y.must(y.Act(t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: m.ID, JobID: j.ID, Turn: j.Turn}))
		var queue string
		var pause float64
		y.must(y.db.Conn.QueryRow(t.Context(), `SELECT queue, extract(epoch FROM scheduled_at - created_at)::float8 FROM river_job ORDER BY id DESC LIMIT 1`).Scan(&queue, &pause))
		if j = y.job(j.ID); j.Try != 2 || (queue == "slow") != silent || (pause > 5) != silent || j.Due.Equal(j.StepAt.Add(3*time.Minute)) != silent {
			t.Errorf("silent %t: try %d, in queue %s after %.1f s, taken up by others after %s", silent, j.Try, queue, pause, j.Due.Sub(j.StepAt))
		}
	}
}

// asked is BMCs whose reading takes note of how long it may take.
type asked struct {
	provisioner.Baselines
	within time.Duration
	job    func() machine.Job
	due    time.Duration
}

func (a *asked) Baseline(ctx context.Context, t ipmi.Target) (ipmi.Baseline, error) {
	end, _ := ctx.Deadline()
	a.within, a.due = time.Until(end), time.Until(a.job().Due)
	return a.Baselines.Baseline(ctx, t)
}

// unhurried is what BMCs say for reports, with how long they may take over it, by step.
type unhurried struct {
	board
	within map[machine.StepName]time.Duration
	job    func() machine.Job
}

func (p *unhurried) Health(ctx context.Context, t ipmi.Target) (ipmi.Health, error) {
	end, _ := ctx.Deadline()
	p.within[p.job().Step] = time.Until(end)
	return p.board.Health(ctx, t)
}

// TestReportWaitsForSlowBMC: who makes a report waits three minutes for the BMC, and has a fourth for the rest.
func TestReportWaitsForSlowBMC(t *testing.T) {
	y, _, ms := newAcceptance(t, 2)
	p := &unhurried{within: map[machine.StepName]time.Duration{}}
	y.Facts = p
	p.job = func() machine.Job { return y.job(y.machine(ms[0].ID).JobID) }
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(ms[0].ID)
	p.job = func() machine.Job { return y.job(y.machine(ms[1].ID).JobID) }
	y.begin(nil, "n2")
	y.tend()
	y.toTrial(ms[1].ID).finish(trialReport(ms[1], 150))
	for _, step := range []machine.StepName{machine.StepJudge, machine.StepAskBMC, machine.StepVerdict} {
		if got := p.within[step]; got < 170*time.Second || got > 3*time.Minute {
			t.Errorf("%s: the BMC may take %s", step, got)
		}
	}
}

// TestReadingTakesLonger: a step that reads all that a BMC tells has four minutes for a try, and no other server takes it up meanwhile.
func TestReadingTakesLonger(t *testing.T) {
	y := newYard(t)
	m, _ := y.addSimulated(1, ipmi.Redfish, "")
	a := &asked{Baselines: y.Baselines, job: func() machine.Job { return y.job(y.machine(m.ID).JobID) }}
	y.Baselines = a
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.install(m.ID)
	if a.within < 230*time.Second || a.within > 4*time.Minute || a.due <= a.within {
		t.Errorf("a try may take %s, and is taken up by others after %s", a.within, a.due)
	}
	var longer time.Duration
	y.must(y.db.Conn.QueryRow(t.Context(), `SELECT max((args->'action'->>'longer')::bigint) FROM river_job`).Scan(&longer))
	if longer != 3*time.Minute {
		t.Errorf("the queue grants it %s more", longer)
	}
}
