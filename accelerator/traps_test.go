package accelerator

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// judged returns the report of a healthy machine with H100 after a change.
func judged(t *testing.T, plan Plan, change func(*Facts, *machine.Expect)) Report {
	t.Helper()
	f, e := healthy(t, "10de:2330", plan)
	change(&f, &e)
	return Judge(f, e, Rules{})
}

// Idle links are at generation 1, flap, and say nothing; under load several samples count, of both ends, against the model.
func TestH05LinkUnderLoad(t *testing.T) {
	watch := func(gens []Reading, busy Reading, width Reading) func(*Facts, *machine.Expect) {
		return func(f *Facts, _ *machine.Expect) {
			rewatch(f, 3, len(gens), func(i int, s *Sample) {
				s.Gen, s.PortGen, s.Width, s.PortWidth, s.Busy, s.Rate = gens[i], gens[i], width, width, busy, Missing()
			})
		}
	}
	for _, c := range []struct {
		name    string
		change  func(*Facts, *machine.Expect)
		outcome Outcome
		says    string
	}{
		{"idle only", watch([]Reading{5, 1, 1, 3}, 0, 16), Skip, "0 samples of its link under load"},
		{"under load", watch([]Reading{5, 5, 5}, 100, 16), Pass, ""},
		{"bad unit", watch([]Reading{2, 2, 2}, 100, 16), Fail, "generation 2 under load"},
		{"eight lanes", watch([]Reading{5, 5, 5}, 100, 8), Fail, "lanes 8 under load"},
		{"two samples are too few", watch([]Reading{2, 2}, 100, 16), Skip, "2 samples"},
		{"slot of generation 4", func(f *Facts, e *machine.Expect) {
			watch([]Reading{4, 4, 4}, 100, 16)(f, e)
			f.Driver[0].Cards[3].MaxGen.Value = 4
		}, Fail, "board and slot allow 4"},
		{"only the port's end is known", func(f *Facts, e *machine.Expect) {
			rewatch(f, 3, 5, func(_ int, s *Sample) { s.Gen, s.Width, s.PortGen, s.PortWidth = Missing(), Missing(), 3, 16 })
		}, Fail, "at the port's end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := check(t, judged(t, PlanPostboot, c.change), "load.link")
			if got.Outcome != c.outcome || !strings.Contains(strings.Join(got.Evidence, "\n"), c.says) {
				t.Errorf("%s %v", got.Outcome, got.Evidence)
			}
		})
	}
	// A host that gives eight lanes on purpose has it in its profile.
	f, e := healthy(t, "10de:2330", PlanPostboot)
	for i := range 8 {
		f.PCI.Cards[i].LinkWidth.Value = 8
		rewatch(&f, i, 20, func(_ int, s *Sample) { s.Width, s.PortWidth = 8, 8 })
	}
	own := Profile{Name: "8-lane host", Revision: 1, Match: []Match{{Device: "10de:2330"}}, LinkWidth: Known[int64]{8, Published, "our host"}}
	if r := Judge(f, e, Rules{Profiles: []Profile{own}}); r.Outcome != Pass {
		t.Errorf("%s: %s", r.Outcome, r.Reason())
	}
}

