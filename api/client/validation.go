package client

import (
	"context"
	"fmt"
	"net/url"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// ValidateMachine begins to look at a machine that is available or quarantined.
func (c *Client) ValidateMachine(ctx context.Context, id string) (out machine.Job, err error) {
	return out, c.post(ctx, "/v1/machines/"+url.PathEscape(id)+"/validate", nil, &out)
}

// Job returns a job.
func (c *Client) Job(ctx context.Context, id string) (out machine.Job, err error) {
	return out, c.get(ctx, "/v1/jobs/"+url.PathEscape(id), &out)
}

// Card returns where a card is, and where it was.
func (c *Client) Card(ctx context.Context, serial string) (out provisioner.CardHistory, err error) {
	return out, c.get(ctx, "/v1/cards/"+url.PathEscape(serial), &out)
}

// ForgetCard takes a card off its machine's record.
func (c *Client) ForgetCard(ctx context.Context, serial, who, why string) error {
	return c.post(ctx, "/v1/cards/"+url.PathEscape(serial)+"/forget", map[string]string{"who": who, "why": why}, nil)
}

// Waive lets a check of a machine pass for a while.
func (c *Client) Waive(ctx context.Context, machineID string, w api.NewWaiver) (out provisioner.Waiver, err error) {
	return out, c.post(ctx, "/v1/machines/"+url.PathEscape(machineID)+"/waivers", w, &out)
}

// Waivers lists waivers that hold, or all; of one machine, or of all.
func (c *Client) Waivers(ctx context.Context, machineID string, all bool) (out []provisioner.Waiver, err error) {
	return out, c.get(ctx, fmt.Sprintf("/v1/waivers?machine=%s&all=%v", url.QueryEscape(machineID), all), &out)
}

// WithdrawWaiver ends a waiver before its time.
func (c *Client) WithdrawWaiver(ctx context.Context, id, who string) error {
	return c.post(ctx, "/v1/waivers/"+url.PathEscape(id)+"/withdraw", map[string]string{"who": who}, nil)
}
