// Package netbox reads what NetBox knows of a site, and tells it what has become of addresses.
package netbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// Client talks to the REST API of one NetBox, of version 3 or 4.
type Client struct {
	URL   string        // of NetBox, e.g. https://netbox.example.com
	Token string        // of a user who may read dcim and ipam, and write IP addresses, prefixes and tags
	Tag   string        // slug of the tag that marks what is ours; empty means bareyard
	HTTP  *http.Client  // nil means one that gives up a call after 20 seconds
	Pause time.Duration // before a call is repeated that NetBox was too busy for, unless NetBox says how long; zero means a second
}

const (
	repeats  = 3        // of a call that NetBox was too busy for
	patience = 20       // seconds that are waited at most when NetBox says how long
	pageSize = 200      // objects asked for at once; NetBox may give fewer
	mostRows = 50_000   // of one list: more is not a list that was meant
	maxBody  = 16 << 20 // bytes of one answer
)

func (c *Client) tag() string { return cmp.Or(c.Tag, "bareyard") }

// page is NetBox's envelope of a list.
type page[T any] struct {
	Next    string `json:"next"`
	Results []T    `json:"results"`
}

// list reads all pages of a list. The next page is counted for and not followed: behind a proxy its address is often one that
// cannot be reached from here.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) (all []T, err error) {
	for {
		q := url.Values{}
		for k, v := range query {
			q[k] = v
		}
		q.Set("limit", strconv.Itoa(pageSize))
		q.Set("offset", strconv.Itoa(len(all)))
		var p page[T]
		if err := c.call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, &p); err != nil {
			return nil, err
		}
		all = append(all, p.Results...)
		if p.Next == "" || len(p.Results) == 0 {
			return all, nil
		}
		if len(all) > mostRows {
			return nil, &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("NetBox lists more than %d at %s", mostRows, path), Hint: "ask for fewer, with a tag"}
		}
	}
}

// refusal is an answer of NetBox that says no.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("NetBox answers %d: %.300s", r.status, r.text) }

// call sends a request, and again when NetBox was too busy for it. A request that makes an object may have been carried out
// although its answer was lost: it is not repeated.
func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	for try := 1; ; try++ {
		wait, err := c.once(ctx, method, path, body, into)
		if err == nil || wait < 0 || try > repeats {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// once returns with an error how long to wait before another try, or less than nothing when there is no use in one.
func (c *Client) once(ctx context.Context, method, path string, body, into any) (wait time.Duration, err error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return -1, fmt.Errorf("ask NetBox: %w", err)
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+"/api"+path, sent)
	if err != nil {
		return -1, fmt.Errorf("ask NetBox: %w", err)
	}
	req.Header.Set("Authorization", "Token "+c.Token)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	client := http.Client{Timeout: 20 * time.Second}
	if c.HTTP != nil {
		client = *c.HTTP
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // it may lead elsewhere, and makes a POST a GET
	pause := cmp.Or(c.Pause, time.Second)
	res, err := client.Do(req)
	if err != nil {
		if method == http.MethodPost {
			pause = -1
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address is in the configuration
		}
		return pause, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("NetBox does not answer: %v", err), Hint: "see whether its address is right and this machine reaches it"}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		if method == http.MethodPost {
			pause = -1
		}
		return pause, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("NetBox's answer broke off: %v", err), Hint: "try again; see whether a proxy before NetBox cuts its answers off"}
	}
	switch {
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s >= 0 {
			pause = time.Duration(min(s, patience)) * time.Second
		}
		if res.StatusCode != http.StatusTooManyRequests && method == http.MethodPost {
			pause = -1
		}
		return pause, &machine.Error{Code: machine.Unavailable, Message: (&refusal{res.StatusCode, string(text)}).Error()}
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return -1, &machine.Error{Code: machine.Invalid, Field: "netbox.token_file", Message: (&refusal{res.StatusCode, string(text)}).Error(), Hint: "give a token whose user may read dcim and ipam, and write IP addresses, prefixes and tags"}
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return -1, &machine.Error{Code: machine.Invalid, Field: "netbox.url", Message: fmt.Sprintf("NetBox answers %d and sends on to %.200q", res.StatusCode, res.Header.Get("Location")),
			Hint: "give the address that NetBox itself answers at: its scheme and host are part of it. Redirects are not followed"}
	case res.StatusCode >= 300:
		return -1, &refusal{res.StatusCode, string(text)}
	case into == nil || res.StatusCode == http.StatusNoContent:
		return 0, nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return -1, &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("%s is no answer of NetBox: %v", path, err), Hint: "give the address of NetBox itself, without /api"}
	}
	return 0, nil
}
