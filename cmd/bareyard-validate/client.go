package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// errGone says that the job's attempt is over: nothing that we could say would be heard.
var errGone = errors.New("the server is done with this attempt")

// client speaks to the server.
type client struct {
	url   string
	token string
	http  *http.Client
}

// newClient returns a client that trusts the one authority and sends the token to the one server.
func newClient(server, caFile, tokenFile string) (*client, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("read server URL: %w", err)
	}
	if u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("server URL %q: want https://HOST, the token must not travel in the clear", u.Redacted())
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read authority: no certificate in %s", caFile)
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	c := &client{url: u.JoinPath("agent/v1/report").String(), token: strings.TrimSpace(string(token))}
	if c.token == "" {
		return nil, fmt.Errorf("read token: %s is empty", tokenFile)
	}
	c.http = &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{ // without a proxy: an image's environment is not ours
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, Time: certTime(pem)},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// certTime is the clock that certificates are checked by: the machine's, but never earlier than the authority itself. A machine fresh from the
// factory or with an empty battery boots in another century, before time synchronisation, and could not phone home.
func certTime(authority []byte) func() time.Time {
	var made time.Time
	for block, rest := pemBlock(authority); block != nil; block, rest = pemBlock(rest) {
		if cert, err := x509.ParseCertificate(block); err == nil && cert.NotBefore.After(made) {
			made = cert.NotBefore
		}
	}
	return func() time.Time {
		if now := time.Now(); now.After(made) {
			return now
		}
		return made.Add(time.Second)
	}
}

// post sends a report and returns the instruction that answers it; errGone when the attempt is over.
func (c *client) post(ctx context.Context, r machine.Report) (machine.Instruction, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return machine.Instruction{}, fmt.Errorf("post report: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return machine.Instruction{}, fmt.Errorf("post report: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return machine.Instruction{}, fmt.Errorf("post report: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case resp.StatusCode == http.StatusGone:
		return machine.Instruction{}, errGone
	case resp.StatusCode != http.StatusOK:
		return machine.Instruction{}, fmt.Errorf("post report: server answers %s", resp.Status)
	case err != nil:
		return machine.Instruction{}, fmt.Errorf("post report: read answer: %w", err)
	}
	var in machine.Instruction
	if err := json.Unmarshal(answer, &in); err != nil {
		return machine.Instruction{}, fmt.Errorf("post report: read answer: %w", err)
	}
	if in.Do == "" {
		return machine.Instruction{}, errors.New("post report: the answer tells nothing to do")
	}
	return in, nil
}
