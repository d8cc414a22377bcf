package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
	"github.com/bareyard/bareyard/machine"
)

// commands is the command line. Each command is a small struct with a Run method in a file of its own.
type commands struct {
	Order   orderCommand   `cmd:"" help:"Rent a machine, watch it, reinstall it, give it back."`
	Machine machineCommand `cmd:"" help:"Enrol and look after machines."`
	Image   imageCommand   `cmd:"" help:"The catalogue of operating systems."`
	Class   classCommand   `cmd:"" help:"What is sold."`
	Line    lineCommand    `cmd:"" help:"Carriers and their public addresses."`
	Address addressCommand `cmd:"" help:"Public addresses: who has them, and who had them."`
	Job     jobCommand     `cmd:"" help:"Work on machines."`

	Acceptance acceptanceCommand `cmd:"" help:"Try new hardware for hours, and take what passes into stock."`

	Task     taskCommand     `cmd:"" help:"Work that waits for a person."`
	Report   reportCommand   `cmd:"" help:"Reports of validations: show, save, verify."`
	Erasure  erasureCommand  `cmd:"" help:"Certificates of erased disks: show, save, verify."`
	Card     cardCommand     `cmd:"" help:"Single cards: where they are, and where they were."`
	Profile  profileCommand  `cmd:"" help:"What is known of each kind of card, and what yours reach."`
	Validate validateCommand `cmd:"" help:"Validate the machine that this runs on, or with --machine another."`
	Waiver   waiverCommand   `cmd:"" help:"Checks that block nothing for a while."`
	Token    tokenCommand    `cmd:"" help:"Make API tokens."`
	Serve    serveCommand    `cmd:"" help:"Run the server."`
	RAMDisk  ramdiskCommand  `cmd:"" name:"ramdisk" help:"Build the RAM disk that machines network-boot."`
	Edge     edgeCommand     `cmd:"" help:"Carry public addresses on a box of its own."`
	NetBox   netboxCommand   `cmd:"" name:"netbox" help:"Take over what NetBox knows."`
	Doctor   doctorCommand   `cmd:"" help:"Say what this machine lacks to run the server, and how to get it."`
	Lab      labCommand      `cmd:"" help:"Run a virtual data centre on this machine."`
	Version  versionCommand  `cmd:"" help:"Print the version."`
}

// terminal is where a command reads its surroundings and writes its answer. Answers go to out, what was done meanwhile to err.
type terminal struct {
	out io.Writer
	err io.Writer
	env func(string) string
}

// exitInterrupted is the shell's code for a command that Ctrl-C ended.
const exitInterrupted = 130

const about = `Bareyard sells and runs whole machines: it reserves a machine, drives its BMC, network-boots it, writes the image, assigns the
public address and bandwidth, validates the accelerators and hands the machine over.

Exit codes: 0 done, 1 internal, 2 invalid, 3 not found, 4 conflict, 5 exhausted, 6 unavailable.`

// run is the whole program: it runs the command that args name and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, env func(string) string) int {
	var cli commands
	asked := false // for help, which kong prints by itself
	parser, err := kong.New(&cli,
		kong.Name("bareyard"),
		kong.Description(about),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { asked = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&terminal{out: stdout, err: stderr, env: env}),
	)
	if err != nil {
		return report(stderr, fmt.Errorf("build command line: %w", err))
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if asked {
		return 0
	}
	if err != nil {
		return report(stderr, usageError(err))
	}
	return report(stderr, command.Run())
}

// usageError says which help to read.
func usageError(err error) error {
	help := "bareyard --help"
	if parse := (*kong.ParseError)(nil); errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			help = "bareyard " + node.Path() + " --help"
		}
	}
	return &machine.Error{Code: machine.Invalid, Message: err.Error(), Hint: help}
}

// report prints an error as people read it and returns the exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if silent := (exitError)(0); errors.As(err, &silent) {
		return int(silent)
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	if e := (*machine.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", e.Hint)
	}
	return exitCode(err)
}

// exitCode is the one place where an error becomes an exit code.
func exitCode(err error) int {
	switch machine.CodeOf(err) {
	case machine.Invalid:
		return 2
	case machine.NotFound:
		return 3
	case machine.Conflict:
		return 4
	case machine.Exhausted:
		return 5
	case machine.Unavailable:
		return 6
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	return 1
}

// exitError ends a command whose output has said it all.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
