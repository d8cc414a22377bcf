// Command bareyard-validate runs once in the installed OS: it phones home, validates the machine when told to, reports, and removes itself.
package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/ascend"
	"github.com/bareyard/bareyard/accelerator/burn"
	"github.com/bareyard/bareyard/accelerator/nvidia"
	"github.com/bareyard/bareyard/machine"
)

const usage = `usage: bareyard-validate --server URL --ca FILE --token-file FILE [--plan PLAN]
       bareyard-validate --plan PLAN [--duration TIME] [--out DIR] …
       bareyard-validate calibrate --name NAME --source TEXT REPORT…  >profile.yaml
       bareyard-validate compare HANDOVER RETURN
       bareyard-validate verify --key FILE.pub REPORT
       bareyard-validate key FILE

With a server it runs once in the installed OS: phones home, validates the
machine when told to, reports the result, and removes itself and the token file.

  --server URL         base URL of the server, https
  --ca FILE            certificate authority of the server, PEM
  --token-file FILE    bearer token of the job's attempt
  --print              validate against nothing, print the report and exit

Plans: health (reads only), postboot (at most five minutes), acceptance (stages
sanity, validation, performance, stress), return (postboot, and compares). With
a server and without --plan the server says which plan it wants.

  --plan PLAN          what to do; without a server it is done at once
  --duration TIME      of load: 60s at postboot, 1h of stress at acceptance
  --expect FILE        what the machine should have, JSON; without it, as found
  --profiles DIR       profiles of cards, over those of the program
  --handover FILE      report to compare with, for --plan return
  --bmc FILE           what the BMC says (power supplies, fans, log), JSON
  --out DIR            report.json, report.html, report.xml (JUnit)
  --key FILE           sign: report.signed.json

Exit status: 0 the machine may be handed over, 2 it must not, 1 trouble.

For tests: --sysfs DIR --proc DIR --kmsg FILE --nvml FILE --cuda FILE
           --tools DIR --every TIME --least TIME --keep
`

