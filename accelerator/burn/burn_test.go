package burn

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeArg {
		os.Exit(Probe(os.Args[2:]))
	}
	code := m.Run()
	for _, library := range built {
		os.RemoveAll(filepath.Dir(library))
	}
	os.Exit(code)
}

const a, b, c = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"

var three = []string{a, b, c}

var built = map[string]string{} // stand-in libraries by compiler flags; tests here do not run in parallel

func build(t *testing.T, cflags ...string) string {
	t.Helper()
	key := strings.Join(cflags, " ")
	if built[key] == "" {
		dir, err := os.MkdirTemp("", "fakecuda-")
		if err != nil {
			t.Fatal(err)
		}
		library := filepath.Join(dir, "libcuda.so.1")
		args := append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, "-x", "c", "testdata/fakecuda.c"}, cflags...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil || bytes.Contains(out, []byte("warning")) {
			t.Fatalf("build the stand-in (needs gcc): %v\n%s", err, out)
		}
		built[key] = library
	}
	return built[key]
}

// fake returns a runner that loads the stand-in for libcuda.
func fake(t *testing.T, faults string, cflags ...string) Runner {
	t.Helper()
	library := build(t, cflags...)
	t.Setenv("FAKE_CUDA_CARDS", strings.Join(three, ","))
	t.Setenv("FAKE_CUDA_FAULTS", faults)
	t.Setenv("CUDA_VISIBLE_DEVICES", "none") // must not reach the child
	return Runner{Library: library, Sysfs: t.TempDir(), Deadline: 20 * time.Second, Least: 20 * time.Millisecond, limits: limits{Iterations: 32, Chunk: 2 << 20, Copy: 1 << 20}}
}

func load(t *testing.T, loads []accelerator.Load, test, slot string) accelerator.Load {
	t.Helper()
	i := slices.IndexFunc(loads, func(l accelerator.Load) bool { return l.Test == test && l.Slot == slot })
	if i < 0 {
		t.Fatalf("no %s of %s in %+v", test, slot, loads)
	}
	return loads[i]
}

func TestHealthy(t *testing.T) {
	r := fake(t, "")
	var mu sync.Mutex
	told := map[string]int{}
	loads := r.Stress(t.Context(), three, 0, 1200*time.Millisecond, func(slot string, rate float64) {
		mu.Lock()
		defer mu.Unlock()
		if rate > 0 {
			told[slot]++
		}
	})
	loads = append(loads, r.Rates(t.Context(), three)...)
	results := map[string]bool{}
	for _, slot := range three {
		for _, test := range []string{accelerator.TestPattern, accelerator.TestBurn, accelerator.TestRead, accelerator.TestToCard, accelerator.TestToHost} {
			l := load(t, loads, test, slot)
			if l.Fault != nil || l.Errors != 0 || !(l.Rate.Value > 0) || l.Tool != Tool || l.Version != Version || l.Seconds <= 0 {
				t.Errorf("%+v", l)
			}
		}
		burn := load(t, loads, accelerator.TestBurn, slot)
		results[burn.Result] = true
		if burn.Seconds < 1.2 || told[slot] == 0 {
			t.Errorf("%v seconds, told %d times", burn.Seconds, told[slot])
		}
		if l := load(t, loads, accelerator.TestPattern, slot); l.Bytes < 7<<20 {
			t.Errorf("%d bytes of 16 MiB were tested", l.Bytes)
		}
	}
	if len(results) != 1 {
		t.Errorf("healthy cards computed %v", results)
	}
	pairs := r.Pairs(t.Context(), three)
	if len(pairs) != 6 {
		t.Fatalf("%d pairs of three cards", len(pairs))
	}
	for _, l := range pairs {
		if l.Fault != nil || l.Errors != 0 || !l.Direct || !(l.Rate.Value > 0) || l.Slot == l.Peer {
			t.Errorf("%+v", l)
		}
	}
}

