// Package client is the Go client of the API.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Client talks to one server.
type Client struct {
	base  string
	token string
	key   string
	http  *http.Client
}

// Keyed returns a client whose changes carry an idempotency key: the same change again with the same key changes nothing and
// returns what the first one did. It is for one change.
func (c *Client) Keyed(key string) *Client {
	k := *c
	k.key = key
	return &k
}

// New returns a client of a server: "unix:///path/of/its.sock" or "https://host:port". A token is for HTTPS; caFile, if
// not empty, is the only CA that is trusted.
func New(server, token, caFile string) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "unix" && u.Scheme != "https" {
		return nil, &machine.Error{Code: machine.Invalid, Field: "server", Message: fmt.Sprintf("server %q cannot be read", server),
			Hint: "write unix:///var/lib/bareyard/bareyard.sock or https://host:8443"}
	}
	t := &http.Transport{ForceAttemptHTTP2: true}
	base := strings.TrimSuffix(server, "/")
	if u.Scheme == "unix" {
		base = "http://bareyard"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
		}
	}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, &machine.Error{Code: machine.Invalid, Field: "ca", Message: "no certificate in " + caFile, Hint: "give a PEM file"}
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &Client{base: base, token: token, http: &http.Client{Transport: t}}, nil
}

// Place orders a machine. A repeated call with the same key returns the first order.
func (c *Client) Place(ctx context.Context, o api.NewOrder, key string) (out machine.Order, err error) {
	return out, c.call(ctx, http.MethodPost, "/v1/orders", map[string]string{"Idempotency-Key": key}, o, &out)
}

// Orders lists orders, newest first.
func (c *Client) Orders(ctx context.Context) (out []machine.Order, err error) {
	return out, c.get(ctx, "/v1/orders", &out)
}

// Order returns one order.
func (c *Client) Order(ctx context.Context, id string) (out machine.Order, err error) {
	return out, c.get(ctx, "/v1/orders/"+url.PathEscape(id), &out)
}

// Act does what a verb of an order asks for: cancel or release.
func (c *Client) Act(ctx context.Context, id, verb string) (out machine.Order, err error) {
	return out, c.post(ctx, "/v1/orders/"+url.PathEscape(id)+"/"+verb, nil, &out)
}

// Reinstall puts an image on the machine of an order; consent is its hostname.
func (c *Client) Reinstall(ctx context.Context, id, image, consent string, wipeData bool) (out machine.Order, err error) {
	return out, c.post(ctx, "/v1/orders/"+url.PathEscape(id)+"/reinstall", map[string]any{"image": image, "consent": consent, "wipe_data": wipeData}, &out)
}

// Power switches the machine of an order: on, off or cycle.
func (c *Client) Power(ctx context.Context, id, op string) error {
	return c.post(ctx, "/v1/orders/"+url.PathEscape(id)+"/power", map[string]string{"op": op}, nil)
}

// Report returns the newest validation report of an order's machine, as it was sent.
func (c *Client) Report(ctx context.Context, id string) (out json.RawMessage, err error) {
	return out, c.get(ctx, "/v1/orders/"+url.PathEscape(id)+"/report", &out)
}

// Jobs lists the jobs of an order, or of a machine for operators; newest first.
func (c *Client) Jobs(ctx context.Context, order, machineID string) (out []machine.Job, err error) {
	if order != "" {
		return out, c.get(ctx, "/v1/orders/"+url.PathEscape(order)+"/jobs", &out)
	}
	return out, c.get(ctx, "/v1/jobs?machine="+url.QueryEscape(machineID), &out)
}

// Machines lists machines, all or in a state.
func (c *Client) Machines(ctx context.Context, state string) (out []machine.Machine, err error) {
	return out, c.get(ctx, "/v1/machines?state="+url.QueryEscape(state), &out)
}

// Machine returns a machine by id or name.
func (c *Client) Machine(ctx context.Context, id string) (out machine.Machine, err error) {
	return out, c.get(ctx, "/v1/machines/"+url.PathEscape(id), &out)
}

// Enroll records a machine.
func (c *Client) Enroll(ctx context.Context, m api.NewMachine) (out machine.Machine, err error) {
	return out, c.post(ctx, "/v1/machines", m, &out)
}

// Move is an operator's decision about a machine: return, park, unpark, retire, admit or quarantine.
func (c *Client) Move(ctx context.Context, id, verb, reason string) (out machine.Machine, err error) {
	var body any
	if verb != "return" {
		body = map[string]string{"reason": reason}
	}
	return out, c.post(ctx, "/v1/machines/"+url.PathEscape(id)+"/"+verb, body, &out)
}

