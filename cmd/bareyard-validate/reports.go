package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
)

// about does what is about reports and needs no machine: calibrate, compare, verify, key. It returns false for any other first argument.
func about(args []string, stdout, stderr io.Writer) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	flags := flag.NewFlagSet("bareyard-validate "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	name := flags.String("name", "", "")
	source := flags.String("source", "", "")
	key := flags.String("key", "", "")
	do := map[string]func() error{
		"calibrate": func() error { return calibrate(*name, *source, flags.Args(), stdout, stderr) },
		"compare":   func() error { return compare(flags.Args(), stdout) },
		"verify":    func() error { return verify(*key, flags.Args(), stdout) },
		"key": func() error {
			if flags.NArg() != 1 {
				return errors.New("key wants one FILE")
			}
			return makeKey(flags.Arg(0))
		},
	}[args[0]]
	if do == nil {
		return false, nil
	}
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return true, nil
		}
		return true, err
	}
	return true, do()
}

func calibrate(name, source string, files []string, stdout, stderr io.Writer) error {
	if name == "" || source == "" || len(files) == 0 {
		return errors.New("calibrate wants --name, --source and reports")
	}
	var reports []accelerator.Report
	for _, f := range files {
		r, err := loadReport(f)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	p, notes, err := accelerator.Calibrate(reports, name, source)
	if err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Fprintln(stderr, "note:", n)
	}
	return accelerator.WriteProfiles(stdout, []accelerator.Profile{p})
}

func compare(files []string, stdout io.Writer) error {
	if len(files) != 2 {
		return errors.New("compare wants the report at hand-over and that at return")
	}
	before, err := loadReport(files[0])
	if err != nil {
		return err
	}
	after, err := loadReport(files[1])
	if err != nil {
		return err
	}
	changes := accelerator.Compare(before, after)
	if len(changes) == 0 {
		fmt.Fprintln(stdout, "nothing changed")
	}
	hard := 0
	for _, c := range changes {
		fmt.Fprintf(stdout, "%s\t%s\t%s: %s → %s\n", c.Kind, c.Part, c.Text, c.Before, c.After)
		if c.Kind == accelerator.ChangeDamage || c.Kind == accelerator.ChangeExchanged {
			hard++
		}
	}
	if hard > 0 {
		return fmt.Errorf("%w: %d of %d changes are damage or an exchanged part", errBlocked, hard, len(changes))
	}
	return nil
}

func verify(keyFile string, files []string, stdout io.Writer) error {
	if keyFile == "" || len(files) != 1 {
		return errors.New("verify wants --key FILE.pub and one report")
	}
	key, err := publicKey(keyFile)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	r, err := document.Verify(data, key)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "the signature fits: %s, taken %s\n", r.Outcome, r.Taken.UTC().Format("2006-01-02 15:04:05 UTC"))
	return nil
}
