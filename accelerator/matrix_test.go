package accelerator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// healthy is a machine with eight cards of a kind on which a plan found nothing wrong, and what is expected of it.
func healthy(t *testing.T, device string, plan Plan) (Facts, machine.Expect) {
	t.Helper()
	p, ok := Rules{}.Profile(device, "")
	if !ok {
		t.Fatalf("no profile of %s", device)
	}
	vendor, id, _ := strings.Cut(device, ":")
	f, e := goodMachine(8)
	f.Plan, e.CardID, f.Driver[0].Vendor = plan, device, vendor
	linked := p.Links.Judges()
	if linked {
		f.PCI.Switches = []string{"0000:80:00.0", "0000:81:00.0"}
		f.Host.FabricMgr = Measured("running", "", "proc")
	}
	memory, power, gen, width := int64(40<<10), int64(400), int64(5), int64(16)
	if p.Memory.Judges() {
		memory = p.Memory.Value
	}
	if p.Power.Judges() {
		power = p.Power.Value
	}
	if p.LinkGen.Judges() {
		gen = p.LinkGen.Value
	}
	for i := range f.PCI.Cards {
		c := &f.PCI.Cards[i]
		c.Vendor, c.Device, e.Accelerators[i].Vendor, e.Accelerators[i].Device = vendor, id, vendor, id
		c.AERCorrected = Measured(int64(3), "", "sysfs")
		k := &f.Driver[0].Cards[i]
		k.Name.Value, k.ID.Value, k.Memory.Value = p.Name, device, memory<<20
		k.PowerLimit.Value, k.PowerDefault.Value, k.MaxGen.Value, k.MaxWidth.Value = power, power, gen, width
		k.Replays = Measured(int64(7), "", "nvml")
		k.Persistence, k.Processes, k.InfoROM = Measured(true, "", "nvml"), Measured(int64(0), "", "nvml"), Measured(true, "", "nvml")
		if p.ECC.Value == No {
			k.ECC, k.ECCPending, k.Uncorrected, k.UncorrectedEver = Unsupported[bool]("nvml"), Unsupported[bool]("nvml"), Unsupported[int64]("nvml"), Unsupported[int64]("nvml")
			k.RemapFailed, k.RemapPending, k.InfoROM = Unsupported[bool]("nvml"), Unsupported[bool]("nvml"), Unsupported[bool]("nvml")
		}
		if linked {
			k.Fabric = Measured("completed", "", "nvml")
			for l := range int(p.Links.Value) {
				k.Links = append(k.Links, Link{l, Measured(true, "", "nvml"), Measured(int64(0), "", "nvml")})
			}
		}
		if vendor != nvidiaVendor {
			k.Health = Measured("OK", "", "npu-smi")
			k.MIG, k.ComputeMode, k.Persistence, k.Recovery = Unsupported[bool]("x"), Unsupported[string]("x"), Unsupported[bool]("x"), Unsupported[string]("x")
			k.RemapFailed, k.RemapPending, k.Replays = Unsupported[bool]("x"), Unsupported[bool]("x"), Unsupported[int64]("x")
		}
	}
	f.Host.Present, f.Host.Online = Measured("0-63", "", "sysfs"), Measured("0-63", "", "sysfs")
	f.Host.Throttles, f.Host.Cmdline = Measured(int64(0), "", "sysfs"), Measured("BOOT_IMAGE=/vmlinuz root=LABEL=root ro quiet", "", "proc")
	f.Host.Clock = Clock{Now: f.Taken, Synced: Measured(true, "", "kernel")}
	f.Host.Disks[0].SMART = &SMART{Source: "nvme", Warning: Measured(int64(0), "", "nvme"), Spare: Measured(int64(100), "%", "nvme"), SpareLeast: Measured(int64(10), "%", "nvme"), Used: Measured(int64(2), "%", "nvme"), MediaErrors: Measured(int64(0), "", "nvme")}
	for i := range 2 {
		f.Host.Fabrics = append(f.Host.Fabrics, FabricPort{Name: fmt.Sprintf("mlx5_%d/1", i), Layer: Measured("InfiniBand", "", "sysfs"), State: Measured("active", "", "sysfs"),
			Rate: Measured(int64(400), "Gbit/s", "sysfs"), Model: Measured("MT_0000000838", "", "sysfs"), Symbol: Measured(int64(0), "", "sysfs"), Downed: Measured(int64(1), "", "sysfs")})
	}
	f.BMC = &BMC{Taken: f.Taken,
		Supplies: []Supply{{Name: "PSU1", Present: true, Healthy: Measured(true, "", "ipmi"), Input: Measured(true, "", "ipmi")}, {Name: "PSU2", Present: true, Healthy: Measured(true, "", "ipmi"), Input: Measured(true, "", "ipmi")}},
		Fans:     []Fan{{Name: "FAN1", Present: true, Healthy: Measured(true, "", "ipmi"), RPM: Measured(int64(9000), "1/min", "ipmi")}},
		Events:   []SELEvent{{At: f.Taken.AddDate(0, -2, 0), Sensor: "PSU2", Text: "power lost", Severity: "critical", Asserted: true}},
	}
	if plan == PlanHealth || plan == PlanRead {
		return f, e
	}
	// Before the load: the same, but older, and independent of what the test then changes.
	b, _ := goodMachine(0)
	f.Before = &Snapshot{Taken: f.Taken.Add(-2 * time.Minute), Log: f.Log, PCI: Bus{Cards: slices.Clone(f.PCI.Cards)}, Host: b.Host}
	f.Before.Host.Throttles, f.Before.Host.Fabrics = f.Host.Throttles, slices.Clone(f.Host.Fabrics)
	d := f.Driver[0]
	d.Cards = slices.Clone(d.Cards)
	for i := range d.Cards {
		d.Cards[i].Links = slices.Clone(d.Cards[i].Links)
	}
	f.Before.Driver = []Driver{d}
	f.Asked, f.Seconds = 60, 60
	if plan == PlanAcceptance {
		f.Stages, f.Asked, f.Seconds = Stages(), 3600, 3605
	}
	f.Diagnoses = []Diagnosis{{Tool: "dcgmi", Fault: &Fault{Kind: FaultAbsent, Detail: "not installed"}}}
	if vendor == "19e5" {
		f.Diagnoses = []Diagnosis{{Tool: "ascend-dmi", Tests: []ToolTest{{Name: "aicore", Outcome: Pass}, {Name: "hbm", Outcome: Pass}}}}
	}
	if vendor != nvidiaVendor {
		return f, e
	}
	load := func(test, slot, peer, unit string, rate float64) Load {
		return Load{Test: test, Tool: "bareyard-burn", Version: "1", Slot: slot, Peer: peer, Seconds: f.Asked, Rate: Measured(rate, unit, "cuda"), Direct: linked && peer != ""}
	}
	for i, c := range f.PCI.Cards {
		spread := 1 - 0.004*float64(i%4)
		burn, pattern := load(TestBurn, c.Slot, "", "TFLOPS", 150*spread), load(TestPattern, c.Slot, "", "GB/s", 900*spread)
		burn.Result, pattern.Bytes = "7f3c9a1e5b2d4f60", memory<<20*9/10
		f.Loads = append(f.Loads, burn, pattern, load(TestRead, c.Slot, "", "GB/s", 1500*spread), load(TestToCard, c.Slot, "", "GB/s", 50*spread), load(TestToHost, c.Slot, "", "GB/s", 51*spread))
		for k, o := range f.PCI.Cards {
			if k != i {
				f.Loads = append(f.Loads, load(TestPeer, c.Slot, o.Slot, "GB/s", 30+5*float64((i/4+k/4)%2)))
				if linked {
					f.Loads[len(f.Loads)-1].Rate.Value = 350 * spread
				}
			}
		}
		w := NewWatcher(c.Slot)
		for s := range 60 {
			heat := 40 + min(30, s)
			w.Add(Sample{At: time.Duration(s) * time.Second, Temperature: Reading(heat + i%3), Margin: Missing(), Power: Reading(power - 5), Clock: 1800, Rate: Reading(150 * spread), Busy: 100,
				Gen: Reading(gen), Width: Reading(width), PortGen: Reading(gen), PortWidth: Reading(width), Reasons: []Throttle{ThrottlePower}})
		}
		f.Series = append(f.Series, w.Series())
	}
	return f, e
}

