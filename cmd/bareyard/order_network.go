package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// orderAddressCommand is the addresses of an order.
type orderAddressCommand struct {
	List   orderAddressList   `cmd:"" help:"List an order's addresses."`
	Add    orderAddressAdd    `cmd:"" help:"Add addresses to a running order."`
	Remove orderAddressRemove `cmd:"" help:"Take an address off an order."`
	Move   orderAddressMove   `cmd:"" help:"Move an address to another order of yours."`
}

type orderAddressList struct{ oneOrder }

// Run lists an order's addresses.
func (o *orderAddressList) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.OrderAddresses(ctx, o.Order)
		if err != nil {
			return err
		}
		return o.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "ADDRESS\tLINE\tSTATE\tSINCE")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", bare(x.Prefix), x.Line, x.State, moment(x.Since))
			}
		})
	})
}

type orderAddressAdd struct {
	oneOrder
	IPv6  bool   `name:"ipv6" help:"An IPv6 prefix instead of an IPv4 address."`
	Count int    `default:"1" help:"How many (default: 1)."`
	Key   string `placeholder:"TEXT" help:"Idempotency key: the same again adds nothing."`
}

// Run adds addresses, and says how to use them before the next reinstall.
func (o *orderAddressAdd) Run(ctx context.Context, t *terminal) error {
	family := 4
	if o.IPv6 {
		family = 6
	}
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		added, err := c.Keyed(o.Key).AddAddresses(ctx, o.Order, family, o.Count)
		if err != nil {
			return err
		}
		return o.show(t, added, func(w io.Writer) {
			for _, p := range added {
				use := p
				if !p.IsSingleIP() {
					use = network.FirstOf(p)
				}
				fmt.Fprintf(w, "%s is routed to the machine; in its system: ip address add %s dev PUBLIC\n", bare(p), use)
			}
			fmt.Fprintln(w, "a reinstall configures it for good")
		})
	})
}

type orderAddressRemove struct {
	oneOrder
	Address string `arg:"" help:"The address."`
	Key     string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run takes an address off.
func (o *orderAddressRemove) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(o.Key).RemoveAddress(ctx, o.Order, o.Address)
		if err != nil {
			return err
		}
		return o.tell(t, x, "%s is taken off; order %s has %s", o.Address, x.ID, bareList(x.Addresses))
	})
}

type orderAddressMove struct {
	oneOrder
	Address string `arg:"" help:"The address."`
	To      string `required:"" placeholder:"ORDER" help:"The order that gets it: active, of the same project, at the same site."`
	Key     string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run moves an address.
func (o *orderAddressMove) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(o.Key).MoveAddress(ctx, o.Order, o.Address, o.To)
		if err != nil {
			return err
		}
		return o.tell(t, x, "%s goes to order %s as soon as the edge has let go of it", o.Address, o.To)
	})
}

type orderName struct {
	oneOrder
	Address string `arg:"" optional:"" help:"The address; within an IPv6 prefix any. Without one, the names are listed."`
	Name    string `arg:"" optional:"" help:"Its full host name."`
	Clear   bool   `help:"Take the name away."`
}

// Run sets reverse DNS, or lists it.
func (o *orderName) Run(ctx context.Context, t *terminal) error {
	if o.Address != "" && (o.Name == "") != o.Clear {
		return &machine.Error{Code: machine.Invalid, Field: "name", Message: "say either a name or --clear", Hint: "e.g. bareyard order name " + o.Order + " " + o.Address + " gpu1.example.com"}
	}
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		if o.Address != "" {
			if err := c.SetName(ctx, o.Order, o.Address, o.Name); err != nil {
				return err
			}
		}
		list, err := c.Names(ctx, o.Order)
		if err != nil {
			return err
		}
		return o.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "ADDRESS\tNAME\tSTATE\tPROBLEM")
			for _, x := range list {
				name := x.Name
				if name == "" {
					name = "(being cleared)"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Addr, name, x.State, dash(x.Problem))
			}
		})
	})
}

