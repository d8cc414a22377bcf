package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Acceptances keeps acceptance runs.
type Acceptances interface {
	// BeginRun locks the machines, calls fn with a Work of each in the order of the ids, and writes run, trials and Works together.
	BeginRun(ctx context.Context, run machine.AcceptanceRun, machineIDs []string, fn func([]*Work) error) error
	// OnTrial is Store.OnMachine with the machine's part in a run, over or not.
	OnTrial(ctx context.Context, runID, machineID string, fn func(*Work) error) error
	// CallOff notes that a run is called off, and why. Of one that was called off already it changes nothing.
	CallOff(ctx context.Context, id, why string) error
	// EndRun ends a run and keeps its report, unless a machine of it waits or is being tried.
	EndRun(ctx context.Context, id string, report func(machine.AcceptanceRun) ([]byte, error)) error
	Run(ctx context.Context, id string) (machine.AcceptanceRun, error)
	// OpenRuns lists the runs that are not over: under way, with a machine that waits or is being tried, or called off and without a report.
	OpenRuns(ctx context.Context) ([]machine.AcceptanceRun, error)
	// TrialReports returns the validation reports of a run's machines by machine.
	TrialReports(ctx context.Context, id string) (map[string]json.RawMessage, error)
	// SignedReport returns the report of a run, nil while it is not over.
	SignedReport(ctx context.Context, id string) ([]byte, error)
	// Racked lists every machine.
	Racked(ctx context.Context) ([]machine.Machine, error)
	// OneTender calls fn unless another server is at it.
	OneTender(ctx context.Context, fn func() error) error
}

// RunRequest asks for an acceptance run.
type RunRequest struct {
	Machines []string // ids or names
	Racks    []string // all machines in them
	Site     string   // all machines of it; or, beside racks, of those in it
	SkipBusy bool     // leave out those of a rack or site that cannot be tried, instead of refusing
	machine.AcceptanceTerms
}

// Left is a machine that a run leaves out.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// BeginRun takes machines into a run: all of them, or none. They are held from here on and cannot be sold.
func (e *Engine) BeginRun(ctx context.Context, r RunRequest) (machine.AcceptanceRun, []Left, error) {
	run := machine.AcceptanceRun{ID: NewID("ar"), State: machine.RunUnderWay, AcceptanceTerms: r.AcceptanceTerms}
	if run.Image == "" {
		return run, nil, &machine.Error{Code: machine.Invalid, Field: "image", Message: "no acceptance image is named",
			Hint: "give --image, or acceptance.image in the server's configuration: an image of the catalogue that brings the drivers"}
	}
	image, err := e.Shelf.Image(ctx, run.Image)
	if err != nil {
		return run, nil, err
	}
	run.ImageDigest, run.Driver, run.Plan = image.Digest, image.Driver, run.Plan.Filled()
	if err := run.Plan.Check(); err != nil {
		return run, nil, err
	}
	if run.Parallel < 0 || run.RackWatts < 0 {
		return run, nil, &machine.Error{Code: machine.Invalid, Field: "parallel", Message: "machines at a time and power are not below 0", Hint: "0 sets no bound"}
	}
	list, err := e.chosen(ctx, r)
	if err != nil {
		return run, nil, err
	}
	drawn := e.drawing()
	watts := map[string]int{}
	var left []Left
	try := func(m machine.Machine, o *machine.Order) string {
		if why := e.unfit(m, o, image); why != "" {
			return why
		}
		draw, budget := watts[m.Class], e.rackWatts(run.RackWatts, m.Site, m.Rack)
		if budget > 0 && draw > budget {
			return fmt.Sprintf("draws up to %s, and rack %s bears %s", kw(draw), m.Rack, kw(budget))
		}
		return ""
	}
	for _, m := range list {
		if _, ok := watts[m.Class]; !ok {
			watts[m.Class] = drawn(m)
		}
	}
	var ids []string
	for _, m := range list {
		if why := try(m, nil); why != "" && r.SkipBusy && len(r.Machines) == 0 {
			left = append(left, Left{m.Name, why})
			continue
		}
		ids = append(ids, m.ID)
	}
	if len(ids) == 0 {
		return run, left, &machine.Error{Code: machine.Conflict, Message: "no machine is left to try: " + leftOut(left), Hint: "choose other machines"}
	}
	err = e.Acceptances.BeginRun(ctx, run, ids, func(works []*Work) error {
		var bad []Left
		for _, w := range works {
			if why := try(*w.Machine, w.Order); why != "" {
				bad = append(bad, Left{w.Machine.Name, why})
				continue
			}
			w.Trial = &machine.Trial{RunID: run.ID, MachineID: w.Machine.ID, State: machine.TrialWaiting, Try: 1, Watts: watts[w.Machine.Class], Was: w.Machine.State, WasWhy: w.Machine.Reason}
			if err := w.machineEvent(machine.Accept, "held for acceptance run %s", run.ID); err != nil {
				return err
			}
			w.Machine.Reason = "in acceptance run " + run.ID
		}
		if len(bad) > 0 {
			hint := "name others"
			if len(r.Machines) == 0 {
				hint = "--skip-busy leaves these out"
			}
			return &machine.Error{Code: machine.Conflict, Field: "machines", Message: fmt.Sprintf("%d of %d machines cannot be tried: %s", len(bad), len(works), leftOut(bad)), Hint: hint}
		}
		return nil
	})
	if err != nil {
		return run, left, err
	}
	run, err = e.Acceptances.Run(ctx, run.ID)
	return run, left, err
}

