package nvidia

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Tools runs NVIDIA's own tools where an image has them: dcgmi, nvbandwidth, all_reduce_perf. Without them nothing is missing but their word.
type Tools struct {
	Folder   string        // where they are; PATH and the usual places when empty
	Deadline time.Duration // for one tool; ten minutes when zero
}

func (t Tools) run(ctx context.Context, name string, env []string, args ...string) (string, *accelerator.Fault) {
	path := child.Find(name, t.Folder, "/usr/bin", "/usr/local/bin", "/usr/local/cuda/bin", "/opt/nccl-tests/build", "/usr/local/nccl-tests/build")
	return child.Run(ctx, child.Command{Path: path, Args: args, Env: env, Deadline: cmp.Or(t.Deadline, 10*time.Minute), Output: 8 << 20})
}

// byBus is the environment in which CUDA counts cards by their PCI address, as the bus does.
func byBus() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") {
			env = append(env, v)
		}
	}
	return append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
}

// DCGM runs `dcgmi diag -r LEVEL`. A card that DCGM has no profile of is skipped by it without a word: those skips are in the tests.
func (t Tools) DCGM(ctx context.Context, level int) accelerator.Diagnosis {
	d := accelerator.Diagnosis{Tool: "dcgmi", Tests: []accelerator.ToolTest{}}
	text, fault := t.run(ctx, "dcgmi", nil, "diag", "-r", strconv.Itoa(level), "-j")
	if fault != nil && fault.Kind != accelerator.FaultRefused { // it exits with a status of its own when a test fails
		d.Fault = fault
		return d
	}
	tests, version, err := parseDCGM(text)
	if err != nil {
		d.Fault = cmp.Or(fault, &accelerator.Fault{Kind: accelerator.FaultProbe, During: "dcgmi diag", Detail: err.Error()})
		return d
	}
	d.Tests, d.Version = tests, version
	return d
}

// dcgmAnswer is what DCGM 3 and 4 have in common under the key that names the diagnosis.
type dcgmAnswer struct {
	Version    string `json:"version"`
	Categories []struct {
		Tests []struct {
			Name    string       `json:"name"`
			Results []dcgmResult `json:"results"`
		} `json:"tests"`
	} `json:"test_categories"`
	Error string `json:"runtime_error"`
}

type dcgmResult struct {
	Status   string          `json:"status"`
	GPU      json.RawMessage `json:"gpu_id"`    // version 3
	GPUs     string          `json:"gpu_ids"`   // likewise
	Entity   json.RawMessage `json:"entity_id"` // version 4
	Warnings json.RawMessage `json:"warnings"`  // a text, texts, or objects that hold one
	Info     json.RawMessage `json:"info"`
}

const maxTests = 1024

