package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

type machineBaseline struct {
	oneMachine
	Now    bool `help:"Read the BMC now, rather than show what was found at the last comparison."`
	Accept bool `help:"Read the BMC now and accept it as it is: the next comparison is with that. Kept in the log of events."`
	Facts  bool `help:"List every fact that is on record."`
}

// Run shows a baseline and what differs from it.
func (m *machineBaseline) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		if m.Accept {
			b, err := c.AcceptBaseline(ctx, m.Machine)
			if err != nil {
				return err
			}
			return m.show(t, b, func(w io.Writer) {
				for _, line := range b.Words {
					fmt.Fprintln(w, line)
				}
				fmt.Fprintf(w, "accepted: the BMC of %s is compared with this from now on\n", m.Machine)
			})
		}
		b, err := c.Baseline(ctx, m.Machine, m.Now)
		if err != nil {
			return err
		}
		return m.show(t, b, func(w io.Writer) { showComparison(w, b, m.Facts) })
	})
}

func showComparison(w io.Writer, b provisioner.Comparison, facts bool) {
	if b.Baseline == nil {
		fmt.Fprintln(w, "no baseline is recorded: it is at the next hand-over, or with --accept")
		return
	}
	fmt.Fprintf(w, "recorded\t%s, %d facts\n", b.Baseline.Taken.Local().Format("2006-01-02 15:04:05"), len(b.Baseline.Facts))
	for _, name := range slices.Sorted(maps.Keys(b.Baseline.Unread)) {
		fmt.Fprintf(w, "not told\t%s: %s\n", name, machine.CleanText(b.Baseline.Unread[name]))
	}
	switch {
	case b.Found == nil:
		fmt.Fprintln(w, "compared\tnot yet")
	case len(b.Words) == 0:
		fmt.Fprintf(w, "compared\t%s, nothing differs\n", b.Found.Taken.Local().Format("2006-01-02 15:04:05"))
	default:
		fmt.Fprintf(w, "compared\t%s, %d differ\n", b.Found.Taken.Local().Format("2006-01-02 15:04:05"), len(b.Words))
	}
	for _, line := range b.Words {
		fmt.Fprintf(w, "differs\t%s\n", line)
	}
	if facts {
		for _, path := range slices.Sorted(maps.Keys(b.Baseline.Facts)) {
			fmt.Fprintf(w, "%s\t%s\n", machine.CleanText(path), machine.CleanText(b.Baseline.Facts[path]))
		}
	}
}

type bmcCheck struct{ oneMachine }

// Run tries the credentials on record.
func (b *bmcCheck) Run(ctx context.Context, t *terminal) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		out, err := c.CheckBMC(ctx, b.Machine)
		if err != nil {
			return err
		}
		return b.tell(t, out, "%s", out.Says)
	})
}

// inBandLine is in-band access of a machine as `machine show` has it; "" where nothing is known.
func inBandLine(b api.BMCStatus) string {
	if b.InBand.At.IsZero() {
		return ""
	}
	text := strings.TrimPrefix(provisioner.InBandText(machine.InBand{State: b.InBand.State, Why: b.InBand.Why}), "in-band ")
	if b.Shut != "" && b.InBand.State == machine.InBandOpen {
		text += "; its BMC says that it is shut: " + b.Shut
	}
	return text
}
