package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/bareyard/bareyard/api"
	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// Lines of the lab: each carrier with addresses that the lab's internet routes to the edge (documentation ranges, RFC 5737).
func labLines() map[string]api.NewLine {
	line := func(prefix string) api.NewLine {
		return api.NewLine{Site: "lab", MinBandwidth: 1, MaxBandwidth: 1000, CoolDown: "1m", Ranges: []netip.Prefix{netip.MustParsePrefix(prefix)}}
	}
	return map[string]api.NewLine{"bgp": line("203.0.113.0/28"), "telecom": line("192.0.2.0/28")}
}

// Classes of the lab.
func labClasses() []machine.Class {
	return []machine.Class{
		{Name: "lab", Description: "a QEMU machine without cards", MonthlyPrice: 10_000, Currency: "CNY"},
		{Name: "rtx5090x8", Description: "8 × RTX 5090 (QEMU: devices that answer on the bus, driver mocked)", Accelerator: "10de:2b85", Count: 8, MonthlyPrice: 2_500_000, Currency: "CNY"},
	}
}

// Stock tells a new server what the lab is: lines with addresses, classes, the machines with their BMC passwords, and the
// image debian-12 from a file, if one is given. What the server knows already stays as it is.
func Stock(ctx context.Context, c *apiclient.Client, records []Record, imageFile string) error {
	for name, l := range labLines() {
		if err := c.PutLine(ctx, name, l); err != nil {
			return fmt.Errorf("define line %s: %w", name, err)
		}
	}
	for _, k := range labClasses() {
		if err := c.PutClass(ctx, k); err != nil {
			return fmt.Errorf("define class %s: %w", k.Name, err)
		}
	}
	for _, r := range records {
		if r.Unknown {
			continue
		}
		m := r.Machine
		_, err := c.Enroll(ctx, api.NewMachine{Name: m.Name, Site: m.Site, Rack: m.Rack, Class: m.Class, Firmware: m.Firmware, Boot: m.Boot, Hardware: m.Hardware,
			BMC: m.BMC, BMCPassword: r.Password, BootAddr: m.BootAddr, Admit: true})
		if err != nil && machine.CodeOf(err) != machine.Conflict {
			return fmt.Errorf("enrol machine %s: %w", m.Name, err)
		}
	}
	if imageFile == "" {
		return nil
	}
	f, err := os.Open(imageFile)
	if err != nil {
		return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no image: %v", err), Hint: "build it with: make lab-image"}
	}
	defer f.Close()
	if _, err := c.ImportImage(ctx, apiclient.Upload{Name: "debian-12", DefaultUser: "debian", Driver: true}, f); err != nil {
		return fmt.Errorf("import image: %w", err)
	}
	return nil
}
