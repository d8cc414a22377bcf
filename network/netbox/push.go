package netbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// named is how NetBox nests an object.
type named struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Slug string `json:"slug"`
}

// choice is how NetBox answers a field with fixed values.
type choice struct {
	Value string `json:"value"`
}

// entry is an IP address or a prefix in NetBox.
type entry struct {
	ID      int     `json:"id"`
	Address string  `json:"address"`
	Prefix  string  `json:"prefix"`
	Status  choice  `json:"status"`
	Tags    []named `json:"tags"`
}

func (e entry) tagged(slug string) bool {
	return slices.ContainsFunc(e.Tags, func(t named) bool { return t.Slug == slug })
}

// kind is where NetBox keeps an address: single ones as IP addresses, what is routed as a whole as prefixes.
func kind(p netip.Prefix) (path, field string) {
	if p.IsSingleIP() {
		return "/ipam/ip-addresses/", "address"
	}
	return "/ipam/prefixes/", "prefix"
}

// Push tells NetBox what has become of an address. It is idempotent: what is there is changed, what is missing is made, and what an
// answer that was lost has left twice is made one again. An object that somebody else has made is taken over when an order holds the
// address; its other tags stay.
func (c *Client) Push(ctx context.Context, a network.Assignment) error {
	path, field := kind(a.Prefix)
	value := a.Prefix.String()
	if a.Prefix.IsSingleIP() {
		value = a.Prefix.Addr().String() // finds it with the length of any network; with a length NetBox finds that length alone
	}
	found, err := list[entry](ctx, c, path, url.Values{field: {value}, "vrf_id": {"null"}})
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(slices.Clone(found), func(e entry) bool { return !e.tagged(c.tag()) })
	switch {
	case len(ours) == 0 && !a.Held:
		return nil // it was never told, or somebody has taken our tag off
	case len(ours) == 0 && len(found) > 1:
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("NetBox has %s %d times, and none is marked %s", a.Prefix, len(found), c.tag()), Hint: "delete all but one there"}
	case len(ours) == 0:
		ours = found
	}
	if err := c.ensureTag(ctx); err != nil {
		return err
	}
	body, err := c.body(ctx, a)
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		body[field] = a.Prefix.String()
		body["tags"] = []map[string]string{{"slug": c.tag()}}
		return c.call(ctx, http.MethodPost, path, body, nil)
	}
	slices.SortFunc(ours, func(a, b entry) int { return a.ID - b.ID })
	tags := []map[string]string{{"slug": c.tag()}}
	for _, t := range ours[0].Tags {
		if t.Slug != c.tag() {
			tags = append(tags, map[string]string{"slug": t.Slug})
		}
	}
	body["tags"] = tags
	if err := c.call(ctx, http.MethodPatch, fmt.Sprintf("%s%d/", path, ours[0].ID), body, nil); err != nil {
		return err
	}
	for _, twice := range ours[1:] {
		err := c.call(ctx, http.MethodDelete, fmt.Sprintf("%s%d/", path, twice.ID), nil, nil)
		if r := (*refusal)(nil); err != nil && !(errors.As(err, &r) && r.status == http.StatusNotFound) {
			return err
		}
	}
	return nil
}

// told begins the description of what we have told NetBox.
const told = "Bareyard: "

// body is what NetBox is told of an address.
func (c *Client) body(ctx context.Context, a network.Assignment) (map[string]any, error) {
	body := map[string]any{"status": "deprecated", "description": told + "free", "tenant": nil}
	if a.Held {
		body["status"] = "active"
		body["description"] = fit(fmt.Sprintf(told+"order %s of %s, machine %s", a.OrderID, a.Project, a.Machine), 200)
		tenants, err := list[named](ctx, c, "/tenancy/tenants/", url.Values{"slug": {a.Project}})
		if err != nil {
			return nil, err
		}
		if len(tenants) == 1 { // one that does not exist is none of ours to make
			body["tenant"] = tenants[0].ID
		}
	}
	if a.Prefix.IsSingleIP() {
		body["dns_name"] = a.Name
	}
	return body, nil
}

// fit cuts a text to what NetBox takes.
func fit(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most])
	}
	return s
}

// ensureTag makes the tag that marks what is ours, when it is not there.
func (c *Client) ensureTag(ctx context.Context) error {
	have := func() (bool, error) {
		found, err := list[named](ctx, c, "/extras/tags/", url.Values{"slug": {c.tag()}})
		return len(found) > 0, err
	}
	if ok, err := have(); ok || err != nil {
		return err
	}
	err := c.call(ctx, http.MethodPost, "/extras/tags/", map[string]string{"name": c.tag(), "slug": c.tag(), "color": "2f6fde", "description": "kept by Bareyard"}, nil)
	if err != nil {
		if ok, _ := have(); ok { // another server was quicker
			return nil
		}
	}
	return err
}

// Told lists what NetBox has as active and marked ours, single addresses without the length of their network.
func (c *Client) Told(ctx context.Context) (all []netip.Prefix, err error) {
	for _, path := range []string{"/ipam/ip-addresses/", "/ipam/prefixes/"} {
		found, err := list[entry](ctx, c, path, url.Values{"tag": {c.tag()}, "status": {"active"}, "vrf_id": {"null"}})
		if err != nil {
			if r := (*refusal)(nil); errors.As(err, &r) && r.status == http.StatusBadRequest {
				continue // NetBox refuses to filter by a tag that is not there: nothing is marked
			}
			return nil, err
		}
		for _, e := range found {
			p, err := netip.ParsePrefix(cmp.Or(e.Address, e.Prefix))
			if err != nil || !e.tagged(c.tag()) || e.Status.Value != "active" {
				continue
			}
			if e.Address != "" {
				p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
			}
			all = append(all, p)
		}
	}
	return all, nil
}
