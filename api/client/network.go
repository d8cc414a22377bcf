package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Pools lists the stocks of addresses, of one line or of all.
func (c *Client) Pools(ctx context.Context, line string) (out []provisioner.PoolStock, err error) {
	return out, c.get(ctx, "/v1/address-pools?line="+url.QueryEscape(line), &out)
}

// PutPool makes a pool of addresses, or adds to it.
func (c *Client) PutPool(ctx context.Context, name string, p api.NewPool) (out provisioner.PoolStock, err error) {
	return out, c.call(ctx, http.MethodPut, "/v1/address-pools/"+url.PathEscape(name), nil, p, &out)
}

// RetireRange gives up a range of addresses and returns how many there were.
func (c *Client) RetireRange(ctx context.Context, r netip.Prefix) (removed int64, err error) {
	var out struct {
		Removed int64 `json:"removed"`
	}
	err = c.post(ctx, "/v1/address-pools/retire", map[string]any{"range": r}, &out)
	return out.Removed, err
}

// Addresses lists addresses in their order; a page ends after the filter's limit.
func (c *Client) Addresses(ctx context.Context, f provisioner.AddressFilter) (out []provisioner.Address, err error) {
	q := url.Values{"line": {f.Line}, "order": {f.Order}, "limit": {strconv.Itoa(f.Limit)}}
	if f.State != "" {
		q.Set("state", string(f.State))
	}
	if f.After.IsValid() {
		q.Set("after", f.After.String())
	}
	return out, c.get(ctx, "/v1/addresses?"+q.Encode(), &out)
}

// KeepAddresses keeps an address, or all within a prefix, back as reserved or as a gateway's, or puts them into stock again.
func (c *Client) KeepAddresses(ctx context.Context, address string, state provisioner.AddressState, note string) (changed int64, err error) {
	var out struct {
		Changed int64 `json:"changed"`
	}
	err = c.post(ctx, "/v1/addresses/keep", map[string]any{"address": address, "state": state, "note": note}, &out)
	return out.Changed, err
}

// AddressHistory lists who had an address, newest first; at, if not empty, is the time of which alone is asked.
func (c *Client) AddressHistory(ctx context.Context, address netip.Addr, at time.Time) (out []provisioner.Tenure, err error) {
	path := "/v1/addresses/" + url.PathEscape(address.String()) + "/history"
	if !at.IsZero() {
		path += "?at=" + url.QueryEscape(at.UTC().Format(time.RFC3339Nano))
	}
	return out, c.get(ctx, path, &out)
}

// OrderAddresses lists the addresses of an order.
func (c *Client) OrderAddresses(ctx context.Context, id string) (out []provisioner.Address, err error) {
	return out, c.get(ctx, orderPath(id, "/addresses"), &out)
}

// AddAddresses adds addresses of a family, 4 or 6, to an order.
func (c *Client) AddAddresses(ctx context.Context, id string, family, count int) (out []netip.Prefix, err error) {
	return out, c.post(ctx, orderPath(id, "/addresses"), map[string]int{"family": family, "count": count}, &out)
}

// RemoveAddress takes an address off an order.
func (c *Client) RemoveAddress(ctx context.Context, id, address string) (out machine.Order, err error) {
	return out, c.post(ctx, orderPath(id, "/addresses/remove"), map[string]string{"address": address}, &out)
}

// MoveAddress moves an address of an order to another order of the project.
func (c *Client) MoveAddress(ctx context.Context, id, address, to string) (out machine.Order, err error) {
	return out, c.post(ctx, orderPath(id, "/addresses/move"), map[string]string{"address": address, "to": to}, &out)
}

// BandwidthChanges lists the changes of an order's bandwidth, oldest first.
func (c *Client) BandwidthChanges(ctx context.Context, id string) (out []provisioner.Change, err error) {
	return out, c.get(ctx, orderPath(id, "/bandwidth"), &out)
}

