package accelerator

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the report as tables for a terminal. Nothing in it can steer the terminal.
func (r Report) WriteText(w io.Writer) error {
	t := &errWriter{w: w}
	verdict := "may be handed over"
	if r.Blocks() {
		verdict = "must not be handed over"
	}
	t.printf("validation: %s, %s\ntaken %s, rules %s\n", r.Outcome, verdict, r.Taken.UTC().Format(time.RFC3339), r.Rules)
	if r.Plan != PlanRead {
		t.printf("plan %s, %.0f s under load\n", r.Plan, r.Seconds)
	}
	for _, p := range r.Profiles {
		t.printf("profile %s, revision %d (%s)\n", printable(p.Name), p.Revision, printable(p.File))
	}
	t.printf("\n")

	tw := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHECK\tOUTCOME\tREQUIRED\tSUMMARY")
	for _, c := range r.Checks {
		required := "no"
		if c.Required {
			required = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.ID, c.Outcome, required, printable(c.Summary))
	}
	tw.Flush()

	for _, c := range r.Checks {
		if c.Outcome == Pass || c.Outcome == Skip && !c.Required && len(c.Evidence) == 0 && c.Advice == "" {
			continue
		}
		t.printf("\n%s: %s\n", c.ID, printable(c.Summary))
		for _, line := range c.Evidence {
			t.printf("  %s\n", printable(line))
		}
		switch {
		case c.Advice != "" && c.Action != "" && c.Action != ActNone:
			t.printf("  do: %s: %s\n", c.Action, printable(c.Advice))
		case c.Advice != "":
			t.printf("  do: %s\n", printable(c.Advice))
		case c.Action != "" && c.Action != ActNone:
			t.printf("  do: %s\n", c.Action)
		}
	}

	if len(r.Cards) > 0 {
		t.printf("\n")
		tw = tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "CARD\tOUTCOME\tID\tNAME\tMEMORY\tLINK\tTEMPERATURE\tPROBLEMS")
		for _, c := range r.Cards {
			fmt.Fprintln(tw, strings.Join(cardRow(c), "\t"))
		}
		tw.Flush()
	}
	return t.err
}

func cardRow(c CardResult) []string {
	slot, id, link := c.Slot, "-", "-"
	if slot == "" {
		slot = "?"
	}
	if c.PCI != nil {
		id = c.PCI.ID()
		link = c.PCI.LinkSpeed.String() + " ×" + c.PCI.LinkWidth.String()
	}
	name, memory, temperature := "-", "-", "-"
	if c.Card != nil && c.Card.Fault == nil {
		name, temperature = printable(c.Card.Name.String()), c.Card.Temperature.String()
		memory = c.Card.Memory.String()
		if c.Card.Memory.Known() {
			memory = fmt.Sprintf("%d MiB", c.Card.Memory.Value>>20)
		}
	}
	problems := "-"
	if len(c.Problems) > 0 {
		problems = printable(strings.Join(c.Problems, "; "))
	}
	return []string{slot, string(c.Outcome), id, name, memory, link, temperature, problems}
}

// errWriter keeps the first error of many writes.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err == nil {
		_, e.err = e.w.Write(p)
	}
	return len(p), nil
}

func (e *errWriter) printf(format string, a ...any) { fmt.Fprintf(e, format, a...) }