func leftOut(list []Left) string {
	var parts []string
	for _, l := range list {
		parts = append(parts, l.Name+" "+l.Why)
	}
	return strings.Join(parts, "; ")
}

// chosen finds the machines that a request means, those of a rack by their names.
func (e *Engine) chosen(ctx context.Context, r RunRequest) ([]machine.Machine, error) {
	ways := 0
	for _, given := range []bool{len(r.Machines) > 0, len(r.Racks) > 0 || r.Site != ""} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return nil, &machine.Error{Code: machine.Invalid, Field: "machines", Message: "name either machines, or racks or a site", Hint: "--machine a,b or --rack r1,r2 or --site s"}
	}
	all, err := e.Acceptances.Racked(ctx)
	if err != nil {
		return nil, err
	}
	var list []machine.Machine
	for _, name := range r.Machines {
		i := slices.IndexFunc(all, func(m machine.Machine) bool { return m.Name == name || m.ID == name })
		if i < 0 {
			return nil, &machine.Error{Code: machine.NotFound, Field: "machines", Message: fmt.Sprintf("no machine %q", name),
				Hint: "a machine that was only discovered must be approved first: `bareyard machine discovered`, `bareyard machine approve`"}
		}
		if !slices.ContainsFunc(list, func(m machine.Machine) bool { return m.ID == all[i].ID }) {
			list = append(list, all[i])
		}
	}
	found := map[string]bool{}
	for _, m := range all {
		if len(r.Machines) == 0 && m.State != machine.Retired && (len(r.Racks) == 0 || slices.Contains(r.Racks, m.Rack)) && (r.Site == "" || r.Site == m.Site) {
			found[m.Rack] = true
			list = append(list, m)
		}
	}
	for _, rack := range r.Racks {
		if !found[rack] {
			return nil, &machine.Error{Code: machine.NotFound, Field: "racks", Message: fmt.Sprintf("no machine is recorded in rack %q", rack), Hint: "list machines and racks with `bareyard machine list --json`"}
		}
	}
	if len(list) == 0 {
		return nil, &machine.Error{Code: machine.NotFound, Field: "site", Message: fmt.Sprintf("no machine is recorded at site %q", r.Site), Hint: "list machines with `bareyard machine list --json`"}
	}
	return list, nil
}

// unfit says why a machine cannot be tried, "" when it can.
func (e *Engine) unfit(m machine.Machine, o *machine.Order, image machine.Image) string {
	disk, ok := m.Hardware.SystemDisk()
	switch {
	case o != nil && !o.State.Terminal():
		return fmt.Sprintf("is %s and rented (order %s)", m.State, o.ID)
	case o == nil && m.OrderID != "":
		return fmt.Sprintf("is %s, held by order %s", m.State, m.OrderID)
	case m.OrderID != "":
		return fmt.Sprintf("is %s and was not wiped after order %s, which is %s", m.State, o.ID, o.State)
	case m.State == machine.Accepting:
		return "is in another acceptance run"
	case !slices.Contains([]machine.State{machine.Enrolled, machine.Available, machine.Quarantined}, m.State):
		return fmt.Sprintf("is %s", m.State)
	case m.JobID != "":
		return fmt.Sprintf("has job %s under way", m.JobID)
	case image.Architecture == machine.ARM64:
		return fmt.Sprintf("is amd64, and image %s is for arm64", image.Name)
	case !image.Boots(m.Firmware):
		return fmt.Sprintf("boots by %s, and image %s does not", m.Firmware, image.Name)
	case !ok || disk.Size < image.DiskNeeded():
		return fmt.Sprintf("has no system disk that holds image %s", image.Name)
	case len(m.Hardware.Accelerators) > 0 && !image.Driver:
		return fmt.Sprintf("has cards, and image %s brings no driver for them", image.Name)
	}
	return ""
}

