package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// fleet is simulated BMCs, of which every fifth speaks Redfish over TLS.
type fleet struct {
	targets  []ipmi.PollTarget
	sessions []func() (opened, closed int)
	boards   []*bmctest.Board
	faults   []*bmctest.Faults
}

func newFleet(t testing.TB, n int) *fleet {
	t.Helper()
	f := &fleet{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for i := range n {
		m, board, faults := bmctest.NewMemory(bmctest.Identity{Serial: fmt.Sprint(i)}), bmctest.NewBoard(), &bmctest.Faults{}
		var s server
		if i%5 == 4 {
			r := &bmctest.Redfish{Addr: "127.0.0.1:0", TLS: true, User: user, Password: password, Chassis: m, Board: board, Faults: faults, Vendor: bmctest.Supermicro}
			s, f.sessions = r, append(f.sessions, r.Sessions)
		} else {
			b := &bmctest.IPMI{Addr: "127.0.0.1:0", User: user, Password: password, Chassis: m, Board: board, Faults: faults}
			s, f.sessions = b, append(f.sessions, b.Sessions)
		}
		if _, err := s.Listen(); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		f.targets = append(f.targets, ipmi.PollTarget{Target: s.Target(), Key: fmt.Sprint(i), Events: true})
		f.boards, f.faults = append(f.boards, board), append(f.faults, faults)
	}
	return f
}

func (f *fleet) counted() (opened, closed int) {
	for _, s := range f.sessions {
		o, c := s()
		opened, closed = opened+o, closed+c
	}
	return opened, closed
}

// sample is the state of the process after a period.
type sample struct {
	goroutines int
	heap       uint64 // bytes that live after a collection
}

func takeSample() sample {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return sample{runtime.NumGoroutine(), m.HeapAlloc}
}

// run polls while watch runs.
func (f *fleet) run(t testing.TB, p *ipmi.Poller, watch func()) {
	t.Helper()
	cursors := struct {
		sync.Mutex
		m map[string]string
	}{m: map[string]string{}}
	p.Targets = func(context.Context) ([]ipmi.PollTarget, error) {
		cursors.Lock()
		defer cursors.Unlock()
		out := append([]ipmi.PollTarget(nil), f.targets...)
		for i := range out {
			out[i].Cursor = cursors.m[out[i].Key]
		}
		return out, nil
	}
	took := p.Took
	p.Took = func(ctx context.Context, poll ipmi.Poll) {
		cursors.Lock()
		cursors.m[poll.Key] = poll.Events.Cursor
		cursors.Unlock()
		took(ctx, poll)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	watch()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Forty BMCs: each once a period, and sessions opened are sessions closed.
func TestPoller(t *testing.T) {
	t.Parallel()
	const n, bad = 40, 2
	f := newFleet(t, n)
	for _, i := range []int{0, 4} { // one of each protocol
		f.faults[i].Set(func(x *bmctest.Fault) { x.Unreachable = true })
	}
	f.targets[5].Target.Password = "wrong"
	logEvents(f.boards[6], 2)
	var mu sync.Mutex
	polls, events, failed := map[string]int{}, 0, map[string]error{}
	p := &ipmi.Poller{Controller: &ipmi.Controller{}, Period: time.Second, Limit: 8, Timeout: 10 * time.Second}
	enough, all := 0, make(chan struct{})
	p.Took = func(_ context.Context, x ipmi.Poll) {
		mu.Lock()
		defer mu.Unlock()
		polls[x.Key]++
		if polls[x.Key] == 2 && x.Err == nil || polls[x.Key] == 1 && x.Err != nil {
			if enough++; enough == n {
				close(all)
			}
		}
		events += len(x.Events.Events)
		if x.Err != nil {
			failed[x.Key] = x.Err
		} else if x.Health.Overall != ipmi.OK || len(x.Health.Readings) != 8 {
			t.Errorf("%s: %+v", x.Key, x.Health)
		}
	}
	f.run(t, p, func() {
		select {
		case <-all:
		case <-long(t).Done():
			t.Error("not all were polled twice")
		}
	})
	mu.Lock()
	defer mu.Unlock()
	if len(failed) != bad+1 || !errors.Is(failed["5"], ipmi.ErrCredentials) || !errors.Is(failed["0"], ipmi.ErrUnreachable) {
		t.Errorf("failed: %v", failed)
	}
	if events != 2 {
		t.Errorf("%d events, want each of the 2 once", events)
	}
	s := p.Stats()
	if s.Most > p.Limit || s.Failed < bad+1 {
		t.Errorf("stats = %+v", s)
	}
	if o, c := f.counted(); o == 0 || o != c {
		t.Errorf("%d sessions opened, %d closed", o, c)
	}
}

// The polls of a period are spread over it; one that fails is no reason to leave out the next, for Targets knows of it.
func TestPollerSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var at []time.Duration
		p := &ipmi.Poller{Controller: &ipmi.Controller{}, Period: time.Minute, Limit: 1,
			Targets: func(context.Context) ([]ipmi.PollTarget, error) {
				return []ipmi.PollTarget{{Key: "a", Target: ipmi.Target{Protocol: "none"}}, {Key: "b", Target: ipmi.Target{Protocol: "none"}}}, nil
			},
			Took: func(_ context.Context, x ipmi.Poll) {
				if !errors.Is(x.Err, ipmi.ErrUnsupported) {
					t.Error(x.Err)
				}
				at = append(at, time.Since(begin))
				if len(at) == 8 {
					cancel()
				}
			}}
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		want := []time.Duration{0, 30 * time.Second, time.Minute, 90 * time.Second, 2 * time.Minute, 150 * time.Second, 3 * time.Minute, 210 * time.Second}
		if fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("polls at %v, want %v", at, want)
		}
	})
}

