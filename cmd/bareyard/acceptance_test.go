package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// boardRun is a run in the middle of which every kind of machine is.
func boardRun(now time.Time) machine.AcceptanceRun {
	burn := func(stage string, done, total int64) *machine.TrialStage {
		return &machine.TrialStage{Step: machine.StepAccept, Attempt: 1, SeenAt: now.Add(-5 * time.Second), Progress: machine.Progress{Burn: machine.Burn{Stage: stage, Done: done, Total: total, Hottest: 71, Watts: 4580}}}
	}
	r := machine.AcceptanceRun{ID: "ar-1", State: machine.RunUnderWay, Created: now.Add(-50 * time.Minute), AcceptanceTerms: machine.AcceptanceTerms{Plan: machine.HourlyPlan(4)}}
	add := func(name string, state machine.TrialState, at *machine.TrialStage, reason string, f ...machine.Finding) {
		r.Trials = append(r.Trials, machine.Trial{MachineID: "m-" + name, Name: name, Rack: "r1", State: state, Now: at, Reason: reason, Findings: f, Started: now.Add(-50 * time.Minute)})
	}
	add("n1", machine.TrialRunning, burn("stress", 2580, 14400), "")
	add("n2", machine.TrialRunning, burn("performance", 95, 0), "")
	add("n3", machine.TrialRunning, &machine.TrialStage{Step: machine.StepWrite, Attempt: 2, Progress: machine.Progress{Done: 3, Total: 8}}, "")
	add("n4", machine.TrialWaiting, nil, "waits for power: rack r1 bears 17.3 kW, up to 12.2 kW are drawn, this machine draws up to 6.1 kW")
	add("n5", machine.TrialFailed, nil, "load.memory: x", machine.Finding{Level: "warn", Check: "host.clock", Text: "no time service"}, machine.Finding{Part: "0000:05:00.0", Level: "fail", Check: "load.memory", Text: "12 words\x1b[2J wrong", Action: "replace"})
	r.Trials[4].Finished = now.Add(-6 * time.Minute)
	silent := burn("stress", 1200, 14400)
	silent.SeenAt = now.Add(-70 * time.Second)
	add("n6", machine.TrialRunning, silent, "")
	return r
}

const wantBoard = `acceptance ar-1, 50 min, stress 4h00: 4 running, 1 waiting, 0 passed, 1 failed, 0 incomplete
RACK     MACHINE      STAGE         PROGRESS                HOT    POWER      ETA  WORST
r1       n1           stress        43 min of 4h00        71 °C   4.6 kW     3h17
r1       n2           performance   95s                   71 °C   4.6 kW    ~4h00
r1       n3           installing    37 %                                    ~4h00  attempt 2
r1       n4           waiting                                                      waits for power: rack r1 bears 17.3 kW, up to …
r1       n5           failed        after 44 min                                   0000:05:00.0 load.memory: 12 words [2J wrong →…
r1       n6           stress        20 min of 4h00        71 °C   4.6 kW     3h40  silent for 70s`

func TestBoard(t *testing.T) {
	now := time.Now()
	if got := strings.Join(boardLines(boardRun(now), now, 130), "\n"); got != wantBoard {
		t.Errorf("the board is\n%s\nwant\n%s", got, wantBoard)
	}
	// Without a terminal a machine is told of when it has gone on, and nothing twice.
	var out bytes.Buffer
	b := &board{out: &out}
	r := boardRun(now)
	b.draw(r, now)
	first := out.String()
	b.draw(r, now)
	if out.String() != first || strings.Count(first, "\n") != 6 || !strings.Contains(first, "✗ n5 failed: load.memory") || strings.Contains(first, "\x1b") {
		t.Errorf("told\n%s", out.String())
	}
	r.Trials[1].Now.Progress.Burn.Stage = "stress"
	b.draw(r, now)
	if rest := strings.TrimPrefix(out.String(), first); strings.Count(rest, "\n") != 1 || !strings.Contains(rest, "… n2 stress") {
		t.Errorf("then told\n%s", rest)
	}
}