// The fabric manager is needed where NVSwitches are, and the message names the cause.
func TestH07Fabric(t *testing.T) {
	fabric := func(f *Facts, word string) {
		for i := range f.Driver[0].Cards {
			f.Driver[0].Cards[i].Fabric.Value = word
		}
	}
	for _, c := range []struct {
		name    string
		change  func(*Facts, *machine.Expect)
		outcome Outcome
		says    string
	}{
		{"service absent", func(f *Facts, _ *machine.Expect) { fabric(f, "not started"); f.Host.FabricMgr.Value = "not running" }, Fail, "the fabric manager is not running"},
		{"other version", func(f *Facts, _ *machine.Expect) {
			fabric(f, "in progress")
			f.Host.FabricSays = []string{"fabric manager NVIDIA GPU driver interface version 550.90.07 don't match with driver version 550.107.02"}
		}, Fail, "install the fabric manager of the driver's own version"},
		{"never finishes", func(f *Facts, _ *machine.Expect) { fabric(f, "in progress") }, Fail, "fabric: in progress"},
		{"ends with an error", func(f *Facts, _ *machine.Expect) { fabric(f, "completed with an error: NVML error 999") }, Fail, "completed with an error"},
		{"no NVSwitch: not required", func(f *Facts, _ *machine.Expect) {
			f.PCI.Switches = nil
			fabric(f, "not supported")
			f.Host.FabricMgr.Value = "not running"
		}, Skip, "none is needed"},
		{"an old line in its log", func(f *Facts, _ *machine.Expect) {
			f.Host.FabricSays = []string{"… don't match with driver version …"}
		}, Pass, "complete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := judged(t, PlanPostboot, c.change)
			got := check(t, r, "card.fabric")
			if all := got.Summary + strings.Join(got.Evidence, "\n") + got.Advice; got.Outcome != c.outcome || !strings.Contains(all, c.says) || r.Blocks() != (c.outcome == Fail) {
				t.Errorf("%s: %s", got.Outcome, all)
			}
		})
	}
	// nvidia-smi is fine, and no kernel runs: the burn is what tells.
	r := judged(t, PlanPostboot, func(f *Facts, _ *machine.Expect) {
		for i := range f.Loads {
			f.Loads[i].Fault = &Fault{Kind: FaultRefused, During: "cuInit", Detail: "CUDA error 802: system not yet initialized (is the fabric manager running?)"}
		}
	})
	if got := check(t, r, "load.burn"); got.Outcome != Fail || !strings.Contains(got.Evidence[0], "fabric manager") {
		t.Errorf("%s %v", got.Outcome, got.Evidence)
	}
}

// What users of such tools complain of, each as a test.
func TestFalseAlarms(t *testing.T) {
	const slot = "0000:0d:00.0"
	for _, c := range []struct {
		name, check string
		change      func(*Facts, *machine.Expect)
		outcome     Outcome
	}{
		{"a thermal violation of 0.0 seconds", "load.thermal", func(f *Facts, _ *machine.Expect) {
			f.Series[3].Throttled = map[Throttle]float64{ThrottleHeat: 0, ThrottleBrake: 0.2}
		}, Pass},
		{"power cap under full load", "load.thermal", func(f *Facts, _ *machine.Expect) {
			f.Series[3].Throttled = map[Throttle]float64{ThrottlePower: 60}
		}, Pass},
		{"a breath of software throttling", "load.thermal", func(f *Facts, _ *machine.Expect) {
			f.Series[3].Throttled = map[Throttle]float64{ThrottleSoftHeat: 3}
		}, Pass},
		{"replays of a long life, none of them new", "card.pcie", func(f *Facts, _ *machine.Expect) {
			f.Driver[0].Cards[3].Replays.Value = 100000
			f.Before.Driver[0].Cards[3].Replays.Value = 100000
		}, Pass},
		{"replay counter set to zero in between", "card.pcie", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Replays.Value = 0 }, Pass},
		{"80 replays are the most", "card.pcie", func(f *Facts, _ *machine.Expect) { f.Driver[0].Cards[3].Replays.Value += 80 }, Pass},
		{"link errors from before", "card.links", func(f *Facts, _ *machine.Expect) {
			f.Driver[0].Cards[3].Links[2].Errors.Value, f.Before.Driver[0].Cards[3].Links[2].Errors.Value = 9, 9
		}, Pass},
		{"a tenant's XID 13 from before the load", "load.events", func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(13, slot, "x"))
			f.Before.Log.Events = f.Log.Events
		}, Pass},
		{"recovery action back to none", "load.events", func(f *Facts, _ *machine.Expect) {
			f.Log.Events = append(f.Log.Events, xidEvent(154, slot, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"))
		}, Pass},
		{"95 % of the median is enough", "perf.compute", func(f *Facts, _ *machine.Expect) {
			for i := range 8 {
				loadAt(f, TestBurn, i).Rate.Value = 100
			}
			loadAt(f, TestBurn, 3).Rate.Value = 95
		}, Pass},
		{"pairs across the sockets are slower, without links", "perf.peer", func(f *Facts, e *machine.Expect) {
			*f, *e = healthy(t, "10de:2b85", PlanPostboot)
		}, Skip},
		{"the BMC's log of last year", "host.sel", func(f *Facts, _ *machine.Expect) {
			f.BMC.Events = []SELEvent{{At: f.Taken.AddDate(-1, 0, 0), Sensor: "PSU1", Text: "failure", Severity: "critical", Asserted: true}}
		}, Pass},
		{"a condition that went away", "host.sel", func(f *Facts, _ *machine.Expect) {
			f.BMC.Events = []SELEvent{{At: f.Taken, Sensor: "PSU1", Text: "failure", Severity: "critical"}}
		}, Pass},
		{"InfiniBand ports without a cable, all of them", "host.fabric", func(f *Facts, _ *machine.Expect) {
			f.Host.Fabrics[0].State.Value, f.Host.Fabrics[1].State.Value = "down", "down"
		}, Pass},
		{"ports of two kinds at two rates", "host.fabric", func(f *Facts, _ *machine.Expect) {
			f.Host.Fabrics[1].Rate.Value, f.Host.Fabrics[1].Model.Value = 100, "another board"
		}, Pass},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := judged(t, PlanPostboot, c.change)
			if got := check(t, r, c.check); got.Outcome != c.outcome || r.Blocks() {
				t.Errorf("%s: %s %v; blocks: %s", got.Outcome, got.Summary, got.Evidence, r.Reason())
			}
		})
	}
	// XID 45 is what a program leaves behind that was ended: ours by our own deadline, and by the hundred.
	r := judged(t, PlanPostboot, func(f *Facts, _ *machine.Expect) {
		e := xidEvent(45, slot, "Ch 00000010")
		e.Count = 300
		f.Log.Events = append(f.Log.Events, e)
		loadAt(f, TestPattern, 3).Fault = &Fault{Kind: FaultHang}
	})
	if got := check(t, r, "load.events"); got.Outcome != Warn {
		t.Errorf("XID 45 of a program that we ended is %s", got.Outcome)
	}
}