// rewatch replaces the samples of a card.
func rewatch(f *Facts, card, samples int, change func(i int, s *Sample)) {
	w := NewWatcher(f.PCI.Cards[card].Slot)
	for i := range samples {
		s := Sample{At: time.Duration(i) * time.Second, Temperature: 60, Margin: Missing(), Power: 400, Clock: 1800, Rate: 150, Busy: 100, Gen: 5, Width: 16, PortGen: 5, PortWidth: 16}
		change(i, &s)
		w.Add(s)
	}
	f.Series[card] = w.Series()
}

func loadAt(f *Facts, test string, card int) *Load {
	i := slices.IndexFunc(f.Loads, func(l Load) bool { return l.Test == test && l.Slot == f.PCI.Cards[card].Slot })
	return &f.Loads[i]
}

func xidEvent(code int, slot, text string) Event {
	return Event{Kind: EventXID, Code: code, Slot: slot, Text: fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", slot[:10], code, text), Count: 1}
}

// trouble is a fault that is put into a healthy machine, and who must catch it.
type trouble struct {
	area, name string
	device     string // "" for an H100
	plan       Plan   // "" for postboot
	change     func(*Facts, *machine.Expect)
	check      string
	outcome    Outcome
	action     Action
	blocks     bool
}

// troubles are the faults that validation is made for.
func troubles() []trouble {
	const slot3 = "0000:0d:00.0"
	drv := func(f *Facts) *Card { return &f.Driver[0].Cards[3] }
	return []trouble{
		{"card", "one card fewer on the bus", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards = slices.Delete(f.PCI.Cards, 3, 4) }, "card.count", Fail, ActPowerCycle, true},
		{"card", "another model in one slot", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].Device = "2329" }, "card.identity", Fail, ActNone, true},
		{"card", "configuration space reads all ones", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].Answers.Value = false }, "card.bus", Fail, ActPowerCycle, true},
		{"card", "card bound to vfio-pci", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].Driver = "vfio-pci" }, "card.bus", Fail, ActReboot, true},
		{"card", "fatal PCIe errors", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].AERFatal.Value = 1 }, "card.bus", Fail, ActPowerCycle, true},
		{"card", "eight lanes at rest", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].LinkWidth.Value = 8 }, "card.bus", Warn, ActReseat, false},
		{"card", "driver not installed", "", "", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultAbsent}}}
		}, "card.driver", Fail, ActNone, true},
		{"card", "driver hangs", "", "", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultHang}}}
		}, "card.driver", Fail, ActReboot, true},
		{"card", "driver lacks a function", "", "", func(f *Facts, _ *machine.Expect) {
			f.Driver = []Driver{{Vendor: "10de", Fault: &Fault{Kind: FaultSymbol}}}
		}, "card.driver", Error, ActNone, true},
		{"card", "driver counts seven", "", "", func(f *Facts, _ *machine.Expect) { f.Driver[0].Count.Value = 7 }, "card.driver", Fail, ActReboot, true},
		{"card", "card is lost", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Fault = &Fault{Kind: FaultLost} }, "card.answers", Fail, ActPowerCycle, true},
		{"card", "card crashes the one who asks", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Fault = &Fault{Kind: FaultCrash} }, "card.answers", Fail, ActReboot, true},
		{"card", "half of the memory", "10de:2335", "", func(f *Facts, _ *machine.Expect) { drv(f).Memory.Value /= 2 }, "card.memory", Fail, ActReplace, true},
		{"card", "less memory than its neighbours, size unknown to the profile", "10de:20b2", "", func(f *Facts, _ *machine.Expect) { drv(f).Memory.Value /= 2 }, "card.memory", Fail, ActReplace, true},
		{"card", "error correction off", "", "", func(f *Facts, _ *machine.Expect) { drv(f).ECC.Value = false }, "card.ecc", Fail, ActReset, true},
		{"card", "error correction goes off at the next reset", "", "", func(f *Facts, _ *machine.Expect) { drv(f).ECCPending.Value = false }, "card.ecc", Fail, ActNone, true},
		{"card", "uncorrected memory error", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Uncorrected.Value = 1 }, "card.ecc", Fail, ActReset, true},
		{"card", "uncorrected memory error long ago, new machine", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { drv(f).UncorrectedEver.Value = 1 }, "card.ecc", Fail, ActReplace, true},
		{"card", "uncorrected memory error long ago, reinstall", "", "", func(f *Facts, _ *machine.Expect) { drv(f).UncorrectedEver.Value = 1 }, "card.ecc", Warn, ActNone, false},
		{"card", "remapped row waits for a reset", "", "", func(f *Facts, _ *machine.Expect) { drv(f).RemapPending.Value = true }, "card.remap", Fail, ActReset, true},
		{"card", "row could not be remapped", "", "", func(f *Facts, _ *machine.Expect) { drv(f).RemapFailed.Value = true }, "card.remap", Fail, ActReplace, true},
		{"card", "a memory bank has no spare row left", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Banks = Measured(int64(1), "", "nvml") }, "card.remap", Warn, ActNone, false},
		{"card", "driver asks for a reset", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Recovery.Value = "reset" }, "card.recovery", Fail, ActReset, true},
		{"card", "driver asks for a reboot", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Recovery.Value = "reboot" }, "card.recovery", Fail, ActReboot, true},
		{"card", "InfoROM corrupt", "", "", func(f *Facts, _ *machine.Expect) { drv(f).InfoROM.Value = false }, "card.inforom", Fail, ActReplace, true},
		{"card", "split into instances (MIG)", "", "", func(f *Facts, _ *machine.Expect) { drv(f).MIG.Value = true }, "card.mode", Fail, ActReset, true},
		{"card", "compute mode prohibited", "", "", func(f *Facts, _ *machine.Expect) { drv(f).ComputeMode.Value = "prohibited" }, "card.mode", Fail, ActNone, true},
		{"card", "a process left over", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Processes.Value = 1 }, "card.mode", Fail, ActReboot, true},
		{"card", "persistence off, in a customer's image", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Persistence.Value = false }, "card.persistence", Warn, ActNone, false},
		{"card", "persistence off, in the acceptance image", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { drv(f).Persistence.Value = false }, "card.persistence", Fail, ActNone, true},
		{"card", "power limit below the factory's", "", "", func(f *Facts, _ *machine.Expect) { drv(f).PowerLimit.Value = 350 }, "card.power", Fail, ActNone, true},
		{"card", "factory power limit below the model's", "", "", func(f *Facts, _ *machine.Expect) { drv(f).PowerLimit.Value, drv(f).PowerDefault.Value = 350, 350 }, "card.power", Fail, ActNone, true},
		{"card", "PCIe packets sent again by the hundred", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Replays.Value += 81 }, "card.pcie", Fail, ActReseat, true},
		{"card", "an NVLink down", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Links[7].Active.Value = false }, "card.links", Fail, ActReset, true},
		{"card", "an NVLink missing", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Links = drv(f).Links[:17] }, "card.links", Fail, ActReset, true},
		{"card", "NVLink errors during the load", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Links[7].Errors.Value = 3 }, "card.links", Fail, ActReset, true},
		{"card", "fabric not completed", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Fabric.Value = "in progress" }, "card.fabric", Fail, ActReboot, true},
		{"card", "fabric manager not running", "", "", func(f *Facts, _ *machine.Expect) { f.Host.FabricMgr.Value = "not running" }, "card.fabric", Fail, ActNone, true},
		{"card", "another firmware on one card", "", "", func(f *Facts, _ *machine.Expect) { drv(f).VBIOS.Value = "1" }, "card.uniform", Warn, ActNone, false},
		{"card", "two cards with one serial number", "", "", func(f *Facts, _ *machine.Expect) { drv(f).Serial.Value = f.Driver[0].Cards[2].Serial.Value }, "card.uniform", Fail, ActNone, true},
		{"card", "Ascend calls a card critical", "19e5:d802", "", func(f *Facts, _ *machine.Expect) { drv(f).Health.Value = "Critical" }, "card.health", Fail, ActReset, true},
		{"card", "Ascend's own network is down", "19e5:d802", "", func(f *Facts, _ *machine.Expect) {
			drv(f).NetLink = Measured("DOWN", "", "hccn_tool")
		}, "card.health", Warn, ActReseat, false},
		{"card", "PPU with uncorrected memory errors", "1ded:6001", "", func(f *Facts, _ *machine.Expect) { drv(f).Uncorrected.Value = 2 }, "card.ecc", Fail, ActReset, true},

		{"load", "wrong result on one card", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestBurn, 3).Errors = 1 }, "load.burn", Fail, ActReplace, true},
		{"load", "a result that differs from the other cards'", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestBurn, 3).Result = "0000000000000000" }, "load.burn", Fail, ActReplace, true},
		{"load", "kernel launch refused", "", "", func(f *Facts, _ *machine.Expect) {
			loadAt(f, TestBurn, 3).Fault = &Fault{Kind: FaultRefused, During: "cuLaunchKernel", Detail: "CUDA error 719"}
		}, "load.burn", Fail, ActReset, true},
		{"load", "card hangs under load", "", "", func(f *Facts, _ *machine.Expect) {
			loadAt(f, TestBurn, 3).Fault = &Fault{Kind: FaultHang}
		}, "load.burn", Fail, ActReboot, true},
		{"load", "CUDA lacks a function", "", "", func(f *Facts, _ *machine.Expect) {
			loadAt(f, TestBurn, 3).Fault = &Fault{Kind: FaultSymbol}
		}, "load.burn", Error, ActNone, true},
		{"load", "CUDA not installed: no burn", "", "", func(f *Facts, _ *machine.Expect) {
			for i := range f.Loads {
				f.Loads[i].Fault, f.Loads[i].Rate, f.Loads[i].Result = &Fault{Kind: FaultAbsent}, Value[float64]{}, ""
			}
		}, "load.burn", Skip, ActNone, true},
		{"load", "burn ended early", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestBurn, 3).Seconds = 20 }, "load.burn", Error, ActNone, true},
		{"load", "memory reads back something else", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestPattern, 3).Errors = 12 }, "load.memory", Fail, ActReplace, true},
		{"load", "PCIe generation 2 under load", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Gen, s.PortGen = 2, 2 })
		}, "load.link", Fail, ActReseat, true},
		{"load", "eight lanes under load", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Width, s.PortWidth = 8, 8 })
		}, "load.link", Fail, ActReseat, true},
		{"load", "link flaps under load", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(i int, s *Sample) {
				if i%5 == 0 {
					s.Gen = 1
				}
			})
		}, "load.link", Warn, ActReseat, false},
		{"load", "power brake", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Reasons = []Throttle{ThrottleBrake} })
		}, "load.thermal", Fail, ActReseat, true},
		{"load", "hardware thermal slowdown", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Reasons = []Throttle{ThrottleHeat} })
		}, "load.thermal", Fail, ActReseat, true},
		{"load", "too hot (A100: 89 °C)", "10de:20b2", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Temperature, s.Gen, s.PortGen = 90, 4, 4 })
		}, "load.thermal", Fail, ActReseat, true},
		{"load", "no margin left (H200: −2 °C)", "10de:2335", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Temperature, s.Margin = Missing(), -3 })
		}, "load.thermal", Fail, ActReseat, true},
		{"load", "20 °C hotter than the others", "", "", func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, 20, func(_ int, s *Sample) { s.Temperature = 92 })
		}, "load.thermal", Warn, ActReseat, false},
		{"load", "XID 31 from our own burn", "", "", func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(31, slot3, "MMU Fault"))
		}, "load.events", Fail, ActReset, true},
		{"load", "corrected PCIe errors by the hundred", "", "", func(f *Facts, _ *machine.Expect) { f.PCI.Cards[3].AERCorrected.Value += 500 }, "load.events", Fail, ActReseat, true},

		{"rates", "card at 90 % of the others' rate", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestBurn, 3).Rate.Value *= 0.9 }, "perf.compute", Fail, ActReplace, true},
		{"rates", "card three times slower", "10de:20b2", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestBurn, 3).Rate.Value /= 3 }, "perf.compute", Fail, ActReplace, true},
		{"rates", "slow memory", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestRead, 3).Rate.Value *= 0.8 }, "perf.memory", Fail, ActReplace, true},
		{"rates", "slow copies from the host", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestToCard, 3).Rate.Value *= 0.5 }, "perf.copy", Fail, ActReplace, true},
		{"rates", "nvbandwidth below Azure's value", "", "", func(f *Facts, _ *machine.Expect) {
			for _, p := range f.PCI.Cards {
				f.Loads = append(f.Loads, Load{Test: TestToCard, Tool: "nvbandwidth", Version: "v0.8", Slot: p.Slot, Rate: Measured(40.0, "GB/s", "nvbandwidth")})
			}
		}, "perf.copy", Fail, ActReplace, true},
		{"rates", "one slow NVLink pair", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestPeer, 3).Rate.Value *= 0.5 }, "perf.peer", Fail, ActReset, true},
		{"rates", "a pair that is not direct though it has links", "", "", func(f *Facts, _ *machine.Expect) { loadAt(f, TestPeer, 3).Direct = false }, "perf.peer", Fail, ActReset, true},
		{"rates", "all-reduce below Azure's value", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) {
			f.Loads = append(f.Loads, Load{Test: TestReduce, Tool: "nccl-tests", Version: "2.13", Rate: Measured(300.0, "GB/s", "nccl-tests")})
		}, "perf.allreduce", Fail, ActReplace, true},
		{"rates", "dcgmi finds a bad card", "", "", func(f *Facts, _ *machine.Expect) {
			f.Diagnoses = []Diagnosis{{Tool: "dcgmi", Tests: []ToolTest{{Name: "memory", Card: "3", Outcome: Fail, Detail: "pending page retirements"}}}}
		}, "tool.diagnosis", Fail, ActReplace, true},
		{"rates", "dcgmi skips: it does not know the card", "", "", func(f *Facts, _ *machine.Expect) {
			f.Diagnoses = []Diagnosis{{Tool: "dcgmi", Tests: []ToolTest{{Name: "software", Outcome: Pass}, {Name: "memory", Outcome: Skip}}}}
		}, "tool.diagnosis", Skip, ActNone, false},
		{"rates", "ascend-dmi not there, new machine", "19e5:d802", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.Diagnoses = nil }, "load.burn", Skip, ActNone, true},
		{"rates", "acceptance stopped before its last stage", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.Stages = f.Stages[:3] }, "plan.stages", Skip, ActNone, true},

		{"log", "XID 79: fallen off the bus", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(79, slot3, "GPU has fallen off the bus."))
		}, "log.kernel", Fail, ActPowerCycle, true},
		{"log", "XID 48: double-bit error", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(48, slot3, "DBE"))
		}, "log.kernel", Fail, ActReset, true},
		{"log", "XID 13: a program's own mistake", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(13, slot3, "Graphics Exception"))
		}, "log.kernel", Warn, ActNone, false},
		{"log", "XID that nobody knows", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(999, slot3, "?"))
		}, "log.kernel", Error, ActNone, true},
		{"log", "fatal NVSwitch fault", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, Event{Kind: EventSXID, Code: 20034, Text: "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30", Count: 1})
		}, "log.kernel", Fail, ActReplace, true},
		{"log", "PPU XID 16257: off the bus", "1ded:6001", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, Event{Kind: EventPPU, Code: 16257, Count: 1})
		}, "log.kernel", Fail, ActPowerCycle, true},
		{"log", "machine check, not corrected", "", PlanHealth, func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, Event{Kind: EventHost, Code: HostCheckFatal, Count: 1})
		}, "log.kernel", Fail, ActReplace, true},
		{"log", "log unreadable", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Log = KernelLog{Error: "permission denied"} }, "log.kernel", Error, ActNone, true},

		{"host", "nouveau loaded", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Nouveau.Value = true }, "host.nouveau", Fail, ActNone, true},
		{"host", "processors offline", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Online.Value = "0-62" }, "host.cpu", Warn, ActNone, false},
		{"host", "processor throttles during the load", "", "", func(f *Facts, _ *machine.Expect) { f.Host.Throttles.Value = 9 }, "host.cpu", Warn, ActNone, false},
		{"host", "uncorrected memory errors (EDAC)", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.EDAC[0].Uncorrected.Value = 1 }, "host.memory", Fail, ActReplace, true},
		{"host", "corrected memory errors (EDAC)", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.EDAC[0].Corrected.Value = 5 }, "host.memory", Warn, ActNone, false},
		{"host", "a recorded disk is missing", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Disks = nil }, "host.disks", Fail, ActReseat, true},
		{"host", "NVMe warns of lost reliability", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Disks[0].SMART.Warning.Value = 4 }, "host.smart", Fail, ActReplace, true},
		{"host", "NVMe too warm", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Disks[0].SMART.Warning.Value = 2 }, "host.smart", Warn, ActNone, false},
		{"host", "NVMe out of spare blocks", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Disks[0].SMART.Spare.Value = 5 }, "host.smart", Fail, ActReplace, true},
		{"host", "media errors on a new disk", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.Host.Disks[0].SMART.MediaErrors.Value = 1 }, "host.smart", Fail, ActReplace, true},
		{"host", "a recorded network port is missing", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.NICs = f.Host.NICs[:1] }, "host.nics", Fail, ActReseat, true},
		{"host", "InfiniBand at half its rate", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Fabrics[1].Rate.Value = 200 }, "host.fabric", Fail, ActReseat, true},
		{"host", "InfiniBand port down beside one that is up", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Fabrics[1].State.Value = "down" }, "host.fabric", Warn, ActReseat, false},
		{"host", "InfiniBand symbol errors during the load", "", "", func(f *Facts, _ *machine.Expect) { f.Host.Fabrics[1].Symbol.Value = 4 }, "host.fabric", Fail, ActReseat, true},
		{"host", "clock not kept", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Clock.Synced.Value = false }, "host.clock", Warn, ActNone, false},
		{"host", "command line hides memory", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.Host.Cmdline.Value += " mem=16G" }, "host.cmdline", Warn, ActNone, false},
		{"host", "power supply without mains", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.BMC.Supplies[1].Input.Value = false }, "host.power", Fail, ActReseat, true},
		{"host", "power supply failed", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.BMC.Supplies[1].Healthy.Value = false }, "host.power", Fail, ActReplace, true},
		{"host", "fan stands still", "", PlanHealth, func(f *Facts, _ *machine.Expect) { f.BMC.Fans[0].RPM.Value = 0 }, "host.fans", Fail, ActReplace, true},
		{"host", "critical event in the BMC's log", "", "", func(f *Facts, _ *machine.Expect) {
			f.BMC.Events = append(f.BMC.Events, SELEvent{At: f.Taken, Sensor: "CPU1", Text: "CATERR", Severity: "Critical", Asserted: true})
		}, "host.sel", Fail, ActNone, true},
		{"host", "the BMC's log cannot be read", "", PlanPostboot, func(f *Facts, _ *machine.Expect) { f.BMC.LogError = "busy" }, "host.sel", Error, ActNone, false},
		{"host", "the BMC's log cannot be read, new machine", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.BMC.LogError = "busy" }, "host.sel", Error, ActNone, true},
		{"host", "BMC was not asked, new machine", "", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.BMC = nil }, "host.power", Skip, ActNone, true},
	}
}

