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
	c.Board = ask(p, "", d.GetBoardPartNumber, same[string], "nvmlDeviceGetBoardPartNumber")
	c.Firmware = ask(p, "", d.GetGspFirmwareVersion, same[string], "nvmlDeviceGetGspFirmwareVersion")
	c.Memory = ask(p, "bytes", d.GetMemoryInfo, func(m nvml.Memory) int64 { return int64(m.Total) }, "nvmlDeviceGetMemoryInfo")
	p.health(d, c)
	p.setting(d, c)
	p.link(d, c)
	p.links(d, c)
	c.Fault = p.msg.Fault
}

// health asks for what tells a good card from a bad one.
func (p *prober) health(d nvml.Device, c *accelerator.Card) {
	var now, next nvml.EnableState
	ret := p.call(func() (ret nvml.Return) { now, next, ret = d.GetEccMode(); return ret }, "nvmlDeviceGetEccMode")
	c.ECC, c.ECCPending = value(ret, now == nvml.FEATURE_ENABLED, ""), value(ret, next == nvml.FEATURE_ENABLED, "")

	errors := func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) accelerator.Value[int64] {
		return ask(p, "", func() (uint64, nvml.Return) { return d.GetTotalEccErrors(kind, counter) }, number[uint64], "nvmlDeviceGetTotalEccErrors")
	}
	c.Uncorrected, c.UncorrectedEver = errors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC), errors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC)
	c.Corrected = errors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)

	var rows int
	var pending, failed bool
	ret = p.call(func() (ret nvml.Return) { _, rows, pending, failed, ret = d.GetRemappedRows(); return ret }, "nvmlDeviceGetRemappedRows")
	c.RemappedRows, c.RemapPending, c.RemapFailed = value(ret, int64(rows), ""), value(ret, pending, ""), value(ret, failed, "")

	c.Banks = ask(p, "", d.GetRowRemapperHistogram, func(h nvml.RowRemapperHistogramValues) int64 { return int64(h.None) }, "nvmlDeviceGetRowRemapperHistogram")
	c.InfoROM = p.inforom(d)
	c.Recovery = p.recovery(d)
	c.Slowdown = ask(p, "°C", func() (uint32, nvml.Return) { return d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN) }, number[uint32], "nvmlDeviceGetTemperatureThreshold")
	c.Temperature = ask(p, "°C", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }, number[uint32], "nvmlDeviceGetTemperature")
}

// inforom has the card check the store of its own identity. GeForce cards have none.
func (p *prober) inforom(d nvml.Device) accelerator.Value[bool] {
	switch ret := p.call(d.ValidateInforom, "nvmlDeviceValidateInforom"); ret {
	case nvml.SUCCESS:
		return accelerator.Measured(true, "", source)
	case nvml.ERROR_CORRUPTED_INFOROM:
		return accelerator.Measured(false, "", source)
	default:
		return value(ret, false, "")
	}
}

// links asks for each NVLink until there is none left, and for the fabric behind them.
func (p *prober) links(d nvml.Device, c *accelerator.Card) {
	for i := range nvml.NVLINK_MAX_LINKS {
		var state nvml.EnableState
		ret := p.call(func() (ret nvml.Return) { state, ret = d.GetNvLinkState(i); return ret }, "nvmlDeviceGetNvLinkState")
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_FUNCTION_NOT_FOUND || p.msg.Fault != nil {
			break
		}
		l := accelerator.Link{Index: i, Active: value(ret, state == nvml.FEATURE_ENABLED, ""), Errors: accelerator.Unsupported[int64](source)}
		sum, known := uint64(0), false
		for _, counter := range []nvml.NvLinkErrorCounter{nvml.NVLINK_ERROR_DL_REPLAY, nvml.NVLINK_ERROR_DL_RECOVERY, nvml.NVLINK_ERROR_DL_CRC_DATA} {
			var n uint64
			if ret := p.call(func() (ret nvml.Return) { n, ret = d.GetNvLinkErrorCounter(i, counter); return ret }, "nvmlDeviceGetNvLinkErrorCounter"); ret == nvml.SUCCESS {
				sum, known = sum+n, true
			}
		}
		if known {
			l.Errors = accelerator.Measured(int64(sum), "", source)
		}
		c.Links = append(c.Links, l)
	}
	c.Fabric = ask(p, "", d.GetGpuFabricInfo, fabricState, "nvmlDeviceGetGpuFabricInfo")
	if c.Fabric.Value == "not supported" {
		c.Fabric = accelerator.Unsupported[string](source)
	}
}

// fabricState puts the state in words; a fabric that completed has a return code of its own inside.
func fabricState(f nvml.GpuFabricInfo) string {
	switch f.State {
	case nvml.GPU_FABRIC_STATE_NOT_SUPPORTED:
		return "not supported"
	case nvml.GPU_FABRIC_STATE_NOT_STARTED:
		return "not started"
	case nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return "in progress"
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		if ret := nvml.Return(f.Status); ret != nvml.SUCCESS {
			return "completed with an error: " + reason(ret)
		}
		return "completed"
	}
	return fmt.Sprintf("state %d", f.State)
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
	c.Persistence = ask(p, "", d.GetPersistenceMode, func(s nvml.EnableState) bool { return s == nvml.FEATURE_ENABLED }, "nvmlDeviceGetPersistenceMode")
	c.Processes = ask(p, "", d.GetComputeRunningProcesses, func(list []nvml.ProcessInfo) int64 { return int64(len(list)) },
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")
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
	c.Replays = ask(p, "", d.GetPcieReplayCounter, number[int], "nvmlDeviceGetPcieReplayCounter")
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
