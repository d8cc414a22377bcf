package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/netbox"
	"github.com/bareyard/bareyard/provisioner"
)

type netboxCommand struct {
	Import netboxImport `cmd:"" help:"Take prefixes and devices over from NetBox."`
}

type netboxImport struct {
	remote
	URL             string `required:"" placeholder:"URL" help:"Address of NetBox, without /api."`
	TokenFile       string `required:"" placeholder:"FILE" help:"File with a token of a user who may read dcim and ipam."`
	DryRun          bool   `help:"Only say what would be done."`
	Site            string `placeholder:"SLUG" help:"Only what is at a site."`
	Tag             string `default:"bareyard" placeholder:"SLUG" help:"Only what has this tag (default: bareyard)."`
	Line            string `placeholder:"NAME" help:"Line of prefixes without a custom field bareyard_line."`
	CoolDown        string `default:"24h" placeholder:"TIME" help:"Of new pools (default: 24h)."`
	BMCProtocol     string `name:"bmc-protocol" enum:"ipmi,redfish" default:"redfish" placeholder:"KIND" help:"ipmi or redfish (default: redfish)."`
	BMCUser         string `name:"bmc-user" default:"admin" placeholder:"NAME" help:"Account of the BMCs (default: admin)."`
	BMCPasswordFile string `name:"bmc-password-file" placeholder:"FILE" help:"File with the password of the BMCs; - reads it from standard input. Without it devices are only shown."`
}

// imported is one line of what an import comes to.
type imported struct {
	Kind   string `json:"kind"` // site, prefix, address or device
	Name   string `json:"name"`
	Site   string `json:"site,omitempty"`
	Action string `json:"action"` // in words
}

// Run reads NetBox, and then does what is missing here. What is here already stays as it is, so that it can be run again.
func (n *netboxImport) Run(ctx context.Context, t *terminal) error {
	token, err := readSecret("token_file", n.TokenFile)
	if err != nil {
		return err
	}
	n.URL = strings.TrimRight(strings.TrimSpace(n.URL), "/")
	if !isWebURL(n.URL) {
		return &machine.Error{Code: machine.Invalid, Field: "url", Message: fmt.Sprintf("%q is no address of NetBox", n.URL), Hint: "write it as https://netbox.example.com"}
	}
	stock, err := (&netbox.Client{URL: n.URL, Token: token, Tag: n.Tag}).Read(ctx, n.Site)
	if err != nil {
		return err
	}
	return n.call(ctx, func(ctx context.Context, c *client.Client) error {
		i := &importer{netboxImport: n, c: c, done: []imported{}}
		if err := i.run(ctx, stock); err != nil {
			return err
		}
		return n.show(t, i.done, func(w io.Writer) {
			fmt.Fprintln(w, "WHAT\tNAME\tSITE\tDONE")
			for _, x := range i.done {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Kind, x.Name, dash(x.Site), x.Action)
			}
		})
	})
}

// importer compares what NetBox has with what is here.
type importer struct {
	*netboxImport
	c    *client.Client
	done []imported
}

func (i *importer) note(kind, name, site, format string, a ...any) {
	i.done = append(i.done, imported{kind, name, site, fmt.Sprintf(format, a...)})
}

// do does something, or only says so.
func (i *importer) do(kind, name, site, action string, fn func() error) error {
	if i.DryRun {
		i.note(kind, name, site, "would be %s", action)
		return nil
	}
	err := fn()
	if code := machine.CodeOf(err); code == machine.Invalid || code == machine.Conflict || code == machine.NotFound {
		i.note(kind, name, site, "refused: %v", err) // the others go on
		return nil
	}
	if err == nil {
		i.note(kind, name, site, "%s", action)
	}
	return err
}

func (i *importer) run(ctx context.Context, stock netbox.Stock) error {
	lines, err := i.c.Lines(ctx)
	if err != nil {
		return err
	}
	pools, err := i.c.Pools(ctx, "")
	if err != nil {
		return err
	}
	for _, s := range stock.Sites {
		used := slices.ContainsFunc(lines, func(l provisioner.LineStock) bool { return l.Site == s })
		if used {
			i.note("site", s, "", "has lines here")
		} else {
			i.note("site", s, "", "has no line here: make one with bareyard line put NAME --site %s", s)
		}
	}
	for _, p := range stock.Prefixes {
		if err := i.prefix(ctx, p, lines, pools); err != nil {
			return err
		}
	}
	for _, p := range stock.Small {
		i.note("prefix", p.Prefix.String(), p.Site, "left out: an IPv6 prefix of /56 or longer is what one order gets; mark the range that it lies in")
	}
	return i.devices(ctx, stock.Devices)
}

