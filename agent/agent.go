// Package agent is what a machine in the RAM disk does: it reports, and carries out what the answers ask for.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"reflect"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Hands does the work on a machine: on its real disks, or in a simulation.
type Hands interface {
	// Identity says which machine this is: UUID, serial number and the MAC addresses of the physical ports.
	Identity(ctx context.Context) (machine.Hello, error)
	// Do carries out the step that an instruction names and returns its result: machine.Inventory, []machine.Erasure or nil.
	// It calls progress (bytes) as often as it likes. When ctx ends it stops writing and returns. An error that another
	// attempt cannot help is marked with Fatal. Doing a step twice is harmless.
	Do(ctx context.Context, in machine.Instruction, progress func(done, total int64)) (result any, err error)
}

// Config is what Run needs.
type Config struct {
	Boot     Boot          // how this boot reaches its server
	Hands    Hands         // does the work
	Client   *http.Client  // nil: Boot.Client()
	Log      *slog.Logger  // nil: silence
	Beat     time.Duration // between two signs of life during a step; zero: 1.5 s
	Patience time.Duration // how long the server may be silent before the agent gives up; zero: 30 min
}

// Errors with which Run ends. Whoever called it powers the machine off, whatever the error but ErrReboot.
var (
	ErrNotWanted = errors.New("the server does not want this agent any more")
	ErrSilence   = errors.New("the server is silent for too long")
	ErrReboot    = errors.New("the server wants this machine to start over, from its disk")
)

// fatalError marks an error that another attempt cannot help.
type fatalError struct{ error }

func (e fatalError) Unwrap() error { return e.error }

// Fatal marks err as one that another attempt cannot help: the wrong disk, an image larger than the disk.
func Fatal(err error) error { return fatalError{err} }

// IsFatal reports whether err was marked by Fatal.
func IsFatal(err error) bool {
	var f fatalError
	return errors.As(err, &f)
}

// stopGrace is how long a cancelled step may take to stop before the machine is powered off under it: a disk that
// hangs must not keep a machine alive that somebody else may own by now.
const stopGrace = 5 * time.Second

// requestTime bounds one request. It is well under the shortest Quiet of an agent's step, which is a minute.
const requestTime = 10 * time.Second

// Run says hello and then does what it is told until it is told to stop. It returns nil when ctx ends or the server says
// that all is done, ErrNotWanted, ErrReboot or ErrSilence otherwise; no write to a disk is going on when it returns, unless a disk
// hung for longer than five seconds.
func Run(ctx context.Context, c Config) error {
	r := &runner{
		Config: c,
		server: &server{base: c.Boot.Server, http: c.Client},
		heard:  time.Now(),
	}
	r.Beat = cmp.Or(c.Beat, 1500*time.Millisecond)
	r.Patience = cmp.Or(c.Patience, 30*time.Minute)
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	if r.server.http == nil {
		client, err := c.Boot.Client()
		if err != nil {
			return err
		}
		r.server.http = client
	}
	err := r.run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type runner struct {
	Config
	server *server
	heard  time.Time // last answer of the server
	silent bool      // an outage has been logged
}

func (r *runner) run(ctx context.Context) error {
	in, err := r.hello(ctx)
	for err == nil {
		switch in.Do {
		case machine.DoStep:
			in, err = r.step(ctx, in)
		case machine.DoPowerOff:
			return ErrNotWanted
		case machine.DoReboot:
			return ErrReboot
		case machine.DoFinish:
			return nil
		default: // DoWait; DoContinue with nothing going on; a verb of a newer server
			if err = sleep(ctx, time.Second); err == nil {
				in, err = r.deliver(ctx, machine.Report{Phase: machine.Idle})
			}
		}
	}
	return err
}

// hello trades the nonce for a token.
func (r *runner) hello(ctx context.Context) (machine.Instruction, error) {
	h, err := r.Hands.Identity(ctx)
	if err != nil {
		return machine.Instruction{}, fmt.Errorf("identify machine: %w", err)
	}
	h.Nonce = r.Boot.Nonce
	var w machine.Welcome
	err = r.insist(ctx, func(ctx context.Context) error { return r.server.post(ctx, "/agent/v1/hello", h, &w) })
	if err != nil {
		return machine.Instruction{}, fmt.Errorf("say hello: %w", err)
	}
	r.server.token = w.Token
	r.Log.Info("the server knows this machine", "uuid", h.UUID, "serial", h.Serial)
	return w.Instruction, nil
}

type outcome struct {
	result any
	err    error
}

// step carries out an instruction, with signs of life while it runs, and returns the next one.
func (r *runner) step(ctx context.Context, in machine.Instruction) (machine.Instruction, error) {
	log := r.Log.With("step", in.Step)
	log.Info("begin")
	began := time.Now()
	stepCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var m meter
	done := make(chan outcome, 1)
	go func() { // ends with stepCtx
		result, err := r.do(stepCtx, in, m.set)
		done <- outcome{result, err}
	}()
	stop := func() {
		cancel()
		select {
		case <-done:
		case <-time.After(stopGrace):
			log.Warn("the step did not stop")
		}
	}

	pause, back := r.Beat, backoff{}
	for {
		select {
		case <-ctx.Done():
			stop()
			return machine.Instruction{}, ctx.Err()
		case o := <-done:
			if o.err != nil {
				log.Error("failed", "error", o.err, "after", time.Since(began).Round(time.Millisecond))
			} else {
				log.Info("done", "after", time.Since(began).Round(time.Millisecond))
			}
			report, err := final(in.Step, m.read(), o)
			if err != nil {
				return machine.Instruction{}, err
			}
			return r.deliver(ctx, report)
		case <-time.After(pause):
		}

		answer, err := r.report(ctx, machine.Report{Step: in.Step, Phase: machine.Working, Progress: m.read()})
		if err != nil {
			if err := r.outage(err); err != nil {
				stop()
				return machine.Instruction{}, err
			}
			pause = back.next()
			continue
		}
		pause, back = r.Beat, backoff{}
		switch {
		case answer.Do == machine.DoPowerOff, answer.Do == machine.DoFinish, answer.Do == machine.DoReboot,
			answer.Do == machine.DoStep && !reflect.DeepEqual(answer, in): // the server is the authority
			stop()
			return answer, nil
		}
	}
}

// do shields the loop from a panic in a step: as process 1 it would take the kernel down and the reason with it.
func (r *runner) do(ctx context.Context, in machine.Instruction, progress func(done, total int64)) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("carry out step %s: panic: %v", in.Step, p)
		}
	}()
	return r.Hands.Do(ctx, in, progress)
}

