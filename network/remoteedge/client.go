package remoteedge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Client is the server's side of an edge: a network.Edge that asks the box.
type Client struct {
	name, base string
	http       *http.Client
}

// Dial returns the edge of a name at an address, host:port. cert shows who we are, roots are the authorities of edges. Nothing is sent yet.
func Dial(name, address string, cert tls.Certificate, roots *x509.CertPool) (*Client, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, &machine.Error{Code: machine.Invalid, Field: "address", Message: fmt.Sprintf("%q is not host:port", address), Hint: "write the edge's management address, e.g. 10.98.0.5:8444"}
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS13, ServerName: Hostname(name), RootCAs: roots, Certificates: []tls.Certificate{cert}},
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4, DisableCompression: true,
	}
	refuse := func(*http.Request, []*http.Request) error { return errors.New("an edge does not redirect") }
	return &Client{name: name, base: "https://" + address, http: &http.Client{Transport: transport, CheckRedirect: refuse}}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Read implements network.Edge.
func (c *Client) Read(ctx context.Context) (ports []network.Port, err error) {
	err = c.ask(ctx, http.MethodGet, pathPorts, nil, &ports)
	return ports, err
}

// Apply implements network.Edge.
func (c *Client) Apply(ctx context.Context, set []network.Port, remove []string) error {
	return c.ask(ctx, http.MethodPost, pathApply, change{set, remove}, &struct{}{})
}

// skew is how far an edge's clock may be off before its samples would land in the wrong five minutes.
const skew = 30 * time.Second

// Counters implements network.Edge. Their times are by the edge's clock; when that is wrong they are in doubt.
func (c *Client) Counters(ctx context.Context) ([]network.Counter, error) {
	var r reading
	asked := time.Now()
	if err := c.ask(ctx, http.MethodGet, pathCounters, nil, &r); err != nil {
		return nil, err
	}
	got := time.Now()
	if off := max(asked.Sub(r.Now), r.Now.Sub(got)); off > skew {
		for i := range r.Counters {
			r.Counters[i].Doubt = cmp.Or(r.Counters[i].Doubt, fmt.Sprintf("the clock of edge %s is off by %s", c.name, off.Round(time.Second)))
		}
	}
	return r.Counters, nil
}

// Caps implements network.Edge.
func (c *Client) Caps(ctx context.Context) (caps network.Caps, err error) {
	err = c.ask(ctx, http.MethodGet, pathCaps, nil, &caps)
	return caps, err
}

// probeTime bounds a probe: an edge looks for less than a second.
const probeTime = 3 * time.Second

// Probe implements network.Prober.
func (c *Client) Probe(ctx context.Context, addrs []netip.Prefix) (found []network.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err = c.ask(ctx, http.MethodPost, pathProbe, addrs, &found)
	return found, err
}

// patience bounds one call: an edge applies five thousand ports in seconds.
const patience = 50 * time.Second

func (c *Client) ask(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask edge %s: %w", c.name, err)
		}
		sent = bytes.NewReader(text) // may be sent again when an idle connection turns out to be dead
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, sent)
	if err != nil {
		return fmt.Errorf("ask edge %s: %w", c.name, err)
	}
	if body != nil {
		req.Header["Idempotency-Key"] = []string{} // Apply is idempotent, net/http may repeat it; an empty list is not sent
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return c.unreachable(err)
	}
	if res.StatusCode != http.StatusOK {
		var p problem
		if json.Unmarshal(text, &p) != nil || p.Message == "" {
			p = problem{Code: machine.Unavailable, Message: fmt.Sprintf("it answered %s", res.Status), Hint: "is it `bareyard edge` that listens there?"}
		}
		return p.err(c.name)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return c.unreachable(fmt.Errorf("its answer cannot be read: %w", err))
	}
	return nil
}

// unreachable is the error of an edge that does not answer. What it was told last stays in force there.
func (c *Client) unreachable(err error) error {
	hint := "see whether `bareyard edge` runs there and this server reaches its port; it keeps what it was told last"
	var verify *tls.CertificateVerificationError
	var op *net.OpError
	if errors.As(err, &verify) || errors.As(err, &op) && op.Op == "remote error" {
		hint = "issue its credentials anew: bareyard edge issue " + c.name
	}
	return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("edge %s does not answer: %v", c.name, err), Hint: hint}
}

func sorted(ports []network.Port) []network.Port {
	slices.SortFunc(ports, func(a, b network.Port) int { return cmp.Compare(a.Machine, b.Machine) })
	return ports
}