// Classes lists what is sold.
func (c *Client) Classes(ctx context.Context) (out []provisioner.ClassStock, err error) {
	return out, c.get(ctx, "/v1/classes", &out)
}

// PutClass defines a class.
func (c *Client) PutClass(ctx context.Context, k machine.Class) error {
	body := map[string]any{"description": k.Description, "accelerator": k.Accelerator, "count": k.Count, "monthly_price": k.MonthlyPrice, "currency": k.Currency}
	return c.call(ctx, http.MethodPut, "/v1/classes/"+url.PathEscape(k.Name), nil, body, nil)
}

// Lines lists carrier lines.
func (c *Client) Lines(ctx context.Context) (out []provisioner.LineStock, err error) {
	return out, c.get(ctx, "/v1/lines", &out)
}

// PutLine defines a carrier line and adds addresses to it.
func (c *Client) PutLine(ctx context.Context, name string, l api.NewLine) error {
	return c.call(ctx, http.MethodPut, "/v1/lines/"+url.PathEscape(name), nil, l, nil)
}

// NewToken makes an API token.
func (c *Client) NewToken(ctx context.Context, role, project string) (string, error) {
	var out struct {
		Token string `json:"token"`
	}
	err := c.post(ctx, "/v1/tokens", map[string]string{"role": role, "project": project}, &out)
	return out.Token, err
}

// Events lists what happened to an order, or to a machine for operators.
func (c *Client) Events(ctx context.Context, order, machineID string) (out []provisioner.Event, err error) {
	return out, c.get(ctx, "/v1/events?order="+url.QueryEscape(order)+"&machine="+url.QueryEscape(machineID), &out)
}

// Watch calls onEvent and onJob as things happen to an order, until ctx ends, a call returns false, or the stream breaks
// (the server restarts, say); last is the id of the newest event seen, to go on from.
func (c *Client) Watch(ctx context.Context, order string, after int64, onEvent func(provisioner.Event) bool, onJob func(machine.Job) bool) (last int64, err error) {
	last = after
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/v1/events/stream?order=%s&after=%d", c.base, url.QueryEscape(order), after), nil)
	if err != nil {
		return last, fmt.Errorf("make request: %w", err)
	}
	res, err := c.do(req)
	if err != nil {
		return last, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 8<<20)
	kind := "event" // huma leaves the name out for the first type of its table
	for lines.Scan() {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			kind = name
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		goOn := true
		switch kind {
		case "event":
			var ev provisioner.Event
			if err := json.Unmarshal([]byte(data), &ev); err != nil {
				return last, fmt.Errorf("read event: %w", err)
			}
			last = ev.ID
			goOn = onEvent(ev)
		case "job":
			var j machine.Job
			if err := json.Unmarshal([]byte(data), &j); err != nil {
				return last, fmt.Errorf("read job: %w", err)
			}
			goOn = onJob(j)
		case "error":
			return last, problem(http.StatusForbidden, []byte(data))
		}
		if !goOn {
			return last, nil
		}
		kind = "event"
	}
	if ctx.Err() != nil {
		return last, ctx.Err()
	}
	return last, &machine.Error{Code: machine.Unavailable, Message: "the event stream broke off", Hint: "the server may be restarting"}
}

func (c *Client) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, nil, out)
}

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPost, path, nil, in, out)
}

func (c *Client) call(ctx context.Context, method, path string, header map[string]string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" && method == http.MethodPost {
		req.Header.Set("Idempotency-Key", c.key)
	}
	for k, v := range header {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	return c.send(req, out)
}

func (c *Client) send(req *http.Request, out any) error {
	res, err := c.do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// do sends a request; an answer that is not a success becomes an error with the server's code, field and hint.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if req.Context().Err() != nil {
			return nil, req.Context().Err()
		}
		return nil, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the server does not answer: %v", err),
			Hint: "is `bareyard serve` running? name another with --server or BAREYARD_SERVER"}
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return nil, problem(res.StatusCode, raw)
}

func problem(status int, raw []byte) error {
	var p struct {
		api.Problem
		Errors []struct {
			Message  string `json:"message"`
			Location string `json:"location"`
		} `json:"errors"`
	}
	if json.Unmarshal(raw, &p) != nil || p.Detail == "" {
		return fmt.Errorf("the server answers %d: %s", status, bytes.TrimSpace(raw))
	}
	e := &machine.Error{Code: machine.Code(p.Code), Message: p.Detail, Field: p.Field, Hint: p.Hint}
	if len(p.Errors) > 0 { // a request that does not fit the schema
		e.Code, e.Field = machine.Invalid, strings.TrimPrefix(p.Errors[0].Location, "body.")
		e.Message = fmt.Sprintf("%s: %s", e.Field, p.Errors[0].Message)
	}
	return e
}
