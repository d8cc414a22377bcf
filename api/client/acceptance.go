package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
)

func runPath(id string) string { return "/v1/acceptance-runs/" + url.PathEscape(id) }

// BeginRun begins an acceptance run.
func (c *Client) BeginRun(ctx context.Context, r api.NewAcceptanceRun) (out api.BegunRun, err error) {
	return out, c.post(ctx, "/v1/acceptance-runs", r, &out)
}

// Runs lists acceptance runs, newest first.
func (c *Client) Runs(ctx context.Context) (out []machine.AcceptanceRun, err error) {
	return out, c.get(ctx, "/v1/acceptance-runs", &out)
}

// Run returns an acceptance run.
func (c *Client) Run(ctx context.Context, id string) (out machine.AcceptanceRun, err error) {
	return out, c.get(ctx, runPath(id), &out)
}

// DecideRun is an operator's decision about a run, or one machine of it: cancel, retry or admit.
func (c *Client) DecideRun(ctx context.Context, id, verb, machineID, reason string) (out machine.AcceptanceRun, err error) {
	return out, c.post(ctx, runPath(id)+"/"+verb, map[string]string{"machine": machineID, "reason": reason}, &out)
}

// RunReport returns the report of a run: form "" is JSON, ".html" a page, ".xml" JUnit.
func (c *Client) RunReport(ctx context.Context, id, form string) ([]byte, error) {
	return c.file(ctx, runPath(id)+"/report"+form)
}

// WatchRun calls fn with the run whenever it has changed, until it is over, ctx ends, or the stream breaks (the server restarts, say).
func (c *Client) WatchRun(ctx context.Context, id string, fn func(machine.AcceptanceRun) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+runPath(id)+"/stream", nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	res, err := c.do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 8<<20)
	kind := "run"
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = name
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if kind == "error" {
			var p api.Problem
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				return fmt.Errorf("read stream: %w", err)
			}
			return problem(p.Status, []byte(data))
		}
		var run machine.AcceptanceRun
		if err := json.Unmarshal([]byte(data), &run); err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if err := fn(run); err != nil || run.State != machine.RunUnderWay {
			return err
		}
		kind = "run"
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &machine.Error{Code: machine.Unavailable, Message: "the stream broke off", Hint: "the server may be restarting"}
}
