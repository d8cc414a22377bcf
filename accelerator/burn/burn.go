// Package burn puts a load on NVIDIA cards through the CUDA driver alone and compares what they compute.
//
// No real card has run it yet: it was tested against a stand-in for libcuda, and the kernels were compiled, assembled by nobody. Rates of it are judged
// only after a calibration on the cards at hand.
package burn

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Tool and Version name the load test in reports. A change of the kernels or of how they are timed raises the version: rates and results are
// compared within one version only.
const (
	Tool    = "bareyard-burn"
	Version = "1"
)

// ProbeArg is the first argument of a program that is to load a card.
const ProbeArg = "burn-probe"

// Library is the name by which the driver's library is found.
const Library = "libcuda.so.1"

// Runner loads cards, each from a process of its own: this program again, with ProbeArg as its first argument.
type Runner struct {
	Self     string        // the program to run; this one when empty
	Library  string        // name or path; Library when empty
	Sysfs    string        // "/sys" when empty: says which processors are near a card
	Deadline time.Duration // for a child's silence; two minutes when zero: the driver compiles the kernels first
	Least    time.Duration // for which a rate is measured; half a second when zero

	limits
}

// limits make a load small enough for a test without a card.
type limits struct {
	Iterations uint32 `json:"iterations,omitempty"` // of one launch of the burn; 65536 when zero
	Chunk      uint64 `json:"chunk,omitempty"`      // bytes that are allocated at a time; 1 GiB when zero
	Copy       uint64 `json:"copy,omitempty"`       // bytes of one copy; 256 MiB when zero
}

// order is what a child is to do.
type order struct {
	Do      string        `json:"do"` // rates, stress, pairs
	Library string        `json:"library"`
	Slots   []string      `json:"slots"`
	CPUs    string        `json:"cpus,omitempty"` // near the card, as the kernel writes lists
	Burn    float64       `json:"burn,omitempty"` // seconds
	Pattern float64       `json:"pattern,omitempty"`
	Least   time.Duration `json:"least,omitempty"`
	limits
}

// message is what a child says.
type message struct {
	During string             `json:"during,omitempty"`
	Done   bool               `json:"done,omitempty"`
	Fault  *accelerator.Fault `json:"fault,omitempty"`
	Loads  []accelerator.Load `json:"loads,omitempty"` // finished so far, the one under way last
	Rate   float64            `json:"rate,omitempty"`  // of the last second
}

// Doing returns the call under way.
func (m message) Doing() string { return m.During }

// Whole reports whether this is the whole answer.
func (m message) Whole() bool { return m.Done }

// Found returns what the child says went wrong.
func (m message) Found() *accelerator.Fault { return m.Fault }

// Rates measures memory bandwidth and copies from and to the host, one card after the other: together they would measure the host.
func (r Runner) Rates(ctx context.Context, slots []string) []accelerator.Load {
	var out []accelerator.Load
	for _, slot := range slots {
		out = append(out, r.run(ctx, order{Do: "rates", Slots: []string{slot}}, []string{accelerator.TestRead, accelerator.TestToCard, accelerator.TestToHost}, nil)...)
	}
	return out
}

// Stress tests the memory of all cards and burns on them, all at the same time, each for the given time. on is told the rate of each card about
// every second; it is called from several goroutines.
func (r Runner) Stress(ctx context.Context, slots []string, pattern, burn time.Duration, on func(slot string, rate float64)) []accelerator.Load {
	results := make([][]accelerator.Load, len(slots))
	var wg sync.WaitGroup
	for i, slot := range slots {
		wg.Go(func() {
			o := order{Do: "stress", Slots: []string{slot}, Pattern: pattern.Seconds(), Burn: burn.Seconds()}
			results[i] = r.run(ctx, o, []string{accelerator.TestPattern, accelerator.TestBurn}, func(rate float64) {
				if on != nil {
					on(slot, rate)
				}
			})
		})
	}
	wg.Wait()
	return slices.Concat(results...)
}

// Pairs copies from each card to each other and compares what arrived.
func (r Runner) Pairs(ctx context.Context, slots []string) []accelerator.Load {
	if len(slots) < 2 {
		return nil
	}
	return r.run(ctx, order{Do: "pairs", Slots: slots}, []string{accelerator.TestPeer}, nil)
}

// run has a child do something and gives back one load for each test of a single card, with the fault on those that the child did not come to.
func (r Runner) run(ctx context.Context, o order, tests []string, on func(float64)) []accelerator.Load {
	o.Library, o.Least, o.limits = cmp.Or(r.Library, Library), r.Least, r.limits
	if len(o.Slots) == 1 {
		o.CPUs = r.near(o.Slots[0])
	}
	self := r.Self
	var fault *accelerator.Fault
	var m message
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			fault = &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: err.Error()}
		}
	}
	if fault == nil {
		text, err := json.Marshal(o)
		if err != nil {
			panic("burn: " + err.Error()) // plain values
		}
		m, fault = child.Ask(ctx, child.Command{Path: self, Args: []string{ProbeArg, string(text)}, Env: environment(), Deadline: cmp.Or(r.Deadline, 2*time.Minute)}, func(m message) {
			if on != nil && m.Rate > 0 {
				on(m.Rate)
			}
		})
	}
	if fault != nil && ctx.Err() != nil { // ended from outside: that says nothing about the card
		fault = &accelerator.Fault{Kind: accelerator.FaultProbe, During: fault.During, Detail: "ended before it was done"}
	}
	out := m.Loads
	if o.Do == "pairs" {
		if fault != nil {
			out = append(out, accelerator.Load{Test: accelerator.TestPeer, Tool: Tool, Version: Version, Fault: fault})
		}
		return out
	}
	for _, test := range tests {
		i := slices.IndexFunc(out, func(l accelerator.Load) bool { return l.Test == test })
		if i < 0 {
			f := fault
			if f == nil { // a child that says it is done and left something out
				f = &accelerator.Fault{Kind: accelerator.FaultProbe, Detail: "was not run"}
			}
			out = append(out, accelerator.Load{Test: test, Tool: Tool, Version: Version, Slot: o.Slots[0], Fault: f})
		} else if fault != nil && i == len(out)-1 && out[i].Fault == nil { // what was under way
			out[i].Fault = fault
		}
	}
	return out
}

// environment is the program's own without what would show a child other cards, or run somebody's library in it. The driver keeps no compiled
// kernels behind in a customer's home.
func environment() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "NVIDIA_") {
			out = append(out, v)
		}
	}
	return append(out, "CUDA_CACHE_DISABLE=1")
}

// near returns the processors of the card's NUMA node: a copy from another node's memory measures the way between the sockets.
func (r Runner) near(slot string) string {
	b, err := os.ReadFile(filepath.Join(cmp.Or(r.Sysfs, "/sys"), "bus/pci/devices", slot, "local_cpulist"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
