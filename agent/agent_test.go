package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/machine"
)

// fakeServer answers as the script says; it runs inside a synctest bubble, so it has no sockets.
type fakeServer struct {
	mu      sync.Mutex
	hellos  []machine.Hello
	reports []machine.Report
	times   []time.Time
	tokens  []string
	answer  func(n int, r machine.Report) (machine.Instruction, int) // n-th report; status 0 is 200, -1 a dead server, -2 a hung one
	hello   func(n int) int
}

func (s *fakeServer) RoundTrip(req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	body, _ := io.ReadAll(req.Body)
	reply := func(v any, status int) (*http.Response, error) {
		switch status {
		case -1:
			return nil, errors.New("connection refused")
		case -2:
			<-req.Context().Done()
			return nil, req.Context().Err()
		case 0:
			status = 200
		}
		rec.WriteHeader(status)
		if status == 200 {
			json.NewEncoder(rec).Encode(v)
		}
		return rec.Result(), nil
	}
	s.mu.Lock()
	switch req.URL.Path {
	case "/agent/v1/hello":
		var h machine.Hello
		json.Unmarshal(body, &h)
		s.hellos = append(s.hellos, h)
		n := len(s.hellos)
		s.mu.Unlock()
		status := 0
		if s.hello != nil {
			status = s.hello(n)
		}
		return reply(machine.Welcome{Token: "token-1", Instruction: machine.Instruction{Do: machine.DoWait}}, status)
	case "/agent/v1/report":
		var r machine.Report
		json.Unmarshal(body, &r)
		s.reports = append(s.reports, r)
		s.times = append(s.times, time.Now())
		s.tokens = append(s.tokens, req.Header.Get("Authorization"))
		n := len(s.reports)
		s.mu.Unlock()
		in, status := s.answer(n, r)
		return reply(in, status)
	}
	s.mu.Unlock()
	return reply(nil, 404)
}

func (s *fakeServer) phases() []machine.Phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p []machine.Phase
	for _, r := range s.reports {
		p = append(p, r.Phase)
	}
	return p
}

// fakeHands does its step in takes and counts.
type fakeHands struct {
	takes    time.Duration
	err      error
	result   any
	panics   bool
	stubborn bool // does not stop when told to

	mu      sync.Mutex
	begun   int
	stopped []time.Time
}

func (h *fakeHands) Identity(context.Context) (machine.Hello, error) {
	return machine.Hello{UUID: "u-1", Serial: "s-1", MACs: []string{"52:54:00:00:00:01"}}, nil
}

func (h *fakeHands) Do(ctx context.Context, in machine.Instruction, progress func(done, total int64)) (any, error) {
	h.mu.Lock()
	h.begun++
	h.mu.Unlock()
	if h.panics {
		panic("index out of range")
	}
	end := time.After(h.takes)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for done := int64(0); ; done += 10 << 20 {
		progress(done, 1<<30)
		select {
		case <-end:
			return h.result, h.err
		case <-tick.C:
		case <-ctx.Done():
			if h.stubborn {
				<-time.After(time.Hour)
			}
			h.mu.Lock()
			h.stopped = append(h.stopped, time.Now())
			h.mu.Unlock()
			return nil, ctx.Err()
		}
	}
}

func run(t *testing.T, ctx context.Context, s *fakeServer, h *fakeHands) error {
	t.Helper()
	return agent.Run(ctx, agent.Config{
		Boot:   agent.Boot{Server: "https://server", Nonce: "nonce-1", MAC: "52:54:00:00:00:01"},
		Hands:  h,
		Client: &http.Client{Transport: s},
	})
}

var write = machine.Instruction{Do: machine.DoStep, Step: machine.StepWrite, Target: &machine.Disk{Serial: "A", Size: 1 << 30}}

func TestRunWaitsWorksAndFinishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHands{takes: 7 * time.Second, result: machine.Inventory{CPU: "c"}}
		s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
			switch {
			case n < 3:
				return machine.Instruction{Do: machine.DoWait}, 0
			case n == 3:
				return write, 0
			case r.Phase == machine.Working:
				return machine.Instruction{Do: machine.DoContinue}, 0
			}
			return machine.Instruction{Do: machine.DoFinish}, 0
		}}
		if err := run(t, t.Context(), s, h); err != nil {
			t.Fatalf("Run: %v", err)
		}
		want := []machine.Phase{"idle", "idle", "idle", "working", "working", "working", "working", "done"}
		if got := s.phases(); !slices.Equal(got, want) {
			t.Errorf("phases %v, want %v", got, want)
		}
		for i := 1; i < len(s.times); i++ {
			if d := s.times[i].Sub(s.times[i-1]); d > 2*time.Second {
				t.Errorf("silence of %v before report %d", d, i+1)
			}
		}
		last := s.reports[len(s.reports)-1]
		if last.Step != machine.StepWrite || !strings.Contains(string(last.Result), `"cpu":"c"`) {
			t.Errorf("last report %+v", last)
		}
		if p := s.reports[6].Progress; p.Total != 1<<30 || p.Rate < 80<<20 || p.Rate > 120<<20 {
			t.Errorf("progress %+v, want about 100 MiB/s", p)
		}
		if h := s.hellos[0]; h.Nonce != "nonce-1" || h.UUID != "u-1" || s.tokens[0] != "Bearer token-1" {
			t.Errorf("hello %+v, token %q", h, s.tokens[0])
		}
	})
}

// A power-off that arrives while a step runs stops it at once, whether it is an instruction, a 410 or a refused token.
func TestRunStopsWritingAtOnce(t *testing.T) {
	tests := []struct {
		name   string
		in     machine.Instruction
		status int
		want   error
	}{
		{"power-off", machine.Instruction{Do: machine.DoPowerOff}, 0, agent.ErrNotWanted},
		{"reboot", machine.Instruction{Do: machine.DoReboot}, 0, agent.ErrReboot},
		{"gone", machine.Instruction{}, 410, agent.ErrNotWanted},
		{"unauthorized", machine.Instruction{}, 401, agent.ErrNotWanted},
		{"forbidden", machine.Instruction{}, 403, agent.ErrNotWanted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHands{takes: time.Hour}
				var told time.Time
				s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
					switch {
					case n == 1:
						return write, 0
					case n < 5:
						return machine.Instruction{Do: machine.DoContinue}, 0
					}
					told = time.Now()
					return tt.in, tt.status
				}}
				if err := run(t, t.Context(), s, h); !errors.Is(err, tt.want) {
					t.Fatalf("Run: %v, want %v", err, tt.want)
				}
				if len(h.stopped) != 1 || !h.stopped[0].Equal(told) {
					t.Errorf("stopped at %v, told at %v", h.stopped, told)
				}
				if got := s.phases(); len(got) != 5 {
					t.Errorf("reports after the end: %v", got)
				}
			})
		})
	}
}

func TestRunLeavesAHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHands{takes: time.Hour, stubborn: true}
		s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
			if n == 1 {
				return write, 0
			}
			return machine.Instruction{Do: machine.DoPowerOff}, 0
		}}
		began := time.Now()
		if err := run(t, t.Context(), s, h); !errors.Is(err, agent.ErrNotWanted) {
			t.Fatalf("Run: %v, want ErrNotWanted", err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("power-off delayed by %v", d)
		}
		<-time.After(2 * time.Hour) // the disk comes back, so that the bubble can end
	})
}

// The server dies in mid-write, comes back, and is told of the end; the step was neither stopped nor begun again.
func TestRunOutlivesItsServer(t *testing.T) {
	for name, status := range map[string]int{"refuses connections": -1, "hangs": -2, "answers 503": 503, "answers 404": 404} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHands{takes: time.Minute}
				began := time.Now()
				s := &fakeServer{}
				s.answer = func(n int, r machine.Report) (machine.Instruction, int) {
					since := time.Since(began)
					switch {
					case n == 1:
						return write, 0
					case since > 10*time.Second && since < 20*time.Minute:
						return machine.Instruction{}, status
					case r.Phase == machine.Working:
						return machine.Instruction{Do: machine.DoContinue}, 0
					}
					return machine.Instruction{Do: machine.DoFinish}, 0
				}
				if err := run(t, t.Context(), s, h); err != nil {
					t.Fatalf("Run: %v", err)
				}
				if last := s.reports[len(s.reports)-1]; last.Phase != machine.Done || h.begun != 1 || len(h.stopped) != 0 {
					t.Errorf("last %+v, begun %d, stopped %v", last, h.begun, h.stopped)
				}
				if n := len(s.reports); n > 200 {
					t.Errorf("%d reports in 20 minutes of outage: no back-off", n)
				}
			})
		})
	}
}

func TestRunGivesUpOnASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHands{takes: 48 * time.Hour}
		s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
			if n == 1 {
				return write, 0
			}
			return machine.Instruction{}, -1
		}}
		began := time.Now()
		if err := run(t, t.Context(), s, h); !errors.Is(err, agent.ErrSilence) {
			t.Fatalf("Run: %v, want ErrSilence", err)
		}
		if d := time.Since(began); d < 30*time.Minute || d > 31*time.Minute || len(h.stopped) != 1 {
			t.Errorf("gave up after %v, stopped %v", d, h.stopped)
		}
	})
}

// A repeated instruction for the step that is running does not start it again; another one replaces it.
func TestRunDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHands{takes: 10 * time.Second}
		other := machine.Instruction{Do: machine.DoStep, Step: machine.StepWipe, Disks: []machine.Disk{{Serial: "A"}}}
		s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
			switch {
			case n < 4:
				return write, 0
			case n == 4:
				return other, 0
			case r.Phase == machine.Working:
				return machine.Instruction{Do: machine.DoContinue}, 0
			case n < 14: // Done is answered with the same step: do it again, the server must have its reason
				return other, 0
			}
			return machine.Instruction{Do: machine.DoFinish}, 0
		}}
		if err := run(t, t.Context(), s, h); err != nil {
			t.Fatalf("Run: %v", err)
		}
		if len(h.stopped) != 1 || h.begun != 3 {
			t.Errorf("begun %d, stopped %d, want 3 and 1; phases %v", h.begun, len(h.stopped), s.phases())
		}
	})
}

func TestRunReportsFailures(t *testing.T) {
	tests := []struct {
		name  string
		hands *fakeHands
		want  machine.Report
	}{
		{"plain", &fakeHands{err: errors.New("write disk: input/output error")}, machine.Report{Error: "write disk: input/output error"}},
		{"fatal", &fakeHands{err: agent.Fatal(errors.New("no disk has serial A"))}, machine.Report{Error: "no disk has serial A", Fatal: true}},
		{"panic", &fakeHands{panics: true}, machine.Report{Error: "carry out step write: panic: index out of range"}},
		{"with proof", &fakeHands{err: errors.New("not clean"), result: []machine.Erasure{{Serial: "A"}}}, machine.Report{Error: "not clean"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{answer: func(n int, r machine.Report) (machine.Instruction, int) {
					if n == 1 {
						return write, 0
					}
					return machine.Instruction{Do: machine.DoPowerOff}, 0
				}}
				if err := run(t, t.Context(), s, tt.hands); !errors.Is(err, agent.ErrNotWanted) {
					t.Fatalf("Run: %v", err)
				}
				got := s.reports[len(s.reports)-1]
				if got.Phase != machine.Failed || got.Error != tt.want.Error || got.Fatal != tt.want.Fatal {
					t.Errorf("report %+v, want %+v", got, tt.want)
				}
				if tt.hands.result != nil && !strings.Contains(string(got.Result), `"serial":"A"`) {
					t.Errorf("result %s", got.Result)
				}
			})
		})
	}
}

func TestRunHello(t *testing.T) {
	t.Run("retries", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeServer{
				hello: func(n int) int { return []int{-1, -2, 500, 0}[n-1] },
				answer: func(int, machine.Report) (machine.Instruction, int) {
					return machine.Instruction{Do: machine.DoFinish}, 0
				},
			}
			if err := run(t, t.Context(), s, &fakeHands{}); err != nil || len(s.hellos) != 4 {
				t.Fatalf("Run: %v after %d hellos", err, len(s.hellos))
			}
		})
	})
	t.Run("a used nonce", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeServer{hello: func(int) int { return 410 }}
			if err := run(t, t.Context(), s, &fakeHands{}); !errors.Is(err, agent.ErrNotWanted) || len(s.hellos) != 1 {
				t.Fatalf("Run: %v after %d hellos", err, len(s.hellos))
			}
		})
	})
	t.Run("cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := &fakeServer{hello: func(int) int { return -1 }}
			if err := run(t, ctx, s, &fakeHands{}); err != nil {
				t.Fatalf("Run: %v, want nil", err)
			}
		})
	})
}