// SetBandwidth changes an order's bandwidth, or only says what it comes to. A direction that is zero stays as it is.
func (c *Client) SetBandwidth(ctx context.Context, id string, r network.Rates, quote bool) (out []provisioner.Change, err error) {
	return out, c.post(ctx, orderPath(id, "/bandwidth"), map[string]any{"up": r.Up, "down": r.Down, "quote": quote}, &out)
}

// AddPack adds bandwidth to an order for some days.
func (c *Client) AddPack(ctx context.Context, id string, add network.Rates, days int) (out provisioner.Change, err error) {
	return out, c.post(ctx, orderPath(id, "/packs"), map[string]any{"up": add.Up, "down": add.Down, "days": days}, &out)
}

// Limit limits an order to rate Mbit/s each way.
func (c *Client) Limit(ctx context.Context, id string, rate int, reason string) (out machine.Order, err error) {
	return out, c.post(ctx, orderPath(id, "/limit"), map[string]any{"rate": rate, "reason": reason}, &out)
}

// Blackhole null-routes an order's addresses for a while. Act with "unblackhole" ends it, with "unlimit" a limit.
func (c *Client) Blackhole(ctx context.Context, id string, d time.Duration, reason string) (out machine.Order, err error) {
	return out, c.post(ctx, orderPath(id, "/blackhole"), map[string]any{"for": d.String(), "reason": reason}, &out)
}

// Names lists the reverse DNS of an order's addresses.
func (c *Client) Names(ctx context.Context, id string) (out []provisioner.Name, err error) {
	return out, c.get(ctx, orderPath(id, "/names"), &out)
}

// SetName sets the reverse DNS of an address of an order; an empty name clears it.
func (c *Client) SetName(ctx context.Context, id, address, name string) error {
	return c.call(ctx, http.MethodPut, orderPath(id, "/names"), nil, map[string]string{"address": address, "name": name}, nil)
}

// Tasks lists the work that waits for operators, and what was done; state "" means all.
func (c *Client) Tasks(ctx context.Context, state network.TaskState) (out []network.Task, err error) {
	path := "/v1/tasks"
	if state != "" {
		path += "?state=" + url.QueryEscape(string(state))
	}
	return out, c.get(ctx, path, &out)
}

// Task returns a task.
func (c *Client) Task(ctx context.Context, id string) (out network.Task, err error) {
	return out, c.get(ctx, "/v1/tasks/"+url.PathEscape(id), &out)
}

// CloseTask says that a task is done, with the verb "done", or will not be done, with "refuse".
func (c *Client) CloseTask(ctx context.Context, id, verb, by, note string) (out network.Task, err error) {
	return out, c.post(ctx, "/v1/tasks/"+url.PathEscape(id)+"/"+verb, map[string]string{"by": by, "note": note}, &out)
}

// TrafficQuery says which traffic; empty fields are left to the server: the month of the order that is under way.
type TrafficQuery struct {
	From, To string // a day, or a time with its zone
	Step     string // 5m or 1h
}

func (q TrafficQuery) values() string {
	v := url.Values{}
	for name, value := range map[string]string{"from": q.From, "to": q.To, "step": q.Step} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v.Encode()
}

// Traffic returns what an order's machine was delivered.
func (c *Client) Traffic(ctx context.Context, id string, q TrafficQuery) (out api.Traffic, err error) {
	return out, c.get(ctx, orderPath(id, "/traffic")+"?"+q.values(), &out)
}

// TrafficPlot returns the same as an SVG document.
func (c *Client) TrafficPlot(ctx context.Context, id string, q TrafficQuery) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+orderPath(id, "/traffic.svg")+"?"+q.values(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	res, err := c.do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(io.LimitReader(res.Body, 16<<20))
}

// TrafficPeriods lists the months of an order that are over.
func (c *Client) TrafficPeriods(ctx context.Context, id string) (out []provisioner.ClosedPeriod, err error) {
	return out, c.get(ctx, orderPath(id, "/traffic/periods"), &out)
}

func orderPath(id, suffix string) string { return "/v1/orders/" + url.PathEscape(id) + suffix }
