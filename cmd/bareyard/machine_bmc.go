package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// deskCommands look after machines from afar.
type deskCommands struct {
	Set      machineSet      `cmd:"" help:"Change by which road a machine boots its RAM disk."`
	Console  machineConsole  `cmd:"" help:"Open a machine's serial console."`
	Health   machineHealth   `cmd:"" help:"Health of all machines, or one machine's sensors, as their BMCs see it."`
	Baseline machineBaseline `cmd:"" help:"What a machine's BMC was like at hand-over, and what differs."`
	BIOS     machineBIOS     `cmd:"" name:"bios" help:"A machine's BIOS settings beside what its class wants; or set them."`
	BMC      machineBMC      `cmd:"" name:"bmc" help:"A machine's BMC: its event log, its firmware, its password and its certificate."`
}

type machineSet struct {
	oneMachine
	BootRoad string `required:"" enum:"pxe,media" placeholder:"pxe|media" help:"pxe: from the network; media: from a disc that its BMC inserts."`
}

// Run changes a machine's road.
func (s *machineSet) Run(ctx context.Context, t *terminal) error {
	return s.call(ctx, func(ctx context.Context, c *client.Client) error {
		m, err := c.SetRoad(ctx, s.Machine, map[string]machine.Boot{"media": machine.BootMedia}[s.BootRoad])
		if err != nil {
			return err
		}
		return s.tell(t, m, "%s boots its RAM disk by %s", m.Name, map[machine.Boot]string{machine.BootNetwork: "PXE", machine.BootMedia: "virtual media"}[m.Boot])
	})
}

// machineBMC is the operators' side of a machine's BMC.
type machineBMC struct {
	Show   bmcShow   `cmd:"" help:"Show what is known of a BMC: models, firmware, network, habits."`
	Log    bmcLog    `cmd:"" help:"Show a BMC's event log as it was read."`
	Set    bmcSet    `cmd:"" help:"Record the user and password of a BMC; a login with them is tried first."`
	Check  bmcCheck  `cmd:"" help:"Log in once with what is on record, also where the BMC refused it before."`
	Rotate bmcRotate `cmd:"" help:"Give a BMC a new random password."`
	Trust  bmcTrust  `cmd:"" help:"Trust the certificate that a BMC shows now."`
}

type bmcSet struct {
	oneMachine
	User         string `placeholder:"NAME" help:"The BMC's user (default: the one on record)."`
	PasswordFile string `required:"" placeholder:"FILE" help:"File with the password; - reads it from standard input."`
	Unchecked    bool   `help:"Record it without logging in with it."`
}

// Run records credentials. The password comes from a file: arguments can be read by everybody on the box.
func (b *bmcSet) Run(ctx context.Context, t *terminal) error {
	password, err := readPassword(b.PasswordFile)
	if err != nil {
		return err
	}
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		if err := c.SetBMCCredentials(ctx, b.Machine, api.Credentials{Username: b.User, Password: password, Unchecked: b.Unchecked}); err != nil {
			return err
		}
		how := "it logged in"
		if b.Unchecked {
			how = "it was not tried"
		}
		return b.tell(t, map[string]string{"machine": b.Machine}, "the password of %s's BMC is recorded; %s", b.Machine, how)
	})
}

// readPassword reads a file's first line.
func readPassword(file string) (string, error) {
	text, err := []byte(nil), error(nil)
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(os.Stdin, 4096))
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return "", &machine.Error{Code: machine.Invalid, Field: "password-file", Message: fmt.Sprintf("the password cannot be read: %v", err), Hint: "name a file that holds it, or - for standard input"}
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if password == "" || strings.ContainsAny(password, "\n\r\x00") {
		return "", &machine.Error{Code: machine.Invalid, Field: "password-file", Message: "the file does not hold one line with a password", Hint: "write the password alone into it"}
	}
	return password, nil
}

type bmcRotate struct {
	remote
	Machine string        `arg:"" optional:"" help:"The machine, by name or id."`
	All     bool          `help:"Every machine's, one after the other. Machines with a job under way are left out."`
	Pause   time.Duration `default:"2s" help:"Between two machines, with --all (default: 2s)."`
}

// Run rotates passwords.
func (b *bmcRotate) Run(ctx context.Context, t *terminal) error {
	if b.All == (b.Machine != "") {
		return &machine.Error{Code: machine.Invalid, Message: "say which machine", Hint: "name one, or give --all"}
	}
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		if !b.All {
			if err := c.RotateBMC(ctx, b.Machine); err != nil {
				return err
			}
			return b.tell(t, map[string]string{"machine": b.Machine}, "the BMC of %s has a new password, which was seen to work", b.Machine)
		}
		return b.all(ctx, t, c)
	})
}

// all goes on when one fails: the others are no worse for it.
func (b *bmcRotate) all(ctx context.Context, t *terminal, c *client.Client) error {
	list, err := c.Machines(ctx, "")
	if err != nil {
		return err
	}
	done, failed, left := 0, 0, 0
	for _, m := range list {
		if m.State == machine.Retired {
			continue
		}
		if done+failed > 0 && !wait(ctx, b.Pause) {
			return ctx.Err()
		}
		err := c.RotateBMC(ctx, m.ID)
		switch {
		case err == nil:
			done++
			fmt.Fprintf(t.err, "%s: new password\n", m.Name)
		case machine.CodeOf(err) == machine.Conflict:
			left++
			fmt.Fprintf(t.err, "%s: left out: %v\n", m.Name, err)
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			failed++
			fmt.Fprintf(t.err, "%s: %v\n", m.Name, err)
			if e := (*machine.Error)(nil); errors.As(err, &e) && e.Hint != "" {
				fmt.Fprintf(t.err, "%s: hint: %s\n", m.Name, e.Hint)
			}
		}
	}
	if err := b.tell(t, map[string]int{"rotated": done, "left_out": left, "failed": failed}, "%d rotated, %d left out, %d failed", done, left, failed); err != nil {
		return err
	}
	if failed > 0 {
		return exitError(exitCode(&machine.Error{Code: machine.Unavailable}))
	}
	return nil
}

// wait sleeps and reports whether ctx still lives.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

type bmcTrust struct {
	oneMachine
	SHA256 string `name:"sha256" placeholder:"HEX" help:"Trust this certificate only, and refuse any other that the BMC shows."`
}

// Run trusts a certificate.
func (b *bmcTrust) Run(ctx context.Context, t *terminal) error {
	return b.call(ctx, func(ctx context.Context, c *client.Client) error {
		pin, err := c.TrustBMC(ctx, b.Machine, b.SHA256)
		if err != nil {
			return err
		}
		switch pin.Was {
		case pin.Is:
			return b.tell(t, pin, "the BMC of %s still shows the certificate that is trusted: %s", b.Machine, pin.Is)
		case "":
			return b.tell(t, pin, "the BMC of %s is trusted by the certificate %s", b.Machine, pin.Is)
		}
		return b.tell(t, pin, "the BMC of %s is trusted by the certificate %s\nbefore: %s", b.Machine, pin.Is, pin.Was)
	})
}
