package accelerator

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

var update = flag.Bool("update", false, "rewrite golden files")

const gib = int64(1) << 30

// goodMachine is a machine with n H20 cards on which nothing is wrong, and what is expected of it.
func goodMachine(n int) (Facts, machine.Expect) {
	f := Facts{
		Taken:  time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC),
		Log:    KernelLog{Records: 900},
		Driver: []Driver{{Vendor: "10de", Version: Measured("570.86.15", "", "nvml"), Count: Measured(int64(n), "", "nvml")}},
		Host: Host{
			CPU: Measured("Xeon", "", "proc"), Cores: Measured(int64(64), "", "proc"), Memory: Measured(512*gib, "bytes", "proc"),
			Kernel: Measured("6.1.0-29-amd64", "", "proc"), Nouveau: Measured(false, "", "sysfs"),
			Disks: []HostDisk{{Name: "nvme0n1", Serial: Measured("S1", "", "sysfs"), Size: Measured(960*gib, "bytes", "sysfs")}},
			NICs:  []HostNIC{{Name: "eno1", MAC: Measured("02:00:00:00:00:01", "", "sysfs")}, {Name: "eno2", MAC: Measured("02:00:00:00:00:02", "", "sysfs")}},
			EDAC:  []EDAC{{Name: "mc0", Uncorrected: Measured(int64(0), "", "sysfs"), Corrected: Measured(int64(0), "", "sysfs")}},
		},
	}
	e := machine.Expect{
		CardID: "10de:2329", Count: n,
		MACs:  []string{"02:00:00:00:00:01", "02:00:00:00:00:02"},
		Disks: []machine.Disk{{Serial: "S1", Size: 960 * gib, Role: machine.SystemDisk}},
	}
	for i := range n {
		slot := fmt.Sprintf("0000:%02x:00.0", 0x0a+i)
		f.PCI.Cards = append(f.PCI.Cards, PCICard{
			Slot: slot, Vendor: "10de", Device: "2329", Subsystem: "10de:198b", Class: "030200", Driver: "nvidia",
			Answers: Measured(true, "", "sysfs"), LinkSpeed: Measured("2.5 GT/s PCIe", "", "sysfs"), LinkWidth: Measured(int64(16), "", "sysfs"),
			MaxSpeed: Measured("32.0 GT/s PCIe", "", "sysfs"), MaxWidth: Measured(int64(16), "", "sysfs"),
			NUMA: Measured(int64(0), "", "sysfs"), AERFatal: Measured(int64(0), "", "sysfs"),
		})
		f.Driver[0].Cards = append(f.Driver[0].Cards, Card{
			Index: i, Slot: slot, Name: Measured("NVIDIA H20", "", "nvml"), Serial: Measured(fmt.Sprintf("165012400000%d", i), "", "nvml"),
			UUID: Measured(fmt.Sprintf("GPU-%d", i), "", "nvml"), VBIOS: Measured("96.00.74.00.11", "", "nvml"), ID: Measured("10de:2329", "", "nvml"),
			Memory: Measured(int64(97871)<<20, "bytes", "nvml"), ECC: Measured(true, "", "nvml"), ECCPending: Measured(true, "", "nvml"),
			Uncorrected: Measured(int64(0), "", "nvml"), UncorrectedEver: Measured(int64(0), "", "nvml"),
			RemapPending: Measured(false, "", "nvml"), RemapFailed: Measured(false, "", "nvml"), RemappedRows: Measured(int64(0), "", "nvml"),
			Recovery: Measured("none", "", "nvml"), MIG: Measured(false, "", "nvml"), ComputeMode: Measured("default", "", "nvml"),
			LinkGen: Measured(int64(1), "", "nvml"), LinkWidth: Measured(int64(16), "", "nvml"), MaxGen: Measured(int64(5), "", "nvml"),
			MaxWidth: Measured(int64(16), "", "nvml"), Temperature: Measured(int64(31), "°C", "nvml"), Power: Measured(int64(74), "W", "nvml"),
			PowerLimit: Measured(int64(500), "W", "nvml"), PowerDefault: Measured(int64(500), "W", "nvml"),
		})
		e.Accelerators = append(e.Accelerators, machine.Accelerator{Slot: slot, Vendor: "10de", Device: "2329"})
	}
	return f, e
}

