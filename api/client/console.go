package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner/console"
)

// ConsoleOptions says how to open a console.
type ConsoleOptions struct {
	Write    bool // to type, not only to look
	TakeOver bool // end the session of whoever else has the console at the BMC; for operators
}

// Console is an open serial console.
type Console struct{ conn *websocket.Conn }

// MachineConsole opens the serial console of a machine.
func (c *Client) MachineConsole(ctx context.Context, id string, o ConsoleOptions) (*Console, error) {
	return c.console(ctx, "/v1/machines/"+url.PathEscape(id)+"/console", o)
}

// OrderConsole opens the serial console of an order's machine.
func (c *Client) OrderConsole(ctx context.Context, id string, o ConsoleOptions) (*Console, error) {
	return c.console(ctx, "/v1/orders/"+url.PathEscape(id)+"/console", o)
}

func (c *Client) console(ctx context.Context, path string, o ConsoleOptions) (*Console, error) {
	q := url.Values{}
	if o.Write {
		q.Set("write", "true")
	}
	if o.TakeOver {
		q.Set("take_over", "true")
	}
	header := http.Header{}
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token)
	}
	transport, ok := c.http.Transport.(*http.Transport)
	if !ok {
		return nil, errors.New("open console: no transport")
	}
	plain := transport.Clone() // a WebSocket is an upgrade of HTTP/1.1
	plain.ForceAttemptHTTP2 = false
	conn, res, err := websocket.Dial(ctx, c.base+path+"?"+q.Encode(), &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: plain}, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols && res.Body != nil {
			raw, readErr := io.ReadAll(io.LimitReader(res.Body, 1<<20))
			if readErr == nil && len(raw) > 0 {
				return nil, problem(res.StatusCode, raw)
			}
		}
		return nil, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the server does not answer: %s", strings.TrimPrefix(err.Error(), "failed to WebSocket dial: ")),
			Hint: "is `bareyard serve` running? name another with --server or BAREYARD_SERVER"}
	}
	conn.SetReadLimit(4 << 20)
	return &Console{conn: conn}, nil
}

// Next returns the next bytes of the host, or a message of the server. The end is a message of kind end.
func (c *Console) Next(ctx context.Context) ([]byte, *api.ConsoleMessage, error) {
	kind, data, err := c.conn.Read(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, &machine.Error{Code: machine.Unavailable, Message: "the connection to the server broke", Hint: "open the console again"}
	}
	if kind == websocket.MessageBinary {
		return data, nil, nil
	}
	var m api.ConsoleMessage
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, fmt.Errorf("read console message: %w", err)
	}
	return nil, &m, nil
}

// Write sends keys.
func (c *Console) Write(ctx context.Context, keys []byte) error {
	return c.conn.Write(ctx, websocket.MessageBinary, keys)
}

// Break sends a serial break.
func (c *Console) Break(ctx context.Context) error {
	return c.conn.Write(ctx, websocket.MessageText, []byte(`{"kind":"break"}`))
}

// Close ends the console.
func (c *Console) Close() { _ = c.conn.Close(websocket.StatusNormalClosure, "") } // whoever has gone does not answer

// JobConsole returns what the serial console showed while a job ran.
func (c *Client) JobConsole(ctx context.Context, id string) (out console.Record, err error) {
	return out, c.get(ctx, "/v1/jobs/"+url.PathEscape(id)+"/console", &out)
}