type orderBandwidth struct {
	oneOrder
	Bandwidth int    `placeholder:"MBIT" xor:"up" help:"Mbit/s, each way."`
	Up        int    `placeholder:"MBIT" xor:"up" help:"Mbit/s from the machine."`
	Down      int    `placeholder:"MBIT" help:"Mbit/s to the machine."`
	Quote     bool   `help:"Only say what it comes to."`
	Key       string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run changes the bandwidth, or lists its changes.
func (o *orderBandwidth) Run(ctx context.Context, t *terminal) error {
	r := network.Rates{Up: max(o.Bandwidth, o.Up), Down: o.Down}
	if o.Bandwidth > 0 && o.Down == 0 {
		r.Down = o.Bandwidth
	}
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		if r == (network.Rates{}) {
			list, err := c.BandwidthChanges(ctx, o.Order)
			if err != nil {
				return err
			}
			return o.show(t, list, func(w io.Writer) { tableChanges(w, list) })
		}
		made, err := c.Keyed(o.Key).SetBandwidth(ctx, o.Order, r, o.Quote)
		if err != nil {
			return err
		}
		return o.show(t, made, func(w io.Writer) {
			for _, x := range made {
				fmt.Fprintln(w, describeChange(x))
			}
			if len(made) == 0 {
				fmt.Fprintln(w, "the downgrade is withdrawn: nothing changes")
			}
			if o.Quote {
				fmt.Fprintln(w, "nothing was changed: this was asked for as a quote")
			}
		})
	})
}

type orderPack struct {
	oneOrder
	Bandwidth int    `placeholder:"MBIT" xor:"up" help:"Mbit/s to add, each way."`
	Up        int    `placeholder:"MBIT" xor:"up" help:"Mbit/s to add from the machine."`
	Down      int    `placeholder:"MBIT" help:"Mbit/s to add to the machine."`
	Days      int    `default:"1" help:"For how many days (default: 1)."`
	Key       string `placeholder:"TEXT" help:"Idempotency key: the same again adds nothing."`
}

// Run adds a pack.
func (o *orderPack) Run(ctx context.Context, t *terminal) error {
	r := network.Rates{Up: max(o.Bandwidth, o.Up), Down: max(o.Bandwidth, o.Down)}
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		made, err := c.Keyed(o.Key).AddPack(ctx, o.Order, r, o.Days)
		if err != nil {
			return err
		}
		return o.tell(t, made, "%s", describeChange(made))
	})
}

// describeChange says what a change comes to, and for what it is charged.
func describeChange(c provisioner.Change) string {
	switch c.Kind {
	case provisioner.Pack:
		return fmt.Sprintf("pack: %s more until %s (%d days), then it reverts by itself", c.Rates, moment(c.Ends), c.Days)
	case provisioner.Downgrade:
		return fmt.Sprintf("downgrade: from %s to %s at %s, when the paid term is over; nothing is charged or paid back", c.Was, c.Rates, moment(c.Begins))
	}
	return fmt.Sprintf("upgrade: from %s to %s at once; the difference is charged for %s", c.Was, c.Rates, describeRest(c.Term))
}

// describeRest says what is left of a term.
func describeRest(r billing.Rest) string {
	if r.Of == 0 {
		return "nothing: the term is over"
	}
	left := time.Duration(r.Left) * time.Microsecond
	text := fmt.Sprintf("%d days %d hours of the month that ends %s (%.2f %%)", int(left.Hours())/24, int(left.Hours())%24, moment(r.To), 100*float64(r.Left)/float64(r.Of))
	if r.Months > 0 {
		text += fmt.Sprintf(" and %d months after it", r.Months)
	}
	return text
}