// final makes the last report of a step.
func final(step machine.StepName, p machine.Progress, o outcome) (machine.Report, error) {
	report := machine.Report{Step: step, Phase: machine.Done, Progress: p}
	if o.err != nil {
		report.Phase, report.Error, report.Fatal = machine.Failed, o.err.Error(), IsFatal(o.err)
	}
	if o.result != nil { // also beside an error: the proof that a disk is not clean
		raw, err := json.Marshal(o.result)
		if err != nil {
			return machine.Report{}, fmt.Errorf("encode result of step %s: %w", step, err)
		}
		report.Result = raw
	}
	return report, nil
}

// deliver reports until the server has answered.
func (r *runner) deliver(ctx context.Context, report machine.Report) (in machine.Instruction, err error) {
	err = r.insist(ctx, func(ctx context.Context) error {
		in, err = r.report(ctx, report)
		return err
	})
	return in, err
}

// report reports once.
func (r *runner) report(ctx context.Context, report machine.Report) (in machine.Instruction, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := r.server.post(ctx, "/agent/v1/report", report, &in); err != nil {
		return in, err
	}
	r.answered()
	return in, nil
}

// insist calls f until it succeeds, is refused for good, or the server was silent for too long.
func (r *runner) insist(ctx context.Context, f func(context.Context) error) error {
	var back backoff
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTime)
			defer cancel()
			return f(ctx)
		}()
		if err == nil {
			r.answered()
			return nil
		}
		if err := r.outage(err); err != nil {
			return err
		}
		if err := sleep(ctx, back.next()); err != nil {
			return err
		}
	}
}

func (r *runner) answered() {
	if r.silent {
		r.Log.Info("the server answers again", "after", time.Since(r.heard).Round(time.Second))
	}
	r.heard, r.silent = time.Now(), false
}

// outage judges a failed request: nil means try again.
func (r *runner) outage(err error) error {
	switch {
	case refused(err):
		return fmt.Errorf("%w: %w", ErrNotWanted, err)
	case time.Since(r.heard) >= r.Patience:
		return fmt.Errorf("%w: %w", ErrSilence, err)
	}
	if !r.silent {
		r.Log.Warn("the server does not answer: trying again", "error", err)
	}
	r.silent = true
	return nil
}

// backoff grows from 0.25 s to 10 s with a quarter of jitter, so that 500 machines do not come back as one.
type backoff struct{ d time.Duration }

func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, 250*time.Millisecond), 10*time.Second)
	return b.d - rand.N(b.d/4)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
