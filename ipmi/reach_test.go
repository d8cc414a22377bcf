package ipmi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a wire whose power reads and command results are scripted; the last of each repeats.
type scripted struct {
	reads    []any // Power or error
	commands []error
	sent     []Op
	polls    int
}

func (s *scripted) power(context.Context) (Power, error) {
	s.polls++
	r := s.reads[0]
	if len(s.reads) > 1 {
		s.reads = s.reads[1:]
	}
	if err, ok := r.(error); ok {
		return Unknown, err
	}
	return r.(Power), nil
}

func (s *scripted) command(_ context.Context, op Op, _ Power) error {
	s.sent = append(s.sent, op)
	if len(s.commands) == 0 {
		return nil
	}
	err := s.commands[0]
	s.commands = s.commands[1:]
	return err
}

func TestReach(t *testing.T) {
	silent, busy := failf(ErrUnreachable, "no answer"), failf(ErrBusy, "later")
	wait := func(d time.Duration) error { return &failure{kind: ErrBusy, retry: d} }
	lost := &failure{kind: ErrUnreachable, detail: "no answer", sent: true}
	for _, tt := range []struct {
		name     string
		op       Op
		reads    []any
		commands []error
		sent     []Op
		took     time.Duration // of the fake clock
		err      error
	}{
		{"D09 on", OpOn, []any{Off, Off, silent, Off, Off, On}, nil, []Op{OpOn}, 8 * time.Second, nil},
		{"D09 cycle that nobody saw", OpCycle, []any{On}, nil, []Op{OpCycle}, 10 * time.Second, nil},
		{"cycle seen", OpCycle, []any{On, On, Off, On}, nil, []Op{OpCycle}, 4 * time.Second, nil},
		{"cycle that flaps", OpCycle, []any{On, On, On, silent, Off, Off, On}, nil, []Op{OpCycle}, 10 * time.Second, nil},
		{"D09 cycle when off", OpCycle, []any{Off, On}, nil, []Op{OpOn}, 0, nil},
		{"reset when off", OpReset, []any{Off, On}, nil, []Op{OpOn}, 0, nil},
		{"on its way", OpOff, []any{Unknown, Unknown, Off}, nil, nil, 4 * time.Second, nil},
		{"never told", OpOff, []any{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Off}, nil, []Op{OpOff}, 12 * time.Second, nil},
		{"BMC boots", OpOn, []any{silent, silent, Off, On}, nil, []Op{OpOn}, 6 * time.Second, nil},
		{"refused twice", OpOn, []any{Off, Off, Off, On}, []error{busy, busy}, []Op{OpOn, OpOn, OpOn}, 6 * time.Second, nil},
		{"refused for a stale state", OpCycle, []any{On, Off, On}, []error{busy}, []Op{OpCycle, OpOn}, 2 * time.Second, nil},
		{"command lost, not repeated", OpOn, []any{Off}, []error{lost}, []Op{OpOn}, 5 * time.Minute, ErrLied},
		{"command's answer lost", OpOn, []any{Off, Off, On}, []error{lost}, []Op{OpOn}, 2 * time.Second, nil},
		{"command not sent", OpOn, []any{Off, Off, On}, []error{silent}, []Op{OpOn, OpOn}, 2 * time.Second, nil},
		{"never on", OpOn, []any{Off}, nil, []Op{OpOn}, 5 * time.Minute, ErrLied},
		{"BMC gone", OpOn, []any{Off, silent}, nil, []Op{OpOn}, 5 * time.Minute, ErrUnreachable},
		{"credentials change", OpOn, []any{Off, failf(ErrCredentials, "")}, nil, []Op{OpOn}, 0, ErrCredentials},
		{"wrong credentials", OpOff, []any{failf(ErrCredentials, "")}, nil, nil, 0, ErrCredentials},
		{"unsupported", OpSoft, []any{On}, []error{failf(ErrUnsupported, "")}, []Op{OpSoft}, 0, ErrUnsupported},
		{"asked to wait", OpOn, []any{Off, Off, On}, []error{wait(40 * time.Second)}, []Op{OpOn, OpOn}, 40 * time.Second, nil},
		{"asked to wait for longer than there is", OpOn, []any{Off, Off, On}, []error{wait(time.Hour)}, []Op{OpOn}, 0, ErrBusy},
		{"no restart", OpCycle, []any{On, On, Off, Off, On}, []error{errRestartUnsupported}, []Op{OpCycle, OpOff, OpOn}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &scripted{reads: tt.reads, commands: tt.commands}
				c := &Controller{even: true} // the defaults otherwise
				ctx, cancel := c.within(t.Context())
				defer cancel()
				begin := time.Now()
				err := c.setPower(ctx, w, tt.op)
				if !errors.Is(err, tt.err) || tt.err == nil && err != nil {
					t.Errorf("err = %v, want %v", err, tt.err)
				}
				if took := time.Since(begin); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if len(w.sent) != len(tt.sent) {
					t.Fatalf("sent %v, want %v", w.sent, tt.sent)
				}
				for i := range tt.sent {
					if w.sent[i] != tt.sent[i] {
						t.Fatalf("sent %v, want %v", w.sent, tt.sent)
					}
				}
			})
		})
	}
}

// An operation ends at its context's deadline, however long the defaults are, and says that it was the deadline.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		begin := time.Now()
		err := (&Controller{even: true}).setPower(ctx, &scripted{reads: []any{Off}}, OpOn)
		if !errors.Is(err, ErrLied) || !errors.Is(Target{}.on("power on", err), context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(begin); took != 7*time.Second {
			t.Errorf("took %s", took)
		}
	})
}
