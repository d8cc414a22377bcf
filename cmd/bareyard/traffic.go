package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/network"
)

type orderTraffic struct {
	oneOrder
	From    string `placeholder:"TIME" help:"A day, or a time with its zone (default: when the month of the order that is under way began)."`
	To      string `placeholder:"TIME" help:"Exclusive (default: now)."`
	Step    string `placeholder:"STEP" help:"5m or 1h (default: 5m up to 35 days)."`
	Format  string `default:"table" enum:"table,csv,json,svg" help:"table, csv, json or svg (default: table)."`
	Periods bool   `help:"The months of the order that are over instead."`
}

// Run shows traffic.
func (o *orderTraffic) Run(ctx context.Context, t *terminal) error {
	q := client.TrafficQuery{From: o.From, To: o.To, Step: o.Step}
	o.JSON = o.JSON || o.Format == "json"
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		if o.Periods {
			return o.periods(ctx, t, c)
		}
		if o.Format == "svg" {
			plot, err := c.TrafficPlot(ctx, o.Order, q)
			if err != nil {
				return err
			}
			_, err = t.out.Write(plot)
			return err
		}
		x, err := c.Traffic(ctx, o.Order, q)
		if err != nil {
			return err
		}
		if o.Format == "csv" && !o.JSON {
			_, err := t.out.Write(api.TrafficCSV(x))
			return err
		}
		if err := o.show(t, x, func(w io.Writer) { tableTraffic(w, x) }); err != nil || o.JSON {
			return err
		}
		plotTraffic(t.out, x)
		return nil
	})
}

func (o *orderTraffic) periods(ctx context.Context, t *terminal, c *client.Client) error {
	list, err := c.TrafficPeriods(ctx, o.Order)
	if err != nil {
		return err
	}
	return o.show(t, list, func(w io.Writer) {
		fmt.Fprintln(w, "MONTH\tFROM\tTO\tUP\tDOWN\t95TH UP\t95TH DOWN\tSAMPLES")
		for _, p := range list {
			u := p.Usage
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\n", p.N+1, moment(u.From), moment(u.To), volume(u.Up.Bytes), volume(u.Down.Bytes), api.Bits(u.Up.P95), api.Bits(u.Down.P95), u.Measured, u.Slots)
		}
	})
}

// tableTraffic sums a traffic up.
func tableTraffic(w io.Writer, x api.Traffic) {
	u := x.Usage
	fmt.Fprintf(w, "order\t%s\nfrom\t%s\nto\t%s\n", x.OrderID, moment(u.From), moment(u.To))
	if x.Step == "5m" {
		fmt.Fprintf(w, "samples\t%d of %d", u.Measured, u.Slots)
		if u.Doubtful > 0 {
			fmt.Fprintf(w, ", and %d in doubt, which are not billed", u.Doubtful)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "up\t%s, at most %s", volume(u.Up.Bytes), api.Bits(u.Up.Peak))
	if x.Step == "5m" {
		fmt.Fprintf(w, ", 95th percentile %s", api.Bits(u.Up.P95))
	}
	fmt.Fprintf(w, "\ndown\t%s, at most %s", volume(u.Down.Bytes), api.Bits(u.Down.Peak))
	if x.Step == "5m" {
		fmt.Fprintf(w, ", 95th percentile %s", api.Bits(u.Down.P95))
	}
	fmt.Fprintln(w)
	if network.Model(x.Model) == network.ModelBurst && x.Step == "5m" {
		fmt.Fprintf(w, "burst\t%s by the %s, of which %s above the %d Mbit/s that are committed\n", api.Bits(x.Billed), basis(x.Basis), api.Bits(x.Above), x.Committed)
	}
}

func basis(b network.Basis) string {
	if b == network.BasisHigher {
		return "higher direction"
	}
	return string(b) + " direction"
}

// volume writes bytes for people, in powers of ten as carriers count.
func volume(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Size of the plot in a terminal.
const (
	plotColumns = 72
	plotRows    = 8
)

// plotTraffic draws both directions, one below the other, by eighths of a character; a dot is where nothing was measured.
func plotTraffic(w io.Writer, x api.Traffic) {
	if len(x.Points) == 0 {
		fmt.Fprintln(w, "\nno sample yet: one is taken every five minutes")
		return
	}
	for _, d := range []struct {
		name string
		rate func(api.TrafficPoint) int64
	}{{"up", func(p api.TrafficPoint) int64 { return p.UpBps }}, {"down", func(p api.TrafficPoint) int64 { return p.DownBps }}} {
		columns, most := columnsOf(x, d.rate)
		fmt.Fprintf(w, "\n%s, at most %s\n", d.name, api.Bits(most))
		for row := plotRows - 1; row >= 0; row-- {
			var line strings.Builder
			for _, v := range columns {
				line.WriteString(cell(v, most, row))
			}
			fmt.Fprintf(w, "%s\n", strings.TrimRight(line.String(), " "))
		}
	}
	u := x.Usage
	from, to := u.From.UTC().Format("2006-01-02 15:04"), u.To.UTC().Format("2006-01-02 15:04")
	fmt.Fprintf(w, "%s%s%s\n", from, strings.Repeat(" ", max(1, plotColumns-len(from)-len(to))), to)
}

// columnsOf is the highest rate of each column; -1 is where nothing was measured.
func columnsOf(x api.Traffic, rate func(api.TrafficPoint) int64) (columns []int64, most int64) {
	columns = make([]int64, plotColumns)
	for i := range columns {
		columns[i] = -1
	}
	span := max(x.Usage.To.Sub(x.Usage.From), time.Minute)
	for _, p := range x.Points {
		if p.Doubt != "" {
			continue
		}
		i := int(int64(plotColumns) * int64(p.At.Sub(x.Usage.From)) / int64(span))
		if i < 0 || i >= plotColumns {
			continue
		}
		columns[i] = max(columns[i], rate(p))
		most = max(most, columns[i])
	}
	return columns, most
}

// cell is one character of a column: what of the value reaches into this row, in eighths.
func cell(v, most int64, row int) string {
	if v < 0 {
		if row == 0 {
			return "·"
		}
		return " "
	}
	eighths := 0
	if most > 0 {
		eighths = int((v*8*plotRows + most - 1) / most) // what is not zero is seen
	}
	return string([]rune(" ▁▂▃▄▅▆▇█")[min(max(eighths-8*row, 0), 8)])
}
