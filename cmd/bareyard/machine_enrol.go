package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
	"github.com/bareyard/bareyard/provisioner/roster"
)

type machineEnrol struct {
	remote
	File            string `required:"" type:"existingfile" placeholder:"FILE" help:"CSV, or Tinkerbell's Hardware in YAML; see docs/discovery.md."`
	Format          string `enum:",csv,tinkerbell" default:"" placeholder:"FORMAT" help:"csv or tinkerbell (default: by the name of the file)."`
	BMCPasswordFile string `name:"bmc-password-file" placeholder:"FILE" help:"File with the password of those BMCs for which the list has none; - reads it from standard input."`
}

// Run gives the enrolment list: all of it, or nothing.
func (m *machineEnrol) Run(ctx context.Context, t *terminal) error {
	list, err := m.read()
	if err != nil {
		return err
	}
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		done, err := c.Expect(ctx, list)
		if err != nil {
			return err
		}
		return m.tell(t, done, "%d on the list now, %d changed, %d were there already, %d are enrolled already; %d of them are in the inbox and are enrolled now",
			done.Added, done.Changed, done.Same, done.Enrolled, done.Found)
	})
}

func (m *machineEnrol) read() ([]api.ExpectedMachine, error) {
	f, err := os.Open(m.File)
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	defer f.Close()
	read, err := roster.Read(f, m.File, roster.Format(m.Format))
	if err != nil {
		return nil, err
	}
	var common string
	if m.BMCPasswordFile != "" {
		if common, err = readPassword(m.BMCPasswordFile); err != nil {
			return nil, err
		}
	}
	var list []api.ExpectedMachine
	var wrong provisioner.LineErrors
	for _, x := range read {
		if x.Password == "" {
			x.Password = common
		}
		if x.Password == "" {
			wrong.Add(x.Line, "bmc_password", &machine.Error{Message: "there is no password for its BMC", Hint: "put it into the list, or one for all into --bmc-password-file"})
		}
		list = append(list, api.ExpectedMachine{Line: x.Line, Entry: x.Expected, BMCPassword: x.Password})
	}
	return list, wrong.Err()
}

type machineExpected struct {
	remote
	Remove string `placeholder:"NAME" help:"Take a machine off the list."`
}

// Run shows the enrolment list.
func (m *machineExpected) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		if m.Remove != "" {
			if err := c.Unexpect(ctx, m.Remove); err != nil {
				return err
			}
			return m.tell(t, map[string]string{"name": m.Remove}, "%s is off the list", m.Remove)
		}
		list, err := c.Expected(ctx)
		if err != nil {
			return err
		}
		return m.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "MACHINE\tMAC\tSERIAL\tCLASS\tSITE\tRACK\tBMC\tADDRESS\tSINCE")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s %s\t%s\t%s\n", x.Name, dash(x.MAC), dash(x.Serial), x.Class, dash(x.Site), dash(x.Rack), x.BMC.Protocol, x.BMC.Address, dash(x.BootAddr), ago(x.Created))
			}
		})
	})
}

type machineExport struct {
	remote
	Format string `enum:"csv,tinkerbell" default:"tinkerbell" help:"csv or tinkerbell (default: tinkerbell)."`
	State  string `placeholder:"STATE" help:"Only those in a state."`
}

// Run writes machines as a list, without the passwords of their BMCs.
func (m *machineExport) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Machines(ctx, m.State)
		if err != nil {
			return err
		}
		return roster.Write(t.out, list, roster.Format(m.Format))
	})
}
