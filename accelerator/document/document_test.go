package document

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

const evil = `</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&` + "\x1b[2J\u202e"

// report is a report in which every text is one that must not get through as it is.
func report(t testing.TB) accelerator.Report {
	t.Helper()
	f := accelerator.Facts{Taken: time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC), Plan: accelerator.PlanPostboot, Seconds: 60, Asked: 60, Log: accelerator.KernelLog{Records: 5}}
	f.Host.Memory, f.Host.Nouveau, f.Host.CPU = accelerator.Measured(int64(1<<39), "bytes", "proc"), accelerator.Measured(false, "", "proc"), accelerator.Measured(evil, "", "proc")
	f.Driver = []accelerator.Driver{{Vendor: "10de", Version: accelerator.Measured(evil, "", "nvml"), Count: accelerator.Measured(int64(2), "", "nvml")}}
	f.Host.Disks = []accelerator.HostDisk{{Name: evil, Serial: accelerator.Measured(evil, "", "sysfs")}}
	for i, slot := range []string{"0000:0a:00.0", "0000:0b:00.0"} {
		f.PCI.Cards = append(f.PCI.Cards, accelerator.PCICard{Slot: slot, Vendor: "10de", Device: "2b85", Answers: accelerator.Measured(true, "", "sysfs")})
		f.Driver[0].Cards = append(f.Driver[0].Cards, accelerator.Card{Index: i, Slot: slot, Name: accelerator.Measured(evil, "", "nvml"), Serial: accelerator.Measured(evil+slot, "", "nvml"), Memory: accelerator.Measured(int64(32607)<<20, "bytes", "nvml")})
		f.Loads = append(f.Loads, accelerator.Load{Test: accelerator.TestBurn, Tool: "bareyard-burn", Version: "1", Slot: slot, Seconds: 60, Rate: accelerator.Measured(180.0, "TFLOPS", "cuda"), Result: "x", Errors: int64(i), Detail: evil},
			accelerator.Load{Test: accelerator.TestPeer, Tool: "bareyard-burn", Slot: slot, Peer: []string{"0000:0b:00.0", "0000:0a:00.0"}[i], Rate: accelerator.Measured(25.0, "GB/s", "cuda")})
		w := accelerator.NewWatcher(slot)
		for s := range 60 {
			w.Add(accelerator.Sample{At: time.Duration(s) * time.Second, Temperature: accelerator.Reading(40 + s/2), Margin: accelerator.Missing(), Power: 400, Clock: accelerator.Missing(), Rate: 180, Busy: 100, Gen: 5, Width: 16})
		}
		f.Series = append(f.Series, w.Series())
	}
	f.Diagnoses = []accelerator.Diagnosis{{Tool: "dcgmi", Tests: []accelerator.ToolTest{{Name: evil, Outcome: accelerator.Fail, Detail: evil}}}}
	f.Log.Events = []accelerator.Event{{Kind: accelerator.EventXID, Code: 999, Slot: "0000:0a:00.0", Text: evil, Count: 1}}
	r := accelerator.Judge(f, machine.Expect{CardID: "10de:2b85", Count: 2, Disks: []machine.Disk{{Serial: evil}}}, accelerator.Rules{})
	r.Changes = []accelerator.Change{{Kind: accelerator.ChangeDamage, Part: evil, Text: evil, Before: evil, After: evil}}
	return r
}

// Whatever a machine calls its parts, it stays text (K04).
func TestK04HTMLIsEscaped(t *testing.T) {
	var b bytes.Buffer
	if err := HTML(&b, report(t)); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "<img", "onerror=alert(2)>", "http://", "https://", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, good := range []string{"must not be handed over", "<polyline", "Temperature", "Throughput", "load.burn", "0000:0a:00.0", "From card to card", "25 GB/s *"} {
		if !strings.Contains(page, good) {
			t.Errorf("the page lacks %q", good)
		}
	}
	if strings.Contains(page, "Clock of the cores") {
		t.Error("a plot of nothing")
	}
	if regexp.MustCompile(`points="[^"]*(NaN|Inf)`).MatchString(page) {
		t.Error("a plot of no numbers")
	}
	if err := HTML(io.Discard, accelerator.Report{}); err != nil {
		t.Error(err)
	}
}

