package nvidia

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bareyard/bareyard/accelerator"
)

// system asks for the driver as a whole.
func (p *prober) system() {
	if !p.open() {
		return
	}
	p.msg.Version = ask(p, "", p.lib.SystemGetDriverVersion, same[string], "nvmlSystemGetDriverVersion")
	var n int
	if p.must(func() (ret nvml.Return) { n, ret = p.lib.DeviceGetCount(); return ret }, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount") {
		p.msg.Count = accelerator.Measured(int64(n), "", source)
	}
}

// card asks for everything about one card, its address first: from then on even a card that takes the process down can be named.
func (p *prober) card(index int) {
	c := &p.msg.Card
	c.Index = index
	if !p.open() {
		return
	}
	var d nvml.Device
	if !p.must(func() (ret nvml.Return) { d, ret = p.lib.DeviceGetHandleByIndex(index); return ret }, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex") {
		return
	}
	var pci nvml.PciInfo
	if !p.must(func() (ret nvml.Return) { pci, ret = d.GetPciInfo(); return ret }, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		return
	}
	c.Slot = accelerator.Slot(text(pci.BusId[:]))
	if c.Slot == "" {
		c.Slot = accelerator.Slot(text(pci.BusIdLegacy[:]))
	}
	c.ID = accelerator.Measured(fmt.Sprintf("%04x:%04x", pci.PciDeviceId&0xffff, pci.PciDeviceId>>16), "", source)

	c.Name = ask(p, "", d.GetName, same[string], "nvmlDeviceGetName")
	c.Serial = ask(p, "", d.GetSerial, same[string], "nvmlDeviceGetSerial")
	c.UUID = ask(p, "", d.GetUUID, same[string], "nvmlDeviceGetUUID")
	c.VBIOS = ask(p, "", d.GetVbiosVersion, same[string], "nvmlDeviceGetVbiosVersion")
	c.Memory = ask(p, "bytes", d.GetMemoryInfo, func(m nvml.Memory) int64 { return int64(m.Total) }, "nvmlDeviceGetMemoryInfo")
	p.health(d, c)
	p.setting(d, c)
	p.link(d, c)
	c.Fault = p.msg.Fault
}

// health asks for what tells a good card from a bad one.
func (p *prober) health(d nvml.Device, c *accelerator.Card) {
	var now, next nvml.EnableState
	ret := p.call(func() (ret nvml.Return) { now, next, ret = d.GetEccMode(); return ret }, "nvmlDeviceGetEccMode")
	c.ECC, c.ECCPending = value(ret, now == nvml.FEATURE_ENABLED, ""), value(ret, next == nvml.FEATURE_ENABLED, "")

	errors := func(counter nvml.EccCounterType) accelerator.Value[int64] {
		return ask(p, "", func() (uint64, nvml.Return) {
			return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, counter)
		}, number[uint64], "nvmlDeviceGetTotalEccErrors")
	}
	c.Uncorrected, c.UncorrectedEver = errors(nvml.VOLATILE_ECC), errors(nvml.AGGREGATE_ECC)

	var rows int
	var pending, failed bool
	ret = p.call(func() (ret nvml.Return) { _, rows, pending, failed, ret = d.GetRemappedRows(); return ret }, "nvmlDeviceGetRemappedRows")
	c.RemappedRows, c.RemapPending, c.RemapFailed = value(ret, int64(rows), ""), value(ret, pending, ""), value(ret, failed, "")

	c.Recovery = p.recovery(d)
	c.Temperature = ask(p, "°C", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, number[uint32], "nvmlDeviceGetTemperature")
}