// Every fault is caught, by the check that is for it; docs/validation.md holds the table.
func TestMatrix(t *testing.T) {
	var doc bytes.Buffer
	fmt.Fprintln(&doc, "| area | fault | plan | caught by | outcome | hand-over | action |\n|---|---|---|---|---|---|---|")
	for _, c := range troubles() {
		device, plan := c.device, c.plan
		if device == "" {
			device = "10de:2330"
		}
		if plan == "" {
			plan = PlanPostboot
		}
		f, e := healthy(t, device, plan)
		c.change(&f, &e)
		r := Judge(f, e, Rules{})
		got := check(t, r, c.check)
		if got.Outcome != c.outcome || got.Action != c.action || r.Blocks() != c.blocks {
			t.Errorf("%s: %s is %s, %s; blocks %v (%s); want %s, %s, %v\n%s", c.name, c.check, got.Outcome, got.Action, r.Blocks(), r.Reason(), c.outcome, c.action, c.blocks, strings.Join(got.Evidence, "\n"))
		}
		if got.Outcome != Pass && got.Summary == "" {
			t.Errorf("%s: %s says nothing", c.name, c.check)
		}
		var by []string
		for _, k := range r.Checks {
			if k.Outcome == Fail || k.Outcome == Warn || k.Outcome == Error || k.ID == c.check {
				by = append(by, k.ID)
			}
		}
		hand := "goes on"
		if r.Blocks() {
			hand = "blocked"
		}
		fmt.Fprintf(&doc, "| %s | %s | %s | %s | %s | %s | %s |\n", c.area, c.name, plan, strings.Join(by, ", "), got.Outcome, hand, got.Action)
	}
	document(t, "matrix", doc.Bytes())
}