// check returns the check of a report by id.
func check(t *testing.T, r Report, id string) Check {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("no check %s in the report", id)
	}
	return r.Checks[i]
}

func TestJudge(t *testing.T) {
	lost := &Fault{Kind: FaultLost, During: "nvmlDeviceGetHandleByIndex", Detail: "GPU is lost"}
	cases := []struct {
		name    string
		change  func(*Facts, *machine.Expect)
		check   string
		outcome Outcome
		blocks  bool
		says    string // in the check's summary, evidence or action
	}{
		{"healthy", func(*Facts, *machine.Expect) {}, "card.answers", Pass, false, "8 of 8"},
		{"a card fewer on the bus", func(f *Facts, _ *machine.Expect) { f.PCI.Cards = slices.Delete(f.PCI.Cards, 3, 4) }, "card.count", Fail, true, "0000:0d:00.0: recorded 10de:2329, nothing there"},
		{"a card too many", func(f *Facts, _ *machine.Expect) { f.PCI.Cards = append(f.PCI.Cards, f.PCI.Cards[0]) }, "card.count", Fail, true, "9 of 8"},
		{"bus unreadable", func(f *Facts, _ *machine.Expect) { f.PCI = Bus{Error: "no such file"} }, "card.count", Error, true, "no such file"},
		{"class without a card id", func(_ *Facts, e *machine.Expect) { e.CardID = "" }, "card.identity", Error, true, "names no card"},
		{"a card gone from the bus", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[2].Answers.Value = false }, "card.bus", Fail, true, "0000:0c:00.0: its configuration space"},
		{"a card with vfio", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[2].Driver = "vfio-pci" }, "card.bus", Fail, true, "vfio-pci"},
		{"fatal bus errors", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[2].AERFatal.Value = 2 }, "card.bus", Fail, true, "2 fatal"},
		{"idle link is not judged (H05)", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[2].LinkSpeed.Value = "2.5 GT/s PCIe" }, "card.bus", Pass, false, "not judged without load"},
		{"fewer lanes at rest (H05)", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[2].LinkWidth.Value = 8 }, "card.bus", Warn, false, "8 lanes at rest"},
		{"no driver", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultAbsent, Detail: "libnvidia-ml.so.1: cannot open"}}}
		}, "card.driver", Fail, true, "no driver: its library is not installed"},
		{"no driver, and the image brings none", func(f *Facts, e *machine.Expect) {
			e.NoDriver = true
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultAbsent, Detail: "libnvidia-ml.so.1: cannot open"}}}
		}, "card.driver", Warn, false, "no driver: its library is not installed"},
		{"driver hangs", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultHang, Detail: "no answer in 20s"}}}
		}, "card.driver", Fail, true, "hang"},
		{"probe could not run", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultProbe, Detail: "fork: no memory"}}}
		}, "card.driver", Error, true, "fork"},
		{"no reader", func(f *Facts, e *machine.Expect) { e.CardID = "19e5:d802" }, "card.driver", Skip, true, "no reader"},
		{"driver counts seven", func(f *Facts, _ *machine.Expect) {
			f.Driver[0].Count.Value = 7
			f.Driver[0].Cards = f.Driver[0].Cards[:7]
		}, "card.answers", Fail, true, "0000:11:00.0: is on the bus, the driver does not list it"},
		{"driver count differs", func(f *Facts, _ *machine.Expect) { f.Driver[0].Count.Value = 7 }, "card.driver", Fail, true, "counts 7 cards, expected 8"},
		{"lost card", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Fault = lost }, "card.answers", Fail, true, "0000:0d:00.0: card 3: lost"},
		{"card without an address", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Slot = "" }, "card.answers", Fail, true, "without a PCI address"},
		{"too little memory", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Memory.Value = 80 * gib }, "card.memory", Fail, true, "has 81920 MiB, H20 has 97871"},
		{"memory unreadable", func(f *Facts, _ *machine.Expect) {
			f.Driver[0].Cards[3].Memory = Unreadable[int64]("nvml", "unknown error")
		}, "card.memory", Error, true, "unknown error"},
		{"ecc off", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].ECC.Value = false }, "card.ecc", Fail, true, "is off"},
		{"ecc off at the next reset", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].ECCPending.Value = false }, "card.ecc", Fail, true, "next reset"},
		{"ecc missing where the card has it", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].ECC = Unsupported[bool]("nvml") }, "card.ecc", Error, true, "says it has none"},
		{"uncorrected error", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Uncorrected.Value = 1 }, "card.ecc", Fail, true, "0000:0d:00.0: 1 uncorrected"},
		{"uncorrected error long ago", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].UncorrectedEver.Value = 1 }, "card.ecc", Warn, false, "in its life"},
		{"row pending", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].RemapPending.Value = true }, "card.remap", Fail, true, "waits for a reset"},
		{"row failed", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].RemapFailed.Value = true }, "card.remap", Fail, true, "could not be remapped"},
		{"recovery asked", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Recovery.Value = "reset" }, "card.recovery", Fail, true, "asks for reset"},
		{"recovery unknown to an old driver", func(f *Facts, _ *machine.Expect) {
			for i := range f.Driver[0].Cards {
				f.Driver[0].Cards[i].Recovery = Unsupported[string]("nvml")
			}
		}, "card.recovery", Skip, false, "not supported by 8 cards"},
		{"MIG left on", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].MIG.Value = true }, "card.mode", Fail, true, "split into instances"},
		{"compute mode left", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].ComputeMode.Value = "prohibited" }, "card.mode", Fail, true, "prohibited"},
		{"power capped", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].PowerLimit.Value = 300 }, "card.power", Fail, true, "limited to 300 W"},
		{"another firmware", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].VBIOS.Value = "1" }, "card.uniform", Warn, false, "2 kinds"},
		{"log unreadable", func(f *Facts, _ *machine.Expect) { f.Log = KernelLog{Error: "permission denied"} }, "log.kernel", Error, true, "permission denied"},
		{"log empty", func(f *Facts, _ *machine.Expect) { f.Log = KernelLog{} }, "log.kernel", Error, true, "empty"},
		{"log overwritten", func(f *Facts, _ *machine.Expect) { f.Log.Missed = 5 }, "log.kernel", Warn, false, "5 records"},
		{"log dropped", func(f *Facts, _ *machine.Expect) { f.Log.Dropped = 5 }, "log.kernel", Error, true, "5 more lines"},
		{"nouveau", func(f *Facts, _ *machine.Expect) { f.Host.Nouveau.Value = true }, "host.nouveau", Fail, true, "blacklist"},
		{"no memory", func(f *Facts, _ *machine.Expect) { f.Host.Memory.Value = 0 }, "host.memory", Fail, true, "no memory"},
		{"memory errors", func(f *Facts, _ *machine.Expect) { f.Host.EDAC[0].Uncorrected.Value = 1 }, "host.memory", Fail, true, "mc0: 1 uncorrected"},
		{"corrected memory errors", func(f *Facts, _ *machine.Expect) { f.Host.EDAC[0].Corrected.Value = 3 }, "host.memory", Warn, false, "mc0: 3 corrected"},
		{"disk missing", func(f *Facts, _ *machine.Expect) { f.Host.Disks = nil }, "host.disks", Fail, true, "S1: recorded, not found"},
		{"disk of another size", func(f *Facts, _ *machine.Expect) { f.Host.Disks[0].Size.Value = 5 }, "host.disks", Fail, true, "has 5 bytes"},
		{"disk too many", func(f *Facts, _ *machine.Expect) {
			f.Host.Disks = append(f.Host.Disks, HostDisk{Name: "sdb", Serial: Unsupported[string]("sysfs")})
		}, "host.disks", Warn, false, "sdb (n/a): not recorded"},
		{"port missing", func(f *Facts, _ *machine.Expect) { f.Host.NICs = f.Host.NICs[:1] }, "host.nics", Fail, true, "02:00:00:00:00:02: recorded, not found"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, e := goodMachine(8)
			c.change(&f, &e)
			r := Judge(f, e, Rules{})
			got := check(t, r, c.check)
			if got.Outcome != c.outcome || r.Blocks() != c.blocks {
				t.Errorf("%s is %s and the report blocks: %v (%s); want %s, %v", c.check, got.Outcome, r.Blocks(), r.Reason(), c.outcome, c.blocks)
			}
			if all := got.Summary + "\n" + strings.Join(got.Evidence, "\n") + "\n" + got.Advice; !strings.Contains(all, c.says) {
				t.Errorf("%s does not say %q:\n%s", c.check, c.says, all)
			}
			if (r.Reason() == "") == r.Blocks() {
				t.Errorf("blocks %v with reason %q", r.Blocks(), r.Reason())
			}
			if got.Outcome == Fail && got.Advice == "" && c.check != "card.driver" {
				t.Errorf("%s fails without saying what to do", c.check)
			}
		})
	}
}

