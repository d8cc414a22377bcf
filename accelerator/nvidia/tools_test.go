package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/accelerator"
)

// pretend makes a folder with one pretended tool.
func pretend(t *testing.T, name, script string) Tools {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Tools{Folder: dir, Deadline: 20 * time.Second}
}

const (
	dcgm3 = `{"DCGM GPU Diagnostic":{"version":"3.3.5","test_categories":[
{"category":"Deployment","tests":[{"name":"Denylist","results":[{"gpu_ids":"0,1","status":"PASS"}]}]},
{"category":"Hardware","tests":[{"name":"GPU Memory","results":[{"gpu_id":"0","status":"PASS"},{"gpu_id":"1","status":"FAIL","warnings":["pending page retirements","run a field diagnostic"]}]}]},
{"category":"Stress","tests":[{"name":"Targeted Stress","results":[{"gpu_id":"0","status":"SKIP","info":"no configuration for this card"},{"gpu_id":"1","status":"FAIL","warnings":"thermal violations totaling 0.0 seconds"}]}]}]}}`
	dcgm4 = `Notice: something
{"DCGM Diagnostic":{"test_categories":[{"category":"Integration","tests":[{"name":"pcie","results":[{"entity_group":"GPU","entity_id":0,"status":"Fail","warnings":[{"error_category":2,"warning":"GPU 0 replay counter is 99"}]},{"entity_id":1,"status":"Not Run"}]}]}]},"version":"4.1.1"}`
	bandwidth = `{"nvbandwidth":{"git_version":"v0.8","testcases":[
{"name":"host_to_device_memcpy_ce","status":"Passed","bandwidth_matrix":[["55.63","55.70"]]},
{"name":"device_to_host_memcpy_ce","status":"Passed","bandwidth_matrix":[["54.1","54.2","99"]]},
{"name":"device_to_device_memcpy_read_ce","status":"Passed","bandwidth_matrix":[["N/A","276.07"],["276.13","N/A"]]},
{"name":"device_to_device_memcpy_write_ce","status":"Waived"}]}}`
	reduce = `# nccl-tests version 2.13.8 nccl-headers=22203 nccl-library=22203
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   4102.1  261.75  458.07      0   4098.2  262.00  458.50      0
  8589934592    2147483648     float     sum      -1    31502  272.68  477.19      0    31490  272.78  477.37      2
# Out of bounds values : 2 FAILED
# Avg bus bandwidth    : 467.782
`
)

func TestDCGM(t *testing.T) {
	d := pretend(t, "dcgmi", "cat <<'END'\n"+dcgm3+"\nEND\nexit 226").DCGM(t.Context(), 2)
	want := []accelerator.ToolTest{
		{Name: "Denylist", Card: "0,1", Outcome: accelerator.Pass},
		{Name: "GPU Memory", Card: "0", Outcome: accelerator.Pass},
		{Name: "GPU Memory", Card: "1", Outcome: accelerator.Fail, Detail: "pending page retirements; run a field diagnostic"},
		{Name: "Targeted Stress", Card: "0", Outcome: accelerator.Skip, Detail: "no configuration for this card"},
		{Name: "Targeted Stress", Card: "1", Outcome: accelerator.Warn, Detail: "thermal violations totaling 0.0 seconds"},
	}
	if diff := cmp.Diff(want, d.Tests); diff != "" || d.Fault != nil || d.Version != "3.3.5" {
		t.Error(d.Fault, d.Version, diff)
	}
	d = pretend(t, "dcgmi", "cat <<'END'\n"+dcgm4+"\nEND").DCGM(t.Context(), 2)
	want = []accelerator.ToolTest{{Name: "pcie", Card: "0", Outcome: accelerator.Fail, Detail: "GPU 0 replay counter is 99"}, {Name: "pcie", Card: "1", Outcome: accelerator.Skip}}
	if diff := cmp.Diff(want, d.Tests); diff != "" || d.Version != "4.1.1" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		script string
		kind   accelerator.FaultKind
	}{
		"no host engine":    {"echo 'Error: unable to establish a connection to the specified host' >&2; exit 1", accelerator.FaultRefused},
		"exits 0 with ERR!": {"echo 'ERR!'", accelerator.FaultProbe},
		"no tests":          {"echo '{}'", accelerator.FaultProbe},
		"hangs":             {"trap '' TERM; sleep 600", accelerator.FaultHang},
		"a gigabyte":        {"yes ERR! | head -c 1073741824", accelerator.FaultProbe},
	} {
		tools := pretend(t, "dcgmi", c.script)
		if c.kind == accelerator.FaultHang {
			tools.Deadline = time.Second
		}
		if d := tools.DCGM(t.Context(), 2); d.Fault == nil || d.Fault.Kind != c.kind || len(d.Tests) > 0 {
			t.Errorf("%s: %v", name, d.Fault)
		}
	}
	if d := (Tools{Folder: t.TempDir()}).DCGM(t.Context(), 2); d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
		t.Errorf("%v", d.Fault)
	}
}

