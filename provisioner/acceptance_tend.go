package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// AcceptanceConfig is what a site decides about acceptance runs.
type AcceptanceConfig struct {
	RackWatts    map[string]int // by site/rack or rack; a rack that is not named bears everything
	MachineWatts map[string]int // by class: the draw of one machine under full load
}

// What a machine draws where nobody has said it.
const (
	hostWatts = 1500 // processors, memory, fans, disks
	cardWatts = 700  // of a card that no profile knows
)

// drawing returns what a machine draws at most, by the server's own profiles too.
func (e *Engine) drawing() func(machine.Machine) int {
	rules := e.inForce().rules
	return func(m machine.Machine) int {
		if w := e.AcceptanceConfig.MachineWatts[m.Class]; w > 0 {
			return w
		}
		watts := hostWatts
		for _, a := range m.Hardware.Accelerators {
			p, _ := rules.Profile(a.Vendor+":"+a.Device, "")
			if p.Power.Judges() {
				watts += int(p.Power.Value)
			} else {
				watts += cardWatts
			}
		}
		return watts
	}
}

// rackWatts is what a rack bears; 0 where nobody has said it.
func (e *Engine) rackWatts(asked int, site, rack string) int {
	return cmp.Or(asked, e.AcceptanceConfig.RackWatts[site+"/"+rack], e.AcceptanceConfig.RackWatts[rack])
}

func kw(watts int) string { return fmt.Sprintf("%.1f kW", float64(watts)/1000) }

// TendRuns starts what may start and ends the runs that have nothing left to do. One server at a time does it.
func (e *Engine) TendRuns(ctx context.Context) error {
	if e.Acceptances == nil {
		return nil
	}
	runs, err := e.Acceptances.OpenRuns(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	return e.Acceptances.OneTender(ctx, func() error {
		runs, err := e.Acceptances.OpenRuns(ctx) // what the last tender has left
		if err != nil {
			return err
		}
		all, err := e.Acceptances.Racked(ctx)
		if err != nil {
			return err
		}
		slices.Reverse(runs) // the oldest first
		var errs []error
		for _, run := range runs {
			errs = append(errs, e.tendRun(ctx, run, runs, all))
		}
		return errors.Join(errs...)
	})
}

func (e *Engine) tendRun(ctx context.Context, run machine.AcceptanceRun, runs []machine.AcceptanceRun, all []machine.Machine) error {
	if run.State == machine.RunCancelled {
		return e.endCancelled(ctx, run)
	}
	if !slices.ContainsFunc(run.Trials, func(t machine.Trial) bool { return t.State.Open() }) {
		return e.finishRun(ctx, run)
	}
	var errs []error
	for _, t := range run.Trials {
		if run.State == machine.RunFinished && t.State.Open() { // a server of an older version died while it was to be tried again
			errs = append(errs, e.Acceptances.OnTrial(ctx, run.ID, t.MachineID, func(w *Work) error {
				w.Reopen = w.Trial.State.Open()
				return nil
			}))
		}
		if t.State != machine.TrialWaiting {
			continue
		}
		i := slices.IndexFunc(all, func(m machine.Machine) bool { return m.ID == t.MachineID })
		if i < 0 || all[i].State != machine.Accepting {
			errs = append(errs, e.dropTrial(ctx, run.ID, t.MachineID))
		}
	}
	load := e.rackLoads(runs, all)
	start, why := nextTrials(run, load, func(t machine.Trial) int { return e.rackWatts(run.RackWatts, t.Site, t.Rack) }, time.Now())
	for _, id := range start {
		err := e.startTrial(ctx, run, id)
		if machine.CodeOf(err) == machine.Conflict { // something has hold of the machine that is over in a moment
			e.log().Info("a machine cannot be tried yet", "run", run.ID, "machine", id, "err", err)
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("start trial of machine %s: %w", id, err))
		}
		for i := range run.Trials { // what the next run of this round sees
			if run.Trials[i].MachineID == id {
				run.Trials[i].State, run.Trials[i].Started = machine.TrialRunning, time.Now()
			}
		}
	}
	for id, text := range why {
		errs = append(errs, e.tellWait(ctx, run, id, text))
	}
	return errors.Join(errs...)
}