// One lost card leaves the other seven judged (GPU_IS_LOST aborts the whole query).
func TestH03LostCardLeavesTheOthers(t *testing.T) {
	f, e := goodMachine(8)
	f.Driver[0].Cards[3] = Card{Index: 3, Slot: "0000:0d:00.0", Fault: &Fault{Kind: FaultLost, Detail: "GPU is lost"}}
	f.PCI.Cards[3].LinkSpeed = Unreadable[string]("sysfs", `link speed "Unknown"`)
	r := Judge(f, e, Rules{})
	if c := check(t, r, "card.ecc"); c.Outcome != Pass || !strings.Contains(c.Summary, "7 of 7") {
		t.Errorf("the others: %s %s", c.Outcome, c.Summary)
	}
	for _, c := range r.Cards {
		want := Pass
		if c.Slot == "0000:0d:00.0" {
			want = Fail
		}
		if c.Outcome != want {
			t.Errorf("%s is %s, want %s (%v)", c.Slot, c.Outcome, want, c.Problems)
		}
	}
	if len(r.Cards) != 8 {
		t.Errorf("%d cards in the report, want 8", len(r.Cards))
	}

	// A card that is lost before it can say where it is does not vanish.
	f.Driver[0].Cards[3].Slot = ""
	if r = Judge(f, e, Rules{}); len(r.Cards) != 9 || r.Cards[8].Outcome != Fail || !r.Blocks() {
		t.Errorf("a lost card without a slot: %d cards", len(r.Cards))
	}
}