// Incomplete is not healthy.
func TestIncompleteIsNoPass(t *testing.T) {
	for _, c := range []struct {
		name   string
		plan   Plan
		change func(*Facts, *machine.Expect)
	}{
		{"no load at all", PlanPostboot, func(f *Facts, _ *machine.Expect) { f.Loads, f.Series, f.Before = nil, nil, nil }},
		{"no watch", PlanPostboot, func(f *Facts, _ *machine.Expect) { f.Series = nil }},
		{"one card was not loaded", PlanPostboot, func(f *Facts, _ *machine.Expect) {
			f.Loads = slices.DeleteFunc(f.Loads, func(l Load) bool { return l.Slot == "0000:0d:00.0" })
		}},
		{"nothing was written to the memory", PlanPostboot, func(f *Facts, _ *machine.Expect) { loadAt(f, TestPattern, 3).Bytes = 0 }},
		{"no rate in an acceptance", PlanAcceptance, func(f *Facts, _ *machine.Expect) {
			f.Loads = slices.DeleteFunc(f.Loads, func(l Load) bool { return l.Test == TestRead })
		}},
		{"an acceptance cut short", PlanAcceptance, func(f *Facts, _ *machine.Expect) { f.Seconds = 600 }},
		{"the watch crashed", PlanPostboot, func(f *Facts, _ *machine.Expect) { f.Series[3].Fault = &Fault{Kind: FaultCrash} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := judged(t, c.plan, c.change); !r.Blocks() || r.Outcome == Pass {
				t.Errorf("%s, may be handed over", r.Outcome)
			}
		})
	}
	// Two cards that disagree: one of them is wrong, nobody can tell which.
	f, e := healthy(t, "10de:2330", PlanPostboot)
	for i := range 4 {
		loadAt(&f, TestBurn, i).Result = "another"
	}
	if got := check(t, Judge(f, e, Rules{}), "load.burn"); got.Outcome != Fail || len(got.Evidence) != 8 {
		t.Errorf("four against four: %s %v", got.Outcome, got.Evidence)
	}
}

func TestSeverity(t *testing.T) {
	f, e := healthy(t, "10de:2330", PlanPostboot)
	f.Driver[0].Cards[3].PowerLimit.Value = 350
	if got := check(t, Judge(f, e, Rules{Severity: map[string]Outcome{"card.power": Warn}}), "card.power"); got.Outcome != Warn {
		t.Errorf("%s", got.Outcome)
	}
	if got := check(t, Judge(f, e, Rules{Severity: map[string]Outcome{"card.power": Pass}}), "card.power"); got.Outcome != Fail {
		t.Errorf("a fail was made to pass: %s", got.Outcome)
	}
}