// No false alarm on a healthy machine of any card that is sold, whatever the plan.
func TestHealthyProfiles(t *testing.T) {
	var doc bytes.Buffer
	plans := []Plan{PlanHealth, PlanPostboot, PlanAcceptance}
	fmt.Fprintln(&doc, "| card | health | postboot | acceptance | return | measured, not judged |\n|---|---|---|---|---|---|")
	for _, p := range BuiltinProfiles() {
		if p.Match[0].Subsystem != "" {
			continue
		}
		cells := []string{}
		var unknown []string
		for _, plan := range plans {
			f, e := healthy(t, p.Match[0].Device, plan)
			r := Judge(f, e, Rules{})
			cells = append(cells, verdictCell(t, p.Name, plan, r))
			for _, c := range r.Checks {
				if strings.HasPrefix(c.Summary, "measured, not judged") && !slices.Contains(unknown, c.ID) {
					unknown = append(unknown, c.ID)
				}
			}
		}
		f, e := healthy(t, p.Match[0].Device, PlanReturn)
		cells = append(cells, verdictCell(t, p.Name, PlanReturn, JudgeReturn(f, e, Rules{}, Judge(f, e, Rules{}))))
		fmt.Fprintf(&doc, "| %s | %s | %s |\n", p.Name, strings.Join(cells, " | "), strings.Join(unknown, ", "))
	}
	document(t, "healthy", doc.Bytes())
}