// Wrong count, wrong model, one card swapped: the exact slot is named.
func TestH09WrongCard(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Facts, *machine.Expect)
		check  string
		slot   string
	}{
		{"seven", func(f *Facts, _ *machine.Expect) { f.PCI.Cards = slices.Delete(f.PCI.Cards, 5, 6) }, "card.count", "0000:0f:00.0"},
		{"other device id", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[5].Device = "2330" }, "card.identity", "0000:0f:00.0"},
		{"other slot", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[5].Slot = "0000:2f:00.0" }, "card.identity", "0000:2f:00.0"},
		{"record of another class", func(_ *Facts, e *machine.Expect) { e.Accelerators[5].Device = "2330" }, "card.identity", "0000:0f:00.0"},
		{"driver names another", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[5].ID.Value = "10de:2330" }, "card.answers", "0000:0f:00.0"},
		{"MIG left", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[5].MIG.Value = true }, "card.mode", "0000:0f:00.0"},
		{"vfio", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[5].Driver = "vfio-pci" }, "card.bus", "0000:0f:00.0"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, e := goodMachine(8)
			c.change(&f, &e)
			r := Judge(f, e, Rules{})
			got := check(t, r, c.check)
			if got.Outcome != Fail || !r.Blocks() || !strings.Contains(strings.Join(got.Evidence, "\n"), c.slot) {
				t.Errorf("%s: %s %v", c.check, got.Outcome, got.Evidence)
			}
			i := slices.IndexFunc(r.Cards, func(k CardResult) bool { return k.Slot == c.slot })
			if i < 0 || r.Cards[i].Outcome != Fail {
				t.Errorf("the card in %s is not blamed", c.slot)
			}
		})
	}
}

