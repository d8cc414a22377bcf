package accelerator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The built-in profiles hold the cards that are sold, and each value that judges says where it comes from.
func TestBuiltinProfiles(t *testing.T) {
	names := map[string]string{}
	for _, p := range BuiltinProfiles() {
		for _, m := range p.Match {
			names[m.String()] = p.Name
		}
	}
	for id, want := range map[string]string{
		"10de:2b85": "RTX 5090", "10de:2bb9": "RTX 6000D", "10de:2bb9 subsystem 10de:2279": "RTX 6000D LC",
		"10de:20b0": "A100 SXM 40GB", "10de:20b2": "A100 SXM 80GB", "10de:20f1": "A100 PCIe 40GB", "10de:20b5": "A100 PCIe 80GB",
		"10de:2329": "H20", "10de:232c": "H20 141GB", "10de:2330": "H100 SXM", "10de:2335": "H200 SXM",
		"19e5:d802": "Ascend 910B2", "1ded:6001": "PPU-ZW810E",
	} {
		if names[id] != want {
			t.Errorf("%s is %q, want %q", id, names[id], want)
		}
	}
	p, ok := Rules{}.Profile("10DE:2B85", "10de:0000")
	if !ok || p.Memory != (Known[int64]{32607, Published, "nvidia-smi output in public reports"}) || p.ECC.Value != No || p.Power.Value != 575 || p.Slowdown.Judges() {
		t.Errorf("RTX 5090: %+v", p)
	}
	if _, ok := (Rules{}).Profile("10de:ffff", ""); ok {
		t.Error("a card that nobody knows has a profile")
	}
	// The board's profile lies over the card's and keeps the rest.
	p, _ = Rules{}.Profile("10de:2bb9", "10de:2279")
	if p.Name != "RTX 6000D LC" || p.Power.Value != 249 || p.Memory.Value != 85651 || p.File != "builtin/rtx6000d.yaml + builtin/rtx6000d.yaml" {
		t.Errorf("%s: %+v %+v from %s", p.Name, p.Power, p.Memory, p.File)
	}
	// Thresholds are for a tool, never a share of the datasheet.
	h, _ := Rules{}.Profile("10de:2330", "")
	if l, ok := h.Limit(TestToCard, "nvbandwidth", "v0.8"); !ok || l.Min != 48 {
		t.Errorf("%+v", l)
	}
	if _, ok := h.Limit(TestToCard, "bareyard-burn", "1"); ok {
		t.Error("another tool's threshold is taken for ours")
	}
}

func TestOperatorProfiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("README", "no profile")
	write("host.yaml", `schema: bareyard.profile/1
profiles:
  - name: RTX 5090 in our 8-lane host
    revision: 3
    match: [{device: "10de:2b85"}]
    link_width: {value: 8, status: published, source: our host}
    memory: {status: unknown}
    limits:
      - {test: mma-bf16, tool: bareyard-burn, version: "1", unit: TFLOPS, min: 180, median: 190.5, spread: 1.5, cards: 64, status: calibrated, source: fleet of 2026-11}
  - name: a new card
    revision: 1
    match: [{device: "10DE:FFFF"}, {device: "10de:fffe", subsystem: "10de:0001"}]
    ecc: {value: "yes", status: published, source: datasheet}
`)
	list, err := ReadProfiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := Rules{Profiles: list}
	p, _ := r.Profile("10de:2b85", "")
	if p.LinkWidth.Value != 8 || p.LinkGen.Value != 5 || p.Memory.Judges() || p.Revision != 3 {
		t.Errorf("%+v", p)
	}
	if l, ok := p.Limit(TestBurn, "bareyard-burn", "1"); !ok || l.Min != 180 || l.Cards != 64 {
		t.Errorf("%+v", l)
	}
	if _, ok := p.Limit(TestBurn, "bareyard-burn", "2"); ok {
		t.Error("a threshold holds for another version of the tool")
	}
	if _, ok := r.Profile("10de:fffe", "10de:0002"); ok {
		t.Error("another board matches")
	}
	if p, ok := r.Profile("10de:ffff", ""); !ok || p.ECC.Value != Yes {
		t.Errorf("a new card: %+v", p)
	}

	files, err := ProfileFiles(dir) // which a server sends to its validators
	if err != nil || len(files) != 1 || files["host.yaml"] == "" {
		t.Errorf("files %v, %v", files, err)
	}
	if err := os.Rename(filepath.Join(dir, "host.yaml"), filepath.Join(dir, "host.yml")); err != nil {
		t.Fatal(err)
	}
	if again, err := ReadProfiles(dir); err != nil || len(again) != len(list) {
		t.Errorf("of host.yml: %d profiles, %v", len(again), err)
	}

	write("host2.yaml", `schema: bareyard.profile/1
profiles: [{name: x, revision: 1, match: [{device: "10de:2b85"}]}]
`)
	if _, err := ReadProfiles(dir); err == nil || !strings.Contains(err.Error(), "host.yml") || !strings.Contains(err.Error(), "host2.yaml") {
		t.Errorf("two files for one card: %v", err)
	}
	if _, err := ReadProfiles(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a folder that is not there")
	}
}