func verdictCell(t *testing.T, name string, plan Plan, r Report) string {
	t.Helper()
	n := 0
	for _, c := range r.Checks {
		switch c.Outcome {
		case Pass:
			n++
		case Skip:
			if c.Required {
				t.Errorf("%s, %s: %s is skipped: %s", name, plan, c.ID, c.Summary)
			}
		default:
			t.Errorf("false alarm: %s, %s: %s is %s: %s %v", name, plan, c.ID, c.Outcome, c.Summary, c.Evidence)
		}
	}
	if r.Blocks() || r.Outcome != Pass {
		t.Errorf("false alarm: %s, %s is %s: %s", name, plan, r.Outcome, r.Reason())
	}
	return fmt.Sprintf("pass, %d of %d", n, len(r.Checks))
}

// document compares a part of docs/validation.md, between its marks, with what it must be; -update rewrites it.
func document(t *testing.T, part string, want []byte) {
	t.Helper()
	path := filepath.Join("..", "docs", "validation.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: generated by go test ./accelerator -update -->\n", part), fmt.Sprintf("<!-- end of %s -->\n", part)
	i, k := bytes.Index(text, []byte(begin)), bytes.Index(text, []byte(end))
	if i < 0 || k < i {
		t.Fatalf("%s has no marks for %s", path, part)
	}
	i += len(begin)
	if bytes.Equal(text[i:k], want) {
		return
	}
	if !*update {
		t.Errorf("%s: the table of %s is not up to date (go test ./accelerator -update)", path, part)
		return
	}
	if err := os.WriteFile(path, slices.Concat(text[:i], want, text[k:]), 0o644); err != nil {
		t.Fatal(err)
	}
}
