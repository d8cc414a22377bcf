package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

func classBIOSPath(class string) string { return "/v1/classes/" + url.PathEscape(class) + "/bios" }

// ClassBIOS returns the firmware settings that the machines of a class shall have.
func (c *Client) ClassBIOS(ctx context.Context, class string) (out machine.BIOSProfile, err error) {
	return out, c.get(ctx, classBIOSPath(class), &out)
}

// PutClassBIOS replaces them.
func (c *Client) PutClassBIOS(ctx context.Context, class string, in api.NewBIOSProfile) (out machine.BIOSProfile, err error) {
	return out, c.call(ctx, http.MethodPut, classBIOSPath(class), nil, in, &out)
}

// MachineBIOS reads a machine's firmware settings now: those that its class wants, or all.
func (c *Client) MachineBIOS(ctx context.Context, id string, all bool) (out provisioner.MachineBIOS, err error) {
	suffix := ""
	if all {
		suffix = "?all=true"
	}
	return out, c.get(ctx, "/v1/machines/"+url.PathEscape(id)+"/bios"+suffix, &out)
}

// ApplyBIOS begins to give a machine the firmware settings of its class.
func (c *Client) ApplyBIOS(ctx context.Context, id string) (out machine.Job, err error) {
	return out, c.post(ctx, "/v1/machines/"+url.PathEscape(id)+"/bios", nil, &out)
}
