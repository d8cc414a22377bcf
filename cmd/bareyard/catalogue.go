package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// classCommand is what is sold.
type classCommand struct {
	List classList `cmd:"" help:"List what is sold, and how many are available."`
	Put  classPut  `cmd:"" help:"Define a class."`
	BIOS classBIOS `cmd:"" name:"bios" help:"Show or change the BIOS settings that a class's machines shall have."`
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

	Memory   int64 `placeholder:"GIB" help:"Memory that its machines have at least: to propose the class for a discovered one."`
	Disks    int   `placeholder:"N" help:"Disks that they have at least; likewise."`
	DiskSize int64 `placeholder:"GB" help:"What their disks hold together at least; likewise."`
}

// Run defines a class.
func (k *classPut) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		class := machine.Class{Name: k.Name, Description: k.Description, Accelerator: k.Accelerator, Count: k.Count, MonthlyPrice: k.Price, Currency: k.Currency}
		if err := c.PutClass(ctx, class); err != nil {
			return err
		}
		if k.Memory > 0 || k.Disks > 0 || k.DiskSize > 0 {
			if err := c.PutClassFacts(ctx, machine.ClassFacts{Class: k.Name, Memory: k.Memory << 30, Disks: k.Disks, DiskSize: k.DiskSize * 1e9}); err != nil {
				return err
			}
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
			fmt.Fprintln(w, "LINE\tCARRIER\tSITE\tMBIT/S UP\tDOWN\tSOLD AS\tFREE\tCOOLING\tTOTAL\tIPV6 FREE")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", x.Name, dash(x.Carrier), x.Site, offer(x.MinBandwidth, x.MaxBandwidth, x.Step),
					offer(x.MinDown, x.MaxDown, x.Step), soldAs(x.Line), x.Free, x.Cooling, x.Total, x.Free6)
			}
		})
	})
}

// offer writes what is sold: 10-500, or 10-500/10 in steps of ten.
func offer(least, most, step int) string {
	if step > 1 {
		return fmt.Sprintf("%d-%d/%d", least, most, step)
	}
	return fmt.Sprintf("%d-%d", least, most)
}

func soldAs(l network.Line) string {
	var models []string
	for _, m := range l.Models {
		text := string(m)
		if m == network.ModelBurst {
			text += " (95th " + string(l.Percentile) + ")"
		}
		models = append(models, text)
	}
	return strings.Join(models, ", ")
}

type linePut struct {
	remote
	Name    string   `arg:"" help:"Name of the line, e.g. bgp."`
	Site    string   `required:"" help:"Its site."`
	Carrier string   `placeholder:"NAME" help:"bgp, telecom, unicom, mobile …"`
	Min     int      `default:"1" help:"Least bandwidth sold, Mbit/s (default: 1)."`
	Max     int      `default:"1000" help:"Most bandwidth sold, Mbit/s (default: 1000)."`
	Step    int      `default:"1" help:"Mbit/s between two bandwidths that are sold (default: 1)."`
	MinDown int      `placeholder:"MBIT" help:"Least bandwidth sold to the machine (default: as --min)."`
	MaxDown int      `placeholder:"MBIT" help:"Most bandwidth sold to the machine (default: as --max)."`
	Model   []string `placeholder:"MODEL" help:"How bandwidth is sold: fixed or burst, the usual one first (default: fixed)."`
	Billed  string   `placeholder:"BASIS" help:"What a burst is billed by, the 95th percentile up, down or higher (default: higher)."`

	MaxAddresses int `placeholder:"N" help:"Of each family, per order (default: 8)."`

	CoolDown string         `default:"24h" help:"How long a released address rests (default: 24h)."`
	Range    []netip.Prefix `placeholder:"PREFIX" help:"Public addresses, e.g. 203.0.113.0/24. Repeat for more."`
}

// Run defines a line.
func (l *linePut) Run(ctx context.Context, t *terminal) error {
	return l.call(ctx, func(ctx context.Context, c *client.Client) error {
		line := api.NewLine{Site: l.Site, MinBandwidth: l.Min, MaxBandwidth: l.Max, CoolDown: l.CoolDown, Ranges: l.Range,
			Carrier: l.Carrier, Step: l.Step, MinDown: l.MinDown, MaxDown: l.MaxDown, Percentile: network.Basis(l.Billed), MaxAddresses: l.MaxAddresses}
		for _, m := range l.Model {
			line.Models = append(line.Models, network.Model(m))
		}
		if err := c.PutLine(ctx, l.Name, line); err != nil {
			return err
		}
		return l.tell(t, line, "line %s is defined", l.Name)
	})
}