func tableChanges(w io.Writer, list []provisioner.Change) {
	fmt.Fprintln(w, "CHANGE\tKIND\tSTATE\tFROM\tTO\tBEGINS\tENDS")
	for _, c := range list {
		to := c.Rates.String()
		if c.Kind == provisioner.Pack {
			to = "+ " + to
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, c.Kind, c.State, c.Was, to, moment(c.Begins), moment(c.Ends))
	}
}

type orderLimit struct {
	oneOrder
	Rate   int    `default:"1" placeholder:"MBIT" help:"Mbit/s each way (default: 1)."`
	Reason string `placeholder:"TEXT" help:"Why; the customer sees it."`
	Key    string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run limits an order.
func (o *orderLimit) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(o.Key).Limit(ctx, o.Order, o.Rate, o.Reason)
		if err != nil {
			return err
		}
		return o.tell(t, x, "order %s is limited to %d Mbit/s", x.ID, x.Network.Limit)
	})
}

type orderUnlimit struct {
	oneOrder
	Key string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run lifts the limit.
func (o *orderUnlimit) Run(ctx context.Context, t *terminal) error {
	return o.lift(ctx, t, o.Key, "unlimit", "order %s has %s again")
}

type orderBlackhole struct {
	oneOrder
	For    time.Duration `required:"" placeholder:"TIME" help:"For how long, e.g. 2h."`
	Reason string        `placeholder:"TEXT" help:"Why; the customer sees it."`
	Key    string        `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run null-routes an order.
func (o *orderBlackhole) Run(ctx context.Context, t *terminal) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(o.Key).Blackhole(ctx, o.Order, o.For, o.Reason)
		if err != nil {
			return err
		}
		return o.tell(t, x, "order %s is null-routed until %s", x.ID, moment(x.Network.BlackholeUntil))
	})
}

type orderUnblackhole struct {
	oneOrder
	Key string `placeholder:"TEXT" help:"Idempotency key: the same again changes nothing."`
}

// Run ends the null-route.
func (o *orderUnblackhole) Run(ctx context.Context, t *terminal) error {
	return o.lift(ctx, t, o.Key, "unblackhole", "order %s is no longer null-routed: %s")
}

func (o *oneOrder) lift(ctx context.Context, t *terminal, key, verb, said string) error {
	return o.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Keyed(key).Act(ctx, o.Order, verb)
		if err != nil {
			return err
		}
		return o.tell(t, x, said, x.ID, provisioner.Acting(x))
	})
}

// showNetwork writes what an order's network is, and what becomes of it.
func showNetwork(w io.Writer, o machine.Order, changes []provisioner.Change, now time.Time) {
	addresses := bareList(o.Addresses)
	if addresses == "" {
		addresses = o.Address.String()
	}
	fmt.Fprintf(w, "address\t%s (%s)\nbandwidth\t%s", addresses, o.Line, provisioner.Ordered(o))
	if network.Model(o.Model) == network.ModelBurst {
		fmt.Fprintf(w, ", burst with %d committed", o.Committed)
	}
	fmt.Fprintln(w)
	for _, c := range changes {
		switch {
		case c.Kind == provisioner.Pack && c.State == provisioner.ChangeActing:
			fmt.Fprintf(w, "pack\t%s more until %s (%s left)\n", c.Rates, moment(c.Ends), left(c.Ends, now))
		case c.State == provisioner.ChangeWaiting:
			fmt.Fprintf(w, "later\t%s from %s\n", c.Rates, moment(c.Begins))
		}
	}
	n := o.Network
	if !n.BlackholeUntil.IsZero() {
		fmt.Fprintf(w, "network\tnull-routed until %s (%s left)%s\n", moment(n.BlackholeUntil), left(n.BlackholeUntil, now), because(n.BlackholeReason))
	}
	if n.Limit > 0 {
		fmt.Fprintf(w, "network\tlimited to %d Mbit/s%s\n", n.Limit, because(n.LimitReason))
	}
}

func left(until, now time.Time) string {
	d := max(0, until.Sub(now)).Round(time.Second)
	return strings.TrimSuffix(d.String(), "0s")
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