func TestWatcher(t *testing.T) {
	w := NewWatcher("a")
	for i := range 86400 { // a day
		s := Sample{At: time.Duration(i) * time.Second, Temperature: Reading(50 + i%10), Margin: Missing(), Power: 300, Clock: 1000, Rate: 10, Busy: 100, Gen: 5, Width: 16, PortGen: Missing(), PortWidth: Missing()}
		if i == 40000 {
			s.Temperature = 95
			s.Reasons = []Throttle{ThrottleHeat}
		}
		w.Add(s)
	}
	s := w.Series()
	if s.Samples != 86400 || len(s.Seconds) > keptPoints || len(s.Seconds) < keptPoints/3 || len(s.Rate) != len(s.Seconds) {
		t.Errorf("%d samples, %d points", s.Samples, len(s.Seconds))
	}
	if s.Hottest != 95 || s.Throttled[ThrottleHeat] != 1 || s.MeanPower != 300 || s.Gen.Median != 5 || s.PortGen.Samples != 0 {
		t.Errorf("%+v", s)
	}
	data, err := json.Marshal(s)
	if err != nil || len(data) > 20000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	var back Series
	if err := json.Unmarshal(data, &back); err != nil || back.Margin.Known() || back.Hottest != 95 {
		t.Errorf("%v %+v", err, back)
	}
	// Seconds without a sample are nobody's.
	w = NewWatcher("b")
	w.Add(Sample{At: 0, Reasons: []Throttle{ThrottleHeat}})
	w.Add(Sample{At: time.Hour, Reasons: []Throttle{ThrottleHeat}})
	w.Add(Sample{At: time.Minute, Reasons: []Throttle{ThrottleHeat}}) // a clock that went back
	if got := w.Series().Throttled[ThrottleHeat]; got != 5 {
		t.Errorf("%v seconds", got)
	}
	if s := NewWatcher("c").Series(); s.Samples != 0 || s.Hottest.Known() || len(s.Seconds) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestReading(t *testing.T) {
	for in, want := range map[Reading]string{Missing(): "null", Reading(math.Inf(1)): "null", 1.23456: "1.235", 0: "0", -2: "-2"} {
		if b, err := json.Marshal(in); err != nil || string(b) != want {
			t.Errorf("%v: %s %v", float64(in), b, err)
		}
	}
}

// What changed between hand-over and return, and whose it is.
func TestReturn(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Facts)
		kind    ChangeKind // "" for none
		part    string
		outcome Outcome
	}{
		{"nothing", func(*Facts) {}, "", "", Pass},
		{"card exchanged for one of its kind", func(f *Facts) { f.Driver[0].Cards[3].Serial.Value = "999" }, ChangeExchanged, "0000:0d:00.0", Fail},
		{"another model", func(f *Facts) { f.PCI.Cards[3].Device = "2329" }, ChangeExchanged, "0000:0d:00.0", Fail},
		{"card gone", func(f *Facts) { f.PCI.Cards = slices.Delete(f.PCI.Cards, 3, 4) }, ChangeDamage, "0000:0d:00.0", Fail},
		{"card dead", func(f *Facts) { f.Driver[0].Cards[3].Fault = &Fault{Kind: FaultLost} }, ChangeDamage, "0000:0d:00.0", Fail},
		{"firmware flashed", func(f *Facts) { f.Driver[0].Cards[3].VBIOS.Value = "66" }, ChangeSetting, "0000:0d:00.0", Warn},
		{"more rows remapped", func(f *Facts) { f.Driver[0].Cards[3].RemappedRows.Value = 2 }, ChangeWear, "0000:0d:00.0", Warn},
		{"uncorrected errors", func(f *Facts) { f.Driver[0].Cards[3].UncorrectedEver.Value = 2 }, ChangeDamage, "0000:0d:00.0", Fail},
		{"MIG", func(f *Facts) { f.Driver[0].Cards[3].MIG.Value = true }, ChangeSetting, "0000:0d:00.0", Warn},
		{"slower", func(f *Facts) { loadAt(f, TestBurn, 3).Rate.Value *= 0.9 }, ChangeDamage, "0000:0d:00.0", Fail},
		{"disk gone", func(f *Facts) { f.Host.Disks = nil }, ChangeDamage, "S1", Fail},
		{"disk worn", func(f *Facts) { f.Host.Disks[0].SMART.Used.Value = 9 }, ChangeWear, "S1", Warn},
		{"memory taken out", func(f *Facts) { f.Host.Memory.Value /= 2 }, ChangeDamage, "memory", Fail},
		{"a temperature", func(f *Facts) { f.Driver[0].Cards[3].Temperature.Value = 60 }, "", "", Pass},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, e := healthy(t, "10de:2330", PlanPostboot)
			out := Judge(f, e, Rules{})
			f, e = healthy(t, "10de:2330", PlanReturn)
			c.change(&f)
			r := JudgeReturn(f, e, Rules{}, out)
			got := check(t, r, "return.compare")
			if got.Outcome != c.outcome {
				t.Errorf("%s: %v", got.Outcome, got.Evidence)
			}
			if c.kind == "" {
				if len(r.Changes) > 0 {
					t.Errorf("%+v", r.Changes)
				}
				return
			}
			if len(r.Changes) == 0 || r.Changes[0].Kind != c.kind || r.Changes[0].Part != c.part {
				t.Errorf("%+v", r.Changes)
			}
		})
	}
	// Without a report of the hand-over nobody is charged, and nobody is cleared.
	f, e := healthy(t, "10de:2330", PlanReturn)
	if r := JudgeReturn(f, e, Rules{}, Report{}); check(t, r, "return.compare").Outcome != Error || !r.Blocks() {
		t.Error("a return without a hand-over passes")
	}
	// A card that was dead at hand-over is not the tenant's.
	f, e = healthy(t, "10de:2330", PlanPostboot)
	f.Driver[0].Cards[3].Fault = &Fault{Kind: FaultLost}
	out := Judge(f, e, Rules{})
	if ch := Compare(out, out); len(ch) != 0 {
		t.Errorf("%+v", ch)
	}
}

