package ipmi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Redfish is spoken with net/http and read leniently, field by field. gofish v0.20, and bmclib v2.3.5 above it, refuse a
// whole resource for one field of the wrong type, hold on to the context of their first request, so that a cancelled one
// leaks its session, and choose the reset type themselves; bmclib also prints requests, password included, when
// DEBUG_BMCLIB is set. The tests run both against the simulated BMCs as second opinions.

// Paths used when a service does not say.
const (
	rfRoot     = "/redfish/v1/"
	rfSessions = "/redfish/v1/SessionService/Sessions"
)

// rfBody bounds what is read of an answer, in bytes. The registry of BIOS settings is the largest, with some MB.
const rfBody = 8 << 20

// rfConn is a session with a Redfish service, or Basic authentication where there is no session to be had.
type rfConn struct {
	http    *http.Client
	base    url.URL // scheme and host
	t       Target
	m       *memory
	answer  time.Duration
	log     *slog.Logger
	root    object // the service root
	system  string // path of the ComputerSystem
	logins  string // path of the session collection
	token   string
	session string // path of the session
	basic   bool
	cert    string // SHA-256 of the certificate that it showed last; "" without TLS
}

// rfAnswer is an answer that arrived whole.
type rfAnswer struct {
	status int
	header http.Header
	body   object // nil where the body is not a JSON object
}

func (a rfAnswer) ok() bool { return a.status >= 200 && a.status < 300 }

// openRedfish logs in and finds the system.
func openRedfish(ctx context.Context, t Target, m *memory, answer time.Duration, log *slog.Logger) (conn, error) {
	u, err := url.Parse(t.Address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, failf(ErrUnsupported, "the address is not an http or https URL")
	}
	if u.User != nil {
		return nil, failf(ErrUnsupported, "the address holds credentials")
	}
	transport, err := newTransport(t.CertPin, answer)
	if err != nil {
		return nil, err
	}
	c := &rfConn{
		http: &http.Client{Transport: transport, CheckRedirect: sameHost}, base: url.URL{Scheme: u.Scheme, Host: u.Host},
		t: t, m: m, answer: answer, log: log, logins: rfSessions,
	}
	opened := false
	defer func() {
		if !opened {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
			defer cancel()
			c.close(end)
		}
	}()
	if err := c.begin(ctx, u.Path); err != nil {
		return nil, err
	}
	opened = true
	return c, nil
}

// begin reads the service root, logs in and finds the system; path is that of the target's address.
func (c *rfConn) begin(ctx context.Context, path string) error {
	root, err := c.send(ctx, http.MethodGet, rfRoot, nil, nil)
	if err != nil {
		return err
	}
	if !root.ok() || root.body == nil {
		return failf(ErrUnreachable, "no Redfish service at %s: HTTP %d", rfRoot, root.status)
	}
	c.root = root.body
	if p := root.body.obj("Links").obj("Sessions").str("@odata.id"); strings.HasPrefix(p, "/") {
		c.logins = p
	}
	if err := c.login(ctx); err != nil {
		return err
	}
	if strings.Contains(path, "/Systems/") {
		c.system = strings.TrimRight(path, "/")
		return nil
	}
	systems := root.body.obj("Systems").str("@odata.id")
	if !strings.HasPrefix(systems, "/") {
		systems = rfRoot + "Systems"
	}
	list, err := c.do(ctx, http.MethodGet, systems, nil, nil)
	if err != nil {
		return err
	}
	if !list.ok() {
		return list.refusal()
	}
	c.system, err = host(ctx, c, list.body.links("Members"))
	return err
}

// do sends a request within the session. A session that ended meanwhile is closed and opened again, once.
func (c *rfConn) do(ctx context.Context, method, path string, body any, header http.Header) (rfAnswer, error) {
	a, err := c.send(ctx, method, path, body, header)
	if err != nil || a.status != http.StatusUnauthorized {
		return a, err
	}
	if c.basic {
		f := a.refusal()
		f.login = true // the password goes with each request
		return a, f
	}
	c.logout(ctx)
	if err := c.login(ctx); err != nil {
		if f, ok := err.(*failure); ok {
			f.login = true
		}
		return a, err
	}
	a, err = c.send(ctx, method, path, body, header)
	if err == nil && a.status == http.StatusUnauthorized {
		return a, a.refusal()
	}
	return a, err
}

// send sends one request and reads its answer.
func (c *rfConn) send(ctx context.Context, method, path string, body any, header http.Header) (rfAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.answer)
	defer cancel()
	ref, err := url.Parse(path)
	if err != nil || ref.Host != "" && ref.Host != c.base.Host {
		return rfAnswer{}, failf(ErrUnsupported, "the BMC points elsewhere")
	}
	ref.Scheme, ref.Host = c.base.Scheme, c.base.Host
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return rfAnswer{}, failf(ErrUnsupported, "request cannot be encoded")
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, ref.String(), r)
	if err != nil {
		return rfAnswer{}, failf(ErrUnsupported, "request cannot be made")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("OData-Version", "4.0")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header[k] = v
	}
	switch {
	case c.basic:
		req.SetBasicAuth(c.t.Username, c.t.Password)
	case c.token != "":
		req.Header.Set("X-Auth-Token", c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return rfAnswer{}, httpError(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.TLS != nil && len(res.TLS.PeerCertificates) > 0 {
		c.cert = fmt.Sprintf("%x", sha256.Sum256(res.TLS.PeerCertificates[0].Raw))
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, rfBody))
	if err != nil {
		f := httpError(err)
		f.sent = true
		return rfAnswer{}, f
	}
	out, _ := parseObject(data)
	return rfAnswer{status: res.StatusCode, header: res.Header, body: out}, nil
}

// close ends the session and the connections.
func (c *rfConn) close(ctx context.Context) {
	c.logout(ctx)
	c.http.CloseIdleConnections()
}