// recovery asks what the driver wants done to the card. It is a field value, which has a return code of its own inside the answer.
func (p *prober) recovery(d nvml.Device) accelerator.Value[string] {
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := p.call(func() nvml.Return { return d.GetFieldValues(fields) }, "nvmlDeviceGetFieldValues")
	if ret == nvml.SUCCESS {
		ret = nvml.Return(fields[0].NvmlReturn)
	}
	if ret == nvml.ERROR_INVALID_ARGUMENT { // a driver older than the field
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	action := binary.NativeEndian.Uint32(fields[0].Value[:4])
	names := map[nvml.DeviceGpuRecoveryAction]string{
		nvml.GPU_RECOVERY_ACTION_NONE: "none", nvml.GPU_RECOVERY_ACTION_GPU_RESET: "reset", nvml.GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot",
		nvml.GPU_RECOVERY_ACTION_DRAIN_P2P: "drain p2p", nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain and reset",
		nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover IMEX domain", nvml.GPU_RECOVERY_ACTION_BUS_RESET: "bus reset",
		nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot",
	}
	name, ok := names[nvml.DeviceGpuRecoveryAction(action)]
	if !ok {
		name = fmt.Sprintf("action %d", action)
	}
	return value(ret, name, "")
}

// setting asks for what a tenant may have left behind.
func (p *prober) setting(d nvml.Device, c *accelerator.Card) {
	var mig int
	ret := p.call(func() (ret nvml.Return) { mig, _, ret = d.GetMigMode(); return ret }, "nvmlDeviceGetMigMode")
	c.MIG = value(ret, mig == nvml.DEVICE_MIG_ENABLE, "")
	c.ComputeMode = ask(p, "", d.GetComputeMode, computeMode, "nvmlDeviceGetComputeMode")
	watt := func(mw uint32) int64 { return int64(mw) / 1000 }
	c.Power = ask(p, "W", d.GetPowerUsage, watt, "nvmlDeviceGetPowerUsage")
	c.PowerLimit = ask(p, "W", d.GetEnforcedPowerLimit, watt, "nvmlDeviceGetEnforcedPowerLimit")
	c.PowerDefault = ask(p, "W", d.GetPowerManagementDefaultLimit, watt, "nvmlDeviceGetPowerManagementDefaultLimit")
}

func computeMode(m nvml.ComputeMode) string {
	switch m {
	case nvml.COMPUTEMODE_DEFAULT:
		return "default"
	case nvml.COMPUTEMODE_PROHIBITED:
		return "prohibited"
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return "exclusive process"
	}
	return fmt.Sprintf("mode %d", m)
}

// link asks for the PCIe link. A lost card's registers read all ones, which some drivers pass on as generation 15 and width 63.
func (p *prober) link(d nvml.Device, c *accelerator.Card) {
	gen := func(v accelerator.Value[int64]) accelerator.Value[int64] {
		return within(v, "generation", func(n int64) bool { return n >= 1 && n <= 7 })
	}
	width := func(v accelerator.Value[int64]) accelerator.Value[int64] {
		return within(v, "width", func(n int64) bool { return n >= 1 && n <= 32 && n&(n-1) == 0 })
	}
	c.LinkGen = gen(ask(p, "", d.GetCurrPcieLinkGeneration, number[int], "nvmlDeviceGetCurrPcieLinkGeneration"))
	c.LinkWidth = width(ask(p, "", d.GetCurrPcieLinkWidth, number[int], "nvmlDeviceGetCurrPcieLinkWidth"))
	c.MaxGen = gen(ask(p, "", d.GetMaxPcieLinkGeneration, number[int], "nvmlDeviceGetMaxPcieLinkGeneration"))
	c.MaxWidth = width(ask(p, "", d.GetMaxPcieLinkWidth, number[int], "nvmlDeviceGetMaxPcieLinkWidth"))
}

func within(v accelerator.Value[int64], what string, ok func(int64) bool) accelerator.Value[int64] {
	if v.Known() && !ok(v.Value) {
		return accelerator.Unreadable[int64](source, fmt.Sprintf("link %s %d does not exist", what, v.Value))
	}
	return v
}

func same[T any](v T) T { return v }

func number[T int | uint32 | uint64](v T) int64 { return int64(v) }

// text reads a C string.
func text(b []int8) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
