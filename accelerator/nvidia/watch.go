package nvidia

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bareyard/bareyard/accelerator"
)

// Watch asks a card by its PCI address again and again until the context ends, and gives each sample to on. What ends it earlier is the fault; a
// deadline of the Reader is that of one sample.
func (r Reader) Watch(ctx context.Context, slot string, every time.Duration, on func(accelerator.Sample)) *accelerator.Fault {
	if r.Deadline == 0 {
		r.Deadline = time.Minute
	}
	r.Deadline += every
	_, fault := r.ask(ctx, func(m message) {
		if m.Sample != nil {
			on(*m.Sample)
		}
	}, "watch", slot, every.String())
	if ctx.Err() != nil {
		return nil
	}
	return fault
}

// watch is the child's side. It ends when it is ended: the answer is never whole.
func (p *prober) watch(slot string, every time.Duration) {
	if !p.open() {
		return
	}
	var d nvml.Device
	if !p.must(func() (ret nvml.Return) { d, ret = p.lib.DeviceGetHandleByPciBusId(slot); return ret }, "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId") {
		return
	}
	began := time.Now()
	for p.msg.Fault == nil {
		p.msg.Sample = p.sample(d)
		p.msg.Sample.At = time.Since(began)
		if p.msg.Fault != nil {
			return
		}
		if err := p.say(); err != nil {
			return
		}
		p.quiet = true // after the first one message for each sample is enough
		time.Sleep(every)
	}
}

func (p *prober) sample(d nvml.Device) *accelerator.Sample {
	s := &accelerator.Sample{
		Temperature: look(p, func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, float[uint32], "nvmlDeviceGetTemperature"),
		Margin:      look(p, d.GetMarginTemperature, func(m nvml.MarginTemperature) float64 { return float64(m.MarginTemperature) }, "nvmlDeviceGetMarginTemperature"),
		Power:       look(p, d.GetPowerUsage, func(mw uint32) float64 { return float64(mw) / 1000 }, "nvmlDeviceGetPowerUsage"),
		Clock:       look(p, func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) }, float[uint32], "nvmlDeviceGetClockInfo"),
		Busy:        look(p, d.GetUtilizationRates, func(u nvml.Utilization) float64 { return float64(u.Gpu) }, "nvmlDeviceGetUtilizationRates"),
		Gen:         bounded(look(p, d.GetCurrPcieLinkGeneration, float[int], "nvmlDeviceGetCurrPcieLinkGeneration"), 7),
		Width:       bounded(look(p, d.GetCurrPcieLinkWidth, float[int], "nvmlDeviceGetCurrPcieLinkWidth"), 32),
		Rate:        accelerator.Missing(), PortGen: accelerator.Missing(), PortWidth: accelerator.Missing(),
	}
	var bits uint64
	ret := p.call(func() (ret nvml.Return) { bits, ret = d.GetCurrentClocksEventReasons(); return ret }, "nvmlDeviceGetCurrentClocksEventReasons")
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND { // its name before driver 535
		ret = p.call(func() (ret nvml.Return) { bits, ret = d.GetCurrentClocksThrottleReasons(); return ret }, "nvmlDeviceGetCurrentClocksThrottleReasons")
	}
	if ret == nvml.SUCCESS {
		s.Reasons = reasons(bits)
	}
	return s
}

// reasons names the bits that count.
func reasons(bits uint64) []accelerator.Throttle {
	var out []accelerator.Throttle
	for _, r := range []struct {
		bit  uint64
		name accelerator.Throttle
	}{
		{nvml.ClocksThrottleReasonHwThermalSlowdown, accelerator.ThrottleHeat},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, accelerator.ThrottleBrake},
		{nvml.ClocksEventReasonSwThermalSlowdown, accelerator.ThrottleSoftHeat},
		{nvml.ClocksEventReasonSwPowerCap, accelerator.ThrottlePower},
	} {
		if bits&r.bit != 0 {
			out = append(out, r.name)
		}
	}
	// Hardware slowdown stands for heat or brake, and alone for what the card does not name.
	if bits&nvml.ClocksThrottleReasonHwSlowdown != 0 && bits&(nvml.ClocksThrottleReasonHwThermalSlowdown|nvml.ClocksThrottleReasonHwPowerBrakeSlowdown) == 0 {
		out = append(out, accelerator.ThrottleHardware)
	}
	return out
}

// look makes a call for one number of a sample; one that the card does not give is missing.
func look[T any](p *prober, get func() (T, nvml.Return), to func(T) float64, symbols ...string) accelerator.Reading {
	var v T
	if ret := p.call(func() (ret nvml.Return) { v, ret = get(); return ret }, symbols...); ret != nvml.SUCCESS {
		return accelerator.Missing()
	}
	return accelerator.Reading(to(v))
}

func float[T int | uint32](v T) float64 { return float64(v) }

// bounded takes what a lost card's registers give for no value.
func bounded(r accelerator.Reading, most float64) accelerator.Reading {
	if r.Known() && (float64(r) < 1 || float64(r) > most) {
		return accelerator.Missing()
	}
	return r
}
