package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// classCommand is what is sold.
type classCommand struct {
	List classList `cmd:"" help:"List what is sold, and how many are available."`
	Put  classPut  `cmd:"" help:"Define a class."`
}

type classList struct{ remote }

// Run lists classes.
func (k *classList) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Classes(ctx)
		if err != nil {
			return err
		}
		return k.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "CLASS\tCARDS\tAVAILABLE\tPER MONTH\tDESCRIPTION")
			for _, x := range list {
				cards := "-"
				if x.Count > 0 {
					cards = fmt.Sprintf("%d × %s", x.Count, x.Accelerator)
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s %d.%02d\t%s\n", x.Name, cards, x.Available, x.Currency, x.MonthlyPrice/100, x.MonthlyPrice%100, x.Description)
			}
		})
	})
}

type classPut struct {
	remote
	Name        string `arg:"" help:"Name of the class."`
	Description string `help:"In words."`
	Accelerator string `placeholder:"VENDOR:DEVICE" help:"PCI id of its cards, e.g. 10de:2b85."`
	Count       int    `help:"How many cards."`
	Price       int64  `required:"" placeholder:"MINOR" help:"Per month, in minor units (cents)."`
	Currency    string `default:"CNY" help:"ISO 4217 (default: CNY)."`
}

// Run defines a class.
func (k *classPut) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		class := machine.Class{Name: k.Name, Description: k.Description, Accelerator: k.Accelerator, Count: k.Count, MonthlyPrice: k.Price, Currency: k.Currency}
		if err := c.PutClass(ctx, class); err != nil {
			return err
		}
		return k.tell(t, class, "class %s is defined", k.Name)
	})
}

// lineCommand is carriers and their addresses.
type lineCommand struct {
	List lineList `cmd:"" help:"List lines and their free addresses."`
	Put  linePut  `cmd:"" help:"Define a line and add addresses to it."`
}

type lineList struct{ remote }

// Run lists lines.
func (l *lineList) Run(ctx context.Context, t *terminal) error {
	return l.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Lines(ctx)
		if err != nil {
			return err
		}
		return l.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "LINE\tSITE\tMBIT/S\tFREE\tCOOLING\tTOTAL")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%d-%d\t%d\t%d\t%d\n", x.Name, x.Site, x.MinBandwidth, x.MaxBandwidth, x.Free, x.Cooling, x.Total)
			}
		})
	})
}

type linePut struct {
	remote
	Name     string         `arg:"" help:"Name of the line, e.g. bgp."`
	Site     string         `required:"" help:"Its site."`
	Min      int            `default:"1" help:"Least bandwidth sold, Mbit/s (default: 1)."`
	Max      int            `default:"1000" help:"Most bandwidth sold, Mbit/s (default: 1000)."`
	CoolDown string         `default:"24h" help:"How long a released address rests (default: 24h)."`
	Range    []netip.Prefix `placeholder:"PREFIX" help:"Public addresses, e.g. 203.0.113.0/24. Repeat for more."`
}

// Run defines a line.
func (l *linePut) Run(ctx context.Context, t *terminal) error {
	return l.call(ctx, func(ctx context.Context, c *client.Client) error {
		line := api.NewLine{Site: l.Site, MinBandwidth: l.Min, MaxBandwidth: l.Max, CoolDown: l.CoolDown, Ranges: l.Range}
		if err := c.PutLine(ctx, l.Name, line); err != nil {
			return err
		}
		return l.tell(t, line, "line %s is defined", l.Name)
	})
}