func TestNoCardsExpected(t *testing.T) {
	f, e := goodMachine(0)
	e.CardID = ""
	f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultAbsent}}}
	r := Judge(f, e, Rules{})
	if r.Outcome != Pass || r.Blocks() {
		t.Errorf("a machine without cards is %s: %s", r.Outcome, r.Reason())
	}
	for _, c := range r.Checks {
		if strings.HasPrefix(c.ID, "card.") && (c.Outcome != Pass || c.Summary != "none expected") {
			t.Errorf("%s: %s, %s", c.ID, c.Outcome, c.Summary)
		}
	}

	with, _ := goodMachine(1)
	f.PCI = with.PCI
	f.Driver = with.Driver
	f.Driver[0].Cards[0].Fault = &Fault{Kind: FaultLost, Detail: "GPU is lost"}
	if r = Judge(f, e, Rules{}); len(r.Cards) != 1 || r.Cards[0].Outcome != Warn || len(r.Cards[0].Problems) != 1 {
		t.Errorf("an unexpected card that is lost: %+v", r.Cards)
	}
	if r = Judge(f, e, Rules{}); r.Outcome != Warn || r.Blocks() || check(t, r, "card.count").Outcome != Warn {
		t.Errorf("an unexpected card is %s, want a warning", r.Outcome)
	}
}

// A GeForce has no error correction: what it lacks is not a fault, and not a pass either.
func TestRTX5090WithoutECC(t *testing.T) {
	f, e := goodMachine(8)
	e.CardID = "10de:2b85"
	for i := range 8 {
		f.PCI.Cards[i].Device, e.Accelerators[i].Device = "2b85", "2b85"
		k := &f.Driver[0].Cards[i]
		k.ID.Value, k.Memory.Value = "10de:2b85", int64(32607)<<20
		k.PowerLimit.Value, k.PowerDefault.Value = 575, 575
		k.ECC, k.ECCPending = Unsupported[bool]("nvml"), Unsupported[bool]("nvml")
		k.Uncorrected, k.UncorrectedEver = Unsupported[int64]("nvml"), Unsupported[int64]("nvml")
		k.RemapFailed, k.RemapPending = Unsupported[bool]("nvml"), Unsupported[bool]("nvml")
	}
	r := Judge(f, e, Rules{})
	if r.Blocks() || r.Outcome != Pass {
		t.Errorf("8 good RTX 5090 are %s: %s", r.Outcome, r.Reason())
	}
	if c := check(t, r, "card.ecc"); c.Outcome != Skip || c.Required {
		t.Errorf("card.ecc is %s, required %v", c.Outcome, c.Required)
	}
}

func TestOverall(t *testing.T) {
	cases := []struct {
		name   string
		checks []Check
		want   Outcome
		blocks bool
	}{
		{"nothing was checked", nil, Error, true},
		{"pass", []Check{{Outcome: Pass, Required: true}}, Pass, false},
		{"warn", []Check{{Outcome: Pass}, {Outcome: Warn, Required: true}}, Warn, false},
		{"required skip", []Check{{Outcome: Skip, Required: true}}, Skip, true},
		{"required error", []Check{{Outcome: Error, Required: true}, {Outcome: Skip, Required: true}}, Error, true},
		{"other skip", []Check{{Outcome: Skip}}, Pass, false},
		{"other error", []Check{{Outcome: Error}}, Warn, false},
		{"other fail", []Check{{Outcome: Fail}}, Fail, true},
		{"an outcome that nobody knows", []Check{{Outcome: "splendid"}}, "splendid", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := Report{Checks: c.checks}
			if got := overall(c.checks); got != c.want || r.Blocks() != c.blocks {
				t.Errorf("%s, blocks %v; want %s, %v", got, r.Blocks(), c.want, c.blocks)
			}
		})
	}
}

