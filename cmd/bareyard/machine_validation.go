package main

import (
	"context"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// validationCommands are the machine commands about its validation.
type validationCommands struct {
	Reports  machineReports  `cmd:"" help:"List the reports of a machine's validations, the newest first."`
	Validate machineValidate `cmd:"" help:"Look at a machine that is available or quarantined, from the RAM disk: nothing is written to it."`
}

type machineValidate struct {
	oneMachine
	Wait bool `help:"Wait for the result; exit 4 when it blocks."`
}

// Run validates.
func (m *machineValidate) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		j, err := c.ValidateMachine(ctx, m.Machine)
		if err != nil {
			return err
		}
		if !m.Wait {
			return m.tell(t, j, "job %s looks at machine %s; `bareyard machine reports %s` has the result in some minutes", j.ID, m.Machine, m.Machine)
		}
		if j, err = ended(ctx, c, j); err != nil {
			return err
		}
		if j.State != machine.JobSucceeded {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("job %s %s: %s", j.ID, j.State, j.Reason), Hint: fmt.Sprintf("`bareyard machine reports %s` has the evidence", m.Machine)}
		}
		if j.Finding != "" { // the job has done its work; the machine is in quarantine all the same
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s passed plan health and is kept out of stock: %s", m.Machine, j.Finding), Hint: fmt.Sprintf("`bareyard machine show %s` has the events; validate it again when that is put right", m.Machine)}
		}
		return m.tell(t, j, "machine %s passed plan health", m.Machine)
	})
}

// ended waits for the end of a job.
func ended(ctx context.Context, c *client.Client, j machine.Job) (machine.Job, error) {
	for j.State == machine.JobRunning {
		if !wait(ctx, time.Second) {
			return j, ctx.Err()
		}
		var err error
		if j, err = c.Job(ctx, j.ID); err != nil {
			return j, err
		}
	}
	return j, nil
}

// cardCommand is the history of single cards.
type cardCommand struct {
	Show   cardShow   `cmd:"" help:"Show where a card is, where it was, and what each report said of it."`
	Forget cardForget `cmd:"" help:"Take a card off its machine's record, after it was moved or exchanged on purpose."`
}

type oneCard struct {
	remote
	Serial string `arg:"" help:"Serial number, or UUID of a card that has none."`
}

type cardShow struct{ oneCard }

// Run shows a card.
func (k *cardShow) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Card(ctx, k.Serial)
		if err != nil {
			return err
		}
		return k.show(t, x, func(w io.Writer) {
			if x.Now == nil {
				fmt.Fprintf(w, "card\t%s\non record\tof no machine\n\n", x.Serial)
			} else {
				fmt.Fprintf(w, "card\t%s\nmodel\t%s\non record\tmachine %s, slot %s\nsince\t%s\nlast seen\t%s, report %s\n\n", x.Serial, x.Now.Model, x.Now.Machine, x.Now.Slot, moment(x.Now.FirstSeen), moment(x.Now.LastSeen), x.Now.ReportID)
			}
			fmt.Fprintln(w, "KEPT\tREPORT\tPLAN\tMACHINE\tSLOT\tORDER\tOUTCOME\tPROBLEMS")
			for _, s := range x.Seen {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", moment(s.At), s.Report, dash(string(s.Plan)), s.Machine, s.Slot, dash(s.OrderID), s.Outcome, strings.Join(s.Problems, "; "))
			}
		})
	})
}

type cardForget struct {
	oneCard
	Reason string `required:"" placeholder:"TEXT" help:"Why; kept in the log of events."`
	By     string `placeholder:"NAME" help:"Who says so (default: you)."`
}

// Run forgets where a card is.
func (k *cardForget) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		if err := c.ForgetCard(ctx, k.Serial, me(k.By), k.Reason); err != nil {
			return err
		}
		return k.tell(t, map[string]string{"forgotten": k.Serial}, "card %s is on no machine's record; the next report that sees it records it anew", k.Serial)
	})
}

// waiverCommand lets checks pass for a while.
type waiverCommand struct {
	Make     waiverMake     `cmd:"" help:"Let a check of a machine, or of one of its cards, pass for a while."`
	List     waiverList     `cmd:"" help:"List waivers that hold."`
	Withdraw waiverWithdraw `cmd:"" help:"End a waiver before its time."`
}

type waiverMake struct {
	remote
	Machine string        `arg:"" help:"The machine, by name or id."`
	Check   string        `arg:"" help:"The check, as a report names it, e.g. card.ecc."`
	Card    string        `placeholder:"SLOT|SERIAL" help:"Only for this card (default: for the whole check)."`
	For     time.Duration `required:"" placeholder:"TIME" help:"For how long, e.g. 168h; a year at most."`
	Reason  string        `required:"" placeholder:"TEXT" help:"Why; it is in every report that it touches."`
	By      string        `placeholder:"NAME" help:"Who takes it on himself (default: you)."`
}

// Run makes a waiver.
func (k *waiverMake) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Waive(ctx, k.Machine, api.NewWaiver{Check: k.Check, Card: k.Card, Who: me(k.By), Why: k.Reason, Until: time.Now().Add(k.For)})
		if err != nil {
			return err
		}
		return k.tell(t, x, "waiver %s: %s of machine %s blocks nothing until %s", x.ID, x.Check, k.Machine, moment(x.Until))
	})
}

type waiverList struct {
	remote
	Machine string `placeholder:"NAME" help:"Of this machine alone."`
	All     bool   `help:"Those that are over, too."`
}

// Run lists waivers.
func (k *waiverList) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Waivers(ctx, k.Machine, k.All)
		if err != nil {
			return err
		}
		return k.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "WAIVER\tMACHINE\tCHECK\tCARD\tUNTIL\tBY\tWHY")
			for _, x := range list {
				until := moment(x.Until)
				if !x.Withdrawn.IsZero() {
					until = "withdrawn " + moment(x.Withdrawn)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.ID, x.MachineID, x.Check, dash(x.Card), until, x.Who, x.Why)
			}
		})
	})
}

type waiverWithdraw struct {
	remote
	Waiver string `arg:"" help:"The waiver."`
	By     string `placeholder:"NAME" help:"Who says so (default: you)."`
}

// Run ends a waiver.
func (k *waiverWithdraw) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		if err := c.WithdrawWaiver(ctx, k.Waiver, me(k.By)); err != nil {
			return err
		}
		return k.tell(t, map[string]string{"withdrawn": k.Waiver}, "waiver %s is over", k.Waiver)
	})
}

// me is who works at this terminal, unless he says otherwise.
func me(by string) string {
	if by != "" {
		return by
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