// Each mistake names file, line and field, and all mistakes of a file are told at once.
func TestProfileMistakes(t *testing.T) {
	const head = "schema: bareyard.profile/1\nprofiles:\n  - name: x\n    revision: 1\n    match: [{device: \"10de:2b85\"}]\n"
	cases := []struct{ name, text, want string }{
		{"empty", "", "f.yaml: no profile in it"},
		{"not YAML", "a: [", "f.yaml: line 1"},
		{"tabs", "schema:\n\t- x", "f.yaml: line 2"},
		{"list", "- x", "f.yaml:1: the file: wants keys and values"},
		{"no schema", "profiles: [{name: x, revision: 1, match: [{device: \"10de:2b85\"}]}]", "f.yaml:1: schema: missing"},
		{"other schema", "schema: bareyard.profile/9\nprofiles: []", `f.yaml:1: schema: is "bareyard.profile/9"`},
		{"no profiles", "schema: bareyard.profile/1", "profiles: wants a list"},
		{"two documents", head + "---\na: b", "f.yaml:6: a second document"},
		{"unknown key", head + "    memroy: {value: 1, status: published, source: s}", "f.yaml:6: profiles[0].memroy: unknown; there are name"},
		{"key twice", head + "    name: y", "f.yaml:6: profiles[0].name: given twice"},
		{"value without status", head + "    memory: {value: 1}", "f.yaml:6: profiles[0].memory.status: missing"},
		{"value without source", head + "    memory: {value: 1, status: published}", "f.yaml:6: profiles[0].memory.source: missing"},
		{"status alone", head + "    memory: {status: published, source: s}", "f.yaml:6: profiles[0].memory.value: missing"},
		{"unknown with a value", head + "    memory: {value: 1, status: unknown}", "profiles[0].memory.value: given although"},
		{"status of one's own", head + "    memory: {value: 1, status: guessed, source: s}", `profiles[0].memory.status: is "guessed"`},
		{"not a number", head + "    memory: {value: 32GB, status: published, source: s}", `profiles[0].memory.value: wants a whole number from 1 to 1099511627776, not "32GB"`},
		{"negative", head + "    memory: {value: -1, status: published, source: s}", "profiles[0].memory.value"},
		{"not finite", head + "    bandwidth: {value: .inf, status: published, source: s}", "profiles[0].bandwidth.value: wants a number above 0"},
		{"NaN", head + "    bandwidth: {value: NaN, status: published, source: s}", "profiles[0].bandwidth.value"},
		{"other unit", head + "    memory: {value: 1, unit: GB, status: published, source: s}", `profiles[0].memory.unit: is "GB", this value is in "MiB"`},
		{"a word that is none", head + "    ecc: {value: maybe, status: published, source: s}", `profiles[0].ecc.value: is "maybe", want one of yes, no`},
		{"a bare number for a value", head + "    memory: 32607", "profiles[0].memory: wants keys and values"},
		{"no PCI id", "schema: bareyard.profile/1\nprofiles:\n  - name: x\n    revision: 1\n    match: [{device: \"RTX 5090\"}]", "f.yaml:5: profiles[0].match[0].device: wants vendor:device"},
		{"no match", "schema: bareyard.profile/1\nprofiles:\n  - name: x\n    revision: 1", "f.yaml:3: profiles[0].match: wants a list"},
		{"no revision", "schema: bareyard.profile/1\nprofiles:\n  - name: x\n    match: [{device: \"10de:2b85\"}]", "profiles[0].revision: missing"},
		{"card twice", head + "  - name: y\n    revision: 1\n    match: [{device: \"10de:2b85\"}]", "f.yaml:6: profiles[1].match: 10de:2b85 is in the file twice"},
		{"limit above the median", head + "    limits: [{test: t, tool: b, unit: GB/s, min: 10, median: 9, status: calibrated, source: s}]", "limits[0].min: 10 is above"},
		{"limit twice", head + "    limits: [{test: t, tool: b, unit: u, status: unknown}, {test: t, tool: b, unit: u, status: unknown}]", "limits[1]: t of b"},
		{"control characters", head + "    memory_kind: {value: \"a\\x1b[2J\", status: published, source: s}", "memory_kind.value: wants one line"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseProfiles("f.yaml", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
	_, err := ParseProfiles("f.yaml", []byte(head+"    ecc: {value: maybe, status: published, source: s}\n    memory: {value: 0, status: published, source: s}\n"))
	if err == nil || strings.Count(err.Error(), "f.yaml:") != 2 {
		t.Errorf("two mistakes: %v", err)
	}
}

// What is written is read back the same.
func TestWriteProfiles(t *testing.T) {
	for _, p := range BuiltinProfiles() {
		var b bytes.Buffer
		if err := WriteProfiles(&b, []Profile{p}); err != nil {
			t.Fatal(err)
		}
		got, err := ParseProfiles(p.File, b.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if d := cmp.Diff([]Profile{p}, got); d != "" {
			t.Errorf("%s\n%s", d, b.String())
		}
	}
}

func FuzzParseProfiles(f *testing.F) {
	entries, err := builtin.ReadDir("profiles")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		text, err := builtin.ReadFile("profiles/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("schema: bareyard.profile/1\nprofiles: [{name: &a x, revision: 1, match: [{device: \"1:2\"}], memory: *a}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseProfiles("f.yaml", text)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := WriteProfiles(&b, list); err != nil {
			t.Fatal(err)
		}
		again, err := ParseProfiles("f.yaml", b.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if d := cmp.Diff(list, again); d != "" {
			t.Fatal(d)
		}
	})
}

// fleet makes reports of machines with four cards each, whose rates vary a little.
func fleet(n int) []Report {
	var out []Report
	for i := range n {
		f, e := goodMachine(4)
		for k, p := range f.PCI.Cards {
			f.Loads = append(f.Loads,
				Load{Test: TestBurn, Tool: "bareyard-burn", Version: "1", Slot: p.Slot, Rate: Measured(120+float64((i*4+k)%7), "TFLOPS", "cuda")},
				Load{Test: TestRead, Tool: "bareyard-burn", Version: "1", Slot: p.Slot, Rate: Measured(3000+10*float64((i+k)%5), "GB/s", "cuda")})
			f.Driver[0].Cards[k].Serial.Value = fmt.Sprintf("%d-%d", i, k)
		}
		f.Plan = PlanHealth
		out = append(out, Judge(f, e, Rules{}))
	}
	return out
}

func TestCalibrate(t *testing.T) {
	reports := fleet(10)
	p, notes, err := Calibrate(reports, "H20 of site sha1", "fleet of November")
	if err != nil {
		t.Fatal(err, notes)
	}
	l, ok := p.Limit(TestBurn, "bareyard-burn", "1")
	if !ok || l.Status != Calibrated || l.Cards != 40 || l.Median != 123 || l.Min >= l.Median || l.Min < 0.8*l.Median || l.Unit != "TFLOPS" {
		t.Errorf("%+v", l)
	}
	if p.Memory.Value != 97871 || p.Memory.Status != Calibrated || p.Power.Value != 500 {
		t.Errorf("%+v %+v", p.Memory, p.Power)
	}
	if p.Match[0] != (Match{"10de:2329", "10de:198b"}) {
		t.Errorf("%v", p.Match)
	}
	// It is a file that an operator can put into the folder.
	var b bytes.Buffer
	if err := WriteProfiles(&b, []Profile{p}); err != nil {
		t.Fatal(err)
	}
	back, err := ParseProfiles("x.yaml", b.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	back[0].File = ""
	if d := cmp.Diff(p, back[0]); d != "" {
		t.Error(d)
	}
	// Pure, whatever the order.
	slices.Reverse(reports)
	if again, _, _ := Calibrate(reports, "H20 of site sha1", "fleet of November"); cmp.Diff(p, again) != "" {
		t.Error("the order of the reports matters")
	}
	// A bad card does not lower the bar: it fails its report and is left out, and one that merely is slow is far from the middle.
	bad := fleet(10)
	for i := range bad[0].Loads {
		bad[0].Loads[i].Rate.Value /= 3
	}
	q, _, err := Calibrate(bad, "x", "y")
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := q.Limit(TestBurn, "bareyard-burn", "1"); m.Min < 0.9*l.Min {
		t.Errorf("four slow cards of forty lower the limit from %v to %v", l.Min, m.Min)
	}
	// One card that was seen twice counts once.
	twice := append(fleet(10), fleet(10)...)
	if r, _, _ := Calibrate(twice, "x", "y"); r.Limits[0].Cards != 40 {
		t.Errorf("%d cards", r.Limits[0].Cards)
	}
	for name, list := range map[string][]Report{"none": nil, "too few": fleet(1), "two kinds": append(fleet(5), otherKind()...)} {
		if _, _, err := Calibrate(list, "x", "y"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func otherKind() []Report {
	list := fleet(5)
	for i := range list {
		for k := range list[i].Cards {
			list[i].Cards[k].PCI.Device = "2330"
			list[i].Cards[k].Card.Serial.Value += "x"
		}
	}
	return list
}
