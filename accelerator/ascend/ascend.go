// Package ascend reads Huawei's Ascend cards through npu-smi, hccn_tool and DCMI, and runs ascend-dmi on them.
//
// No Ascend card was at hand: what is here was tested on captured text and on pretended tools and libraries.
package ascend

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// Vendor is Huawei's PCI vendor.
const Vendor = "19e5"

const source = "npu-smi"

// Reader reads the cards.
type Reader struct {
	Tools    string        // folder of the vendor's tools; the places where they are installed when empty
	Library  string        // of DCMI; libdcmi.so when empty
	Self     string        // the program to run for a question to DCMI; this one when empty
	Deadline time.Duration // for one call; 30 seconds when zero
}

// Read asks the driver for its cards. It always returns: what went wrong is in the result, on the card that it concerns.
func (r Reader) Read(ctx context.Context, _ accelerator.Bus) accelerator.Driver {
	d := accelerator.Driver{Vendor: Vendor, Cards: []accelerator.Card{}}
	text, fault := r.tool(ctx, "npu-smi", "info")
	if fault != nil {
		d.Fault = fault
		return d
	}
	info, err := parseInfo(text)
	if err != nil {
		d.Fault = &accelerator.Fault{Kind: accelerator.FaultProbe, During: "npu-smi info", Detail: err.Error()}
		return d
	}
	d.Version = accelerator.Measured(info.version, "", source)
	d.Count = accelerator.Measured(int64(len(info.chips)), "", source)
	for i, c := range info.chips {
		d.Cards = append(d.Cards, r.card(ctx, i, c))
	}
	r.dcmi(ctx, &d)
	return d
}

// card asks for what the overview does not have.
func (r Reader) card(ctx context.Context, index int, c chip) accelerator.Card {
	k := accelerator.Card{
		Index: index, Slot: accelerator.Slot(c.bus), Name: str(c.name), Health: word(c.health),
		Power: whole(c.power, "W"), Temperature: whole(c.temperature, "°C"), Memory: mebibytes(c.memory), Processes: accelerator.Measured(c.processes, "", source),
	}
	if c.name == "" {
		k.Name = accelerator.Unreadable[string](source, "no name")
	}
	ask := func(kind string) (fields, *accelerator.Fault) {
		text, fault := r.tool(ctx, "npu-smi", "info", "-t", kind, "-i", c.npu, "-c", c.chip)
		if fault != nil && fault.Kind == accelerator.FaultRefused { // a release that takes no chip here
			text, fault = r.tool(ctx, "npu-smi", "info", "-t", kind, "-i", c.npu)
		}
		if fault != nil {
			fault.During = "npu-smi info -t " + kind
			return nil, fault
		}
		return parseFields(text), nil
	}
	board, fault := ask("board")
	if fault != nil {
		return lost(k, fault)
	}
	k.Serial, k.Board, k.Firmware, k.VBIOS = board.text("Serial Number"), board.text("Product Name"), board.text("Firmware Version"), board.text("Firmware Version")
	if vendor, device := board["PCI Vendor ID"], board["PCI Device ID"]; vendor != "" && device != "" {
		k.ID = str(strings.ToLower(strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(device, "0x")))
	}
	ecc, fault := ask("ecc")
	if fault != nil {
		return lost(k, fault)
	}
	k.Uncorrected, k.UncorrectedEver = ecc.count("HBM Double Bit Error Count"), ecc.count("HBM Double Bit Aggregate Total Err Cnt")
	k.Corrected = ecc.count("HBM Single Bit Error Count")
	k.RemappedRows = ecc.count("HBM Double Bit Isolated Pages Count", "HBM Isolated Page Count")
	if waiting := ecc.count("HBM Double Bit Next-Isolated Pages Count", "HBM Pending Retire Page Count"); waiting.Known() {
		k.RemapPending, k.RemapFailed = accelerator.Measured(waiting.Value > 0, "", source), accelerator.Measured(false, "", source)
	}
	if on, fault := ask("ecc-enable"); fault == nil {
		if v := on.text("HBM ECC-Enable Status", "ECC Enable Status", "HBM ECC Enable"); v.Known() {
			k.ECC = accelerator.Measured(strings.EqualFold(v.Value, "true") || strings.EqualFold(v.Value, "enable") || v.Value == "1", "", source)
		}
	}
	if !k.ECC.Supported && k.Uncorrected.Known() { // a release without the question counts all the same
		k.ECC = accelerator.Measured(true, "", source)
	}
	r.network(ctx, &k, c.npu)
	return k
}

