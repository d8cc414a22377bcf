package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// addressCommand is the operators' side of public addresses.
type addressCommand struct {
	List    addressList    `cmd:"" help:"List addresses and who has them."`
	History addressHistory `cmd:"" help:"Who had an address, and when: for the abuse desk."`
	Reserve addressKeep    `cmd:"" help:"Keep an address, or all within a prefix, from being handed out."`
	Gateway addressKeep    `cmd:"" help:"The same, for a router's address."`
	Free    addressKeep    `cmd:"" help:"Put addresses that were kept back, or were in conflict, into stock."`
	Pools   addressPools   `cmd:"" help:"List pools of addresses."`
	Pool    addressPool    `cmd:"" help:"Make a pool of addresses, or add to it."`
	Retire  addressRetire  `cmd:"" help:"Give up a range of addresses."`
}

type addressList struct {
	remote
	Line  string `placeholder:"NAME" help:"Only those of a line."`
	State string `placeholder:"STATE" help:"Only those that are free, held, leaving, cooling, reserved, gateway or conflict."`
}

// Run lists addresses, page after page.
func (a *addressList) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		const page = 5000
		f := provisioner.AddressFilter{Line: a.Line, State: provisioner.AddressState(a.State), Limit: page}
		all := []provisioner.Address{}
		for {
			list, err := c.Addresses(ctx, f)
			if err != nil {
				return err
			}
			all = append(all, list...)
			if len(list) < page {
				break
			}
			f.After = list[len(list)-1].Prefix
		}
		return a.show(t, all, func(w io.Writer) {
			fmt.Fprintln(w, "ADDRESS\tLINE\tPOOL\tSTATE\tORDER\tPROJECT\tSINCE\tNOTE")
			for _, x := range all {
				note := x.Note
				if !x.FreeAt.IsZero() {
					note = "free at " + moment(x.FreeAt)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", bare(x.Prefix), x.Line, x.Pool, x.State, dash(x.OrderID), dash(x.Project), moment(x.Since), dash(note))
			}
		})
	})
}

// moment writes a time in UTC, as the abuse desk compares it.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// bare writes a single address without its length.
func bare(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func bareList(ps []netip.Prefix) string {
	var parts []string
	for _, p := range ps {
		parts = append(parts, bare(p))
	}
	return strings.Join(parts, ", ")
}

type addressHistory struct {
	remote
	Address string `arg:"" help:"The address; one within an IPv6 prefix will do."`
	At      string `placeholder:"TIME" help:"Only who had it then, with the zone: 2026-11-03T10:00Z."`
}

// Run answers the abuse desk.
func (a *addressHistory) Run(ctx context.Context, t *terminal) error {
	p, err := network.ParseAddress("address", a.Address)
	if err != nil {
		return err
	}
	var at time.Time
	if a.At != "" {
		if at, err = network.ParseInstant("at", a.At); err != nil {
			return err
		}
	}
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.AddressHistory(ctx, p.Addr(), at)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return a.nobody(ctx, c, p.Addr(), at)
		}
		return a.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "ADDRESS\tFROM\tUNTIL\tPROJECT\tORDER\tHOSTNAME\tMACHINE")
			for _, x := range list {
				until := moment(x.To)
				if x.To.IsZero() {
					until = "now"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", bare(x.Prefix), moment(x.From), until, x.Project, x.OrderID, dash(x.Hostname), dash(x.Machine))
			}
		})
	})
}