// Each fault on one card is found on that card, and the others are whole.
func TestFaults(t *testing.T) {
	for _, x := range []struct {
		name, faults string
		test         string
		check        func(l accelerator.Load) bool
	}{
		{"silent corruption", b + " wrong", accelerator.TestBurn, func(l accelerator.Load) bool {
			return l.Fault == nil && l.Errors > 0 && strings.Contains(l.Detail, "block 0, thread 37")
		}},
		{"kernel that does nothing", b + " lazy", accelerator.TestBurn, func(l accelerator.Load) bool { return l.Result != "" && l.Errors == 0 }}, // caught by comparing cards, below
		{"stuck bit", b + " stuck", accelerator.TestPattern, func(l accelerator.Load) bool {
			return l.Fault == nil && l.Errors > 0 && strings.Contains(l.Detail, "byte ")
		}},
		{"launch refused", b + " refuse cuLaunchKernel 719", accelerator.TestPattern, func(l accelerator.Load) bool {
			return l.Fault != nil && l.Fault.Kind == accelerator.FaultRefused && strings.Contains(l.Fault.Detail, "launch failed (CUDA error 719)")
		}},
		{"uncorrectable memory error", b + " refuse cuCtxSynchronize 214", accelerator.TestPattern, func(l accelerator.Load) bool {
			return l.Fault != nil && strings.Contains(l.Fault.Detail, "uncorrectable")
		}},
		{"hangs, deaf to SIGTERM", b + " hang cuCtxSynchronize", accelerator.TestPattern, func(l accelerator.Load) bool { return l.Fault != nil && l.Fault.Kind == accelerator.FaultHang }},
		{"crashes", b + " crash cuLaunchKernel", accelerator.TestPattern, func(l accelerator.Load) bool { return l.Fault != nil && l.Fault.Kind == accelerator.FaultCrash }},
		{"gone", b + " refuse cuDeviceGetByPCIBusId 101", accelerator.TestBurn, func(l accelerator.Load) bool {
			return l.Fault != nil && strings.Contains(l.Fault.Detail, "invalid device")
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := fake(t, x.faults)
			if strings.Contains(x.faults, "hang") {
				r.Deadline = 5 * time.Second
			}
			loads := r.Stress(t.Context(), three, 0, 100*time.Millisecond, nil)
			if l := load(t, loads, x.test, b); !x.check(l) {
				t.Errorf("%+v, fault %v", l, l.Fault)
			}
			for _, slot := range []string{a, c} {
				for _, test := range []string{accelerator.TestPattern, accelerator.TestBurn} {
					if l := load(t, loads, test, slot); l.Fault != nil || l.Errors != 0 {
						t.Errorf("drawn in: %+v %v", l, l.Fault)
					}
				}
			}
		})
	}
}

// What the load finds is judged: a card that computes wrong but steadily, and one that is slow, show up beside the others only.
func TestJudged(t *testing.T) {
	for _, x := range []struct{ name, faults, check, says string }{
		{"another result", b + " other", "load.burn", "computed another result than the other cards"},
		{"does nothing", b + " lazy", "load.burn", "computed another result than the other cards"},
		{"slow card", b + " slow 20", "perf.compute", "of the median"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := fake(t, x.faults)
			f := accelerator.Facts{Plan: accelerator.PlanPostboot, Loads: r.Stress(t.Context(), three, 0, 300*time.Millisecond, nil)}
			for _, slot := range three {
				f.PCI.Cards = append(f.PCI.Cards, accelerator.PCICard{Slot: slot, Vendor: "10de", Device: "2330"})
			}
			rep := accelerator.Judge(f, machine.Expect{CardID: "10de:2330", Count: 3}, accelerator.Rules{})
			i := slices.IndexFunc(rep.Checks, func(c accelerator.Check) bool { return c.ID == x.check })
			got := rep.Checks[i]
			if got.Outcome != accelerator.Fail || got.Action != accelerator.ActReplace || !strings.HasPrefix(got.Evidence[0], b) || !strings.Contains(got.Evidence[0], x.says) {
				t.Errorf("%s %s %v", got.Outcome, got.Action, got.Evidence)
			}
		})
	}
}

