package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/provisioner"
)

// profileCommand is what is known of each kind of card, and what the site's own cards reach.
type profileCommand struct {
	List      profileList      `cmd:"" help:"List the profiles of cards, and the models that have none."`
	Show      profileShow      `cmd:"" help:"Show what is known of a card: yours over what the program knows."`
	Fleet     profileFleet     `cmd:"" help:"Show what your cards reach in each test, and which are slower than the others."`
	Calibrate profileCalibrate `cmd:"" help:"Make a profile with limits from what your cards reach; its file goes into validation.profiles."`
}

type oneProfile struct {
	remote
	Profile string `arg:"" help:"A profile's name, or cards by PCI vendor:device."`
}

type profileList struct{ remote }

// Run lists profiles.
func (p *profileList) Run(ctx context.Context, t *terminal) error {
	return p.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Profiles(ctx)
		if err != nil {
			return err
		}
		return p.show(t, list, func(w io.Writer) { showProfiles(w, list) })
	})
}

func showProfiles(w io.Writer, list []provisioner.CardProfile) {
	fmt.Fprintln(w, "PROFILE\tREVISION\tFOR\tFILE\tPUBLISHED\tCALIBRATED\tCARDS HERE")
	for _, x := range list {
		var match []string
		for _, m := range x.Match {
			match = append(match, m.String())
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%d\n", x.Name, x.Revision, strings.Join(match, ", "), cmp.Or(x.File, "no profile"), x.Published, x.Own, x.Cards)
	}
}

type profileShow struct{ oneProfile }

// Run shows a profile.
func (p *profileShow) Run(ctx context.Context, t *terminal) error {
	return p.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Profile(ctx, p.Profile)
		if err != nil {
			return err
		}
		return p.show(t, x, func(w io.Writer) { fmt.Fprint(w, x.Text) })
	})
}

type profileFleet struct{ oneProfile }

// Run shows what the fleet reaches.
func (p *profileFleet) Run(ctx context.Context, t *terminal) error {
	return p.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.ProfileFleet(ctx, p.Profile)
		if err != nil {
			return err
		}
		return p.show(t, list, func(w io.Writer) { showFleet(w, p.Profile, list) })
	})
}

func showFleet(w io.Writer, name string, list []accelerator.Baseline) {
	if len(list) == 0 {
		fmt.Fprintf(w, "nothing was measured on cards of %s yet\n", name)
		return
	}
	fmt.Fprintln(w, "MODEL\tTEST\tTOOL\tCARDS\tMACHINES\tMEDIAN\tSPREAD\tP5\tP95\tUNIT\tSLOW")
	slow := 0
	for _, b := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%.4g\t%.2g\t%.4g\t%.4g\t%s\t%d\n", b.Model, b.Test, strings.TrimSpace(b.Tool+" "+b.Version), b.Cards, b.Machines, b.Median, b.Spread, b.P5, b.P95, b.Unit, len(b.Slow))
		slow += len(b.Slow)
	}
	if slow == 0 {
		return
	}
	fmt.Fprintln(w, "\nBELOW 95 %\tMACHINE\tSLOT\tSERIAL\tRATE\tOF MEDIAN\tREPORT\tOF")
	for _, b := range list {
		for _, s := range b.Slow {
			slot := s.Slot
			if slot == "" {
				slot = fmt.Sprintf("all of %d cards", s.Cards)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.4g %s\t%.0f %%\t%s\t%s\n", b.Test, s.Machine, slot, dash(s.Serial), s.Rate, b.Unit, 100*s.Rate/b.Median, s.Report, moment(s.At))
		}
	}
}

type profileCalibrate struct {
	oneProfile
	Out      string `type:"path" placeholder:"FILE" help:"Write it there, whole or not at all (default: print it)."`
	MinCards int    `default:"8" placeholder:"N" help:"A limit needs so many cards that passed; 8 at least."`
}

// Run makes a profile.
func (p *profileCalibrate) Run(ctx context.Context, t *terminal) error {
	return p.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Calibration(ctx, p.Profile, p.MinCards)
		if err != nil {
			return err
		}
		if !p.JSON {
			for _, n := range x.Notes {
				fmt.Fprintln(t.err, "note:", n)
			}
		}
		if p.Out != "" {
			if err := renameio.WriteFile(p.Out, []byte(x.Text), 0o644); err != nil {
				return fmt.Errorf("save profile: %w", err)
			}
			fmt.Fprintf(t.err, "%s is written; the next validation judges by it if it is in validation.profiles\n", p.Out)
			return nil
		}
		return p.show(t, x, func(w io.Writer) { fmt.Fprint(w, x.Text) })
	})
}
