package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/bareyard/bareyard/lab"
	"github.com/bareyard/bareyard/machine"
)

// labCommand is the virtual data centre.
type labCommand struct {
	Up         labUp         `cmd:"" help:"Build the lab: three QEMU machines, their BMCs, an edge, an internet, and the server."`
	Down       labDown       `cmd:"" help:"Take the lab down and leave nothing behind but its folder."`
	Demo       labDemo       `cmd:"" help:"Build the lab, order a machine, use it, and take the lab down."`
	Status     labStatus     `cmd:"" help:"Say what the lab is like."`
	PowerCut   labPowerCut   `cmd:"" help:"Take the power from a machine, behind its BMC's back."`
	KillServer labKillServer `cmd:"" help:"End the server as a crash would; the lab starts it again."`
	Run        labRun        `cmd:"" hidden:"" help:"Be the lab, in the foreground."`
}

// labPlace is which lab is meant.
type labPlace struct {
	Dir string `placeholder:"DIR" default:"/var/lib/bareyard-lab" help:"Folder of the lab: disks, logs, the server's data (default: /var/lib/bareyard-lab)."`
}

// labShape is what the lab is made of. up hands it on to run.
type labShape struct {
	labPlace
	Name    string `default:"by" help:"Name of the lab; its namespaces begin with it (default: by)."`
	Cards   int    `default:"0" help:"How many fake accelerators each machine has, up to 8."`
	Missing string `placeholder:"MACHINE" help:"Machine in which one of the cards has failed."`
	Kernel  string `placeholder:"FILE" help:"Kernel of the RAM disk (default: build/kernel/vmlinuz)."`
	RAMDisk string `name:"ramdisk" placeholder:"FILE" help:"The RAM disk (default: build/ramdisk/ramdisk.cpio.zst)."`
	Checker string `name:"validator" placeholder:"FILE" help:"The validator (default: bin/bareyard-validate)."`
}

func (s *labShape) config(log *slog.Logger) (lab.Config, error) {
	machines := lab.DefaultMachines()
	found := s.Missing == ""
	for i := range machines {
		machines[i].Cards = s.Cards
		if machines[i].Name == s.Missing {
			machines[i].Absent = 1
			found = true
		}
	}
	if !found {
		return lab.Config{}, &machine.Error{Code: machine.NotFound, Field: "missing", Message: "no machine " + s.Missing}
	}
	return lab.Config{
		Name: s.Name, Dir: s.Dir, Machines: machines, Log: log,
		Server: &lab.ServerConfig{Kernel: s.Kernel, RAMDisk: s.RAMDisk, Validator: s.Checker},
	}, nil
}

// arguments is the command line that makes run build the same lab.
func (s *labShape) arguments() []string {
	args := []string{"lab", "run", "--dir", s.Dir, "--name", s.Name, "--cards", strconv.Itoa(s.Cards)}
	for _, f := range []struct{ flag, value string }{
		{"--missing", s.Missing}, {"--kernel", s.Kernel}, {"--ramdisk", s.RAMDisk}, {"--validator", s.Checker},
	} {
		if f.value != "" {
			args = append(args, f.flag, f.value)
		}
	}
	return args
}

type labUp struct {
	labShape
	Wait time.Duration `default:"2m" help:"How long the server may take to answer (default: 2m)."`
}

// Run starts the lab in the background and waits until its server answers.
func (c *labUp) Run(ctx context.Context, t *terminal) error {
	cfg, err := c.config(nil)
	if err != nil {
		return err
	}
	if err := cfg.Check(); err != nil { // here, where its hint is seen, rather than in the detached process
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	if _, err := lab.Up(ctx, c.Dir, exec.Command(self, c.arguments()...)); err != nil {
		return err
	}
	fmt.Fprintln(t.err, "the lab is up; waiting for its server")
	if err := lab.Network(c.Name).WaitServer(ctx); err != nil {
		return fmt.Errorf("%w; see %s/serve.log", err, c.Dir)
	}
	status, err := lab.NewClient(c.Dir).Status(ctx)
	if err != nil {
		return err
	}
	return printLab(t.out, status)
}

type labRun struct{ labShape }

// Run is the lab until ctx is cancelled or lab down is called.
func (c *labRun) Run(ctx context.Context, t *terminal) error {
	cfg, err := c.config(slog.New(slog.NewTextHandler(t.err, nil)))
	if err != nil {
		return err
	}
	return lab.Run(ctx, cfg)
}

type labDown struct {
	labPlace
	Purge bool `help:"Remove the folder, too: disks, logs, the server's data."`
}

// Run takes the lab down, or removes what is left of one that was killed.
func (c *labDown) Run(ctx context.Context) error {
	return lab.Down(ctx, c.Dir, c.Purge)
}

type labStatus struct {
	labPlace
	JSON bool `help:"Print it as JSON."`
}

// Run prints the lab as a table.
func (c *labStatus) Run(ctx context.Context, t *terminal) error {
	status, err := lab.NewClient(c.Dir).Status(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		e := json.NewEncoder(t.out)
		e.SetIndent("", "  ")
		return e.Encode(status)
	}
	return printLab(t.out, status)
}

type labPowerCut struct {
	labPlace
	Machine string `arg:"" help:"Its name."`
}

// Run cuts the power.
func (c *labPowerCut) Run(ctx context.Context) error {
	return lab.NewClient(c.Dir).PowerCut(ctx, c.Machine)
}

type labKillServer struct{ labPlace }

// Run kills the server.
func (c *labKillServer) Run(ctx context.Context) error { return lab.NewClient(c.Dir).KillServer(ctx) }

func printLab(w io.Writer, s lab.Status) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MACHINE\tPOWER\tFIRMWARE\tBMC\tADDRESS\tSERIAL LOG")
	for _, m := range s.Machines {
		power := "off"
		if m.On {
			power = "on"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s %s\t%s\t%s\n", m.Name, power, m.Firmware, m.BMCKind, m.BMC, m.BootAddr, m.SerialLog)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	rows := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows)
	if v := s.Server; v != nil {
		state := "not running"
		if v.PID != 0 {
			state = fmt.Sprintf("pid %d", v.PID)
		}
		fmt.Fprintf(rows, "server\t%s, start %d, %s, socket %s\n", state, v.Starts, v.API, v.Socket)
		fmt.Fprintf(rows, "server's log\t%s\n", v.Log)
	}
	fmt.Fprintf(rows, "lab\tpid %d, in %s\n", s.PID, s.Dir)
	for i, ns := range s.Netns {
		label := ""
		if i == 0 {
			label = "namespaces"
		}
		fmt.Fprintf(rows, "%s\t%s\n", label, ns)
	}
	return rows.Flush()
}
