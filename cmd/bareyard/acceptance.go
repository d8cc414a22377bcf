package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// acceptanceCommand tries new hardware.
type acceptanceCommand struct {
	Run    acceptanceRun    `cmd:"" help:"Try machines for hours, and watch it."`
	Watch  acceptanceWatch  `cmd:"" help:"Watch a run until it is over."`
	List   acceptanceList   `cmd:"" help:"List runs, newest first."`
	Show   acceptanceShow   `cmd:"" help:"Show a run: its verdicts, and what to do to each card."`
	Cancel acceptanceCancel `cmd:"" help:"Call a run off, or one machine of it."`
	Retry  acceptanceRetry  `cmd:"" help:"Try a machine of a run again."`
	Admit  acceptanceAdmit  `cmd:"" help:"Take what has passed into stock, through a wipe."`
	Report acceptanceReport `cmd:"" help:"Print or save the signed report of a run."`
}

type acceptanceRun struct {
	remote
	Machine  []string      `placeholder:"NAME,..." help:"The machines, by name or id."`
	Rack     []string      `placeholder:"RACK,..." help:"All machines in these racks."`
	Site     string        `placeholder:"SITE" help:"All machines of a site, or of the racks in it."`
	SkipBusy bool          `help:"Leave out machines of a rack or site that are rented or at work, instead of refusing."`
	Image    string        `placeholder:"NAME" help:"Image with the drivers (default: as the server is configured)."`
	Hours    int           `placeholder:"N" help:"Hours of stress, 1 to 24 (default: 4)."`
	Plan     string        `placeholder:"FILE" help:"YAML: load and limit of each stage, instead of hours."`
	Accept   *bool         `negatable:"" help:"What passes goes to stock by itself (default: as the server is configured)."`
	Parallel int           `placeholder:"N" help:"Machines at a time (default: as many as the power allows)."`
	Stagger  time.Duration `default:"-1s" placeholder:"TIME" help:"Between two starts in one rack (default: as the server is configured)."`
	RackKW   float64       `name:"rack-kw" placeholder:"KW" help:"What each rack bears (default: as the server is configured)."`
	Note     string        `placeholder:"TEXT" help:"For the report: delivery, purchase order."`
	NoWatch  bool          `help:"Begin, and return at once."`
}

// Run begins a run and watches it.
func (a *acceptanceRun) Run(ctx context.Context, t *terminal) error {
	n := api.NewAcceptanceRun{Machines: a.Machine, Racks: a.Rack, Site: a.Site, SkipBusy: a.SkipBusy, Image: a.Image, Hours: a.Hours,
		Parallel: a.Parallel, RackWatts: int(a.RackKW * 1000), Accept: a.Accept, Note: a.Note}
	if a.Hours < 0 || a.Hours > 24 {
		return &machine.Error{Code: machine.Invalid, Field: "hours", Message: fmt.Sprintf("%d hours", a.Hours), Hint: "choose 1 to 24"}
	}
	if a.RackKW < 0 || a.Parallel < 0 {
		return &machine.Error{Code: machine.Invalid, Field: "rack-kw", Message: "power and number are not below 0", Hint: "leave them out for no bound"}
	}
	if a.Stagger >= 0 {
		s := machine.Span(a.Stagger)
		n.Stagger = &s
	}
	if a.Plan != "" {
		plan, err := readPlan(a.Plan)
		if err != nil {
			return err
		}
		n.Plan = &plan
	}
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		begun, err := c.BeginRun(ctx, n)
		if err != nil {
			return err
		}
		for _, l := range begun.LeftOut {
			fmt.Fprintf(t.err, "left out: %s %s\n", l.Name, l.Why)
		}
		if a.NoWatch {
			return a.tell(t, begun.Run, "acceptance run %s of %d machines begins; watch it with: bareyard acceptance watch %s", begun.Run.ID, len(begun.Run.Trials), begun.Run.ID)
		}
		fmt.Fprintf(t.err, "acceptance run %s of %d machines begins; Ctrl-C leaves it alone\n", begun.Run.ID, len(begun.Run.Trials))
		return a.follow(ctx, t, c, begun.Run.ID)
	})
}

// readPlan reads a plan of stages. A mistake names the file and the key.
func readPlan(file string) (machine.AcceptancePlan, error) {
	var p machine.AcceptancePlan
	bad := func(err error) error {
		return &machine.Error{Code: machine.Invalid, Field: "plan", Message: fmt.Sprintf("%s cannot be read: %v", file, err), Hint: "docs/acceptance.md shows a plan"}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return p, bad(err)
	}
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return p, bad(err)
	}
	return p.Filled(), p.Filled().Check()
}