// network asks for the card's own port. Machines without a network between cards have no hccn_tool or no link: neither is a fault.
func (r Reader) network(ctx context.Context, k *accelerator.Card, npu string) {
	k.NetLink, k.NetHealth = accelerator.Unsupported[string]("hccn_tool"), accelerator.Unsupported[string]("hccn_tool")
	if text, fault := r.tool(ctx, "hccn_tool", "-i", npu, "-link", "-g"); fault == nil {
		if v := parseFields(text)["link status"]; v != "" {
			k.NetLink = accelerator.Measured(strings.ToUpper(v), "", "hccn_tool")
		}
	} else if fault.Kind == accelerator.FaultHang {
		k.NetHealth = accelerator.Unreadable[string]("hccn_tool", fault.String())
		return
	}
	if !k.NetLink.Known() || k.NetLink.Value != "UP" {
		return
	}
	if text, fault := r.tool(ctx, "hccn_tool", "-i", npu, "-net_health", "-g"); fault == nil {
		if v := parseFields(text)["net health status"]; v != "" {
			health := "fault"
			if strings.EqualFold(v, "success") || strings.EqualFold(v, "init") {
				health = strings.ToLower(v)
			}
			k.NetHealth = accelerator.Measured(health, "", "hccn_tool")
		}
	}
}

func lost(k accelerator.Card, f *accelerator.Fault) accelerator.Card {
	k.Fault = f
	return k
}

// places are where installers put the tools, which a service's PATH does not know.
func places() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/local/Ascend/driver/tools", "/usr/local/Ascend/toolbox/latest/bin", "/usr/local/Ascend/toolbox/latest/Ascend-DMI/bin"}
}

func (r Reader) tool(ctx context.Context, name string, args ...string) (string, *accelerator.Fault) {
	return child.Run(ctx, child.Command{Path: child.Find(name, r.Tools, places()...), Args: args, Deadline: cmp.Or(r.Deadline, 30*time.Second)})
}

// Diagnose runs the vendor's own diagnosis: healthCheck, performanceCheck, stressTest, several joined by commas.
func (r Reader) Diagnose(ctx context.Context, scenes string, deadline time.Duration) accelerator.Diagnosis {
	d := accelerator.Diagnosis{Tool: "ascend-dmi", Tests: []accelerator.ToolTest{}}
	path := child.Find("ascend-dmi", r.Tools, places()...)
	text, fault := child.Run(ctx, child.Command{Path: path, Args: []string{"--dg", "--se", scenes, "-q", "--fmt", "json"}, Deadline: deadline, Output: 8 << 20})
	if fault != nil && fault.Kind != accelerator.FaultRefused { // it exits with a status of its own when a test fails
		d.Fault = fault
		return d
	}
	d.Tests = parseDiagnosis(text)
	if len(d.Tests) == 0 {
		d.Fault = cmp.Or(fault, &accelerator.Fault{Kind: accelerator.FaultProbe, During: "ascend-dmi", Detail: "its answer names no test"})
	}
	return d
}

func str(s string) accelerator.Value[string] { return accelerator.Measured(s, "", source) }

// known tells a value from the words for none and for trouble.
func known[T any](s string) (accelerator.Value[T], bool) {
	switch strings.ToUpper(strings.TrimSpace(s)) {
	case "", "-", "NA", "N/A":
		return accelerator.Unsupported[T](source), false
	case "ERR!", "ERROR", "UNKNOWN":
		return accelerator.Unreadable[T](source, "npu-smi says "+strings.TrimSpace(s)), false
	}
	return accelerator.Value[T]{}, true
}

func word(s string) accelerator.Value[string] {
	if v, ok := known[string](s); !ok {
		return v
	}
	return str(strings.TrimSpace(s))
}

// whole reads a number and rounds it.
func whole(s, unit string) accelerator.Value[int64] {
	if v, ok := known[int64](s); !ok {
		return v
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || f < -1e6 || f > 1e15 || f != f {
		return accelerator.Unreadable[int64](source, fmt.Sprintf("not a number: %.40q", s))
	}
	return accelerator.Measured(int64(f+0.5), unit, source)
}

func mebibytes(s string) accelerator.Value[int64] {
	v := whole(s, "bytes")
	if v.Known() && (v.Value < 0 || v.Value > 1<<30) {
		return accelerator.Unreadable[int64](source, fmt.Sprintf("%d MB of memory", v.Value))
	}
	v.Value <<= 20
	return v
}