// CancelRun calls a run off, or one machine of it. What was not touched goes back to what it was; what was in stock goes back there by a wipe. What
// becomes of the machines after this server died in the middle of it sees TendRuns to.
func (e *Engine) CancelRun(ctx context.Context, id, machineID, reason string) error {
	if machineID == "" {
		if err := e.Acceptances.CallOff(ctx, id, reason); err != nil {
			return err
		}
	}
	run, err := e.Acceptances.Run(ctx, id)
	if err != nil {
		return err
	}
	for _, t := range run.Trials {
		if machineID != "" && machineID != t.MachineID && machineID != t.Name || machineID == "" && !t.State.Open() {
			continue
		}
		if err := e.cancelTrial(ctx, id, t.MachineID, machineID != "", reason); err != nil {
			return err
		}
		if machineID != "" {
			return nil
		}
	}
	if machineID != "" {
		return notInRun(id, machineID)
	}
	return nil
}

func notInRun(id, name string) error {
	return &machine.Error{Code: machine.NotFound, Field: "machine", Message: fmt.Sprintf("machine %s is not in run %s", name, id), Hint: fmt.Sprintf("see who is with `bareyard acceptance show %s`", id)}
}

// cancelTrial calls off what a machine still has to do. When it has nothing to do any more, that is an error only where it was meant alone.
func (e *Engine) cancelTrial(ctx context.Context, runID, machineID string, alone bool, reason string) error {
	return e.Acceptances.OnTrial(ctx, runID, machineID, func(w *Work) error {
		if !w.Trial.State.Open() && !alone {
			return nil
		}
		touched := w.Trial.State == machine.TrialRunning && w.Job != nil && (w.Job.Attempt > 1 || !e.unseen(w.Job.Kind, w.Job.Step))
		if err := w.trialEvent(machine.TrialCancel, "%s", reason); err != nil {
			return err
		}
		if w.Machine.State != machine.Accepting {
			return nil // an operator has taken it away
		}
		if w.Job != nil && w.Job.Kind == machine.AcceptanceJob && w.Job.State == machine.JobRunning {
			if err := w.jobEvent(machine.JobCancel, "the acceptance was called off: %s", reason); err != nil {
				return err
			}
			e.fence(w)
		}
		return e.giveBack(w, touched, fmt.Sprintf("acceptance run %s was called off: %s", runID, reason))
	})
}

// giveBack returns a machine that a run has not judged to what it was before.
func (e *Engine) giveBack(w *Work, touched bool, why string) error {
	t := w.Trial
	switch {
	case touched && t.Was == machine.Available:
		w.Machine.Reason = ""
		if err := w.machineEvent(machine.Reclaim, "%s; to be wiped and proven clean", why); err != nil {
			return err
		}
		return e.startJob(w, machine.ReclaimJob, func(j *machine.Job) { j.WipeData = true })
	case touched:
		w.Machine.Reason = why + "; the acceptance image is on its system disk"
		return w.machineEvent(machine.Quarantine, "%s", w.Machine.Reason)
	case t.Was == machine.Quarantined:
		w.Machine.Reason = t.WasWhy
		return w.machineEvent(machine.Quarantine, "%s; as before: %s", why, t.WasWhy)
	case t.Was == machine.Enrolled:
		w.Machine.Reason = ""
		return w.machineEvent(machine.Enroll, "%s; nothing was touched", why)
	}
	w.Machine.Reason = ""
	return w.machineEvent(machine.Admit, "%s; nothing was touched, back in stock", why)
}

