package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Discovered lists machines that nobody has enrolled, the newest first; rejected ones too when asked for.
func (c *Client) Discovered(ctx context.Context, rejected bool) (out []machine.Found, err error) {
	return out, c.get(ctx, fmt.Sprintf("/v1/discovered?rejected=%t", rejected), &out)
}

// Found returns one of them, by id or by the MAC address of a port.
func (c *Client) Found(ctx context.Context, id string) (out machine.Found, err error) {
	return out, c.get(ctx, "/v1/discovered/"+url.PathEscape(id), &out)
}

// Approve enrols a discovered machine.
func (c *Client) Approve(ctx context.Context, id string, a api.Approval) (out machine.Machine, err error) {
	return out, c.post(ctx, "/v1/discovered/"+url.PathEscape(id)+"/approve", a, &out)
}

// Reject sends a discovered machine away, or forgets it.
func (c *Client) Reject(ctx context.Context, id, reason string, forget bool) error {
	return c.post(ctx, "/v1/discovered/"+url.PathEscape(id)+"/reject", map[string]any{"reason": reason, "forget": forget}, nil)
}

// Expect names machines before they are seen; all of them, or none.
func (c *Client) Expect(ctx context.Context, list []api.ExpectedMachine) (out provisioner.ExpectResult, err error) {
	return out, c.post(ctx, "/v1/expected", map[string]any{"list": list}, &out)
}

// Expected lists the enrolment list.
func (c *Client) Expected(ctx context.Context) (out []machine.Expected, err error) {
	return out, c.get(ctx, "/v1/expected", &out)
}

// Unexpect takes an entry off the enrolment list.
func (c *Client) Unexpect(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/expected/"+url.PathEscape(name), nil, nil, nil)
}

// PutClassFacts says what the machines of a class have beside their cards.
func (c *Client) PutClassFacts(ctx context.Context, f machine.ClassFacts) error {
	return c.call(ctx, http.MethodPut, "/v1/classes/"+url.PathEscape(f.Class)+"/facts", nil, map[string]any{"memory": f.Memory, "disks": f.Disks, "disk_size": f.DiskSize}, nil)
}

// Boots lists the boots of a machine, or of an unknown port, the newest first, without their lines.
func (c *Client) Boots(ctx context.Context, id string) (out []api.BootTrace, err error) {
	return out, c.get(ctx, "/v1/machines/"+url.PathEscape(id)+"/boots", &out)
}

// Boot returns one boot with its lines; number may be "latest".
func (c *Client) Boot(ctx context.Context, id, number string) (out api.BootTrace, err error) {
	return out, c.get(ctx, "/v1/machines/"+url.PathEscape(id)+"/boots/"+url.PathEscape(number), &out)
}

// UnknownBoots lists the newest boot of each port that is no machine's.
func (c *Client) UnknownBoots(ctx context.Context) (out []api.BootTrace, err error) {
	return out, c.get(ctx, "/v1/boots/unknown", &out)
}
