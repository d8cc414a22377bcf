package client

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// MachineReports lists the reports of a machine, newest first; plan "" is all plans.
func (c *Client) MachineReports(ctx context.Context, name, plan string) (out []provisioner.Verdict, err error) {
	return out, c.get(ctx, "/v1/machines/"+url.PathEscape(name)+"/reports?plan="+url.QueryEscape(plan), &out)
}

// OrderReports lists the reports of an order's machine, newest first.
func (c *Client) OrderReports(ctx context.Context, order string) (out []provisioner.Verdict, err error) {
	return out, c.get(ctx, "/v1/orders/"+url.PathEscape(order)+"/reports", &out)
}

// ReportForm returns a report as .json (signed), .html or .xml (JUnit).
func (c *Client) ReportForm(ctx context.Context, id, form string) ([]byte, error) {
	return c.file(ctx, "/v1/reports/"+url.PathEscape(id)+form)
}

// file returns what is no JSON of ours to read.
func (c *Client) file(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	res, err := c.do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return body, nil
}

// ReportKeys returns the public keys that reports verify with, by their names.
func (c *Client) ReportKeys(ctx context.Context) (map[string]ed25519.PublicKey, error) {
	var list []api.ReportKey
	if err := c.get(ctx, "/v1/report-keys", &list); err != nil {
		return nil, err
	}
	out := map[string]ed25519.PublicKey{}
	for _, k := range list {
		raw, err := base64.StdEncoding.DecodeString(k.Public)
		if err != nil || len(raw) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("read public key %s: not one", k.ID)
		}
		out[k.ID] = raw
	}
	return out, nil
}

// Erasures lists certificates of erasures, newest first: of a machine, of a disk by its serial number, or, with neither, of all.
func (c *Client) Erasures(ctx context.Context, machineName, disk string) (out []machine.ErasureCertificate, err error) {
	return out, c.get(ctx, "/v1/erasures?machine="+url.QueryEscape(machineName)+"&disk="+url.QueryEscape(disk), &out)
}

// OrderErasures lists the certificates of what became of an order's data.
func (c *Client) OrderErasures(ctx context.Context, order string) (out []machine.ErasureCertificate, err error) {
	return out, c.get(ctx, "/v1/orders/"+url.PathEscape(order)+"/erasures", &out)
}

// ErasureForm returns a certificate as .json (signed) or .html.
func (c *Client) ErasureForm(ctx context.Context, id, form string) ([]byte, error) {
	return c.file(ctx, "/v1/erasures/"+url.PathEscape(id)+form)
}