func TestBandwidth(t *testing.T) {
	slots := []string{"0000:0a:00.0", "0000:0b:00.0"}
	loads := pretend(t, "nvbandwidth", `[ "$CUDA_DEVICE_ORDER" = PCI_BUS_ID ] || exit 1`+"\ncat <<'END'\n"+bandwidth+"\nEND").Bandwidth(t.Context(), slots)
	var got []string
	for _, l := range loads {
		if l.Fault != nil || l.Version != "v0.8" || l.Rate.Unit != "GB/s" {
			t.Errorf("%+v", l)
		}
		got = append(got, strings.TrimSpace(l.Test+" "+l.Slot+" "+l.Peer+" "+l.Rate.String()))
	}
	want := []string{"host-to-device 0000:0a:00.0  55.63 GB/s", "host-to-device 0000:0b:00.0  55.7 GB/s", "device-to-host 0000:0a:00.0  54.1 GB/s", "device-to-host 0000:0b:00.0  54.2 GB/s",
		"peer 0000:0a:00.0 0000:0b:00.0 276.07 GB/s", "peer 0000:0b:00.0 0000:0a:00.0 276.13 GB/s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, script := range []string{"echo 'ERR!'", `echo '{"nvbandwidth":{"error":"CUDA_ERROR_SYSTEM_NOT_READY"}}'`, "exit 1", `echo '{"nvbandwidth":{"testcases":[{"name":"host_to_device_memcpy_ce","status":"Passed","bandwidth_matrix":[["NaN","-1","1e999"]]}]}}'`} {
		if l := pretend(t, "nvbandwidth", script).Bandwidth(t.Context(), slots); len(l) != 1 || l[0].Fault == nil {
			t.Errorf("%s: %+v", script, l)
		}
	}
	if l := (Tools{Folder: t.TempDir()}).Bandwidth(t.Context(), slots); len(l) != 0 {
		t.Errorf("%+v", l)
	}
}

func TestAllReduce(t *testing.T) {
	l := pretend(t, "all_reduce_perf", "cat <<'END'\n"+reduce+"END").AllReduce(t.Context(), 8)
	if len(l) != 1 || l[0].Rate.Value != 477.37 || l[0].Errors != 2 || l[0].Version != "2.13.8" || l[0].Fault != nil {
		t.Errorf("%+v", l)
	}
	for _, script := range []string{"echo 'ERR!'", "true", "exit 3", "echo 'Test NCCL failure: unhandled cuda error'; exit 3"} {
		if l := pretend(t, "all_reduce_perf", script).AllReduce(t.Context(), 8); len(l) != 1 || l[0].Fault == nil {
			t.Errorf("%s: %+v", script, l)
		}
	}
	if l := (Tools{Folder: t.TempDir()}).AllReduce(t.Context(), 8); len(l) != 0 {
		t.Errorf("%+v", l)
	}
}

func FuzzTools(f *testing.F) {
	for _, s := range []string{dcgm3, dcgm4, bandwidth, reduce} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if tests, _, err := parseDCGM(text); err == nil && (len(tests) == 0 || len(tests) > maxTests) {
			t.Fatal("tests without bounds")
		}
		if loads, err := parseBandwidth(text, []string{"a", "b"}); err == nil && len(loads) == 0 {
			t.Fatal("no load and no error")
		}
		if l, err := parseReduce(text); err == nil && (l.Rate.Value < 0 || l.Errors < 0) {
			t.Fatalf("%+v", l)
		}
	})
}
