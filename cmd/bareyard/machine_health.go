package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

type machineHealth struct {
	remote
	Machine     string `arg:"" optional:"" help:"The machine, by name or id; none: all of them."`
	Now         bool   `help:"Read its BMC now."`
	Acknowledge bool   `help:"Take note of the critical entries of its BMC's event log: they no longer count against it."`
}

// Run shows the health of machines.
func (h *machineHealth) Run(ctx context.Context, t *terminal) error {
	if h.Machine == "" && (h.Now || h.Acknowledge) {
		return &machine.Error{Code: machine.Invalid, Field: "machine", Message: "say which machine", Hint: "--now and --acknowledge are for one machine"}
	}
	return h.call(ctx, func(ctx context.Context, c *client.Client) error {
		if h.Machine == "" {
			return h.all(ctx, t, c)
		}
		if h.Acknowledge {
			n, err := c.Acknowledge(ctx, h.Machine)
			if err != nil {
				return err
			}
			return h.tell(t, n, "%d critical entries of the event log of %s's BMC are acknowledged", n.Entries, h.Machine)
		}
		read := c.Health
		if h.Now {
			read = c.ReadHealth
		}
		x, err := read(ctx, h.Machine)
		if err != nil {
			return err
		}
		return h.show(t, x, func(w io.Writer) {
			showHealth(w, x)
			fmt.Fprintln(w)
			for _, r := range x.Readings {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Kind, provisioner.SensorName(r), provisioner.Value(r), stateOf(x, r))
			}
			for _, u := range x.Unread {
				fmt.Fprintf(w, "unread\t%s\n", u)
			}
		})
	})
}

// stateOf is a reading's state; of a host that is off, a fan that stands still is as it should be.
func stateOf(h provisioner.Health, r ipmi.Reading) string {
	if r.State == ipmi.Warning || r.State == ipmi.Critical {
		if !h.Bad(r) {
			return "off"
		}
	}
	return string(r.State)
}

func (h *machineHealth) all(ctx context.Context, t *terminal, c *client.Client) error {
	list, err := c.AllHealth(ctx)
	if err != nil {
		return err
	}
	return h.show(t, list, func(w io.Writer) {
		fmt.Fprintln(w, "MACHINE\tSTATE\tHEALTH\tPOWER\tOPEN EVENTS\tREAD\tPROBLEM")
		for _, x := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", x.Machine, x.State, x.Overall, x.Power, x.Open, readAt(x.Health), dash(x.Error))
		}
	})
}

func readAt(h provisioner.Health) string {
	if h.At.IsZero() {
		return "never"
	}
	return ago(h.At)
}

// showHealth is a machine's health in few lines.
func showHealth(w io.Writer, h provisioner.Health) {
	text := string(h.Overall)
	if h.Sensors != h.Overall {
		text += fmt.Sprintf(" (sensors %s)", h.Sensors)
	}
	fmt.Fprintf(w, "health\t%s, power %s, read %s\n", text, h.Power, readAt(h))
	if h.Open > 0 {
		fmt.Fprintf(w, "events\t%d critical in the BMC's event log, not acknowledged\n", h.Open)
	}
	if h.Error != "" {
		fmt.Fprintf(w, "BMC\tnot read since %s (%d polls): %s\n", h.Silent.Local().Format("2006-01-02 15:04:05"), h.Failed, h.Error)
	}
	for _, r := range h.Readings {
		if h.Bad(r) {
			fmt.Fprintf(w, "sensor\t%s\n", provisioner.Reading(r))
		}
	}
}

type bmcLog struct {
	oneMachine
	Lines int `short:"n" default:"50" help:"How many of the newest entries (default: 50)."`
}

// Run shows an event log, the oldest entry first.
func (b *bmcLog) Run(ctx context.Context, t *terminal) error {
	if b.Lines < 1 || b.Lines > 2000 {
		return &machine.Error{Code: machine.Invalid, Field: "lines", Message: fmt.Sprintf("%d lines", b.Lines), Hint: "ask for 1 to 2000"}
	}
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.BMCLog(ctx, b.Machine, b.Lines)
		if err != nil {
			return err
		}
		return b.show(t, list, func(w io.Writer) {
			for i := len(list) - 1; i >= 0; i-- {
				e := list[i]
				at := "clock not set"
				if !e.At.IsZero() {
					at = e.At.Local().Format("2006-01-02 15:04:05")
				}
				state := string(e.Severity)
				switch {
				case e.Cleared:
					state += ", over"
				case e.Severity == ipmi.Critical && e.Acknowledged:
					state += ", acknowledged"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", at, state, dash(e.Sensor), e.Message)
			}
		})
	})
}

type bmcShow struct{ oneMachine }

// Run shows what is known of a BMC.
func (b *bmcShow) Run(ctx context.Context, t *terminal) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.BMC(ctx, b.Machine)
		if err != nil {
			return err
		}
		return b.show(t, x, func(w io.Writer) {
			fmt.Fprintf(w, "BMC\t%s %s\nuser\t%s\n", x.Reach.Protocol, x.Reach.Address, x.Reach.Username)
			if x.Reach.CertPin != "" {
				fmt.Fprintf(w, "certificate\tSHA-256 %s (%s)\n", x.Reach.CertPin, x.Reach.PinHow)
			}
			if !x.Rotated.IsZero() {
				fmt.Fprintf(w, "password\tchanged %s\n", ago(x.Rotated))
			}
			if k := x.Knowledge; k.Boot != "" {
				fmt.Fprintf(w, "next boot\tby method %q\n", k.Boot)
			}
			for _, q := range x.Knowledge.Quirks {
				fmt.Fprintf(w, "habit\t%s\n", q)
			}
			inv := x.Inventory
			if inv == nil {
				fmt.Fprintf(w, "inventory\tnot read yet: bareyard machine health %s --now\n", b.Machine)
				return
			}
			fmt.Fprintf(w, "machine\t%s\nserial\t%s\nBMC model\t%s\nread\t%s\n", dash(strings.TrimSpace(inv.Manufacturer+" "+inv.Model)), dash(inv.Serial), dash(inv.BMCModel), ago(x.InventoryAt))
			for _, f := range inv.Firmware {
				fmt.Fprintf(w, "firmware\t%s\t%s\n", f.Name, f.Version)
			}
			for _, l := range inv.LAN {
				fmt.Fprintf(w, "network\t%s %s %s\n", l.MAC, l.Address, l.Source)
			}
			for _, u := range inv.Unread {
				fmt.Fprintf(w, "unread\t%s\n", u)
			}
		})
	})
}
