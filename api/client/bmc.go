package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/provisioner"
)

func bmcPath(id, suffix string) string { return "/v1/machines/" + url.PathEscape(id) + "/bmc" + suffix }

// BMC returns what is known of a machine's BMC.
func (c *Client) BMC(ctx context.Context, id string) (out api.BMCStatus, err error) {
	return out, c.get(ctx, bmcPath(id, ""), &out)
}

// SetBMCCredentials records the user and password of a BMC.
func (c *Client) SetBMCCredentials(ctx context.Context, id string, in api.Credentials) error {
	return c.call(ctx, http.MethodPut, bmcPath(id, "/credentials"), nil, in, nil)
}

// RotateBMC gives a BMC a new random password.
func (c *Client) RotateBMC(ctx context.Context, id string) error {
	return c.post(ctx, bmcPath(id, "/rotate"), nil, nil)
}

// TrustBMC trusts the certificate that a BMC shows now, or refuses any but the one with this SHA-256, if it is not empty.
func (c *Client) TrustBMC(ctx context.Context, id, sha256 string) (out api.TrustedCertificate, err error) {
	return out, c.post(ctx, bmcPath(id, "/trust"), map[string]string{"sha256": sha256}, &out)
}

// CheckBMC logs in to a BMC once with what is on record, and returns in words what came of it.
func (c *Client) CheckBMC(ctx context.Context, id string) (out api.BMCCheck, err error) {
	return out, c.post(ctx, bmcPath(id, "/check"), nil, &out)
}

// Baseline returns what a BMC was like at hand-over, and what differs: at the last comparison, or now.
func (c *Client) Baseline(ctx context.Context, id string, now bool) (out provisioner.Comparison, err error) {
	suffix := "/baseline"
	if now {
		suffix += "?now=true"
	}
	return out, c.get(ctx, bmcPath(id, suffix), &out)
}

// AcceptBaseline reads a BMC now and accepts it as it is.
func (c *Client) AcceptBaseline(ctx context.Context, id string) (out provisioner.Comparison, err error) {
	return out, c.post(ctx, bmcPath(id, "/baseline"), nil, &out)
}
