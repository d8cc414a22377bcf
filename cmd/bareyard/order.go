package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// orderCommand is a customer's side.
type orderCommand struct {
	Create    orderCreate    `cmd:"" help:"Rent a machine."`
	List      orderList      `cmd:"" help:"List orders, newest first."`
	Show      orderShow      `cmd:"" help:"Show an order and what happened to it."`
	Watch     orderWatch     `cmd:"" help:"Watch an order until its job is over."`
	Cancel    orderCancel    `cmd:"" help:"Call an order off before hand-over."`
	Release   orderRelease   `cmd:"" help:"End an order: the machine is isolated, wiped and returned to stock."`
	Reinstall orderReinstall `cmd:"" help:"Put an image on the machine. Erases its system disk."`
	Power     orderPower     `cmd:"" help:"Switch the machine on, off, or off and on."`
	Report    orderReport    `cmd:"" help:"Print the machine's validation report."`

	Address     orderAddressCommand `cmd:"" help:"The addresses of an order."`
	Name        orderName           `cmd:"" help:"Set the reverse DNS of an address, or list it."`
	Bandwidth   orderBandwidth      `cmd:"" help:"Change an order's bandwidth, or list its changes."`
	Pack        orderPack           `cmd:"" help:"Add bandwidth for some days."`
	Traffic     orderTraffic        `cmd:"" help:"What the machine was delivered, with a plot; or as CSV, JSON or SVG."`
	Limit       orderLimit          `cmd:"" help:"For operators: limit an order's bandwidth."`
	Unlimit     orderUnlimit        `cmd:"" help:"For operators: lift the limit."`
	Blackhole   orderBlackhole      `cmd:"" help:"For operators: null-route an order's addresses for a while."`
	Unblackhole orderUnblackhole    `cmd:"" help:"For operators: end the null-route before its time."`
	Console     orderConsole        `cmd:"" help:"Open the serial console of the machine."`
}

type orderCreate struct {
	remote
	Class     string   `required:"" placeholder:"NAME" help:"What to rent; see bareyard class list."`
	Image     string   `required:"" placeholder:"NAME" help:"Operating system; see bareyard image list."`
	Line      string   `required:"" placeholder:"NAME" help:"Carrier of the public address; see bareyard line list."`
	Bandwidth int      `required:"" placeholder:"MBIT" help:"Mbit/s, each way unless --down says otherwise."`
	Down      int      `placeholder:"MBIT" help:"Mbit/s to the machine."`
	Model     string   `placeholder:"MODEL" help:"How the bandwidth is sold: fixed or burst (default: as the line sells it first)."`
	Committed int      `placeholder:"MBIT" help:"Of a burst, the Mbit/s that are paid for in any case."`
	Addresses int      `default:"1" help:"IPv4 addresses (default: 1)."`
	IPv6      int      `name:"ipv6" placeholder:"N" help:"IPv6 prefixes."`
	SSHKey    []string `required:"" name:"ssh-key" sep:"none" placeholder:"KEY" help:"Public key, or the file it is in. Repeat for more."`
	Hostname  string   `placeholder:"NAME" help:"Name of the machine (default: made from the order)."`
	Months    int      `default:"1" help:"Length of the term (default: 1)."`
	Project   string   `placeholder:"NAME" help:"Tenant; for operators."`
	Key       string   `placeholder:"TEXT" help:"Idempotency key: the same order again returns the first one."`
	Wait      bool     `help:"Wait until the machine is handed over."`
}

// Run places the order.
func (o *orderCreate) Run(ctx context.Context, t *terminal) error {
	keys, err := readKeys(o.SSHKey)
	if err != nil {
		return err
	}
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		placed, err := c.Place(ctx, api.NewOrder{Project: o.Project, Class: o.Class, Image: o.Image, Line: o.Line, Bandwidth: o.Bandwidth,
			SSHKeys: keys, Hostname: o.Hostname, Months: o.Months, BandwidthDown: o.Down, Model: network.Model(o.Model), Committed: o.Committed,
			Addresses: o.Addresses, IPv6: o.IPv6}, o.Key)
		if err != nil {
			return err
		}
		if !o.Wait {
			return o.tell(t, placed, "order %s placed; watch it with: bareyard order watch %s", placed.ID, placed.ID)
		}
		fmt.Fprintf(t.err, "order %s placed\n", placed.ID)
		return o.finish(ctx, t, c, placed.ID)
	})
}

// finish watches an order to the end of its job and says how it ended.
func (r *remote) finish(ctx context.Context, t *terminal, c *client.Client, id string) error {
	o, err := watchOrder(ctx, t, c, id)
	if err != nil {
		return err
	}
	switch o.State {
	case machine.OrderActive:
		if jobs, err := c.Jobs(ctx, id, ""); err == nil && len(jobs) > 0 && jobs[0].State == machine.JobFailed {
			return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the %s job failed: %s", jobs[0].Kind, jobs[0].Reason),
				Hint: "the machine stays yours, out of service: try again, or ask the operator"}
		}
		return r.tell(t, o, "order %s is active: ssh root@%s", o.ID, o.Address)
	case machine.OrderFailed, machine.OrderCancelled:
		return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("order %s is %s: %s", o.ID, o.State, o.Reason), Hint: fmt.Sprintf("see what happened with: bareyard order show %s", o.ID)}
	}
	return r.tell(t, o, "order %s is %s", o.ID, o.State)
}

