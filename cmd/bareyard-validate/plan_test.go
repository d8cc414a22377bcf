package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// runPlans runs plans with the real program on a machine with three pretended cards: stand-ins for NVML, libcuda and NVIDIA's tools, the program's own
// children, files for sysfs. work holds what the other tests made.
func runPlans(t *testing.T, program, work, cuda string) {
	sys := filepath.Join(t.TempDir(), "sys")
	slots := []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}
	files := map[string]string{"module/x/y": "", "block/vda/serial": "lab-1", "block/vda/size": "8", "block/vda/device/x": ""}
	for _, slot := range slots {
		d := "bus/pci/devices/" + slot + "/"
		maps.Copy(files, map[string]string{d + "vendor": "0x10de", d + "device": "0x2b85", d + "class": "0x030200", d + "config": "\xde\x10\x85\x2b"})
	}
	write(t, sys, files)
	validate := func(t *testing.T, nvml, cudaFaults string, args ...string) (accelerator.Report, int, string) {
		t.Helper()
		out := t.TempDir()
		write(t, work, map[string]string{"faults": nvml})
		cmd := exec.Command(program, append([]string{"--out", out, "--every", "20ms", "--least", "20ms", "--cuda", cuda, "--tools", work, "--sysfs", sys, "--proc", filepath.Join(work, "proc"), "--kmsg", filepath.Join(work, "kmsg")}, args...)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(work, "nvml"), "MOCK_NVML_SYSFS="+sys, "MOCK_NVML_FAULTS="+filepath.Join(work, "faults"),
			"FAKE_CUDA_CARDS="+strings.Join(slots, ","), "FAKE_CUDA_FAULTS="+cudaFaults, "FAKE_CUDA_STEPS=16")
		text, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		var r accelerator.Report
		if data, err := os.ReadFile(filepath.Join(out, "report.json")); err == nil {
			if r, err = accelerator.DecodeReport(data); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"report.html", "report.xml"} {
				if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(b) < 1000 {
					t.Errorf("%s: %d bytes, %v", name, len(b), err)
				}
			}
		}
		return r, cmd.ProcessState.ExitCode(), string(text)
	}
	is := func(t *testing.T, r accelerator.Report, id string, want accelerator.Outcome) {
		t.Helper()
		i := slices.IndexFunc(r.Checks, func(c accelerator.Check) bool { return c.ID == id })
		if i < 0 || r.Checks[i].Outcome != want {
			t.Errorf("%s is not %s: %+v", id, want, r.Checks)
		}
	}
	const second = "0000:02:00.0"

	t.Run("postboot, good machine, signed", func(t *testing.T) {
		key := filepath.Join(t.TempDir(), "key")
		if out, err := exec.Command(program, "key", key).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		dir := t.TempDir()
		r, code, text := validate(t, "* busy", "* nopeer", "--plan", "postboot", "--duration", "1500ms", "--key", key, "--out", dir)
		_ = r
		data, err := os.ReadFile(filepath.Join(dir, "report.json"))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if r, err = accelerator.DecodeReport(data); err != nil {
			t.Fatal(err)
		}
		if (code == 2) != r.Blocks() || r.Plan != accelerator.PlanPostboot || r.Seconds < 1.5 || len(r.Series) != 3 {
			t.Errorf("exit %d: %s\n%s", code, r.Reason(), text)
		}
		for _, c := range r.Checks { // rates of pretended cards are those of this machine: measured, and not asserted
			if c.Blocks() && !strings.HasPrefix(c.ID, "perf.") || c.Outcome == accelerator.Skip && c.ID == "perf.copy" {
				t.Errorf("%s is %s: %s %v", c.ID, c.Outcome, c.Summary, c.Evidence)
			}
		}
		for _, id := range []string{"load.burn", "load.memory", "load.link", "load.thermal", "load.events", "card.answers"} {
			is(t, r, id, accelerator.Pass)
		}
		if out, err := exec.Command(program, "verify", "--key", key+".pub", filepath.Join(dir, "report.signed.json")).CombinedOutput(); err != nil || !strings.Contains(string(out), "the signature fits") {
			t.Errorf("%v %s", err, out)
		}
		if _, err := os.Stat(key); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command(program, "key", key).CombinedOutput(); err == nil {
			t.Errorf("a key is overwritten: %s", out)
		}
		// It came back as it went.
		r, code, text = validate(t, "* busy", "* nopeer", "--plan", "return", "--duration", "1500ms", "--handover", filepath.Join(dir, "report.signed.json"))
		for _, c := range r.Changes { // rates of a pretended card vary with the load of this machine
			if !strings.HasSuffix(c.Text, "became slower") && !strings.Contains(c.Text, "perf.") {
				t.Errorf("exit %d: %+v\n%s", code, c, text)
			}
		}
	})
	t.Run("postboot, silent corruption on one card", func(t *testing.T) {
		r, code, text := validate(t, "* busy", second+" wrong", "--plan", "postboot", "--duration", "1s")
		if code != 2 || !strings.Contains(text, "error: the machine must not be handed over") {
			t.Errorf("exit %d\n%s", code, text)
		}
		is(t, r, "load.burn", accelerator.Fail)
		if r.Cards[1].Outcome != accelerator.Fail || r.Cards[1].Slot != second {
			t.Errorf("%+v", r.Cards)
		}
	})
	t.Run("postboot, generation 2 and hot", func(t *testing.T) {
		r, code, _ := validate(t, "* busy;"+second+" load-gen 2;"+second+" temp 95", "", "--plan", "postboot", "--duration", "1s")
		is(t, r, "load.link", accelerator.Fail)
		is(t, r, "load.thermal", accelerator.Fail)
		if code != 2 {
			t.Errorf("exit %d", code)
		}
	})
	t.Run("acceptance stops at the stage that blocks", func(t *testing.T) {
		r, code, _ := validate(t, "* busy", second+" wrong", "--plan", "acceptance", "--duration", "2s")
		is(t, r, "plan.stages", accelerator.Skip)
		is(t, r, "load.burn", accelerator.Fail)
		if code != 2 || !slices.Equal(r.Stages, accelerator.Stages()[:2]) {
			t.Errorf("exit %d, stages %v", code, r.Stages)
		}
		r, _, _ = validate(t, "* busy;"+second+" lost", "", "--plan", "acceptance", "--duration", "2s")
		if !slices.Equal(r.Stages, accelerator.Stages()[:1]) || len(r.Loads) > 0 {
			t.Errorf("a lost card is loaded: %v", r.Stages)
		}
	})
	t.Run("health, and what was expected", func(t *testing.T) {
		expect := filepath.Join(t.TempDir(), "expect.json")
		data, _ := json.Marshal(machine.Expect{CardID: "10de:2b85", Count: 4})
		if err := os.WriteFile(expect, data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, code, _ := validate(t, "", "", "--plan", "health")
		if code != 0 || r.Blocks() || len(r.Loads) > 0 {
			t.Errorf("exit %d: %s", code, r.Reason())
		}
		r, code, _ = validate(t, "", "", "--plan", "health", "--expect", expect)
		is(t, r, "card.count", accelerator.Fail)
		if code != 2 {
			t.Errorf("exit %d", code)
		}
	})
	t.Run("no libcuda", func(t *testing.T) {
		r, code, _ := validate(t, "* busy", "", "--plan", "postboot", "--duration", "1s", "--cuda", filepath.Join(work, "none.so"))
		is(t, r, "load.burn", accelerator.Skip)
		if code != 2 || !r.Blocks() {
			t.Errorf("exit %d: a machine that was not loaded may be handed over", code)
		}
	})
	t.Run("acceptance", func(t *testing.T) {
		bmc := filepath.Join(t.TempDir(), "bmc.json")
		yes := accelerator.Measured(true, "", "ipmi")
		data, _ := json.Marshal(accelerator.BMC{Supplies: []accelerator.Supply{{Name: "PSU1", Present: true, Healthy: yes}}, Fans: []accelerator.Fan{{Name: "F1", Present: true, Healthy: yes}}})
		if err := os.WriteFile(bmc, data, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, slot := range slots[1:] { // one card has no neighbour that is faster by chance
			if err := os.RemoveAll(filepath.Join(sys, "bus/pci/devices", slot)); err != nil {
				t.Fatal(err)
			}
		}
		r, code, text := validate(t, "* busy", "", "--plan", "acceptance", "--duration", "2s", "--bmc", bmc)
		if code != 0 {
			t.Errorf("exit %d: %s", code, r.Reason())
		}
		is(t, r, "plan.stages", accelerator.Pass)
		is(t, r, "load.burn", accelerator.Pass)
		is(t, r, "host.power", accelerator.Pass)
		if !slices.Equal(r.Stages, accelerator.Stages()) {
			t.Errorf("exit %d, stages %v\n%s", code, r.Stages, text)
		}
	})
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"profiles/x.yaml": "schema: bareyard.profile/1\nprofiles:\n  - nam: x\n", "bmc.json": `{"fan":1}`, "report.json": `{"schema":"x"}`})
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--plan", "burn"}, "there are postboot, acceptance, health, return"},
		{[]string{"--plan", "postboot", "--duration", "3h"}, "acceptance is for more"},
		{[]string{"--plan", "postboot", "--duration", "-1s"}, "a time above 0"},
		{[]string{"--plan", "health", "--profiles", at("profiles")}, "x.yaml:3: profiles[0].nam: unknown"},
		{[]string{"--plan", "health", "--profiles", at("none")}, "no such file"},
		{[]string{"--plan", "health", "--bmc", at("bmc.json")}, `unknown field "fan"`},
		{[]string{"--plan", "health", "--expect", at("none")}, "read what to expect"},
		{[]string{"--plan", "return"}, "wants --handover"},
		{[]string{"--plan", "return", "--handover", at("report.json")}, "schema"},
		{[]string{"--plan", "health", "--key", at("bmc.json")}, "holds no Ed25519 key"},
		{[]string{"calibrate"}, "wants --name, --source and reports"},
		{[]string{"calibrate", "--name", "x", "--source", "y", at("report.json")}, "schema"},
		{[]string{"compare", "x"}, "wants the report at hand-over"},
		{[]string{"verify", "--key", at("bmc.json"), at("report.json")}, "holds no public"},
		{[]string{"verify"}, "wants --key"},
		{[]string{"key"}, "wants one FILE"},
	} {
		var out strings.Builder
		if err := run(t.Context(), c.args, &out, &out); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// A fleet's reports become a profile that the folder of profiles takes.
func TestCalibrateCommand(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--name", "RTX 5090 here", "--source", "fleet of November"}
	for i := range 4 {
		r := accelerator.Report{Schema: accelerator.Schema, Checks: []accelerator.Check{{ID: "x", Outcome: accelerator.Pass}}}
		for k := range 4 {
			slot := fmt.Sprintf("0000:%02x:00.0", k+1)
			r.Cards = append(r.Cards, accelerator.CardResult{Slot: slot, Outcome: accelerator.Pass, PCI: &accelerator.PCICard{Slot: slot, Vendor: "10de", Device: "2b85", Subsystem: "1043:89e4"},
				Card: &accelerator.Card{UUID: accelerator.Measured(fmt.Sprintf("GPU-%d-%d", i, k), "", "nvml"), Memory: accelerator.Measured(int64(32607)<<20, "bytes", "nvml")}})
			r.Loads = append(r.Loads, accelerator.Load{Test: accelerator.TestBurn, Tool: "bareyard-burn", Version: "1", Slot: slot, Rate: accelerator.Measured(180+float64(i), "TFLOPS", "cuda")})
		}
		if err := save(filepath.Join(dir, fmt.Sprint(i)), r, nil); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join(dir, fmt.Sprint(i), "report.json"))
	}
	var out, notes strings.Builder
	if err := run(t.Context(), args, &out, &notes); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"profiles/here.yaml": out.String()})
	list, err := accelerator.ReadProfiles(filepath.Join(dir, "profiles"))
	if err != nil || len(list) != 1 || list[0].Limits[0].Cards != 16 {
		t.Errorf("%v %+v\n%s", err, list, out.String())
	}
}