// RetryTrial tries a machine of a run again, with what was asked of the run.
func (e *Engine) RetryTrial(ctx context.Context, id, machineID string) error {
	run, err := e.Acceptances.Run(ctx, id)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(run.Trials, func(t machine.Trial) bool { return machineID == t.MachineID || machineID == t.Name })
	if i < 0 {
		return notInRun(id, machineID)
	}
	image, err := e.Shelf.Image(ctx, run.Image)
	if err != nil {
		return err
	}
	return e.Acceptances.OnTrial(ctx, id, run.Trials[i].MachineID, func(w *Work) error {
		m := w.Machine
		if w.Trial.State.Open() {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s is %s in this run", m.Name, w.Trial.State), Hint: "watch it with `bareyard acceptance watch " + id + "`"}
		}
		kept := m.State == machine.Accepting && w.Job == nil // passed, and waits for somebody to admit it
		if why := e.unfit(*m, w.Order, image); why != "" && !kept {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s %s", m.Name, why), Hint: "a machine can be tried that is enrolled, available or quarantined"}
		}
		if err := w.trialEvent(machine.TrialRetry, "to be tried again"); err != nil {
			return err
		}
		w.Reopen = true
		w.Trial.Try++
		w.Trial.JobID, w.Trial.Reason, w.Trial.Findings = "", "", nil
		if kept {
			w.Trial.Was, w.Trial.WasWhy = machine.Quarantined, "passed acceptance run "+id+", then tried again"
			return nil
		}
		w.Trial.Was, w.Trial.WasWhy = m.State, m.Reason
		m.Reason = "in acceptance run " + id
		return w.machineEvent(machine.Accept, "held for acceptance run %s again", id)
	})
}

// AdmitRun takes what has passed into stock, through a wipe: all of it, or one machine.
func (e *Engine) AdmitRun(ctx context.Context, id, machineID string) ([]string, error) {
	run, err := e.Acceptances.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	if machineID == "" && run.State == machine.RunUnderWay {
		return nil, &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("run %s is under way: what has passed is held against its peers when all are done", id),
			Hint: fmt.Sprintf("wait for its end, or name the machine that cannot wait: `bareyard acceptance admit %s MACHINE`", id)}
	}
	var names []string
	for _, t := range run.Trials {
		if machineID != "" && machineID != t.MachineID && machineID != t.Name {
			continue
		}
		if machineID != "" && t.State != machine.TrialPassed {
			return nil, &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s has not passed: it is %s", t.Name, t.State), Hint: "only what has passed is admitted; `bareyard machine return` wipes a quarantined machine on your own word"}
		}
		err := e.Acceptances.OnTrial(ctx, id, t.MachineID, func(w *Work) error {
			if w.Trial.State != machine.TrialPassed || w.Machine.State != machine.Accepting || w.Job != nil {
				return nil // admitted already, or somebody else's by now
			}
			names = append(names, w.Machine.Name)
			return e.admit(w)
		})
		if err != nil {
			return names, err
		}
	}
	if len(names) == 0 {
		return names, &machine.Error{Code: machine.Conflict, Message: "no machine of this run waits to be admitted", Hint: fmt.Sprintf("see `bareyard acceptance show %s`", id)}
	}
	return names, nil
}

// admit starts the wipe that leads into stock.
func (e *Engine) admit(w *Work) error {
	w.Machine.Reason = ""
	if err := w.machineEvent(machine.Reclaim, "passed acceptance run %s; to be wiped and proven clean", w.Trial.RunID); err != nil {
		return err
	}
	return e.startJob(w, machine.ReclaimJob, func(j *machine.Job) { j.WipeData = true })
}

// trialEvent moves the machine's part in a run.
func (w *Work) trialEvent(ev machine.TrialEvent, format string, a ...any) error {
	next, err := machine.NextTrial(w.Trial.State, ev)
	if err != nil {
		return fmt.Errorf("move trial of machine %s: %w", w.Machine.Name, err)
	}
	w.Trial.State, w.Trial.Reason = next, fmt.Sprintf(format, a...)
	switch {
	case ev == machine.TrialStart:
		w.Trial.Started = w.Now
	case next.Open():
		w.Trial.Started, w.Trial.Finished = time.Time{}, time.Time{}
	default:
		w.Trial.Finished = w.Now
	}
	w.note("acceptance."+string(ev), "acceptance run %s: %s", w.Trial.RunID, strings.TrimSuffix(string(next)+": "+w.Trial.Reason, ": "))
	return nil
}
