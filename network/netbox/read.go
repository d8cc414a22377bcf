package netbox

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Prefix is a range of addresses as NetBox has it.
type Prefix struct {
	Prefix netip.Prefix   `json:"prefix"`
	Site   string         `json:"site"`            // slug; "" for none
	Line   string         `json:"line"`            // its custom field bareyard_line
	Taken  []netip.Prefix `json:"taken,omitempty"` // addresses in it that somebody other than us has
}

// Device is a server as NetBox has it.
type Device struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	Site   string `json:"site"`
	Rack   string `json:"rack"`
	Class  string `json:"class"` // its custom field bareyard_class, or else the slug of its type
	BMC    string `json:"bmc"`   // its out-of-band address, or that of a port for management only
	MAC    string `json:"mac"`   // of a port that is not: the first that has one
}

// Stock is what Read finds.
type Stock struct {
	Sites    []string `json:"sites"`
	Prefixes []Prefix `json:"prefixes"`
	Small    []Prefix `json:"small"` // IPv6 prefixes too small to be a stock, without those that we have told it ourselves
	Devices  []Device `json:"devices"`
}

type prefixObject struct {
	Prefix       string         `json:"prefix"`
	Status       choice         `json:"status"`
	Description  string         `json:"description"`
	Site         *named         `json:"site"` // up to version 4.1
	ScopeType    string         `json:"scope_type"`
	Scope        *named         `json:"scope"` // since 4.2
	CustomFields map[string]any `json:"custom_fields"`
}

type deviceObject struct {
	ID           int            `json:"id"`
	Name         string         `json:"name"`
	Serial       string         `json:"serial"`
	Site         *named         `json:"site"`
	Rack         *named         `json:"rack"`
	DeviceType   *named         `json:"device_type"`
	OOB          *entry         `json:"oob_ip"`
	CustomFields map[string]any `json:"custom_fields"`
}

type interfaceObject struct {
	Management bool    `json:"mgmt_only"`
	MAC        *string `json:"mac_address"` // up to version 4.1; later that of the primary one
	Primary    *struct {
		MAC string `json:"mac_address"`
	} `json:"primary_mac_address"`
}

func slug(n *named) string {
	if n == nil {
		return ""
	}
	return n.Slug
}

func field(fields map[string]any, name string) string {
	switch v := fields[name].(type) {
	case string:
		return v
	case map[string]any: // a selection
		return cmp.Or(fmt.Sprint(v["value"]), fmt.Sprint(v["label"]))
	}
	return ""
}

// Read reads the sites, and the prefixes and devices that have our tag; of one site, or of all. Nothing is changed.
func (c *Client) Read(ctx context.Context, site string) (s Stock, err error) {
	of := url.Values{}
	if site != "" {
		of.Set("slug", site)
	}
	sites, err := list[named](ctx, c, "/dcim/sites/", of)
	if err != nil {
		return s, fmt.Errorf("read sites: %w", err)
	}
	for _, n := range sites {
		s.Sites = append(s.Sites, n.Slug)
	}
	if s.Prefixes, s.Small, err = c.prefixes(ctx, site); err != nil {
		return s, fmt.Errorf("read prefixes: %w", err)
	}
	if s.Devices, err = c.devices(ctx, site); err != nil {
		return s, fmt.Errorf("read devices: %w", err)
	}
	return s, nil
}

func (c *Client) prefixes(ctx context.Context, site string) (out, small []Prefix, err error) {
	found, err := list[prefixObject](ctx, c, "/ipam/prefixes/", url.Values{"tag": {c.tag()}})
	if err != nil {
		return nil, nil, err
	}
	for _, o := range found {
		at := slug(o.Site)
		if o.ScopeType == "dcim.site" {
			at = slug(o.Scope)
		}
		p, err := netip.ParsePrefix(o.Prefix)
		if err != nil || o.Status.Value != "active" && o.Status.Value != "container" || site != "" && at != site {
			continue // deprecated, or reserved for something else
		}
		x := Prefix{Prefix: p, Site: at, Line: field(o.CustomFields, "bareyard_line")}
		if p.Addr().Is6() && p.Bits() >= 56 {
			if !strings.HasPrefix(o.Description, told) {
				small = append(small, x)
			}
			continue
		}
		taken, err := list[entry](ctx, c, "/ipam/ip-addresses/", url.Values{"parent": {p.String()}})
		if err != nil {
			return nil, nil, err
		}
		for _, e := range taken {
			a, err := netip.ParsePrefix(e.Address) // its length is that of its network
			if err == nil && p.Contains(a.Addr()) && !e.tagged(c.tag()) && e.Status.Value != "deprecated" {
				x.Taken = append(x.Taken, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()))
			}
		}
		out = append(out, x)
	}
	return out, small, nil
}

func (c *Client) devices(ctx context.Context, site string) (out []Device, err error) {
	q := url.Values{"tag": {c.tag()}}
	if site != "" {
		q.Set("site", site)
	}
	found, err := list[deviceObject](ctx, c, "/dcim/devices/", q)
	if err != nil {
		return nil, err
	}
	for _, o := range found {
		d := Device{Name: strings.ToLower(o.Name), Serial: o.Serial, Site: slug(o.Site), Class: cmp.Or(field(o.CustomFields, "bareyard_class"), slug(o.DeviceType))}
		if o.Rack != nil {
			d.Rack = o.Rack.Name
		}
		if o.OOB != nil {
			d.BMC, _, _ = strings.Cut(o.OOB.Address, "/")
		}
		ports, err := list[interfaceObject](ctx, c, "/dcim/interfaces/", url.Values{"device_id": {fmt.Sprint(o.ID)}})
		if err != nil {
			return nil, err
		}
		for _, i := range ports {
			mac := ""
			if i.MAC != nil {
				mac = *i.MAC
			}
			if i.Primary != nil {
				mac = cmp.Or(mac, i.Primary.MAC)
			}
			if d.MAC == "" && !i.Management {
				d.MAC = strings.ToLower(mac)
			}
		}
		out = append(out, d)
	}
	return out, nil
}
