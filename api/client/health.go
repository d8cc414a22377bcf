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

func healthPath(id, suffix string) string {
	return "/v1/machines/" + url.PathEscape(id) + "/health" + suffix
}

// SetRoad changes by which road a machine gets its RAM disk.
func (c *Client) SetRoad(ctx context.Context, id string, road machine.Boot) (out machine.Machine, err error) {
	body := map[string]machine.Boot{}
	if road != machine.BootNetwork {
		body["boot"] = road
	}
	return out, c.call(ctx, http.MethodPut, "/v1/machines/"+url.PathEscape(id)+"/boot", nil, body, &out)
}

// AllHealth lists the health of all machines.
func (c *Client) AllHealth(ctx context.Context) (out []provisioner.MachineHealth, err error) {
	return out, c.get(ctx, "/v1/health", &out)
}

// Health returns what a machine's BMC was last seen to say.
func (c *Client) Health(ctx context.Context, id string) (out provisioner.Health, err error) {
	return out, c.get(ctx, healthPath(id, ""), &out)
}

// ReadHealth reads a machine's BMC now.
func (c *Client) ReadHealth(ctx context.Context, id string) (out provisioner.Health, err error) {
	return out, c.post(ctx, healthPath(id, ""), nil, &out)
}

// Acknowledge takes note of the critical entries of a BMC's event log.
func (c *Client) Acknowledge(ctx context.Context, id string) (out api.Acknowledged, err error) {
	return out, c.post(ctx, healthPath(id, "/acknowledge"), nil, &out)
}

// BMCLog lists the newest entries of a BMC's event log, the newest first.
func (c *Client) BMCLog(ctx context.Context, id string, n int) (out []provisioner.LogEntry, err error) {
	return out, c.get(ctx, bmcPath(id, fmt.Sprintf("/log?limit=%d", n)), &out)
}