func TestLibraries(t *testing.T) {
	for _, x := range []struct {
		name   string
		runner func() Runner
		kind   accelerator.FaultKind
		says   string
	}{
		{"absent", func() Runner { return Runner{Library: filepath.Join(t.TempDir(), "libcuda.so.1")} }, accelerator.FaultAbsent, ""},
		{"another library", func() Runner { return Runner{Library: "libm.so.6"} }, accelerator.FaultSymbol, "has no cu"},
		{"without a function", func() Runner { return fake(t, "", "-DNO_PEER") }, accelerator.FaultSymbol, "has no cuMemcpyPeer"},
		{"no card", func() Runner { return fake(t, "* init 100") }, accelerator.FaultRefused, "no device"},
		{"fabric manager missing (H07)", func() Runner { return fake(t, "* init 802") }, accelerator.FaultRefused, "is the fabric manager running?"},
		{"versions", func() Runner { return fake(t, "* init 803") }, accelerator.FaultRefused, "different versions"},
		{"driver too old", func() Runner { return fake(t, "* refuse cuModuleLoadDataEx 222") }, accelerator.FaultRefused, "too old for this PTX"},
		{"hangs at once", func() Runner { r := fake(t, "* hang cuInit"); r.Deadline = time.Second; return r }, accelerator.FaultHang, "no answer in 1s"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := x.runner()
			for _, l := range append(r.Rates(t.Context(), []string{a}), r.Pairs(t.Context(), []string{a, b})...) {
				if l.Fault == nil || l.Fault.Kind != x.kind || !strings.Contains(l.Fault.Detail, x.says) {
					t.Errorf("%s: %v", l.Test, l.Fault)
				}
			}
		})
	}
}

func TestPeers(t *testing.T) {
	loads := fake(t, b+" garble;"+c+" nopeer").Pairs(t.Context(), three)
	for _, l := range loads {
		if (l.Slot == b) != (l.Errors > 0) || (l.Slot == c) == l.Direct || l.Fault != nil {
			t.Errorf("%+v", l)
		}
	}
	if len(loads) != 6 {
		t.Errorf("%d pairs", len(loads))
	}
}

// An operator's Ctrl-C, or a server that no longer wants the result, ends it at once.
func TestCancel(t *testing.T) {
	r := fake(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	loads := r.Stress(ctx, []string{a}, 0, time.Hour, nil)
	if time.Since(began) > 15*time.Second || load(t, loads, accelerator.TestBurn, a).Fault == nil {
		t.Errorf("%v %+v", time.Since(began), loads)
	}
}

func TestUsual(t *testing.T) {
	words := make([]uint32, 32*9)
	for i := range words {
		words[i] = uint32(i % 32)
	}
	words[0], words[32], words[5] = 99, 99, 1
	if got := usual(words); got[0] != 0 || got[5] != 5 || got[31] != 31 {
		t.Errorf("%v", got)
	}
	if digest(usual(words)) != digest(usual(words[64:])) || digest([]uint32{1}) == digest([]uint32{2}) {
		t.Error("digest")
	}
}

// The kernels in the program are those of the source: a change of the one without the other is found.
func TestKernelsAreBuilt(t *testing.T) {
	for _, name := range []string{"burn(", "fill(", "check(", "sum(", ".target sm_80", ".version 7.0", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"} {
		if !bytes.Contains(kernels, []byte(name)) {
			t.Errorf("kernels.ptx has no %s", name)
		}
	}
	if _, err := exec.LookPath("clang++-14"); err != nil {
		t.Skip("no clang++-14 here: the compiled kernels are not compared with their source")
	}
	dir := t.TempDir()
	if out, err := exec.Command("cp", "-r", "kernels", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if out, err := exec.Command("sh", filepath.Join(dir, "kernels/build.sh")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	built, err := os.ReadFile(filepath.Join(dir, "kernels.ptx"))
	if err != nil || !bytes.Equal(built, kernels) {
		t.Errorf("kernels.ptx is not what kernels.cu compiles to (%v): run kernels/build.sh and raise Version", err)
	}
}