// endCancelled gives back what whoever called the run off did not come to, and has its report signed.
func (e *Engine) endCancelled(ctx context.Context, run machine.AcceptanceRun) error {
	var errs []error
	for _, t := range run.Trials {
		if t.State.Open() {
			errs = append(errs, e.cancelTrial(ctx, run.ID, t.MachineID, false, run.Why))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return e.endRun(ctx, run.ID)
}

// rackLoads sums up by rack what machines may draw: those that are rented, and those that are being tried.
func (e *Engine) rackLoads(runs []machine.AcceptanceRun, all []machine.Machine) map[string]int {
	drawn := e.drawing()
	load := map[string]int{}
	for _, m := range all {
		if slices.Contains([]machine.State{machine.Provisioning, machine.Active, machine.Pool}, m.State) {
			load[m.Site+"/"+m.Rack] += drawn(m)
		}
	}
	for _, r := range runs {
		for _, t := range r.Trials {
			if t.State == machine.TrialRunning {
				load[t.Site+"/"+t.Rack] += t.Watts
			}
		}
	}
	return load
}

// nextTrials picks the machines of a run that may start now, and says of the others that wait for something other than their turn what it is. load
// is what draws power in each rack already, of whatever run; budget is what a rack bears, 0 for everything.
func nextTrials(run machine.AcceptanceRun, load map[string]int, budget func(machine.Trial) int, now time.Time) (start []string, why map[string]string) {
	why = map[string]string{}
	running, last := 0, map[string]time.Time{}
	for _, t := range run.Trials {
		rack := t.Site + "/" + t.Rack
		if t.State == machine.TrialRunning {
			running++
		}
		if t.Started.After(last[rack]) {
			last[rack] = t.Started
		}
	}
	for _, t := range run.Trials {
		rack := t.Site + "/" + t.Rack
		bears := budget(t)
		switch {
		case t.State != machine.TrialWaiting:
			continue
		case run.Parallel > 0 && running >= run.Parallel:
			why[t.MachineID] = fmt.Sprintf("waits for its turn: %d at a time", run.Parallel)
			continue
		case bears > 0 && load[rack]+t.Watts > bears:
			why[t.MachineID] = fmt.Sprintf("waits for power: rack %s bears %s, up to %s are drawn, this machine draws up to %s", t.Rack, kw(bears), kw(load[rack]), kw(t.Watts))
			continue
		case run.Stagger > 0 && now.Sub(last[rack]) < time.Duration(run.Stagger):
			why[t.MachineID] = fmt.Sprintf("waits for its turn: one start in %s in rack %s", time.Duration(run.Stagger), t.Rack)
			continue
		}
		start = append(start, t.MachineID)
		running++
		load[rack] += t.Watts
		last[rack] = now
	}
	return start, why
}

// startTrial gives a machine that waits its job.
func (e *Engine) startTrial(ctx context.Context, run machine.AcceptanceRun, machineID string) error {
	return e.Acceptances.OnTrial(ctx, run.ID, machineID, func(w *Work) error {
		if w.Trial.State != machine.TrialWaiting || w.Machine.State != machine.Accepting {
			return nil
		}
		if err := e.startJob(w, machine.AcceptanceJob, func(j *machine.Job) {
			j.Image, j.ImageDigest, j.Driver = run.Image, run.ImageDigest, run.Driver
			j.Acceptance = &machine.AcceptanceWork{RunID: run.ID, Plan: run.Plan}
		}); err != nil {
			return err
		}
		w.Trial.JobID = w.Job.ID
		return w.trialEvent(machine.TrialStart, "")
	})
}

// dropTrial ends the trial of a machine that somebody has taken away while it waited.
func (e *Engine) dropTrial(ctx context.Context, runID, machineID string) error {
	return e.Acceptances.OnTrial(ctx, runID, machineID, func(w *Work) error {
		if w.Trial.State != machine.TrialWaiting || w.Machine.State == machine.Accepting {
			return nil
		}
		return w.trialEvent(machine.TrialLeave, "an operator took the machine out of the run: it is %s", w.Machine.State)
	})
}

// tellWait keeps what a machine waits for, when that has changed.
func (e *Engine) tellWait(ctx context.Context, run machine.AcceptanceRun, machineID, text string) error {
	i := slices.IndexFunc(run.Trials, func(t machine.Trial) bool { return t.MachineID == machineID })
	if i < 0 || run.Trials[i].Reason == text {
		return nil
	}
	return e.Acceptances.OnTrial(ctx, run.ID, machineID, func(w *Work) error {
		if w.Trial.State == machine.TrialWaiting {
			w.Trial.Reason = text
		}
		return nil
	})
}