func TestReportRoundTrip(t *testing.T) {
	f, e := goodMachine(8)
	f.Driver[0].Cards[3].Fault = &Fault{Kind: FaultCrash, During: "nvmlDeviceGetName", Detail: "signal: segmentation fault"}
	r := Judge(f, e, Rules{})
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeReport(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("the report changed on its way:\n%+v\n%+v", got, r)
	}
	// A report that calls itself better than its checks is put right.
	lie := bytes.Replace(data, []byte(`"outcome":"fail"`), []byte(`"outcome":"pass"`), 1)
	if got, err = DecodeReport(lie); err != nil || got.Outcome != Fail {
		t.Errorf("a lying report is %s, %v", got.Outcome, err)
	}
	// Whatever is no outcome fails, on a check as on a card.
	strange := bytes.Replace(data, []byte(`"outcome":"pass","required":true`), []byte(`"outcome":"splendid","required":false`), 1)
	if got, err = DecodeReport(strange); err != nil || got.Checks[0].Outcome != Fail || !got.Blocks() {
		t.Errorf("an outcome that nobody knows is %+v, %v", got.Checks[0], err)
	}
	for _, number := range []func(*Report, string){
		func(r *Report, s string) { r.Cards[0].Card.Serial = Measured(s, "", "nvml") },
		func(r *Report, s string) { r.Cards[0].Card.UUID = Measured(s, "", "nvml") },
		func(r *Report, s string) { r.Cards[0].PCI.Number = Measured(s, "", "sysfs") },
	} {
		for n, taken := range map[int]bool{128: true, 129: false} {
			r := Judge(f, e, Rules{})
			number(&r, strings.Repeat("9", n))
			data, _ := json.Marshal(r)
			if _, err := DecodeReport(data); (err == nil) != taken {
				t.Errorf("a number of %d bytes: %v", n, err)
			}
		}
	}
	for _, bad := range []string{``, `null`, `{}`, `[]`, `{"schema":"bareyard.validation/3"}`} {
		if _, err := DecodeReport([]byte(bad)); err == nil {
			t.Errorf("%q was taken for a report", bad)
		}
	}
	for _, empty := range []string{`{"schema":"bareyard.validation/1","outcome":"pass"}`, `{"schema":"bareyard.validation/1","outcome":"pass","checks":[]}`} {
		if got, err := DecodeReport([]byte(empty)); err != nil || !got.Blocks() || got.Outcome != Error {
			t.Errorf("a report without checks is %s, blocks %v, %v", got.Outcome, got.Blocks(), err)
		}
	}
}

func TestWriteText(t *testing.T) {
	good, e := goodMachine(8)
	bad, _ := goodMachine(8)
	bad.Driver[0].Cards[3] = Card{Index: 3, Slot: "0000:0d:00.0", Fault: &Fault{Kind: FaultLost, During: "nvmlDeviceGetName", Detail: "GPU is lost"}}
	bad.Driver[0].Cards[5].Uncorrected.Value = 2
	bad.Driver[0].Cards[6].Name.Value = "NVIDIA H20\x1b[2J"
	bad.Log.Events = []Event{{Kind: EventXID, Code: 79, Slot: "0000:0d:00.0", Text: "NVRM: Xid (PCI:0000:0d:00): 79, GPU has fallen off the bus.", Count: 3}}
	for name, f := range map[string]Facts{"healthy": good, "faulty": bad} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Judge(f, e, Rules{}).WriteText(&out); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", out.Bytes())
			if bytes.ContainsRune(out.Bytes(), 0x1b) {
				t.Error("the report can steer the terminal")
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", path, got)
	}
}

// Judge must not depend on map order: the report of one machine is compared with that of last month.
func TestJudgeIsPure(t *testing.T) {
	f, e := goodMachine(8)
	f.Driver[0].Cards[3].Fault = &Fault{Kind: FaultLost, Detail: "GPU is lost"}
	f.Driver[0].Cards[6].Slot = ""
	before, _ := json.Marshal(f)
	first, _ := json.Marshal(Judge(f, e, Rules{}))
	for range 20 {
		again, _ := json.Marshal(Judge(f, e, Rules{}))
		if !bytes.Equal(first, again) {
			t.Fatal("two judgements of the same facts differ")
		}
	}
	if after, _ := json.Marshal(f); !bytes.Equal(before, after) {
		t.Error("the judgement changed the facts")
	}
}