// Reports of the form before are still read; bad ones are refused with the field that is wrong.
func TestK11DecodeReport(t *testing.T) {
	old := `{"schema":"bareyard.validation/1","outcome":"pass","rules":"2026-11","checks":[{"id":"card.count","outcome":"fail","required":true,"summary":"7 of 8","action":"power-cycle the machine"}],"cards":[{"slot":"0000:05:00.0","outcome":"pass"}],"drivers":[],"host":{"disks":[],"nics":[],"edac":[]}}`
	r, err := DecodeReport([]byte(old))
	if err != nil || r.Outcome != Fail || r.Checks[0].Advice != "power-cycle the machine" || r.Checks[0].Action != ActNone {
		t.Errorf("%v %+v", err, r)
	}
	ok := `"checks":[{"id":"a","outcome":"pass"}]`
	for name, c := range map[string]struct{ text, says string }{
		"too large":                  {`{"schema":"` + strings.Repeat("x", maxReport) + `"}`, "at most"},
		"a million NICs":             {`{"schema":"bareyard.validation/2",` + ok + `,"host":{"nics":[` + strings.Repeat("{},", 1e6) + `{}]}}`, "items"},
		"key twice":                  {`{"schema":"bareyard.validation/2",` + ok + `,"outcome":"fail","outcome":"pass"}`, "given twice"},
		"key twice, in another case": {`{"schema":"bareyard.validation/2",` + ok + `,"outcome":"fail","Outcome":"pass"}`, "given twice"},
		"NaN":                        {`{"schema":"bareyard.validation/2",` + ok + `,"loads":[{"rate":{"value":NaN}}]}`, "invalid"},
		"negative size":              {`{"schema":"bareyard.validation/2",` + ok + `,"host":{"disks":[{"size":{"value":-1}}]}}`, "host.disks[0].size"},
		"negative memory":            {`{"schema":"bareyard.validation/2",` + ok + `,"cards":[{"slot":"0000:05:00.0","card":{"memory":{"value":-5}}}]}`, "cards[0].card.memory"},
		"path for a slot":            {`{"schema":"bareyard.validation/2",` + ok + `,"cards":[{"slot":"../../etc/passwd"}]}`, "is no PCI address"},
		"slot twice":                 {`{"schema":"bareyard.validation/2",` + ok + `,"cards":[{"slot":"0000:05:00.0"},{"slot":"0000:05:00.0"}]}`, "there twice"},
		"long text":                  {`{"schema":"bareyard.validation/2","checks":[{"id":"` + strings.Repeat("x", maxString+1) + `"}]}`, "a text of"},
		"deep":                       {strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), "nested too deep"},
		"two reports":                {old + old, "follows"},
	} {
		if _, err := DecodeReport([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 400 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	r, err = DecodeReport([]byte("{\"schema\":\"bareyard.validation/2\",\"checks\":[{\"id\":\"a\",\"outcome\":\"pass\",\"summary\":\"\\u001b[2J<script>\"}]}"))
	if err != nil || r.Checks[0].Summary != "?[2J<script>" {
		t.Errorf("%v %q", err, r.Checks[0].Summary)
	}
}

func FuzzDecodeReport(f *testing.F) {
	facts, e := goodMachine(2)
	data, _ := json.Marshal(Judge(facts, e, Rules{}))
	f.Add(data)
	f.Add([]byte(`{"schema":"bareyard.validation/1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeReport(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if r.Schema == Schema {
			if _, err := DecodeReport(again); err != nil && len(again) < maxReport {
				t.Fatalf("%v\n%s", err, again)
			}
		}
		_ = r.WriteText(discard{})
		_ = Compare(r, r)
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Lines about the machine around the cards; those that firmware kept from the boot before do not count.
func TestHostLines(t *testing.T) {
	for line, want := range map[string]int{
		"mce: [Hardware Error]: Machine check events logged":                                             HostCheck,
		"{1}[Hardware Error]: event severity: fatal":                                                     HostCheckFatal,
		"[Hardware Error]: Uncorrected, software restartable error.":                                     HostCheckFatal,
		"EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1)": HostMemory,
		"EDAC skx MC0: 1 UE memory read error on CPU_SrcID#0":                                            HostMemoryFatal,
		"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:05:00.0":                   HostBusFatal,
		"pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:05:00.0": HostBus,
		"pcieport 0000:00:01.0: AER: Corrected error received: 0000:05:00.0":                             0,
		"nvme nvme0: I/O 22 QID 3 timeout, aborting":                                                     HostDrive,
		"nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff":                 HostDriveFatal,
		"critical medium error, dev nvme0n1, sector 1234 op 0x0:(READ)":                                  HostDriveFatal,
		"mce: CPU supports 32 MCE banks":                                                                 0,
		"nvme nvme0: 8/0/0 default/read/poll queues":                                                     0,
		"[alixpu] PPU0015 ppuid:15, uncorrected ECC error detected":                                      HostDriverUECC,
		"EDAC MC: Ver: 3.0.0": 0,
		"EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0 (INTERRUPT)": 0,
	} {
		log, err := ParseKernelLog(strings.NewReader("4,1,5,-;" + line + "\n"))
		got := 0
		if len(log.Events) == 1 && log.Events[0].Kind == EventHost {
			got = log.Events[0].Code
		}
		if err != nil || got != want {
			t.Errorf("%q is %d, want %d (%v)", line, got, want, log.Events)
		}
		if want != 0 {
			if v := (Rules{}).Event(log.Events[0]); v.Outcome != Warn && v.Outcome != Fail {
				t.Errorf("%q: %+v", line, v)
			}
		}
	}
	log, _ := ParseKernelLog(strings.NewReader("6,0,0,-;Linux version 6.1\n3,1,1,-;BERT: Error records from previous boot:\n3,2,1,-;[Hardware Error]: event severity: fatal\n3,3,1,-;[Hardware Error]:  Error 0, type: fatal\n6,4,1,-;usb 1-1: new device\n3,5,2,-;mce: [Hardware Error]: Machine check events logged\n"))
	if len(log.Events) != 1 || log.Events[0].Code != HostCheck {
		t.Errorf("%+v", log.Events)
	}
}

// T-Head's numbers are its own.
func TestPPUXIDs(t *testing.T) {
	for code, want := range map[int]Action{384: ActReset, 2699: ActReset, 8576: ActReset, 16256: ActReset, 4480: ActReboot, 4227: ActReboot, 2711: ActReboot, 642: ActReset, 5005: ActReset, 16257: ActPowerCycle, 79: ActNone, 31: ActNone} {
		log, _ := ParseKernelLog(strings.NewReader(fmt.Sprintf("4,1,5,-;[alixpu] PPU001 0000:08:00.0 XID: %d, reported\n", code)))
		if len(log.Events) != 1 || log.Events[0].Kind != EventPPU || log.Events[0].Code != code || log.Events[0].Slot != "0000:08:00.0" {
			t.Fatalf("%+v", log.Events)
		}
		v := (Rules{}).Event(log.Events[0])
		if v.Action() != want || (want == ActNone) != (v.Outcome == Error) {
			t.Errorf("%d: %+v", code, v)
		}
	}
}
