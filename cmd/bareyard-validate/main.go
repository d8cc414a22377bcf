// Command bareyard-validate runs once in the installed OS: it phones home, validates the machine when told to, reports, and removes itself.
package main

import (
	"context"
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
	"github.com/bareyard/bareyard/accelerator/nvidia"
	"github.com/bareyard/bareyard/machine"
)

const usage = `usage: bareyard-validate --server URL --ca FILE --token-file FILE

Runs once in the installed OS. Phones home to the server, validates the machine
when told to, reports the result, and removes itself and the token file.

  --server URL         base URL of the server, https
  --ca FILE            certificate authority of the server, PEM
  --token-file FILE    bearer token of the job's attempt
  --print              validate against nothing, print the report and exit

For tests: --sysfs DIR --proc DIR --kmsg FILE --nvml FILE --keep
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == nvidia.ProbeArg {
		os.Exit(nvidia.Probe(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bareyard-validate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	var (
		server, ca, tokenFile string
		print, keep           bool
		roots                 accelerator.Roots
		library               string
	)
	flags.StringVar(&server, "server", "", "")
	flags.StringVar(&ca, "ca", "", "")
	flags.StringVar(&tokenFile, "token-file", "", "")
	flags.BoolVar(&print, "print", false, "")
	flags.StringVar(&roots.Sys, "sysfs", "", "")
	flags.StringVar(&roots.Proc, "proc", "", "")
	flags.StringVar(&roots.Kmsg, "kmsg", "", "")
	flags.StringVar(&library, "nvml", "", "")
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
	read := func(ctx context.Context, expect machine.Expect) accelerator.Report {
		return accelerator.Judge(facts(ctx, roots, nvidia.Reader{Library: library}), expect, accelerator.Rules{})
	}
	if print {
		return read(ctx, machine.Expect{}).WriteText(stdout)
	}
	if server == "" || ca == "" || tokenFile == "" {
		return errors.New("--server, --ca and --token-file are needed")
	}
	client, err := newClient(server, ca, tokenFile)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	v := &validator{post: client.post, read: read, log: log}
	err = v.run(ctx)
	if ctx.Err() != nil || keep {
		return err // interrupted, by a shutdown as like as not: whoever starts us again finds what we need
	}
	return errors.Join(err, remove(tokenFile))
}

// facts reads everything that a judgement needs. The log is read last: what reading the cards stirs up belongs in it.
func facts(ctx context.Context, roots accelerator.Roots, cards nvidia.Reader) accelerator.Facts {
	f := accelerator.Facts{Taken: time.Now().UTC(), PCI: accelerator.ReadPCI(roots), Host: accelerator.ReadHost(roots)}
	f.Driver = []accelerator.Driver{cards.Read(ctx, f.PCI)}
	f.Log = accelerator.ReadKernelLog(roots)
	return f
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
