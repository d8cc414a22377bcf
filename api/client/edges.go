package client

import (
	"context"
	"net/url"

	"github.com/bareyard/bareyard/api"
)

// Edges asks every edge how it is.
func (c *Client) Edges(ctx context.Context) (out []api.EdgeState, err error) {
	return out, c.get(ctx, "/v1/edges", &out)
}

// IssueEdge returns new credentials for an edge on another box.
func (c *Client) IssueEdge(ctx context.Context, name string) (string, error) {
	var out api.EdgeCredentials
	err := c.post(ctx, "/v1/edges/"+url.PathEscape(name)+"/credentials", nil, &out)
	return out.PEM, err
}