func (i *importer) prefix(ctx context.Context, p netbox.Prefix, lines []provisioner.LineStock, pools []provisioner.PoolStock) error {
	name := p.Prefix.String()
	line := cmp.Or(p.Line, i.Line)
	at := slices.IndexFunc(lines, func(l provisioner.LineStock) bool { return l.Name == line })
	switch {
	case line == "":
		i.note("prefix", name, p.Site, "left out: no line; set its custom field bareyard_line, or give --line")
		return nil
	case at < 0:
		i.note("prefix", name, p.Site, "left out: there is no line %q here", line)
		return nil
	case p.Site != "" && p.Site != lines[at].Site:
		i.note("prefix", name, p.Site, "left out: line %s is at site %s", line, lines[at].Site)
		return nil
	}
	pool := api.NewPool{Line: line, CoolDown: i.CoolDown, Ranges: []netip.Prefix{p.Prefix}}
	family, bits := line+"-v4", 32
	if p.Prefix.Addr().Is6() {
		family, bits = line+"-v6", 64
	}
	there := false
	for _, x := range pools {
		if slices.Contains(x.Ranges, p.Prefix) {
			there, bits = true, x.Bits
			break
		}
		if x.Name == family {
			pool.CoolDown, pool.Bits, bits = x.CoolDown, x.Bits, x.Bits
		}
	}
	for _, a := range p.Taken { // of an IPv6 prefix that is handed out, one address is enough to make it somebody's
		if k, err := a.Addr().Prefix(bits); err == nil && !slices.Contains(pool.Reserved, k) {
			pool.Reserved = append(pool.Reserved, k)
		}
	}
	if there {
		i.note("prefix", name, p.Site, "is here already")
		return i.keepFree(ctx, p, pool.Reserved)
	}
	// With the range, and not after it: no order may get one of them in between.
	if err := i.do("prefix", name, p.Site, "added to pool "+family, func() error {
		_, err := i.c.PutPool(ctx, family, pool)
		return err
	}); err != nil {
		return err
	}
	for _, k := range pool.Reserved {
		if err := i.keep(ctx, p, k); err != nil {
			return err
		}
	}
	return nil
}

// keepFree keeps back what NetBox says that somebody has, of a range that is here. What an order has is the order's: it is only said.
func (i *importer) keepFree(ctx context.Context, p netbox.Prefix, taken []netip.Prefix) error {
	for _, k := range taken {
		found, err := i.c.Addresses(ctx, provisioner.AddressFilter{After: before(k), Limit: 1})
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].Prefix != k {
			continue // it was given up
		}
		switch state := found[0].State; state {
		case provisioner.AddressFree:
			err = i.keep(ctx, p, k)
		case provisioner.AddressHeld, provisioner.AddressLeaving, provisioner.AddressCooling:
			i.note("address", bare(k), p.Site, "left out: NetBox says that somebody has it, and here it is %s", state)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *importer) keep(ctx context.Context, p netbox.Prefix, k netip.Prefix) error {
	return i.do("address", bare(k), p.Site, "kept back: NetBox says that somebody has it", func() error {
		_, err := i.c.KeepAddresses(ctx, k.String(), provisioner.AddressReserved, "taken in NetBox")
		return err
	})
}

// before is a prefix that comes before another in the order in which addresses are listed, and after all that come before that.
func before(p netip.Prefix) netip.Prefix {
	if a := p.Addr().Prev(); a.IsValid() {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.Prefix{}
}

// devices puts servers on the enrolment list.
func (i *importer) devices(ctx context.Context, devices []netbox.Device) error {
	machines, err := i.c.Machines(ctx, "")
	if err != nil {
		return err
	}
	classes, err := i.c.Classes(ctx)
	if err != nil {
		return err
	}
	password := ""
	if i.BMCPasswordFile != "" && len(devices) > 0 {
		if password, err = readPassword(i.BMCPasswordFile); err != nil {
			return err
		}
	}
	for _, d := range devices {
		known := slices.ContainsFunc(machines, func(m machine.Machine) bool {
			return m.Name == d.Name || d.Serial != "" && m.Hardware.Serial == d.Serial
		})
		switch {
		case known:
			i.note("device", d.Name, d.Site, "is here already")
		case !slices.ContainsFunc(classes, func(c provisioner.ClassStock) bool { return c.Name == d.Class }):
			i.note("device", d.Name, d.Site, "left out: there is no class %q here; set its custom field bareyard_class", d.Class)
		case d.BMC == "":
			i.note("device", d.Name, d.Site, "left out: it has no out-of-band address")
		case d.Serial == "" && d.MAC == "":
			i.note("device", d.Name, d.Site, "left out: it has neither a serial number nor a port with a MAC address")
		case password == "" && !i.DryRun:
			i.note("device", d.Name, d.Site, "left out: give --bmc-password-file")
		default:
			address := d.BMC
			if i.BMCProtocol == "redfish" {
				address = "https://" + d.BMC
			}
			entry := machine.Expected{Name: d.Name, MAC: d.MAC, Serial: d.Serial, Class: d.Class, Site: d.Site, Rack: d.Rack,
				BMC: machine.BMC{Protocol: i.BMCProtocol, Address: address, Username: i.BMCUser}}
			err := i.do("device", d.Name, d.Site, "put on the enrolment list", func() error {
				_, err := i.c.Expect(ctx, []api.ExpectedMachine{{Entry: entry, BMCPassword: password}})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