// errBlocked says that the machine must not be handed over; its exit status is 2.
var errBlocked = errors.New("the machine must not be handed over")

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case nvidia.ProbeArg:
			os.Exit(nvidia.Probe(os.Args[2:]))
		case burn.ProbeArg:
			os.Exit(burn.Probe(os.Args[2:]))
		case ascend.ProbeArg:
			os.Exit(ascend.Probe(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		if errors.Is(err, errBlocked) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if done, err := about(args, stdout, stderr); done {
		return err
	}
	flags := flag.NewFlagSet("bareyard-validate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	var (
		server, ca, tokenFile string
		print, keep           bool
		m                     = measurer{tell: func(format string, a ...any) { fmt.Fprintf(stderr, format+"\n", a...) }}
		o                     options
	)
	flags.StringVar(&server, "server", "", "")
	flags.StringVar(&ca, "ca", "", "")
	flags.StringVar(&tokenFile, "token-file", "", "")
	flags.BoolVar(&print, "print", false, "")
	flags.StringVar(&o.plan, "plan", "", "")
	flags.DurationVar(&m.duration, "duration", 0, "")
	flags.StringVar(&o.expect, "expect", "", "")
	flags.StringVar(&o.profiles, "profiles", "", "")
	flags.StringVar(&o.handover, "handover", "", "")
	flags.StringVar(&o.bmc, "bmc", "", "")
	flags.StringVar(&o.out, "out", "", "")
	flags.StringVar(&o.key, "key", "", "")
	flags.StringVar(&m.roots.Sys, "sysfs", "", "")
	flags.StringVar(&m.roots.Proc, "proc", "", "")
	flags.StringVar(&m.roots.Kmsg, "kmsg", "", "")
	flags.StringVar(&m.nvidia.Library, "nvml", "", "")
	flags.StringVar(&m.burn.Library, "cuda", "", "")
	flags.StringVar(&m.tools.Folder, "tools", "", "")
	flags.DurationVar(&m.every, "every", time.Second, "")
	flags.DurationVar(&m.burn.Least, "least", 0, "")
	flags.BoolVar(&keep, "keep", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	m.burn.Sysfs, m.ascend.Tools, m.ppu.Tools = m.roots.Sys, m.tools.Folder, m.tools.Folder
	if err := o.apply(&m); err != nil {
		return err
	}
	if print {
		return m.report(ctx, machine.Expect{}).WriteText(stdout)
	}
	if o.plan != "" && server == "" {
		return byHand(ctx, &m, o, stdout)
	}
	if server == "" || ca == "" || tokenFile == "" {
		return errors.New("--server, --ca and --token-file are needed")
	}
	client, err := newClient(server, ca, tokenFile)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	m.tell = func(format string, a ...any) { log.Info(fmt.Sprintf(format, a...)) }
	v := &validator{post: client.post, read: m.report, plan: m.ordered, try: m.accept, now: m.pace.now, log: log}
	if o.plan != "" { // whoever starts it by hand knows better
		v.plan = nil
	}
	err = v.run(ctx)
	if ctx.Err() != nil || keep {
		return err // interrupted, by a shutdown as like as not: whoever starts us again finds what we need
	}
	return errors.Join(err, remove(tokenFile))
}

// options are the flags that name files.
type options struct{ plan, expect, profiles, handover, bmc, out, key string }

// apply reads what the options name.
func (o options) apply(m *measurer) error {
	var err error
	if o.plan != "" {
		if m.plan, err = accelerator.ParsePlan(o.plan); err != nil {
			return err
		}
	}
	if m.duration < 0 || m.every <= 0 {
		return errors.New("--duration and --every want a time above 0")
	}
	if m.plan == accelerator.PlanPostboot && m.duration > 2*time.Minute {
		return errors.New("--duration: postboot loads for two minutes at most; acceptance is for more")
	}
	if o.profiles != "" {
		if m.rules.Profiles, err = accelerator.ReadProfiles(o.profiles); err != nil {
			return err
		}
	}
	if o.bmc != "" {
		m.bmc = &accelerator.BMC{}
		if err := loadJSON(o.bmc, m.bmc); err != nil {
			return fmt.Errorf("read what the BMC says: %w", err)
		}
	}
	if m.plan == accelerator.PlanReturn && o.handover == "" {
		return errors.New("--plan return wants --handover FILE, the report to compare with")
	}
	if o.handover != "" {
		r, err := loadReport(o.handover)
		if err != nil {
			return err
		}
		m.handover = &r
	}
	return nil
}

// byHand carries out a plan for a person, prints the report and saves it where that is wanted.
func byHand(ctx context.Context, m *measurer, o options, stdout io.Writer) error {
	expect := asFound(accelerator.ReadPCI(m.roots))
	if o.expect != "" {
		expect = machine.Expect{}
		if err := loadJSON(o.expect, &expect); err != nil {
			return fmt.Errorf("read what to expect: %w", err)
		}
	}
	var key ed25519.PrivateKey
	if o.key != "" {
		var err error
		if key, err = privateKey(o.key); err != nil { // before hours of load
			return err
		}
		if o.out == "" {
			return errors.New("--key wants --out DIR, where the signed report goes")
		}
	}
	r := m.report(ctx, expect)
	if err := r.WriteText(stdout); err != nil {
		return err
	}
	if o.out != "" {
		if err := save(o.out, r, key); err != nil {
			return err
		}
	}
	if r.Blocks() {
		return fmt.Errorf("%w: %s", errBlocked, r.Reason())
	}
	return ctx.Err()
}

// remove takes away this program and the token, so that the customer gets the machine as if we had never been there. A folder called bareyard that
// holds both was made for us and goes as a whole: there are copies of the token in it for the download. The token goes last otherwise: without
// it nothing can be done again.
func remove(tokenFile string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("remove validator: %w", err)
	}
	tokenFile, err = filepath.Abs(tokenFile)
	if err != nil {
		return fmt.Errorf("remove validator: %w", err)
	}
	if dir := filepath.Dir(tokenFile); filepath.Base(dir) == "bareyard" && filepath.Dir(self) == dir {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove validator: %w", err)
		}
		return nil
	}
	return errors.Join(gone(self), gone(tokenFile))
}

func gone(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove validator: %w", err)
	}
	return nil
}
