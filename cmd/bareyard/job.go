package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// jobCommand is work on machines.
type jobCommand struct {
	List    jobList    `cmd:"" help:"List jobs, newest first."`
	Console jobConsole `cmd:"" help:"Print what the machine's serial console showed while a job ran."`
}

type jobList struct {
	remote
	Machine string `placeholder:"ID" help:"Only those on a machine."`
	Order   string `placeholder:"ID" help:"Only those of an order."`
}

// Run lists jobs.
func (j *jobList) Run(ctx context.Context, t *terminal) error {
	return j.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Jobs(ctx, j.Order, j.Machine)
		if err != nil {
			return err
		}
		return j.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "JOB\tKIND\tMACHINE\tORDER\tSTATE\tATTEMPT\tSTEP\tTOOK\tREASON")
			for _, x := range list {
				end := x.Finished
				if x.State == machine.JobRunning {
					end = time.Now()
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", x.ID, x.Kind, x.MachineID, dash(x.OrderID), x.State, x.Attempt, x.Step, end.Sub(x.Started).Round(time.Second), dash(x.Reason))
			}
		})
	})
}

// tokenCommand makes API tokens.
type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Make a token; it is shown once."`
}

type tokenCreate struct {
	remote
	Project string `placeholder:"NAME" help:"For a customer: the tenant whose orders the token opens. Without it the token is an operator's."`
}

// Run makes a token.
func (k *tokenCreate) Run(ctx context.Context, t *terminal) error {
	role := "customer"
	if k.Project == "" {
		role = "operator"
	}
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		token, err := c.NewToken(ctx, role, k.Project)
		if err != nil {
			return err
		}
		return k.tell(t, map[string]string{"token": token}, "%s", token)
	})
}
