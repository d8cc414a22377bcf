package provisioner

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// BMCFacts reads what a BMC says of its machine; answered by ipmi.Controller.
type BMCFacts interface {
	Health(ctx context.Context, t ipmi.Target) (ipmi.Health, error)
	Inventory(ctx context.Context, t ipmi.Target) (ipmi.Inventory, error)
	Events(ctx context.Context, t ipmi.Target, cursor string) (ipmi.EventPage, error)
}

// mostPages bounds the reading of a BMC's log: 500 entries each.
const mostPages = 200

// readBMC reads what a report needs of a machine's BMC: power supplies, fans, firmware, and the newest entries of its log, at most so many, behind a
// cursor. It returns the cursor behind what it read. Where only the log could not be read, the error is in LogError as well, and the rest holds.
func (e *Engine) readBMC(ctx context.Context, m machine.Machine, from string, entries int) (out accelerator.BMC, cursor string, err error) {
	empty := accelerator.BMC{Taken: time.Now().UTC(), Supplies: []accelerator.Supply{}, Fans: []accelerator.Fan{}, Events: []accelerator.SELEvent{}}
	out = empty
	err = e.bmc(ctx, m, func(t ipmi.Target) error {
		out, cursor = empty, from // anew with each password
		health, err := e.Facts.Health(ctx, t)
		if err != nil && len(health.Readings) == 0 {
			return err
		}
		out.Supplies, out.Fans = powerOf(health.Readings), fansOf(health.Readings)
		inv, err := e.Facts.Inventory(ctx, t)
		if err != nil && !errors.Is(err, ipmi.ErrUnsupported) {
			return err
		}
		out.Firmware = firmware(inv)
		for range mostPages { // at last: what the BMC logs while it is asked the rest counts too
			page, err := e.Facts.Events(ctx, t, cursor)
			if errors.Is(err, ipmi.ErrUnsupported) {
				break
			}
			if err != nil {
				out.LogError = clip(err.Error())
				return err
			}
			cursor, out.Full = page.Cursor, out.Full || page.Full
			for _, ev := range page.Events {
				out.Events = append(out.Events, logged(ev))
			}
			out.Events = out.Events[max(0, len(out.Events)-entries):]
			if !page.More {
				break
			}
		}
		return nil
	})
	return out, cursor, err
}

// logged is an entry of a BMC's log as it goes into a report.
func logged(ev ipmi.Event) accelerator.SELEvent {
	text := machine.CleanText(ev.Message)
	if kind := machine.CleanText(ev.Kind); kind != "" && !strings.Contains(strings.ToLower(text), strings.ToLower(kind)) {
		text = kind + ": " + text
	}
	severity := string(ev.Severity)
	if ev.Severity == ipmi.Unclear {
		severity = ""
	}
	return accelerator.SELEvent{At: ev.At, Sensor: machine.CleanText(ev.Sensor), Text: clip(text), Severity: severity, Asserted: !ev.Cleared}
}

// absent is what package ipmi says of a sensor whose part is not there.
const absent = "not there"

// powerOf makes facts of the readings about power supplies. A reading that says nothing of the state is none.
func powerOf(list []ipmi.Reading) []accelerator.Supply {
	out := []accelerator.Supply{}
	for _, r := range list {
		if r.Kind != ipmi.PowerSupply || r.Text == absent || r.State == ipmi.Unclear || r.State == "" {
			continue // an empty bay: whether there should be a supply in it, the inventory knows
		}
		s := accelerator.Supply{Name: machine.CleanText(r.Name), Present: true, Healthy: accelerator.Measured(r.State == ipmi.OK, "", "bmc")}
		if r.State == ipmi.Warning {
			s.Healthy = accelerator.Unreadable[bool]("bmc", "it warns: "+machine.CleanText(r.Text))
		}
		text := strings.ToLower(r.Text)
		if strings.Contains(text, "input lost") || strings.Contains(text, "ac lost") || strings.Contains(text, "input out of range") {
			s.Input = accelerator.Measured(false, "", "bmc")
		}
		if r.Known && r.Unit == "W" {
			s.Watts = accelerator.Measured(int64(r.Value), "W", "bmc")
		}
		out = append(out, s)
	}
	return out
}

func fansOf(list []ipmi.Reading) []accelerator.Fan {
	out := []accelerator.Fan{}
	for _, r := range list {
		if r.Kind != ipmi.Fan || r.Text == absent || r.State == ipmi.Unclear && !r.Known {
			continue
		}
		f := accelerator.Fan{Name: machine.CleanText(r.Name), Present: true, Healthy: accelerator.Measured(r.State != ipmi.Critical, "", "bmc")}
		if r.Known && r.Unit == "RPM" {
			f.RPM = accelerator.Measured(int64(r.Value), "RPM", "bmc")
		}
		out = append(out, f)
	}
	return out
}

// firmware are the versions that a BMC tells of.
func firmware(inv ipmi.Inventory) []accelerator.Firmware {
	var out []accelerator.Firmware
	add := func(name, version string) {
		if name, version = machine.CleanText(name), machine.CleanText(version); name != "" && version != "" {
			out = append(out, accelerator.Firmware{Name: name, Version: version})
		}
	}
	add("BIOS", inv.BIOSVersion)
	add("BMC", inv.BMCVersion)
	for _, f := range inv.Firmware {
		name := f.Name
		if name == "" {
			name = f.ID
		}
		if f.Version != inv.BIOSVersion && f.Version != inv.BMCVersion {
			add(name, f.Version)
		}
	}
	return out
}