func parseDCGM(text string) ([]accelerator.ToolTest, string, error) {
	i := strings.IndexByte(text, '{') // notices come before it
	if i < 0 {
		return nil, "", fmt.Errorf("no JSON: %.120q", strings.TrimSpace(text))
	}
	var top map[string]json.RawMessage
	if err := json.NewDecoder(strings.NewReader(text[i:])).Decode(&top); err != nil {
		return nil, "", fmt.Errorf("read JSON: %w", err)
	}
	var out []accelerator.ToolTest
	version := ""
	_ = json.Unmarshal(top["version"], &version)
	for key, raw := range top {
		var a dcgmAnswer
		if json.Unmarshal(raw, &a) != nil || len(a.Categories) == 0 && a.Error == "" {
			continue
		}
		if a.Error != "" {
			return nil, "", fmt.Errorf("%s: %.200s", key, a.Error)
		}
		version = cmp.Or(a.Version, version)
		for _, c := range a.Categories {
			for _, test := range c.Tests {
				for _, r := range test.Results {
					if len(out) < maxTests {
						out = append(out, r.test(test.Name))
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, version, fmt.Errorf("no test in its answer: %.120q", text[i:])
	}
	return out, version, nil
}

func (r dcgmResult) test(name string) accelerator.ToolTest {
	t := accelerator.ToolTest{Name: name, Card: cmp.Or(bare(r.GPU), bare(r.Entity), r.GPUs), Detail: texts(r.Warnings)}
	switch strings.ToLower(r.Status) {
	case "pass":
		t.Outcome = accelerator.Pass
	case "warn", "warning":
		t.Outcome = accelerator.Warn
	case "fail":
		t.Outcome = accelerator.Fail
		if strings.Contains(t.Detail, "totaling 0.0 seconds") { // a violation that lasted no time is none
			t.Outcome = accelerator.Warn
		}
	case "skip", "skipped", "not run", "notrun", "":
		t.Outcome, t.Detail = accelerator.Skip, cmp.Or(t.Detail, texts(r.Info))
	default:
		t.Outcome, t.Detail = accelerator.Error, "status "+r.Status
	}
	return t
}

// bare returns a JSON number or text without its quotes.
func bare(raw json.RawMessage) string { return strings.Trim(string(raw), `"`) }

// texts returns the texts in a JSON value, joined.
func texts(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return ""
	}
	var out []string
	var walk func(any, string)
	walk = func(v any, key string) {
		switch v := v.(type) {
		case string:
			if key == "" || key == "warning" {
				out = append(out, v)
			}
		case []any:
			for _, x := range v {
				walk(x, key)
			}
		case map[string]any:
			walk(v["warning"], "warning")
		}
	}
	walk(v, "")
	s := strings.Join(out, "; ")
	return strings.ToValidUTF8(s[:min(len(s), 500)], "")
}

// Bandwidth runs nvbandwidth for copies from and to the host and between cards. slots are the cards in the order of the bus.
func (t Tools) Bandwidth(ctx context.Context, slots []string) []accelerator.Load {
	text, fault := t.run(ctx, "nvbandwidth", byBus(), "-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
	if fault != nil && (fault.Kind == accelerator.FaultAbsent || text == "") {
		return absent(fault, accelerator.TestToCard, "nvbandwidth")
	}
	loads, err := parseBandwidth(text, slots)
	if err != nil {
		return []accelerator.Load{{Test: accelerator.TestToCard, Tool: "nvbandwidth", Fault: cmp.Or(fault, &accelerator.Fault{Kind: accelerator.FaultProbe, During: "nvbandwidth", Detail: err.Error()})}}
	}
	return loads
}

// absent is what a tool that is not installed leaves: nothing. One that went wrong leaves its fault.
func absent(f *accelerator.Fault, test, tool string) []accelerator.Load {
	if f.Kind == accelerator.FaultAbsent {
		return nil
	}
	return []accelerator.Load{{Test: test, Tool: tool, Fault: f}}
}

func parseBandwidth(text string, slots []string) ([]accelerator.Load, error) {
	i := strings.IndexByte(text, '{')
	if i < 0 {
		return nil, fmt.Errorf("no JSON: %.120q", strings.TrimSpace(text))
	}
	var top struct {
		Answer struct {
			Version string `json:"git_version"`
			Error   string `json:"error"`
			Cases   []struct {
				Name   string              `json:"name"`
				Status string              `json:"status"`
				Matrix [][]json.RawMessage `json:"bandwidth_matrix"`
			} `json:"testcases"`
		} `json:"nvbandwidth"`
	}
	if err := json.NewDecoder(strings.NewReader(text[i:])).Decode(&top); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if top.Answer.Error != "" {
		return nil, fmt.Errorf("%.200s", top.Answer.Error)
	}
	var out []accelerator.Load
	add := func(test, slot, peer string, cell json.RawMessage) {
		rate, err := strconv.ParseFloat(bare(cell), 64)
		if err != nil || rate < 0 || rate > 1e6 || rate != rate { // N/A: a card and itself, or no way between them
			return
		}
		out = append(out, accelerator.Load{Test: test, Tool: "nvbandwidth", Version: top.Answer.Version, Slot: slot, Peer: peer, Direct: peer != "", Rate: accelerator.Measured(rate, "GB/s", "nvbandwidth")})
	}
	for _, c := range top.Answer.Cases {
		if !strings.EqualFold(c.Status, "passed") {
			continue // waived where cards cannot reach each other
		}
		switch c.Name {
		case "host_to_device_memcpy_ce", "device_to_host_memcpy_ce":
			test := accelerator.TestToCard
			if strings.HasPrefix(c.Name, "device") {
				test = accelerator.TestToHost
			}
			for _, row := range c.Matrix[:min(1, len(c.Matrix))] {
				for k, cell := range row {
					if k < len(slots) {
						add(test, slots[k], "", cell)
					}
				}
			}
		case "device_to_device_memcpy_read_ce":
			for k, row := range c.Matrix {
				for m, cell := range row {
					if k < len(slots) && m < len(slots) && k != m {
						add(accelerator.TestPeer, slots[k], slots[m], cell)
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no bandwidth in its answer")
	}
	return out, nil
}

// AllReduce runs all_reduce_perf over all cards.
func (t Tools) AllReduce(ctx context.Context, cards int) []accelerator.Load {
	text, fault := t.run(ctx, "all_reduce_perf", byBus(), "-b", "1G", "-e", "8G", "-f", "2", "-g", strconv.Itoa(cards))
	if fault != nil && (fault.Kind != accelerator.FaultRefused || text == "") {
		return absent(fault, accelerator.TestReduce, "nccl-tests")
	}
	l, err := parseReduce(text)
	if err != nil {
		l = accelerator.Load{Test: accelerator.TestReduce, Tool: "nccl-tests", Fault: cmp.Or(fault, &accelerator.Fault{Kind: accelerator.FaultProbe, During: "all_reduce_perf", Detail: err.Error()})}
	}
	return []accelerator.Load{l}
}

// parseReduce reads the table of nccl-tests: of the largest size the better of both bus bandwidths, and all wrong values. A row is
//
//	size count type redop root  time algbw busbw #wrong  time algbw busbw #wrong
func parseReduce(text string) (accelerator.Load, error) {
	l := accelerator.Load{Test: accelerator.TestReduce, Tool: "nccl-tests"}
	largest := int64(0)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 4 && f[0] == "#" && f[1] == "nccl-tests" && f[2] == "version" {
			l.Version = f[3]
		}
		if len(f) != 13 {
			continue
		}
		size, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || size <= 0 {
			continue
		}
		out, err1 := strconv.ParseFloat(f[7], 64)
		in, err2 := strconv.ParseFloat(f[11], 64)
		if err1 != nil || err2 != nil || !(out >= 0 && out < 1e6) || !(in >= 0 && in < 1e6) {
			return l, fmt.Errorf("a row that is none: %.120q", strings.TrimSpace(line))
		}
		for _, w := range []string{f[8], f[12]} {
			if n, err := strconv.ParseInt(w, 10, 64); err == nil && n > 0 {
				l.Errors += min(n, 1<<40)
			}
		}
		if size >= largest {
			largest = size
			l.Rate = accelerator.Measured(max(out, in), "GB/s", "nccl-tests")
		}
	}
	if largest == 0 {
		return l, fmt.Errorf("no row in its answer: %.120q", strings.TrimSpace(text))
	}
	return l, nil
}
