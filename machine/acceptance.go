package machine

import (
	"cmp"
	"fmt"
	"time"
)

// AcceptanceRun tries a number of new machines, each by a job of its own.
type AcceptanceRun struct {
	ID       string    `json:"id"`
	State    RunState  `json:"state"`
	Created  time.Time `json:"created"`
	Finished time.Time `json:"finished,omitzero"`
	Why      string    `json:"why,omitempty"` // it was called off
	Trials   []Trial   `json:"trials"`        // in the order in which they were named
	AcceptanceTerms
}

// AcceptanceTerms is what was asked of a run; it does not change.
type AcceptanceTerms struct {
	Image       string         `json:"image"` // carries the drivers; installed for the run, and wiped before the machine is sold
	ImageDigest string         `json:"image_digest"`
	Driver      bool           `json:"driver"`
	Plan        AcceptancePlan `json:"plan"`
	Accept      bool           `json:"accept"`            // what passes is wiped and goes to stock without being asked again
	Parallel    int            `json:"parallel"`          // machines at a time; 0: as many as the power allows
	Stagger     Span           `json:"stagger,omitempty"` // between two starts in one rack
	RackWatts   int            `json:"rack_watts"`        // for every rack of the run; 0: as the server is configured
	Note        string         `json:"note,omitempty"`    // who wanted it, and why
}

// RunState is the state of an acceptance run.
type RunState string

// States of a run.
const (
	RunUnderWay  RunState = "running"
	RunFinished  RunState = "finished"
	RunCancelled RunState = "cancelled"
)

// RunEvent is what happens to a run.
type RunEvent string

// Events of a run.
const (
	RunFinish RunEvent = "finish" // no machine of it waits or is being tried; its report is signed
	RunCancel RunEvent = "cancel" // an operator calls it off
	RunReopen RunEvent = "reopen" // a machine is tried again
)

// RunStates lists every state of a run.
func RunStates() []RunState { return []RunState{RunUnderWay, RunFinished, RunCancelled} }

// RunEvents lists every event of a run.
func RunEvents() []RunEvent { return []RunEvent{RunFinish, RunCancel, RunReopen} }

var runTable = table[RunState, RunEvent]{
	RunUnderWay:  {RunFinish: RunFinished, RunCancel: RunCancelled, RunReopen: RunUnderWay},
	RunFinished:  {RunReopen: RunUnderWay},
	RunCancelled: {RunCancel: RunCancelled, RunFinish: RunCancelled, RunReopen: RunUnderWay},
}

// NextRun is the transition function of acceptance runs.
func NextRun(s RunState, e RunEvent) (RunState, error) { return runTable.next("acceptance run", s, e) }

// Trial is one machine's part in a run.
type Trial struct {
	RunID     string `json:"run_id"`
	MachineID string `json:"machine_id"`
	Name      string `json:"name"` // of the machine, like the three below
	Site      string `json:"site"`
	Rack      string `json:"rack"`
	Class     string `json:"class"`

	State    TrialState  `json:"state"`
	Try      int         `json:"try"`   // from 1; how often it was asked for
	Watts    int         `json:"watts"` // what the machine draws at most, as far as is known
	Was      State       `json:"was"`   // of the machine, before the run took it
	WasWhy   string      `json:"was_why,omitempty"`
	JobID    string      `json:"job_id,omitempty"` // of the newest try
	Reason   string      `json:"reason,omitempty"` // what it waits for, or why it did not pass
	Findings []Finding   `json:"findings,omitempty"`
	Started  time.Time   `json:"started,omitzero"`
	Finished time.Time   `json:"finished,omitzero"`
	Now      *TrialStage `json:"now,omitempty"` // while it is being tried
}

// TrialStage is where the job of a trial is.
type TrialStage struct {
	Step     StepName  `json:"step"`
	Attempt  int       `json:"attempt"`
	StepAt   time.Time `json:"step_at"`
	SeenAt   time.Time `json:"seen_at"`
	Progress Progress  `json:"progress"`
}

// Finding is what does not let a machine pass, or what a person should know, of one card or of the machine itself.
type Finding struct {
	Part   string `json:"part"`             // slot of a card; "" is the machine
	Serial string `json:"serial,omitempty"` // of the card
	Level  string `json:"level"`            // an outcome: fail, error, skip, warn
	Check  string `json:"check"`
	Text   string `json:"text"`
	Action string `json:"action,omitempty"` // what to do to the hardware: reseat, replace …
}

// TrialState is the state of a trial.
type TrialState string

// States of a trial.
const (
	TrialWaiting    TrialState = "waiting" // for its turn; the machine is held and untouched
	TrialRunning    TrialState = "running"
	TrialPassed     TrialState = "passed"
	TrialFailed     TrialState = "failed"     // something is wrong with the machine
	TrialIncomplete TrialState = "incomplete" // it could not be judged: nobody knows
	TrialCancelled  TrialState = "cancelled"
)

// TrialEvent is what happens to a trial.
type TrialEvent string

// Events of a trial.
const (
	TrialStart  TrialEvent = "start"
	TrialPass   TrialEvent = "pass"
	TrialFail   TrialEvent = "fail"
	TrialLeave  TrialEvent = "leave" // it ends without a judgement
	TrialCancel TrialEvent = "cancel"
	TrialRetry  TrialEvent = "retry"
)

// TrialStates lists every state of a trial.
func TrialStates() []TrialState {
	return []TrialState{TrialWaiting, TrialRunning, TrialPassed, TrialFailed, TrialIncomplete, TrialCancelled}
}

// TrialEvents lists every event of a trial.
func TrialEvents() []TrialEvent {
	return []TrialEvent{TrialStart, TrialPass, TrialFail, TrialLeave, TrialCancel, TrialRetry}
}

