package ppu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

func capture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tool makes a pretended ppu-smi.
func tool(t *testing.T, script string) Reader {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ppu-smi"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Reader{Tools: dir, Deadline: 20 * time.Second}
}

func data(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestParse(t *testing.T) {
	text, err := parseText(capture(t, "q.txt"))
	if err != nil || len(text.cards) != 2 || text.version.Value != "1.3.2-d7f5a2" {
		t.Fatalf("%v %+v", err, text)
	}
	fromXML, err := parseXML(capture(t, "q.xml"))
	if err != nil || len(fromXML.cards) != 1 || fromXML.version.Value != "1.3.2-d7f5a2" {
		t.Fatalf("%v %+v", err, fromXML)
	}
	for name, k := range map[string]accelerator.Card{"text": text.cards[0], "XML": fromXML.cards[0]} {
		if k.Slot != "0000:08:00.0" || k.Name.Value != "PPU-ZW810E" || k.Serial.Value != "9C4A0001" || k.UUID.Value != "PPU-0199" || k.ID.Value != "1ded:6001" || k.Memory.Value != 98304<<20 ||
			!k.ECC.Value || !k.ECCPending.Value || k.Uncorrected.Value != 0 || !k.Uncorrected.Known() || k.UncorrectedEver.Value != 1 || k.Corrected.Value != 3 || k.MIG.Value || k.ComputeMode.Value != "default" ||
			k.Temperature.Value != 24 || k.Power.Value != 74 || k.PowerLimit.Value != 400 || k.PowerDefault.Value != 400 || !k.Persistence.Value || k.LinkGen.Value != 5 || k.MaxWidth.Value != 16 || k.Processes.Value != 0 {
			t.Errorf("%s: %+v", name, k)
		}
	}
	if k := text.cards[0]; k.RemapPending.Value || !k.RemapPending.Known() || k.RemappedRows.Value != 1 || !k.Replays.Known() {
		t.Errorf("%+v", k)
	}
	// ERR! is neither a size nor an answer, and N/A is no zero.
	k := text.cards[1]
	if k.Memory.Known() || !k.Memory.Supported || k.ECC.Known() || !k.ECC.Supported || k.Uncorrected.Known() || k.Temperature.Supported || k.Serial.Known() || k.Processes.Value != 1 {
		t.Errorf("%+v", k)
	}
	csv, err := parseCSV("00000000:08:00.0, 98304, 400.00, 9C4A0001\n00000000:09:00.0, ERR!, [N/A], \n")
	if err != nil || len(csv.cards) != 2 || csv.cards[0].Memory.Value != 98304<<20 || csv.cards[0].Serial.Value != "9C4A0001" || csv.cards[1].Memory.Known() || csv.cards[1].PowerLimit.Supported {
		t.Errorf("%v %+v", err, csv)
	}
	for _, bad := range []string{"", "ERR!", "No devices were found", "<a/>", "<ppu_smi_log><ppu id='x'/></ppu_smi_log>", "<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", strings.Repeat("<a>", 100)} {
		if _, err := parseText(bad); err == nil {
			t.Errorf("text %.40q", bad)
		}
		if _, err := parseXML(bad); err == nil {
			t.Errorf("XML %.40q", bad)
		}
		if _, err := parseCSV(bad); err == nil {
			t.Errorf("CSV %.40q", bad)
		}
	}
}

func TestLinks(t *testing.T) {
	got := parseLinks("PPU 0: PPU-ZW810E (UUID: x)\n    Link 0: 50 GB/s\n    Link 1: <inactive>\n    Link 2: ERR!\nPPU 1: PPU-ZW810E\n    Link 0: 50 GB/s\n",
		"PPU 0: PPU-ZW810E\n    Link 0: 0 FEC uncorrectable errors\n    Link 0: 900 FEC correctable errors\n    Link 1: 4 FEC uncorrectable errors\nLink 7: 1 CRC errors\n")
	l := got[0]
	if len(l) != 4 || !l[0].Active.Value || l[0].Errors.Value != 0 || !l[0].Errors.Known() || l[1].Active.Value || l[1].Errors.Value != 4 || l[2].Active.Known() || len(got[1]) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestRead(t *testing.T) {
	dir := data(t)
	for name, script := range map[string]string{
		"XML":  `case "$*" in "-q -x") cat ` + dir + `/q.xml;; "icn -s") printf 'PPU 0: x\n Link 0: 50 GB/s\n';; "icn -e") printf 'PPU 0: x\n Link 0: 0 FEC uncorrectable errors\n';; esac`,
		"text": `case "$*" in "-q") cat ` + dir + `/q.txt;; *) echo "Invalid combination of input arguments";; esac`,
		"CSV":  `case "$*" in *csv*) echo "00000000:08:00.0, 98304, 400.00, 9C4A0001";; *) exit 1;; esac`,
	} {
		t.Run(name, func(t *testing.T) {
			d := tool(t, script).Read(t.Context(), accelerator.Bus{})
			if d.Fault != nil || len(d.Cards) == 0 || d.Cards[0].Memory.Value != 98304<<20 {
				t.Fatalf("%v %+v", d.Fault, d.Cards)
			}
			if name == "XML" && (len(d.Cards[0].Links) != 1 || !d.Cards[0].Links[0].Active.Value) {
				t.Errorf("%+v", d.Cards[0].Links)
			}
		})
	}
	// What was read is judged.
	d := tool(t, "cat "+dir+"/q.txt").Read(t.Context(), accelerator.Bus{})
	bus := accelerator.Bus{}
	for _, k := range d.Cards {
		bus.Cards = append(bus.Cards, accelerator.PCICard{Slot: k.Slot, Vendor: Vendor, Device: "6001", Answers: accelerator.Measured(true, "", "sysfs")})
	}
	rep := accelerator.Judge(accelerator.Facts{PCI: bus, Driver: []accelerator.Driver{d}, Log: accelerator.KernelLog{Records: 1}}, machine.Expect{CardID: "1ded:6001", Count: 2}, accelerator.Rules{})
	for id, want := range map[string]accelerator.Outcome{"card.answers": accelerator.Pass, "card.memory": accelerator.Error, "card.ecc": accelerator.Error, "card.mode": accelerator.Fail} {
		i := slices.IndexFunc(rep.Checks, func(c accelerator.Check) bool { return c.ID == id })
		if rep.Checks[i].Outcome != want {
			t.Errorf("%s is %s: %v", id, rep.Checks[i].Outcome, rep.Checks[i].Evidence)
		}
	}
}

// The tool exits 0 when it fails, hangs, is deaf to SIGTERM, prints a gigabyte.
func TestH11VendorTool(t *testing.T) {
	for _, c := range []struct {
		name, script string
		kind         accelerator.FaultKind
		detail       string
	}{
		{"exits 0 on failure", "echo 'init HGML error'", accelerator.FaultRefused, "init HGML error"},
		{"exits 0 without cards", "echo 'No devices were found'", accelerator.FaultRefused, "No devices"},
		{"exits 0 with ERR!", "echo 'ERR!'", accelerator.FaultProbe, ""},
		{"exits 0 with nothing", "true", accelerator.FaultProbe, ""},
		{"sleeps, deaf to SIGTERM", "trap '' TERM; (trap '' TERM; sleep 600) & sleep 600", accelerator.FaultHang, "no answer in 1s"},
		{"a gigabyte", "yes '<ppu>' | head -c 1073741824", accelerator.FaultProbe, "says more than it should"},
		{"crashes", "kill -SEGV $$", accelerator.FaultCrash, "segmentation fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := tool(t, c.script)
			if c.kind == accelerator.FaultHang {
				r.Deadline = time.Second
			}
			began := time.Now()
			d := r.Read(t.Context(), accelerator.Bus{})
			if d.Fault == nil || d.Fault.Kind != c.kind || !strings.Contains(d.Fault.Detail, c.detail) {
				t.Errorf("%v", d.Fault)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	if d := (Reader{Tools: t.TempDir()}).Read(t.Context(), accelerator.Bus{}); d.Fault == nil || d.Fault.Kind != accelerator.FaultAbsent {
		t.Errorf("without the tool: %v", d.Fault)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(capture(f, "q.txt"))
	f.Add(capture(f, "q.xml"))
	f.Add("00000000:08:00.0, 98304, 400.00, 9C4A0001\n")
	f.Add("PPU 0: x\n Link 0: 50 GB/s\n Link 0: 0 FEC uncorrectable errors\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) (overview, error){parseText, parseXML, parseCSV} {
			o, err := parse(text)
			if err == nil && (len(o.cards) == 0 || len(o.cards) > maxCards) {
				t.Fatalf("%d cards", len(o.cards))
			}
			for _, k := range o.cards {
				if k.Slot == "" || k.Memory.Known() && k.Memory.Value < 0 || k.Uncorrected.Value < 0 {
					t.Fatalf("%+v", k)
				}
			}
		}
		for _, links := range parseLinks(text, text) {
			if len(links) > 64 {
				t.Fatal("links without bounds")
			}
		}
	})
}
