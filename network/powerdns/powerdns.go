// Package powerdns sets reverse DNS through the API of a PowerDNS Authoritative Server.
package powerdns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Client talks to one server. Its zones must be there: it makes none.
type Client struct {
	URL    string       // of the server's API, e.g. http://127.0.0.1:8081
	Key    string       // the X-API-Key
	Server string       // its id; empty means localhost, as PowerDNS calls itself
	TTL    int          // of the records, seconds; zero means 3600
	HTTP   *http.Client // nil means the standard one; the context bounds each call
}

type rrset struct {
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	TTL        int      `json:"ttl,omitempty"`
	ChangeType string   `json:"changetype"`
	Records    []record `json:"records,omitempty"`
}

type record struct {
	Content  string `json:"content"`
	Disabled bool   `json:"disabled"`
}

// SetPTR gives an address a name, or with "" takes it away. It replaces whatever PTR records the address had, and is
// idempotent.
func (c *Client) SetPTR(ctx context.Context, addr netip.Addr, name string) error {
	zone, err := c.zone(ctx, addr)
	if err != nil {
		return fmt.Errorf("find reverse zone of %s: %w", addr, err)
	}
	set := rrset{Name: network.ReverseName(addr) + ".", Type: "PTR", ChangeType: "DELETE"}
	if name != "" {
		set.TTL, set.ChangeType = c.TTL, "REPLACE"
		if set.TTL == 0 {
			set.TTL = 3600
		}
		set.Records = []record{{Content: name + "."}}
	}
	if err := c.call(ctx, http.MethodPatch, "/zones/"+url.PathEscape(zone), map[string][]rrset{"rrsets": {set}}, nil); err != nil {
		return fmt.Errorf("set reverse DNS of %s: %w", addr, err)
	}
	return nil
}

// zone returns the id of the zone that holds an address: of those that are there the one with the longest name.
func (c *Client) zone(ctx context.Context, addr netip.Addr) (string, error) {
	name := network.ReverseName(addr)
	for at := name; strings.Count(at, ".") > 1; {
		_, at, _ = strings.Cut(at, ".")
		var found []struct {
			ID string `json:"id"`
		}
		if err := c.call(ctx, http.MethodGet, "/zones?zone="+url.QueryEscape(at+"."), nil, &found); err != nil {
			return "", err
		}
		if len(found) > 0 {
			return found[0].ID, nil
		}
	}
	return "", &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the name server has no zone for %s", name),
		Hint: "create the zone in PowerDNS, e.g. with `pdnsutil create-zone`"}
}

// largest bounds an answer.
const largest = 16 << 20

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	server := c.Server
	if server == "" {
		server = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+"/api/v1/servers/"+url.PathEscape(server)+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("X-API-Key", c.Key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("the name server does not answer: %v", reason(err)), Hint: "is PowerDNS running with api=yes, and rdns.url right?"}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, largest))
	switch {
	case err != nil:
		return fmt.Errorf("read answer: %w", err)
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return &machine.Error{Code: machine.Unavailable, Message: "the name server refuses the API key", Hint: "compare rdns.key_file with api-key in pdns.conf, and webserver-allow-from"}
	case res.StatusCode >= 300:
		return fmt.Errorf("the name server answers %d: %s", res.StatusCode, complaint(raw))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// reason is what went wrong without the URL, which may hold a password.
func reason(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func complaint(raw []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(raw, &e) == nil && e.Error != "" {
		return e.Error
	}
	return fmt.Sprintf("%.200s", raw)
}
