package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

var (
	wait     = machine.Instruction{Do: machine.DoWait}
	finish   = machine.Instruction{Do: machine.DoFinish}
	validate = machine.Instruction{Do: machine.DoStep, Step: machine.StepValidate, Expect: &machine.Expect{Count: 8}}
)

// script answers reports one after the other and notes what was said when.
type script struct {
	answers []any // machine.Instruction or error; the last one is repeated
	said    []machine.Report
	at      []time.Time
}

func (s *script) post(_ context.Context, r machine.Report) (machine.Instruction, error) {
	s.said, s.at = append(s.said, r), append(s.at, time.Now())
	a := s.answers[min(len(s.said), len(s.answers))-1]
	if err, ok := a.(error); ok {
		return machine.Instruction{}, err
	}
	return a.(machine.Instruction), nil
}

func (s *script) words() []string {
	var out []string
	for _, r := range s.said {
		out = append(out, string(r.Step)+" "+string(r.Phase))
	}
	return out
}

// runScript runs a validator against a script in a bubble of time; its reading takes some.
func runScript(t *testing.T, s *script, reading time.Duration, blocks bool) (took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		v := &validator{post: s.post, log: slog.New(slog.NewTextHandler(io.Discard, nil)), read: func(ctx context.Context, e machine.Expect) accelerator.Report {
			if e.Count != 8 {
				t.Errorf("expects %+v", e)
			}
			select {
			case <-time.After(reading):
			case <-ctx.Done():
			}
			o := accelerator.Pass
			if blocks {
				o = accelerator.Fail
			}
			return accelerator.Report{Schema: accelerator.Schema, Checks: []accelerator.Check{{ID: "card.count", Outcome: o}}}
		}}
		err = v.run(t.Context())
		took = time.Since(start)
	})
	return took, err
}

func TestConversation(t *testing.T) {
	down := errors.New("connection refused")
	cases := []struct {
		name    string
		answers []any
		reading time.Duration
		said    []string
	}{
		{"as planned", []any{wait, wait, validate, wait, finish}, time.Second,
			[]string{"first-boot done", "first-boot idle", "first-boot idle", "validate done", "first-boot idle"}},
		{"at once", []any{validate, finish}, time.Second, []string{"first-boot done", "validate done"}},
		{"server comes late", []any{down, down, down, wait, validate, down, finish}, time.Second,
			[]string{"first-boot done", "first-boot done", "first-boot done", "first-boot done", "first-boot idle", "validate done", "validate done"}},
		{"signs of life", []any{validate, machine.Instruction{Do: machine.DoContinue}, down, finish}, 25 * time.Second,
			[]string{"first-boot done", "validate working", "validate working", "validate done"}},
		{"asked twice", []any{validate, validate, finish}, time.Second, []string{"first-boot done", "validate done", "validate done"}},
		{"attempt over", []any{errGone}, time.Second, []string{"first-boot done"}},
		{"attempt over while waiting", []any{wait, errGone}, time.Second, []string{"first-boot done", "first-boot idle"}},
		{"attempt over while reading", []any{validate, errGone}, time.Minute, []string{"first-boot done", "validate working"}},
		{"not wanted while reading", []any{validate, machine.Instruction{Do: machine.DoPowerOff}}, time.Minute, []string{"first-boot done", "validate working"}},
		{"another step", []any{machine.Instruction{Do: machine.DoStep, Step: machine.StepWipe}, finish}, 0, []string{"first-boot done", "wipe failed"}},
		{"nothing to expect", []any{machine.Instruction{Do: machine.DoStep, Step: machine.StepValidate}, finish}, 0, []string{"first-boot done", "validate failed"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &script{answers: c.answers}
			if _, err := runScript(t, s, c.reading, false); err != nil {
				t.Error(err)
			}
			if got := s.words(); !slices.Equal(got, c.said) {
				t.Errorf("said %q\nwant %q", got, c.said)
			}
		})
	}
}

// A machine that fails is a result, not a failure of the validator.
func TestBadMachineIsDone(t *testing.T) {
	s := &script{answers: []any{validate, finish}}
	if _, err := runScript(t, s, time.Second, true); err != nil {
		t.Fatal(err)
	}
	r := s.said[1]
	var got accelerator.Report
	if r.Phase != machine.Done || json.Unmarshal(r.Result, &got) != nil || !got.Blocks() {
		t.Errorf("%+v", r)
	}
}

func TestGivesUp(t *testing.T) {
	down := errors.New("no route to host")
	cases := []struct {
		name     string
		answers  []any
		min, max time.Duration
	}{
		{"nobody ever answers", []any{down}, 19 * time.Minute, 20 * time.Minute},
		{"the port is closed at hand-over", []any{validate, wait, down}, 4 * time.Minute, 5*time.Minute + 2*time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &script{answers: c.answers}
			took, err := runScript(t, s, time.Second, false)
			if err == nil || took < c.min || took > c.max {
				t.Errorf("%v after %v", err, took)
			}
			if n := len(s.said); n > 60 {
				t.Errorf("asked %d times", n)
			}
			for i := 2; i < len(s.at); i++ {
				if gap := s.at[i].Sub(s.at[i-1]); gap > lastRetry {
					t.Errorf("waited %v", gap)
				}
			}
		})
	}
}

func TestWaitsASecondBetweenPolls(t *testing.T) {
	s := &script{answers: []any{wait, wait, wait, finish}}
	if took, err := runScript(t, s, 0, false); err != nil || took != 3*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

func TestInterrupted(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	v := &validator{log: slog.New(slog.DiscardHandler), post: func(context.Context, machine.Report) (machine.Instruction, error) {
		cancel()
		return machine.Instruction{}, errors.New("down")
	}}
	if err := v.run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