// follow watches a run to its end and prints its verdict; exit code 1 when a machine did not pass.
func (r *remote) follow(ctx context.Context, t *terminal, c *client.Client, id string) error {
	b := &board{out: t.err, live: isTerminal(t.err)}
	var run machine.AcceptanceRun
	for broken := 0; ; {
		err := c.WatchRun(ctx, id, func(x machine.AcceptanceRun) error {
			run, broken = x, 0
			b.draw(x, time.Now())
			return nil
		})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			b.end()
			fmt.Fprintf(t.err, "the run goes on; watch it with: bareyard acceptance watch %s\n", id)
			return ctx.Err()
		}
		if machine.CodeOf(err) != machine.Unavailable || broken > 120 {
			return err
		}
		broken++
		select { // the server is being restarted
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	b.end()
	if err := r.show(t, run, func(w io.Writer) { summary(w, run) }); err != nil {
		return err
	}
	if !allPassed(run) {
		return exitError(1)
	}
	return nil
}

type oneRun struct {
	remote
	ID string `arg:"" name:"run" help:"The run, by its id."`
}

type acceptanceWatch struct{ oneRun }

// Run watches a run.
func (a *acceptanceWatch) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error { return a.follow(ctx, t, c, a.ID) })
}

type acceptanceList struct{ remote }

// Run lists runs.
func (a *acceptanceList) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Runs(ctx)
		if err != nil {
			return err
		}
		return a.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "RUN\tSTATE\tBEGAN\tTOOK\tMACHINES\tPASSED\tFAILED\tINCOMPLETE\tSTRESS\tNOTE")
			for _, r := range list {
				n := tally(r)
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", r.ID, r.State, r.Created.Local().Format("2006-01-02 15:04"), span(tookOf(r, time.Now())), len(r.Trials),
					n[machine.TrialPassed], n[machine.TrialFailed], n[machine.TrialIncomplete]+n[machine.TrialCancelled], span(time.Duration(r.Plan.Stress.Load)), dash(r.Note))
			}
		})
	})
}

type acceptanceShow struct{ oneRun }

// Run shows a run.
func (a *acceptanceShow) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		run, err := c.Run(ctx, a.ID)
		if err != nil {
			return err
		}
		return a.show(t, run, func(w io.Writer) {
			if run.State == machine.RunUnderWay {
				for _, line := range boardLines(run, time.Now(), 160) {
					fmt.Fprintln(w, line)
				}
				fmt.Fprintln(w)
			}
			summary(w, run)
		})
	})
}

type acceptanceCancel struct {
	oneRun
	Machine string `arg:"" optional:"" help:"One machine of it, by name or id."`
	Reason  string `required:"" placeholder:"TEXT" help:"Why; kept in the log of events."`
}

// Run calls a run off.
func (a *acceptanceCancel) Run(ctx context.Context, t *terminal) error {
	return a.decide(ctx, t, "cancel", a.Machine, a.Reason)
}

type acceptanceRetry struct {
	oneRun
	Machine string `arg:"" help:"The machine, by name or id."`
}

// Run tries a machine again.
func (a *acceptanceRetry) Run(ctx context.Context, t *terminal) error {
	return a.decide(ctx, t, "retry", a.Machine, "")
}

type acceptanceAdmit struct {
	oneRun
	Machine string `arg:"" optional:"" help:"One machine of it, by name or id (default: all that have passed)."`
}

// Run admits what has passed.
func (a *acceptanceAdmit) Run(ctx context.Context, t *terminal) error {
	return a.decide(ctx, t, "admit", a.Machine, "")
}

func (a *oneRun) decide(ctx context.Context, t *terminal, verb, machineID, reason string) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		run, err := c.DecideRun(ctx, a.ID, verb, machineID, reason)
		if err != nil {
			return err
		}
		return a.show(t, run, func(w io.Writer) { summary(w, run) })
	})
}

type acceptanceReport struct {
	oneRun
	HTML  string `placeholder:"FILE" help:"Save it as a page."`
	JUnit string `name:"junit" placeholder:"FILE" help:"Save it as JUnit."`
	Out   string `placeholder:"FILE" help:"Save the JSON, which is signed once the run is over."`
}

// Run saves or prints a report.
func (a *acceptanceReport) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		saved := false
		var errs []error
		for _, f := range []struct{ file, form string }{{a.HTML, ".html"}, {a.JUnit, ".xml"}, {a.Out, ""}} {
			if f.file == "" {
				continue
			}
			saved = true
			body, err := c.RunReport(ctx, a.ID, f.form)
			if err != nil {
				return err
			}
			if err := os.WriteFile(f.file, body, 0o644); err != nil {
				errs = append(errs, fmt.Errorf("save report: %w", err))
				continue
			}
			fmt.Fprintf(t.err, "saved %s\n", f.file)
		}
		if saved {
			return errors.Join(errs...)
		}
		body, err := c.RunReport(ctx, a.ID, "")
		if err != nil {
			return err
		}
		_, err = io.WriteString(t.out, strings.TrimSuffix(string(body), "\n")+"\n")
		return err
	})
}
