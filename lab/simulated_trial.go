package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// trialBeat is how often a machine that is being tried says how far it is.
const trialBeat = 200 * time.Millisecond

// errHangs is the end of a system that hangs until the power is taken.
var errHangs = errors.New("the system hangs")

// try goes through the stages of an acceptance for as long as they load, says all the while how far it is, and judges with the real rules what
// such a machine would show.
func (s *Simulated) try(l *life, client *http.Client, server, token string, in machine.Instruction) (json.RawMessage, error) {
	s.mu.Lock()
	trouble := s.trouble
	s.mu.Unlock()
	var done []accelerator.Stage
	for _, stage := range accelerator.Stages() {
		load := time.Duration(map[accelerator.Stage]machine.Span{accelerator.StageValidation: in.Acceptance.Validation.Load, accelerator.StageStress: in.Acceptance.Stress.Load}[stage])
		began := time.Now()
		for first := true; first || time.Since(began) < load; first = false {
			if trouble.HangAt == stage && time.Since(began) >= load/2 {
				<-l.ctx.Done()
				return nil, errHangs
			}
			spent := time.Since(began)
			burn := machine.Burn{Stage: string(stage), Done: int64(spent.Seconds()), Total: int64(load.Seconds()), Hottest: 40 + min(30, int64(spent/(50*time.Millisecond))), Watts: int64(s.Cards) * 570}
			answer, status, err := say(l.ctx, client, server, token, machine.Report{Step: in.Step, Phase: machine.Working, Progress: machine.Progress{Burn: burn}})
			if status == http.StatusGone || err == nil && answer.Do != machine.DoContinue {
				return nil, context.Canceled
			}
			if !pause(l.ctx, trialBeat) {
				return nil, l.ctx.Err()
			}
		}
		done = append(done, stage)
		if trouble.WrongMemory > 0 && stage == accelerator.StageValidation || trouble.LoseCard > 0 && stage == accelerator.StageStress {
			break
		}
	}
	facts, expect := s.tried(done, *in.Acceptance, *in.Expect), *in.Expect
	raw, err := json.Marshal(accelerator.Judge(facts, expect, accelerator.Rules{}))
	if err != nil {
		panic(err) // a report of our own always encodes
	}
	return raw, nil
}

// tried is what the validator would have measured on a machine with RTX 5090, as its troubles have it.
func (s *Simulated) tried(stages []accelerator.Stage, plan machine.AcceptancePlan, x machine.Expect) accelerator.Facts {
	s.mu.Lock()
	trouble := s.trouble
	s.mu.Unlock()
	p, _ := accelerator.Rules{}.Profile(x.CardID, "")
	seconds := time.Duration(plan.Stress.Load).Seconds()
	f := accelerator.Facts{Taken: time.Now().UTC(), Plan: accelerator.PlanAcceptance, Stages: stages, Asked: seconds, Seconds: seconds, Log: accelerator.KernelLog{Records: 900},
		Diagnoses: []accelerator.Diagnosis{{Tool: "dcgmi", Fault: &accelerator.Fault{Kind: accelerator.FaultAbsent, Detail: "not installed"}}}}
	f.Host = accelerator.Host{Memory: number(512<<30, "bytes"), Nouveau: known(false), Cores: number(64, ""), Present: known("0-63"), Online: known("0-63"), Throttles: number(0, ""),
		Cmdline: known("root=LABEL=root ro quiet"), Clock: accelerator.Clock{Now: f.Taken, Synced: known(true)},
		EDAC: []accelerator.EDAC{{Name: "mc0", Uncorrected: number(0, ""), Corrected: number(0, "")}}}
	for _, d := range x.Disks {
		f.Host.Disks = append(f.Host.Disks, accelerator.HostDisk{Name: d.Serial, Serial: known(d.Serial), Size: number(d.Size, "bytes"), SMART: &accelerator.SMART{Source: "nvme",
			Warning: number(0, ""), Spare: number(100, "%"), SpareLeast: number(10, "%"), Used: number(1, "%"), MediaErrors: number(0, "")}})
	}
	for i, mac := range x.MACs {
		f.Host.NICs = append(f.Host.NICs, accelerator.HostNIC{Name: fmt.Sprintf("eno%d", i+1), MAC: known(mac), Carrier: known(true)})
	}
	d := accelerator.Driver{Vendor: "10de", Version: known("570.86.15"), Count: number(int64(len(x.Accelerators)), "")}
	for i, a := range x.Accelerators {
		f.PCI.Cards = append(f.PCI.Cards, accelerator.PCICard{Slot: a.Slot, Vendor: a.Vendor, Device: a.Device, Subsystem: "10de:2057", Class: "030000", Driver: "nvidia", Answers: known(true),
			LinkWidth: number(16, ""), MaxWidth: number(16, ""), NUMA: number(0, ""), AERFatal: number(0, ""), AERCorrected: number(2, "")})
		d.Cards = append(d.Cards, accelerator.Card{Index: i, Slot: a.Slot, Name: known("NVIDIA GeForce RTX 5090"), Serial: known(fmt.Sprintf("%s-%d", s.serial, i)), UUID: known(fmt.Sprintf("GPU-%s-%d", s.uuid, i)),
			VBIOS: known("98.02.2e.00.01"), ID: known(x.CardID), Memory: number(p.Memory.Value<<20, "bytes"), Uncorrected: none[int64](), UncorrectedEver: none[int64](), ECC: none[bool](), ECCPending: none[bool](),
			RemapFailed: none[bool](), RemapPending: none[bool](), InfoROM: none[bool](), Recovery: known("none"), MIG: none[bool](), ComputeMode: known("default"), Persistence: known(true), Processes: number(0, ""),
			Replays: number(1, ""), MaxGen: number(5, ""), MaxWidth: number(16, ""), Temperature: number(41, "°C"), PowerLimit: number(p.Power.Value, "W"), PowerDefault: number(p.Power.Value, "W")})
	}
	f.Driver = []accelerator.Driver{d}
	s.loads(&f, p, trouble)
	return f
}