// A log is read to its end in one poll, and firmware that cannot be read takes nothing from what could.
func TestPollReadsOn(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.board.Capacity(1500)
		logEvents(w.board, 1203)
		p := &ipmi.Poller{Controller: quick(), Timeout: time.Minute}
		w.faults.Set(func(f *bmctest.Fault) { f.Broken = "FirmwareInventory" })
		out, _ := p.Once(t.Context(), ipmi.PollTarget{Target: w.target, Key: "n1", Events: true, Inventory: true})
		if out.Err != nil || len(out.Health.Readings) != 8 {
			t.Errorf("poll: %v, %d readings", out.Err, len(out.Health.Readings))
		}
		if n := len(out.Events.Events); n < 1203 || out.Events.More || !out.Logged {
			t.Errorf("%d events of 1203, more: %v, read: %v", n, out.Events.More, out.Logged)
		}
		if broken := w.name == "Redfish"; broken != (out.Missing != nil) || broken == (out.Inventory != nil) {
			t.Errorf("inventory %v, missing %v", out.Inventory, out.Missing)
		}
		again, _ := p.Once(t.Context(), ipmi.PollTarget{Target: w.target, Key: "n1", Cursor: out.Events.Cursor, Events: true})
		if again.Err != nil || len(again.Events.Events) != 0 || again.Events.Reset {
			t.Errorf("again: %+v, %v", again.Events, again.Err)
		}
	}, "IPMI", "Redfish")
}

// TestBenchBMC measures; `make bench-bmc` runs it.
func TestBenchBMC(t *testing.T) {
	if os.Getenv("BAREYARD_BENCH") == "" {
		t.Skip("make bench-bmc runs it")
	}
	const n, period, periods = 1000, 30 * time.Second, 10
	before := takeSample()
	f := newFleet(t, n)
	var mu sync.Mutex
	var slowest, sum time.Duration
	p := &ipmi.Poller{Controller: &ipmi.Controller{}, Period: period, Limit: 16, Took: func(_ context.Context, x ipmi.Poll) {
		mu.Lock()
		defer mu.Unlock()
		slowest, sum = max(slowest, x.Took), sum+x.Took
		if x.Err != nil {
			t.Errorf("%s: %v", x.Key, x.Err)
		}
	}}
	simulated, cpu := takeSample(), cpuTime(t)
	var samples []sample
	f.run(t, p, func() {
		for range periods {
			time.Sleep(period)
			samples = append(samples, takeSample())
		}
	})
	cpu = cpuTime(t) - cpu
	s := p.Stats()
	opened, closed := f.counted()
	fmt.Printf("bmc polled: %d BMCs (%d by Redfish), 8 sensors and the event log each, every %s, at most %d at a time\n", n, n/5, period, p.Limit)
	fmt.Printf("bmc polls: %d, failed %d, late %d, most at a time %d, mean %s, slowest %s\n", s.Polls, s.Failed, s.Late, s.Most, (sum / time.Duration(max(s.Polls, 1))).Round(time.Millisecond), slowest.Round(time.Millisecond))
	fmt.Printf("bmc cpu: %s for each poll, the simulators' share in it\n", (cpu / time.Duration(max(s.Polls, 1))).Round(10*time.Microsecond))
	fmt.Printf("bmc sessions: %d opened, %d closed\n", opened, closed)
	fmt.Printf("bmc process: %d goroutines and %d MiB before, %d and %d with the simulators; after each period:", before.goroutines, before.heap>>20, simulated.goroutines, simulated.heap>>20)
	for _, x := range samples {
		fmt.Printf(" %d/%d", x.goroutines, x.heap>>20)
	}
	fmt.Println(" (goroutines/MiB of heap)")
	if opened != closed {
		t.Errorf("%d sessions opened, %d closed", opened, closed)
	}
	early, late := meanHeap(samples[2:5]), meanHeap(samples[periods-3:])
	fmt.Printf("bmc heap: %.1f MiB after periods 3 to 5, %.1f MiB after periods %d to %d\n", early, late, periods-2, periods)
	if late > early*1.1+4 {
		t.Errorf("the heap grows: %.1f MiB, then %.1f MiB", early, late)
	}
	benchIpmitool(t, f.targets[0].Target)
}

// meanHeap is the heap that lived after collections, in MiB. The first periods are left out by who asks: sensors and sessions are met there.
func meanHeap(samples []sample) float64 {
	sum := 0.0
	for _, s := range samples {
		sum += float64(s.heap) / (1 << 20)
	}
	return sum / float64(len(samples))
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchIpmitool compares a read of the power state, with login and logout, with one call of ipmitool.
func benchIpmitool(t *testing.T, target ipmi.Target) {
	if _, err := exec.LookPath("ipmitool"); err != nil {
		t.Log("no ipmitool to compare with")
		return
	}
	const times = 20
	host, port, _ := strings.Cut(target.Address, ":")
	var ours, theirs time.Duration
	c := &ipmi.Controller{}
	for range times { // in turn, so that both meet the same load
		begin := time.Now()
		if _, err := c.Power(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		ours += time.Since(begin)
		cmd := exec.CommandContext(t.Context(), "ipmitool", "-I", "lanplus", "-C", "3", "-H", host, "-p", port, "-U", target.Username, "-E", "power", "status")
		cmd.Env = []string{"IPMITOOL_PASSWORD=" + target.Password}
		begin = time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		theirs += time.Since(begin)
	}
	fmt.Printf("bmc power status with login: %s, ipmitool %s\n", (ours / times).Round(time.Microsecond), (theirs / times).Round(time.Microsecond))
	fmt.Printf("ratio bmc-power-status ipmitool %.3f\n", float64(theirs)/float64(ours))
}
