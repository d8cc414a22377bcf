package ascend

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/child"
)

// ProbeArg is the first argument of a program that is to ask DCMI.
const ProbeArg = "ascend-probe"

// message is what the child says.
type message struct {
	During string             `json:"during,omitempty"`
	Done   bool               `json:"done,omitempty"`
	Fault  *accelerator.Fault `json:"fault,omitempty"`
	Cards  []dcmiCard         `json:"cards,omitempty"`
}

// Doing returns the call under way.
func (m message) Doing() string { return m.During }

// Whole reports whether this is the whole answer.
func (m message) Whole() bool { return m.Done }

// Found returns what the probe says went wrong.
func (m message) Found() *accelerator.Fault { return m.Fault }

// dcmiCard is a chip as DCMI knows it.
type dcmiCard struct {
	Slot   string   `json:"slot"`
	Health uint32   `json:"health"`
	Codes  []uint32 `json:"codes,omitempty"` // errors that are active
}

// dcmi asks the driver's library beside its tool, which may call a card OK that has active errors. Without the library nothing is missing.
func (r Reader) dcmi(ctx context.Context, d *accelerator.Driver) {
	self := r.Self
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return
		}
	}
	library := r.Library
	if library == "" {
		library = "libdcmi.so"
	}
	m, fault := child.Ask[message](ctx, child.Command{Path: self, Args: []string{ProbeArg, library}, Deadline: r.Deadline}, nil)
	if fault != nil && (fault.Kind == accelerator.FaultAbsent || fault.Kind == accelerator.FaultProbe) {
		return
	}
	for i := range d.Cards {
		k := &d.Cards[i]
		if k.Fault != nil {
			continue
		}
		if fault != nil {
			k.Health = accelerator.Unreadable[string]("dcmi", fault.String())
			continue
		}
		for _, c := range m.Cards {
			if c.Slot != k.Slot {
				continue
			}
			if c.Health != 0 {
				k.Health = accelerator.Measured(healthWord(c.Health)+codes(c.Codes), "", "dcmi")
			}
		}
	}
}

// healthWord names DCMI's grades. A grade above is a card that the driver has no contact with.
func healthWord(h uint32) string {
	switch h {
	case 0:
		return "OK"
	case 1:
		return "minor"
	case 2:
		return "major"
	case 3:
		return "critical"
	}
	return fmt.Sprintf("unknown (%#x)", h)
}

func codes(list []uint32) string {
	var words []string
	for _, c := range list {
		words = append(words, fmt.Sprintf("%#x", c))
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, " ") + ")"
}

// pcieInfo is struct dcmi_pcie_info of Huawei's dcmi_interface_api.h.
type pcieInfo struct {
	DeviceID, VendorID, SubVendorID, SubDeviceID uint32
	Device, Bus, Function                        uint32
}

// Probe is the child's side. A main that uses a Reader calls it when its first argument is ProbeArg, and exits with what it returns.
func Probe(args []string) int {
	out := os.NewFile(3, "answer")
	if out == nil || len(args) != 1 {
		fmt.Fprintln(os.Stderr, "this is for the program itself to call")
		return 2
	}
	p := &prober{out: json.NewEncoder(out)}
	p.ask(args[0])
	p.msg.Done = true
	p.say()
	return 0
}

type prober struct {
	out *json.Encoder
	msg message
}

func (p *prober) say() { _ = p.out.Encode(p.msg) }

func (p *prober) fail(kind accelerator.FaultKind, format string, a ...any) {
	p.msg.Fault = &accelerator.Fault{Kind: kind, During: p.msg.During, Detail: fmt.Sprintf(format, a...)}
}

func (p *prober) ask(library string) {
	p.msg.During = "dlopen"
	lib, err := purego.Dlopen(library, purego.RTLD_LAZY|purego.RTLD_GLOBAL)
	if err != nil {
		kind := accelerator.FaultRefused
		if strings.Contains(err.Error(), "cannot open shared object file") {
			kind = accelerator.FaultAbsent
		}
		p.fail(kind, "%v", err)
		return
	}
	var (
		start  func() int32
		list   func(*int32, *int32, int32) int32
		chips  func(int32, *int32) int32
		health func(int32, int32, *uint32) int32
		pcie   func(int32, int32, *pcieInfo) int32
		errs   func(int32, int32, *int32, *uint32, uint32) int32
	)
	for _, f := range []struct {
		name string
		into any
		must bool
	}{
		{"dcmi_init", &start, true}, {"dcmi_get_card_list", &list, true}, {"dcmi_get_device_num_in_card", &chips, true},
		{"dcmi_get_device_health", &health, true}, {"dcmi_get_device_pcie_info", &pcie, true}, {"dcmi_get_device_errorcode_v2", &errs, false},
	} {
		symbol, err := purego.Dlsym(lib, f.name)
		if err == nil && symbol != 0 {
			purego.RegisterFunc(f.into, symbol)
		} else if f.must {
			p.msg.During = f.name
			p.fail(accelerator.FaultSymbol, "%s has no %s", library, f.name)
			return
		}
	}
	call := func(name string, f func() int32) bool {
		p.msg.During = name
		p.say()
		if ret := f(); ret != 0 {
			p.fail(accelerator.FaultRefused, "DCMI error %d", ret)
			return false
		}
		return true
	}
	var n int32
	var cards [64]int32
	if !call("dcmi_init", start) || !call("dcmi_get_card_list", func() int32 { return list(&n, &cards[0], int32(len(cards))) }) {
		return
	}
	for _, card := range cards[:max(0, min(int(n), len(cards)))] {
		var count int32
		if !call("dcmi_get_device_num_in_card", func() int32 { return chips(card, &count) }) {
			return
		}
		for chip := range min(count, 8) {
			var info pcieInfo
			c := dcmiCard{}
			if !call("dcmi_get_device_pcie_info", func() int32 { return pcie(card, chip, &info) }) || !call("dcmi_get_device_health", func() int32 { return health(card, chip, &c.Health) }) {
				return
			}
			c.Slot = accelerator.Slot(fmt.Sprintf("0000:%02x:%02x.%x", info.Bus&0xff, info.Device&0x1f, info.Function&7))
			if errs != nil {
				var many int32
				var list [128]uint32
				p.msg.During = "dcmi_get_device_errorcode_v2"
				p.say()
				if errs(card, chip, &many, &list[0], uint32(unsafe.Sizeof(list)/unsafe.Sizeof(list[0]))) == 0 {
					c.Codes = append(c.Codes, list[:max(0, min(int(many), 16))]...)
				}
			}
			p.msg.Cards = append(p.msg.Cards, c)
		}
	}
}