func known[T any](v T) accelerator.Value[T] { return accelerator.Measured(v, "", "lab") }

func number(v int64, unit string) accelerator.Value[int64] {
	return accelerator.Measured(v, unit, "lab")
}

func none[T any]() accelerator.Value[T] { return accelerator.Unsupported[T]("lab") }

// loads are what the load tests would have found, with the series of each card.
func (s *Simulated) loads(f *accelerator.Facts, p accelerator.Profile, trouble Trouble) {
	load := func(test, slot, peer, unit string, rate float64) accelerator.Load {
		return accelerator.Load{Test: test, Tool: "bareyard-burn", Version: "1", Slot: slot, Peer: peer, Seconds: f.Asked, Rate: accelerator.Measured(rate, unit, "lab")}
	}
	for i, c := range f.PCI.Cards {
		spread := 1 - 0.004*float64(i%4)
		burn, pattern := load(accelerator.TestBurn, c.Slot, "", "TFLOPS", 190*spread), load(accelerator.TestPattern, c.Slot, "", "GB/s", 900*spread)
		burn.Result, pattern.Bytes = "7f3c9a1e5b2d4f60", p.Memory.Value<<20*9/10
		if trouble.WrongMemory == i+1 {
			pattern.Errors, pattern.Detail = 12, "at 0x1f3a4c00 wrote 5555555555555555, read 5555555555555557"
		}
		f.Loads = append(f.Loads, burn, pattern, load(accelerator.TestRead, c.Slot, "", "GB/s", 1500*spread), load(accelerator.TestToCard, c.Slot, "", "GB/s", 50*spread), load(accelerator.TestToHost, c.Slot, "", "GB/s", 51*spread))
		for k, o := range f.PCI.Cards {
			if k != i {
				f.Loads = append(f.Loads, load(accelerator.TestPeer, c.Slot, o.Slot, "GB/s", 30))
			}
		}
		w := accelerator.NewWatcher(c.Slot)
		for n := range 30 {
			w.Add(accelerator.Sample{At: time.Duration(n) * time.Second, Temperature: accelerator.Reading(40 + n), Margin: accelerator.Missing(), Power: accelerator.Reading(p.Power.Value - 5), Clock: 2400,
				Rate: accelerator.Reading(190 * spread), Busy: 100, Gen: 5, Width: 16, PortGen: 5, PortWidth: 16, Reasons: []accelerator.Throttle{accelerator.ThrottlePower}})
		}
		f.Series = append(f.Series, w.Series())
	}
	f.Before = &accelerator.Snapshot{Taken: f.Taken.Add(-time.Minute), PCI: accelerator.Bus{Cards: slices.Clone(f.PCI.Cards)}, Driver: []accelerator.Driver{f.Driver[0]}, Log: f.Log, Host: f.Host}
	if n := trouble.LoseCard; n > 0 && n <= len(f.PCI.Cards) {
		slot := f.PCI.Cards[n-1].Slot
		f.PCI.Cards = slices.Delete(f.PCI.Cards, n-1, n)
		f.Driver[0].Cards = slices.Clone(f.Driver[0].Cards)
		f.Driver[0].Cards[n-1].Fault = &accelerator.Fault{Kind: accelerator.FaultLost, During: "nvmlDeviceGetHandleByIndex", Detail: "GPU is lost"}
		f.Log.Events = append(f.Log.Events, accelerator.Event{Kind: accelerator.EventXID, Code: 79, Slot: slot, Text: "NVRM: Xid (PCI:" + slot[:10] + "): 79, GPU has fallen off the bus.", Count: 1})
	}
}