var trialTable = table[TrialState, TrialEvent]{
	TrialWaiting:    {TrialStart: TrialRunning, TrialLeave: TrialIncomplete, TrialCancel: TrialCancelled},
	TrialRunning:    {TrialPass: TrialPassed, TrialFail: TrialFailed, TrialLeave: TrialIncomplete, TrialCancel: TrialCancelled},
	TrialPassed:     {TrialRetry: TrialWaiting, TrialFail: TrialFailed}, // slower than its peers, which is known when they are done
	TrialFailed:     {TrialRetry: TrialWaiting},
	TrialIncomplete: {TrialRetry: TrialWaiting},
	TrialCancelled:  {TrialRetry: TrialWaiting},
}

// NextTrial is the transition function of trials.
func NextTrial(s TrialState, e TrialEvent) (TrialState, error) {
	return trialTable.next("acceptance of the machine", s, e)
}

// Open reports whether the trial holds its machine.
func (s TrialState) Open() bool { return s == TrialWaiting || s == TrialRunning }

// Span is a length of time that is written as 90s, 30m or 4h.
type Span time.Duration

// MarshalText implements encoding.TextMarshaler.
func (s Span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d < 0 {
		return fmt.Errorf("%.32q is no length of time: write it as 90s, 30m or 4h", text)
	}
	*s = Span(d)
	return nil
}

// AcceptancePlan says of each stage of an acceptance how long it loads the cards, and when it is given up.
type AcceptancePlan struct {
	Sanity      StagePlan `json:"sanity,omitzero"`
	Validation  StagePlan `json:"validation,omitzero"`
	Performance StagePlan `json:"performance,omitzero"`
	Stress      StagePlan `json:"stress,omitzero"`
	Silence     Span      `json:"silence,omitempty"` // of a machine that is being tried, after which it counts as hung
}

// StagePlan is one stage of an AcceptancePlan.
type StagePlan struct {
	Load  Span `json:"load,omitempty"`  // validation and stress alone load for a given time
	Limit Span `json:"limit,omitempty"` // what takes longer hangs
}

// Bounds of a stage. Shorter loads than an hour prove little; they are for trying out the run itself.
const (
	mostLoad  = 24 * time.Hour
	mostLimit = 30 * time.Hour
)

// HourlyPlan is the plan that stresses the cards for a number of hours.
func HourlyPlan(hours int) AcceptancePlan {
	return AcceptancePlan{Stress: StagePlan{Load: Span(time.Duration(hours) * time.Hour)}}.Filled()
}

// Filled is the plan with defaults for what it leaves out.
func (p AcceptancePlan) Filled() AcceptancePlan {
	fill := func(s *StagePlan, load, limit time.Duration) {
		s.Load = cmp.Or(s.Load, Span(load))
		s.Limit = cmp.Or(s.Limit, Span(limit))
	}
	fill(&p.Sanity, 0, 15*time.Minute)
	fill(&p.Validation, 30*time.Second, 45*time.Minute) // a vendor's own tool needs most of it
	fill(&p.Performance, 0, 3*time.Hour)
	fill(&p.Stress, 4*time.Hour, 0)
	p.Silence = cmp.Or(p.Silence, Span(2*time.Minute))
	p.Stress.Limit = cmp.Or(p.Stress.Limit, p.Stress.Load+Span(3*time.Hour))
	return p
}

// Check refuses a plan that cannot be carried out; the field of the error names the stage.
func (p AcceptancePlan) Check() error {
	for _, s := range []struct {
		name string
		StagePlan
		loads bool
	}{{"sanity", p.Sanity, false}, {"validation", p.Validation, true}, {"performance", p.Performance, false}, {"stress", p.Stress, true}} {
		bad := func(key, format string, a ...any) error {
			return &Error{Code: Invalid, Field: "plan." + s.name + "." + key, Message: fmt.Sprintf("stage "+s.name+": "+format, a...), Hint: "docs/acceptance.md shows a plan"}
		}
		load, limit := time.Duration(s.Load), time.Duration(s.Limit)
		switch {
		case !s.loads && load > 0:
			return bad("load", "it takes as long as it takes and has no load of a given time")
		case s.loads && (load < time.Second || load > mostLoad):
			return bad("load", "%v of load are not between 1s and %v", load, mostLoad)
		case limit <= 0 || limit > mostLimit:
			return bad("limit", "a limit of %v is not between 1s and %v", limit, mostLimit)
		case limit < load:
			return bad("limit", "it is given up after %v and loads for %v", limit, load)
		}
	}
	if s := time.Duration(p.Silence); s < time.Second || s > time.Hour {
		return &Error{Code: Invalid, Field: "plan.silence", Message: fmt.Sprintf("a silence of %v is not between 1s and 1h", s), Hint: "validators speak every 10s; leave them 2m"}
	}
	return nil
}

// Whole is how long the validator may take with all stages, and with reading before and after them.
func (p AcceptancePlan) Whole() time.Duration {
	return time.Duration(p.Sanity.Limit+p.Validation.Limit+p.Performance.Limit+p.Stress.Limit) + 20*time.Minute
}

// Load is how long the cards are loaded at least.
func (p AcceptancePlan) Load() time.Duration {
	return time.Duration(p.Validation.Load + p.Stress.Load)
}

// Burn is how far an acceptance is on its machine.
type Burn struct {
	Stage   string `json:"stage,omitempty"`
	Done    int64  `json:"done,omitempty"`    // seconds since the stage began
	Total   int64  `json:"total,omitempty"`   // seconds of load, where the stage has a given time
	Hottest int64  `json:"hottest,omitempty"` // °C
	Watts   int64  `json:"watts,omitempty"`   // of all cards
	Worst   string `json:"worst,omitempty"`   // the worst finding so far
}
