package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// machineCommand is the operators' side of machines.
type machineCommand struct {
	List       machineList   `cmd:"" help:"List machines."`
	Show       machineShow   `cmd:"" help:"Show a machine and what happened to it."`
	Import     machineImport `cmd:"" help:"Enrol the machines of a YAML file."`
	Return     machineReturn `cmd:"" help:"Wipe a quarantined or parked machine and return it to stock."`
	Park       machineMove   `cmd:"" help:"Take a machine into maintenance."`
	Unpark     machineMove   `cmd:"" help:"Return a machine from maintenance to the customer who holds it."`
	Admit      machineMove   `cmd:"" help:"Vouch for an enrolled machine: it becomes available."`
	Quarantine machineMove   `cmd:"" help:"Take a suspicious machine out."`
	Retire     machineMove   `cmd:"" help:"Take a machine out for good."`

	inboxCommands
	deskCommands
	validationCommands
}

type machineList struct {
	remote
	State string `placeholder:"STATE" help:"Only those in a state."`
}

// Run lists machines.
func (m *machineList) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Machines(ctx, m.State)
		if err != nil {
			return err
		}
		return m.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "MACHINE\tCLASS\tSTATE\tFIRMWARE\tBMC\tORDER\tREASON")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s %s\t%s\t%s\n", x.Name, x.Class, x.State, x.Firmware, x.BMC.Protocol, x.BMC.Address, dash(x.OrderID), dash(x.Reason))
			}
		})
	})
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type oneMachine struct {
	remote
	Machine string `arg:"" help:"The machine, by name or id."`
}

type machineShow struct{ oneMachine }

// Run shows a machine.
func (m *machineShow) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Machine(ctx, m.Machine)
		if machine.CodeOf(err) == machine.NotFound {
			return m.discovered(ctx, t, c, err)
		}
		if err != nil {
			return err
		}
		events, err := c.Events(ctx, "", x.ID)
		if err != nil {
			return err
		}
		health, err := c.Health(ctx, x.ID)
		if err != nil {
			return err
		}
		bmc, err := c.BMC(ctx, x.ID)
		if err != nil {
			return err
		}
		return m.show(t, map[string]any{"machine": x, "health": health, "events": events}, func(w io.Writer) {
			fmt.Fprintf(w, "machine\t%s (%s)\nstate\t%s\nclass\t%s\nBMC\t%s %s\nUUID\t%s\nserial\t%s\n", x.Name, x.ID, x.State, x.Class, x.BMC.Protocol, x.BMC.Address, x.Hardware.UUID, x.Hardware.Serial)
			for _, n := range x.Hardware.NICs {
				fmt.Fprintf(w, "port\t%s %s %s\n", n.MAC, n.Role, n.Port)
			}
			for _, d := range x.Hardware.Disks {
				fmt.Fprintf(w, "disk\t%s %s %.1f GB\n", d.Serial, d.Role, float64(d.Size)/1e9)
			}
			for _, a := range x.Hardware.Accelerators {
				fmt.Fprintf(w, "card\t%s %s:%s\n", a.Slot, a.Vendor, a.Device)
			}
			if line := inBandLine(bmc); line != "" {
				fmt.Fprintf(w, "in-band\t%s\n", line)
			}
			if x.Reason != "" {
				fmt.Fprintf(w, "reason\t%s\n", x.Reason)
			}
			showHealth(w, health)
			fmt.Fprintln(w)
			showEvents(w, events)
		})
	})
}

// discovered shows a machine that nobody has enrolled, if there is one.
func (m *machineShow) discovered(ctx context.Context, t *terminal, c *client.Client, unknown error) error {
	f, err := c.Found(ctx, m.Machine)
	if err != nil {
		return unknown
	}
	events, err := c.Events(ctx, "", f.ID)
	if err != nil {
		return err
	}
	return m.show(t, map[string]any{"discovered": f, "events": events}, func(w io.Writer) {
		showFound(w, f)
		fmt.Fprintln(w)
		showEvents(w, events)
	})
}

func showEvents(w io.Writer, events []provisioner.Event) {
	for _, ev := range events {
		fmt.Fprintf(w, "%s\t%s\t%s\n", ev.At.Local().Format("2006-01-02 15:04:05"), ev.Kind, ev.Text)
	}
}

type machineImport struct {
	remote
	File string `arg:"" type:"existingfile" help:"YAML: a list of machines as in docs/machines.yaml."`
}

// Run enrols machines, each wholly or not at all.
func (m *machineImport) Run(ctx context.Context, t *terminal) error {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return fmt.Errorf("read machines: %w", err)
	}
	var list []api.NewMachine
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("%s cannot be read: %v", m.File, err), Hint: "compare it with docs/machines.yaml"}
	}
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		for _, x := range list {
			enrolled, err := c.Enroll(ctx, x)
			if err != nil {
				return fmt.Errorf("machine %s: %w", x.Name, err)
			}
			if err := m.tell(t, enrolled, "%s is %s%s", enrolled.Name, enrolled.State, firstUse(enrolled)); err != nil {
				return err
			}
		}
		return nil
	})
}

// firstUse tells the operator what was trusted, so that he can compare.
func firstUse(m machine.Machine) string {
	if m.BMC.PinHow != provisioner.FirstUse {
		return ""
	}
	return fmt.Sprintf("; its BMC's certificate is trusted as it was shown now: SHA-256 %s", m.BMC.CertPin)
}

type machineReturn struct{ oneMachine }

// Run starts the wipe that returns a machine to stock.
func (m *machineReturn) Run(ctx context.Context, t *terminal) error {
	return m.move(ctx, t, "return", "")
}

type machineMove struct {
	oneMachine
	Reason string `required:"" placeholder:"TEXT" help:"Why; kept in the log of events."`
}

// Run moves the machine; the verb is the command's own name.
func (m *machineMove) Run(ctx context.Context, t *terminal, k *kong.Context) error {
	return m.move(ctx, t, k.Selected().Name, m.Reason)
}

func (m *oneMachine) move(ctx context.Context, t *terminal, verb, reason string) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Move(ctx, m.Machine, verb, reason)
		if err != nil {
			return err
		}
		return m.tell(t, x, "machine %s is %s", x.Name, x.State)
	})
}
