package client

import (
	"context"
	"fmt"
	"net/url"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/provisioner"
)

// Profiles lists the profiles of cards.
func (c *Client) Profiles(ctx context.Context) (out []provisioner.CardProfile, err error) {
	return out, c.get(ctx, "/v1/profiles", &out)
}

// Profile returns what is known of a card, as YAML.
func (c *Client) Profile(ctx context.Context, name string) (out api.ProfileText, err error) {
	return out, c.get(ctx, "/v1/profiles/"+url.PathEscape(name), &out)
}

// ProfileFleet returns what the site's cards reach.
func (c *Client) ProfileFleet(ctx context.Context, name string) (out []accelerator.Baseline, err error) {
	return out, c.get(ctx, "/v1/profiles/"+url.PathEscape(name)+"/fleet", &out)
}

// Calibration makes a profile from the rates of the site's cards.
func (c *Client) Calibration(ctx context.Context, name string, minCards int) (out provisioner.Calibration, err error) {
	return out, c.get(ctx, fmt.Sprintf("/v1/profiles/%s/calibration?min_cards=%d", url.PathEscape(name), minCards), &out)
}
