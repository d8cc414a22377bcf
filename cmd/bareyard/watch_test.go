package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestDescribe: what people read about the step under way.
func TestDescribe(t *testing.T) {
	for want, j := range map[string]machine.Job{
		"powering on":                          {Step: machine.StepPowerOn, Attempt: 1},
		"first boot of the system (attempt 2)": {Step: machine.StepFirstBoot, Attempt: 2},
		"writing the image [████████████░░░░░░░░░░░░]  50% 120 MB/s, 4s left": {Step: machine.StepWrite, Attempt: 1,
			Progress: machine.Progress{Done: 480_000_000, Total: 960_000_000, Rate: 120_000_000}},
		"reading the image back [████████████████████████] 100%": {Step: machine.StepVerify, Attempt: 1, Progress: machine.Progress{Done: 7, Total: 7}},
	} {
		if got := describe(j); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	for _, kind := range machine.JobKinds() {
		for _, s := range machine.Plan(kind) {
			if describe(machine.Job{Step: s.Name, Attempt: 1}) == "" {
				t.Errorf("step %s has no words", s.Name)
			}
		}
	}
}

// TestView: finished steps stay, one a line; the step under way is one line that is rewritten on a terminal, and absent from a pipe.
func TestView(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	for live, want := range map[bool]string{
		true:  "         … powering on\r\x1b[2K03:04:05 ✓ power-on done\n         … clearing the disks\r\x1b[2K",
		false: "03:04:05 ✓ power-on done\n",
	} {
		var out bytes.Buffer
		v := &view{out: &out, live: live}
		v.job(machine.Job{State: machine.JobRunning, Step: machine.StepPowerOn, Attempt: 1})
		v.event(provisioner.Event{At: at, Kind: "job.advance", Text: "power-on done"})
		v.event(provisioner.Event{At: at, Kind: "step.begin", Text: "not for people in a hurry"})
		v.job(machine.Job{State: machine.JobRunning, Step: machine.StepWipe, Attempt: 1})
		v.end()
		if out.String() != want {
			t.Errorf("live %t:\ngot  %q\nwant %q", live, out.String(), want)
		}
	}
}