func TestJUnit(t *testing.T) {
	var b bytes.Buffer
	r := report(t)
	if err := JUnit(&b, r); err != nil {
		t.Fatal(err)
	}
	var s testSuite
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if s.Tests != len(r.Checks) || s.Failures == 0 || s.Errors == 0 || s.Skipped == 0 || len(s.Cases) != s.Tests || s.Time != "60.000" {
		t.Errorf("%+v", s)
	}
	blocked := 0
	for i, c := range s.Cases {
		if c.Class+"."+c.Name != "bareyard."+r.Checks[i].ID {
			t.Errorf("%s.%s", c.Class, c.Name)
		}
		if c.Failure != nil || c.Error != nil {
			blocked++
		}
		if (c.Failure != nil || c.Error != nil) != r.Checks[i].Blocks() {
			t.Errorf("%s blocks %v", r.Checks[i].ID, r.Checks[i].Blocks())
		}
	}
	if blocked == 0 || bytes.ContainsRune(b.Bytes(), 0x1b) {
		t.Error("escapes")
	}
}

func TestSign(t *testing.T) {
	public, private, _ := ed25519.GenerateKey(nil)
	other, _, _ := ed25519.GenerateKey(nil)
	r := report(t)
	data, err := Sign(r, private)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Verify(data, other, public)
	if err != nil || got.Outcome != r.Outcome || len(got.Checks) != len(r.Checks) {
		t.Fatalf("%v %s", err, got.Outcome)
	}
	// Laid out anew it still verifies.
	var v any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	pretty, _ := json.MarshalIndent(v, "", "    ")
	if _, err := Verify(pretty, public); err != nil {
		t.Error(err)
	}
	// A value that was changed does not, nor does anything else.
	for name, bad := range map[string][]byte{
		"another outcome":    bytes.Replace(data, []byte(`"outcome":"fail"`), []byte(`"outcome":"pass"`), 1),
		"another rate":       bytes.Replace(data, []byte(`"value":180`), []byte(`"value":181`), 1),
		"a number rewritten": bytes.Replace(data, []byte(`"value":180,`), []byte(`"value":180.0,`), 1),
		"another signature":  bytes.Replace(data, []byte(`"signature":"`), []byte(`"signature":"A`), 1),
		"no signature":       bytes.Replace(data, []byte(`"signature":"`), []byte(`"x":"`), 1),
		"another schema":     bytes.Replace(data, []byte(SignedSchema), []byte("bareyard.signed/9"), 1),
		"a key twice":        bytes.Replace(data, []byte(`"taken":`), []byte(`"outcome":"pass","taken":`), 1),
		"cut off":            data[:len(data)/2],
		"something more":     append(bytes.Clone(data), '1'),
		"empty":              nil,
		"the report alone":   func() []byte { b, _ := json.Marshal(r); return b }(),
	} {
		if bytes.Equal(bad, data) {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, err := Verify(bad, public); err == nil {
			t.Errorf("%s verifies", name)
		}
	}
	plain, _ := json.Marshal(r)
	if _, err := Verify(plain, public); !errors.Is(err, ErrUnsigned) {
		t.Errorf("the report alone: %v", err)
	}
	if _, err := Verify(data, other); !errors.Is(err, ErrSignature) {
		t.Errorf("another's key: %v", err)
	}
	if _, err := Verify(data); !errors.Is(err, ErrSignature) {
		t.Errorf("no key: %v", err)
	}
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":[true,null,"<é\u2028>"], "c":{}}`: `{"a":[true,null,"<é\u2028>"],"b":1,"c":{}}`,
		`1.50`:             `1.50`,
		"  \"\\u0041\\n\"": `"A\n"`,
	} {
		got, err := Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "{", `{"a":1,"a":2}`, "1 2", "nul", strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if _, err := Canonical([]byte(bad)); err == nil {
			t.Errorf("%.20q", bad)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add(`{"b":1,"a":[true,null,"x"]}`)
	f.Fuzz(func(t *testing.T, in string) {
		one, err := Canonical([]byte(in))
		if err != nil {
			return
		}
		two, err := Canonical(one)
		if err != nil || !bytes.Equal(one, two) {
			t.Fatalf("%q became %q, %v", one, two, err)
		}
	})
}