// nobody says that nobody had the address, and who came before and after.
func (a *addressHistory) nobody(ctx context.Context, c *client.Client, addr netip.Addr, at time.Time) error {
	if at.IsZero() {
		return &machine.Error{Code: machine.NotFound, Field: "address", Message: fmt.Sprintf("nobody ever had %s", addr), Hint: "see which addresses there are with `bareyard address pools`"}
	}
	all, err := c.AddressHistory(ctx, addr, time.Time{})
	if err != nil {
		return err
	}
	var hints []string
	for i := len(all) - 1; i >= 0; i-- {
		switch x := all[i]; {
		case x.From.After(at):
			hints = append(hints, fmt.Sprintf("after: order %s of project %s, from %s", x.OrderID, x.Project, moment(x.From)))
		case i == 0 || all[i-1].From.After(at):
			hints = append(hints, fmt.Sprintf("before: order %s of project %s, until %s", x.OrderID, x.Project, moment(x.To)))
			continue
		default:
			continue
		}
		break
	}
	if len(hints) == 0 {
		hints = []string{"nobody has had it since it is on record"}
	}
	return &machine.Error{Code: machine.NotFound, Field: "at", Message: fmt.Sprintf("nobody had %s at %s", addr, moment(at)), Hint: strings.Join(hints, "; ")}
}

type addressKeep struct {
	remote
	Address string `arg:"" help:"An address, or a prefix."`
	Note    string `placeholder:"TEXT" help:"Why."`
}

// Run keeps addresses back or frees them, by the command's own name.
func (a *addressKeep) Run(ctx context.Context, t *terminal, k *kong.Context) error {
	state := map[string]provisioner.AddressState{"reserve": provisioner.AddressReserved, "gateway": provisioner.AddressGateway, "free": provisioner.AddressFree}[k.Selected().Name]
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		n, err := c.KeepAddresses(ctx, a.Address, state, a.Note)
		if err != nil {
			return err
		}
		return a.tell(t, map[string]any{"address": a.Address, "state": state, "changed": n}, "%d addresses of %s are %s now", n, a.Address, state)
	})
}

type addressPools struct {
	remote
	Line string `placeholder:"NAME" help:"Only those of a line."`
}

// Run lists pools.
func (a *addressPools) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Pools(ctx, a.Line)
		if err != nil {
			return err
		}
		return a.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "POOL\tLINE\tSITE\tHANDS OUT\tCOOL-DOWN\tFREE\tCOOLING\tHELD\tKEPT BACK\tRANGES")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t/%d\t%s\t%d\t%d\t%d\t%d\t%s\n", x.Name, x.Line, x.Site, x.Bits, x.CoolDown, x.Free, x.Cooling, x.Held, x.Reserved, bareList(x.Ranges))
			}
		})
	})
}

type addressPool struct {
	remote
	Name     string         `arg:"" help:"Name of the pool."`
	Line     string         `required:"" placeholder:"NAME" help:"Its line."`
	Range    []netip.Prefix `required:"" placeholder:"PREFIX" help:"Addresses, e.g. 203.0.113.0/24 or 2001:db8:7::/56. Repeat for more."`
	Bits     int            `help:"Length of the prefixes handed out (default: 32 for IPv4, 64 for IPv6)."`
	CoolDown string         `default:"24h" help:"How long a released address rests (default: 24h)."`
	Reserve  []netip.Prefix `placeholder:"PREFIX" help:"Of these, what is not handed out. Repeat for more."`
	Gateway  []netip.Prefix `placeholder:"PREFIX" help:"Of these, what routers have. Repeat for more."`
}

// Run makes a pool.
func (a *addressPool) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		p, err := c.PutPool(ctx, a.Name, api.NewPool{Line: a.Line, Bits: a.Bits, CoolDown: a.CoolDown, Ranges: a.Range, Reserved: a.Reserve, Gateways: a.Gateway})
		if err != nil {
			return err
		}
		return a.tell(t, p, "pool %s of line %s has %d free prefixes of length %d", p.Name, p.Line, p.Free, p.Bits)
	})
}

type addressRetire struct {
	remote
	Range netip.Prefix `arg:"" help:"The range, as it was added."`
}

// Run gives up a range.
func (a *addressRetire) Run(ctx context.Context, t *terminal) error {
	return a.call(ctx, func(ctx context.Context, c *client.Client) error {
		n, err := c.RetireRange(ctx, a.Range)
		if err != nil {
			return err
		}
		return a.tell(t, map[string]any{"range": a.Range, "removed": n}, "%s is given up: %d addresses", a.Range, n)
	})
}