// readKeys takes each key as it is, or from the file that it names.
func readKeys(args []string) ([]string, error) {
	var keys []string
	for _, a := range args {
		if strings.Contains(a, " ") {
			keys = append(keys, a)
			continue
		}
		text, err := os.ReadFile(a)
		if err != nil {
			return nil, &machine.Error{Code: machine.Invalid, Field: "ssh-key", Message: fmt.Sprintf("read key: %v", err), Hint: "give a public key in quotes, or a .pub file"}
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				keys = append(keys, line)
			}
		}
	}
	return keys, nil
}

type orderList struct{ remote }

// Run lists orders.
func (o *orderList) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Orders(ctx)
		if err != nil {
			return err
		}
		return o.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "ORDER\tPROJECT\tCLASS\tIMAGE\tLINE\tMBIT/S\tADDRESS\tSTATE\tUNTIL")
			for _, x := range list {
				until := "-"
				if !x.Until.IsZero() {
					until = x.Until.Format("2006-01-02 15:04")
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", x.ID, x.Project, x.Class, x.Image, x.Line, x.Bandwidth, x.Address, x.State, until)
			}
		})
	})
}

// oneOrder is a command about one order.
type oneOrder struct {
	remote
	Order string `arg:"" help:"The order."`
}

type orderShow struct{ oneOrder }

// Run shows an order with its events.
func (o *orderShow) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Order(ctx, o.Order)
		if err != nil {
			return err
		}
		events, err := c.Events(ctx, o.Order, "")
		if err != nil {
			return err
		}
		changes, err := c.BandwidthChanges(ctx, o.Order)
		if err != nil {
			return err
		}
		return o.show(t, map[string]any{"order": x, "bandwidth_changes": changes, "events": events}, func(w io.Writer) {
			fmt.Fprintf(w, "order\t%s\nstate\t%s\nclass\t%s\nimage\t%s\nhostname\t%s\n", x.ID, x.State, x.Class, x.Image, x.Hostname)
			showNetwork(w, x, changes, time.Now())
			if x.Reason != "" {
				fmt.Fprintf(w, "reason\t%s\n", x.Reason)
			}
			fmt.Fprintln(w)
			for _, ev := range events {
				fmt.Fprintf(w, "%s\t%s\t%s\n", ev.At.Local().Format("15:04:05.0"), ev.Kind, ev.Text)
			}
		})
	})
}

type orderWatch struct{ oneOrder }

// Run watches an order.
func (o *orderWatch) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error { return o.finish(ctx, t, c, o.Order) })
}

type orderCancel struct{ oneOrder }

// Run cancels an order.
func (o *orderCancel) Run(ctx context.Context, t *terminal) error { return o.act(ctx, t, "cancel") }

type orderRelease struct {
	oneOrder
	Yes bool `help:"Yes, erase every disk of the machine."`
}

// Run releases an order.
func (o *orderRelease) Run(ctx context.Context, t *terminal) error {
	if !o.Yes {
		return &machine.Error{Code: machine.Invalid, Field: "yes", Message: "release erases every disk of the machine, data disks too", Hint: "say --yes if that is meant"}
	}
	return o.act(ctx, t, "release")
}

func (o *oneOrder) act(ctx context.Context, t *terminal, verb string) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Act(ctx, o.Order, verb)
		if err != nil {
			return err
		}
		return o.tell(t, x, "order %s is %s", x.ID, x.State)
	})
}

type orderReinstall struct {
	oneOrder
	Image    string `required:"" placeholder:"NAME" help:"Operating system; see bareyard image list."`
	Consent  string `required:"" placeholder:"HOSTNAME" help:"The machine's hostname, to confirm that its system disk is erased."`
	WipeData bool   `help:"Erase the data disks too; without it they are kept."`
	Wait     bool   `help:"Wait until the machine is handed over."`
	Key      string `placeholder:"TEXT" help:"Idempotency key: the same again begins no second reinstall."`
}

// Run reinstalls.
func (o *orderReinstall) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(o.Key).Reinstall(ctx, o.Order, o.Image, o.Consent, o.WipeData)
		if err != nil {
			return err
		}
		if !o.Wait {
			return o.tell(t, x, "order %s: reinstall with %s begins", x.ID, o.Image)
		}
		return o.finish(ctx, t, c, x.ID)
	})
}

type orderPower struct {
	oneOrder
	Op string `arg:"" enum:"on,off,cycle" help:"on, off or cycle."`
}

// Run switches the machine.
func (o *orderPower) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		if err := c.Power(ctx, o.Order, o.Op); err != nil {
			return err
		}
		return o.tell(t, map[string]string{"order": o.Order, "power": o.Op}, "order %s: power %s done", o.Order, o.Op)
	})
}

type orderReport struct{ oneOrder }

// Run prints the validation report.
func (o *orderReport) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		raw, err := c.Report(ctx, o.Order)
		if err != nil {
			return err
		}
		var rep accelerator.Report
		if err := json.Unmarshal(raw, &rep); err != nil {
			return fmt.Errorf("read report: %w", err)
		}
		return o.show(t, raw, func(w io.Writer) { _ = rep.WriteText(w) }) // a table writer does not fail before Flush
	})
}
