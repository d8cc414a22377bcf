package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// validateCommand validates the machine that it runs on, or one that the server boots for it.
type validateCommand struct {
	remote
	Machine   string        `placeholder:"NAME" help:"Let the server look at this machine, as machine validate --wait does, in place of the one that this runs on."`
	Plan      string        `default:"health" enum:"health,postboot,acceptance" help:"health (reads only), postboot (five minutes of load), acceptance (hours)."`
	Duration  time.Duration `placeholder:"TIME" help:"Of load (default: the plan's)."`
	Profiles  string        `type:"existingdir" placeholder:"DIR" help:"Profiles of cards, over those of the program."`
	Out       string        `type:"path" placeholder:"DIR" help:"Save report.json, report.html and report.xml there."`
	Validator string        `type:"existingfile" placeholder:"FILE" help:"The validator (default: the configuration's, or bareyard-validate beside this program or in PATH)."`
	Config    string        `placeholder:"FILE" help:"Configuration file that names the validator (default: as for serve)."`
}

// Run validates.
func (k *validateCommand) Run(ctx context.Context, t *terminal) error {
	if k.Machine != "" {
		if k.Plan != "health" || k.Duration != 0 || k.Out != "" || k.Profiles != "" || k.Validator != "" {
			return &machine.Error{Code: machine.Invalid, Field: "machine", Message: "the server looks at a machine by plan health and its own profiles", Hint: "leave --plan, --duration, --profiles, --out and --validator away; `bareyard acceptance run` puts a load on machines"}
		}
		m := machineValidate{Wait: true}
		m.remote, m.Machine = k.remote, k.Machine
		return m.Run(ctx, t)
	}
	file, err := k.validator()
	if err != nil {
		return err
	}
	args := []string{"--plan", k.Plan}
	for flag, value := range map[string]string{"--profiles": k.Profiles, "--out": k.Out} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if k.Duration > 0 {
		args = append(args, "--duration", k.Duration.String())
	}
	c := exec.CommandContext(ctx, file, args...)
	c.Stdout, c.Stderr = t.out, t.err
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // it ends its children itself
	c.WaitDelay = 30 * time.Second
	err = c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitError(exit.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("run validator: %w", err)
	}
	return nil
}

// validator finds the program: the one that is named, the one that the server puts on machines, one beside this program, one in PATH.
func (k *validateCommand) validator() (string, error) {
	if k.Validator != "" {
		return k.Validator, nil
	}
	cfg, err := loadConfig(k.Config)
	if err != nil {
		return "", err
	}
	if isProgram(cfg.Validator) {
		return cfg.Validator, nil
	}
	if cfg.Validator != standardValidator {
		return "", &machine.Error{Code: machine.NotFound, Field: "validator", Message: fmt.Sprintf("validator: %s is no program", cfg.Validator), Hint: "`make build` makes bareyard-validate; copy it there, or name another with --validator"}
	}
	const name = "bareyard-validate"
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), name); isProgram(beside) {
			return beside, nil
		}
	}
	file, err := exec.LookPath(name)
	if err != nil {
		return "", &machine.Error{Code: machine.NotFound, Field: "validator", Message: "there is no bareyard-validate beside this program or in PATH", Hint: "name it with --validator; `make build` makes it"}
	}
	return file, nil
}

func isProgram(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0
}
