package machine

import (
	"encoding/json"
	"time"
)

// JobState is the state of a job.
type JobState string

// States of a job.
const (
	JobRunning   JobState = "running"
	JobSucceeded JobState = "succeeded"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
)

// JobEvent is what happens to a job.
type JobEvent string

// Events of a job.
const (
	JobAdvance JobEvent = "advance" // a step is done, the next begins
	JobRetry   JobEvent = "retry"   // a new attempt begins at the first step
	JobReboot  JobEvent = "reboot"  // the machine was not seen on the wire: it is booted again, by the BMC's next method
	JobSucceed JobEvent = "succeed" // the last step is done
	JobFail    JobEvent = "fail"    // no attempt is left, or a retry cannot help
	JobCancel  JobEvent = "cancel"  // somebody called it off
)

// JobStates lists every job state.
func JobStates() []JobState {
	return []JobState{JobRunning, JobSucceeded, JobFailed, JobCancelled}
}

// JobEvents lists every job event.
func JobEvents() []JobEvent {
	return []JobEvent{JobAdvance, JobRetry, JobReboot, JobSucceed, JobFail, JobCancel}
}

var jobTable = table[JobState, JobEvent]{
	JobRunning:   {JobAdvance: JobRunning, JobRetry: JobRunning, JobReboot: JobRunning, JobSucceed: JobSucceeded, JobFail: JobFailed, JobCancel: JobCancelled},
	JobSucceeded: {},
	JobFailed:    {},
	JobCancelled: {},
}

// NextJob is the transition function of jobs.
func NextJob(s JobState, e JobEvent) (JobState, error) { return jobTable.next("job", s, e) }

// JobKind says what a job is for.
type JobKind string

// Kinds of job.
const (
	ProvisionJob JobKind = "provision" // put an image on a machine for a new order
	ReinstallJob JobKind = "reinstall" // put an image on the machine that an order holds
	ReclaimJob   JobKind = "reclaim"   // isolate, look at it, wipe every disk, prove it, return to stock
	ExamineJob   JobKind = "examine"   // look at a machine that nobody holds, from the RAM disk, and set its firmware as its class wants it; nothing is written to its disks

	AcceptanceJob JobKind = "acceptance" // install the acceptance image, try the machine for hours, judge it
)

// JobKinds lists every kind of job.
func JobKinds() []JobKind {
	return []JobKind{ProvisionJob, ReinstallJob, ReclaimJob, ExamineJob, AcceptanceJob}
}

// Job is one run of work on one machine.
type Job struct {
	ID        string   `json:"id"`
	Kind      JobKind  `json:"kind"`
	MachineID string   `json:"machine_id"`
	OrderID   string   `json:"order_id,omitempty"`
	State     JobState `json:"state"`
	Attempt   int      `json:"attempt"` // from 1; reports of an older attempt are refused
	Step      StepName `json:"step"`
	Turn      int      `json:"turn"`             // counts the actions enqueued for it; only the newest may act
	Try       int      `json:"try"`              // from 1: which try of a controller step this is
	Boots     int      `json:"boots,omitempty"`  // starts of this attempt after which the machine was not seen on the wire
	Media     bool     `json:"media,omitempty"`  // it boots the RAM disk from virtual media, for the machine was not seen to boot from the network
	Reason    string   `json:"reason,omitempty"` // why the last attempt or the job failed, in words

	Image       string `json:"image,omitempty"`
	ImageDigest string `json:"image_digest,omitempty"`
	Driver      bool   `json:"driver"`    // the image brings the accelerators' driver: validation asks it
	WipeData    bool   `json:"wipe_data"` // data disks too: a new customer, or asked for in as many words

	Acceptance *AcceptanceWork `json:"acceptance,omitempty"` // of an acceptance job

	Progress Progress        `json:"progress"`
	Result   json.RawMessage `json:"result,omitempty"`     // the validation report, once there; in lists of jobs its schema and outcome
	Finding  string          `json:"finding,omitempty"`    // why the machine must not go into stock at the end of the job, in words
	From     State           `json:"comes_from,omitempty"` // examine and trial jobs: the state to which the machine goes back
	Started  time.Time       `json:"started"`
	StepAt   time.Time       `json:"step_at"`  // when the step began
	SeenAt   time.Time       `json:"seen_at"`  // last sign of life from whoever does the step
	Due      time.Time       `json:"due"`      // when the step is given up, unless it shows life
	Finished time.Time       `json:"finished"` // zero while running
}

// AcceptanceWork is what an acceptance job needs beside the machine.
type AcceptanceWork struct {
	RunID  string         `json:"run_id"`
	Plan   AcceptancePlan `json:"plan"`
	Cursor string         `json:"cursor,omitempty"` // of the BMC's log when the job began: what is behind it came with the job
}

// Progress is how far a long step is.
type Progress struct {
	Burn  Burn  `json:"burn,omitzero"` // of an acceptance
	Done  int64 `json:"done"`          // bytes
	Total int64 `json:"total"`         // bytes
	Rate  int64 `json:"rate"`          // bytes per second over the last seconds
}
