package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

type doctorCommand struct {
	Config string `placeholder:"FILE" help:"Configuration file to judge this machine by (default: as for serve)."`
	Lab    bool   `help:"Judge it by what bareyard lab needs, too."`
}

// Run prints a table of what is there and what is not; a required thing that is missing makes the exit code 1.
func (d *doctorCommand) Run(t *terminal) error {
	cfg, err := loadConfig(d.Config)
	if err != nil {
		return err
	}
	findings := examine(serverChecks(cfg))
	if d.Lab {
		findings = append(findings, examine(labChecks())...)
	}
	if err := printFindings(t.out, findings); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f finding) bool { return f.state == missing }) {
		return exitError(1)
	}
	return nil
}

// check is one thing that may be missing.
type check struct {
	name     string
	optional string                 // what one does without it; empty: it is required
	packages string                 // Debian packages that bring it
	look     func() (string, error) // what is there, or why it is not
}

// state is how a check came out.
type state string

const (
	present state = "ok"
	missing state = "missing"
	wanting state = "optional" // missing, and one can do without
)

// finding is what a check found.
type finding struct {
	name, detail string
	state        state
	packages     []string // that bring it; only when it is not there
}

// examine makes the checks in order.
func examine(checks []check) []finding {
	var all []finding
	for _, c := range checks {
		detail, err := c.look()
		f := finding{name: c.name, detail: detail, state: present}
		if err != nil {
			f.detail, f.state, f.packages = err.Error(), missing, strings.Fields(c.packages)
			if c.optional != "" {
				f.detail, f.state = fmt.Sprintf("%v: %s", err, c.optional), wanting
			}
		}
		all = append(all, f)
	}
	return all
}

// printFindings writes the table and, where packages would help, the one line that installs them.
func printFindings(w io.Writer, findings []finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CHECK\tSTATE\tDETAIL")
	var packages []string
	bad := 0
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.name, f.state, f.detail)
		packages = append(packages, f.packages...)
		if f.state == missing {
			bad++
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print findings: %w", err)
	}
	if len(packages) > 0 {
		slices.Sort(packages)
		fmt.Fprintf(w, "\nto install what is missing:\n  apt-get install --no-install-recommends %s\n", strings.Join(slices.Compact(packages), " "))
	}
	verdict := "nothing required is missing"
	if bad > 0 {
		verdict = fmt.Sprintf("%d required missing", bad)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
