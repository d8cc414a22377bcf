package ipmi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// login opens a session. Where all slots are taken, or the service has no sessions, it falls back to Basic
// authentication; it never ends the sessions of others.
func (c *rfConn) login(ctx context.Context) error {
	c.token, c.session, c.basic = "", "", false
	// Not cut short by the caller's context: a session whose token nobody read would hold its slot until it times out.
	a, err := c.send(context.WithoutCancel(ctx), http.MethodPost, c.logins, map[string]string{"UserName": c.t.Username, "Password": c.t.Password}, nil)
	if err != nil {
		return err
	}
	if token := a.header.Get("X-Auth-Token"); a.ok() && token != "" {
		c.token, c.session = token, sessionPath(a)
		if ctx.Err() != nil {
			return over(ctx) // whoever opens or holds the session closes it
		}
		return nil
	}
	full := a.says("RAC0218", "SessionLimitExceeded", "CreateLimitReachedForResource")
	switch {
	case a.locked():
		return a.refusal()
	case !full && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden || a.status == http.StatusBadRequest):
		return failf(ErrCredentials, "HTTP %d", a.status)
	case !full && a.status >= 500 && a.status != http.StatusNotImplemented:
		return &failure{kind: ErrBusy, detail: fmt.Sprintf("HTTP %d to the login", a.status), retry: a.retryAfter()}
	case c.m.noBasic:
		return &failure{kind: ErrBusy, detail: "no free session slot", retry: a.retryAfter()}
	}
	// Whether these are the right credentials is not known yet: a full service does not look at them.
	c.basic = true
	probe, err := c.send(ctx, http.MethodGet, c.logins, nil, nil)
	switch {
	case err != nil:
		c.basic = false
		return err
	case probe.status == http.StatusUnauthorized && full:
		// Remembered, so that waiting for a slot does not add up to a lock-out.
		c.basic, c.m.noBasic = false, true
		return &failure{kind: ErrBusy, detail: "no free session slot, and Basic authentication refused", retry: a.retryAfter()}
	case probe.status == http.StatusUnauthorized:
		c.basic = false
		return probe.refusal()
	}
	return nil
}

// sessionPath is where to DELETE a session, from the answer that made it.
func sessionPath(a rfAnswer) string {
	p := a.header.Get("Location")
	if u, err := url.Parse(p); err == nil && u.Path != "" {
		return u.Path
	}
	return a.body.str("@odata.id")
}

// logout ends the session, also when the context is over.
func (c *rfConn) logout(ctx context.Context) {
	if c.token == "" {
		return
	}
	if c.session != "" {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		a, err := c.send(end, http.MethodDelete, c.session, nil, nil)
		if err != nil || !a.ok() {
			c.log.Debug("Redfish session did not end in order", "bmc", c.t, "status", a.status)
		}
	}
	c.token, c.session = "", ""
}

// says reports whether one of the answer's messages has an identifier that ends in one of ids.
func (a rfAnswer) says(ids ...string) bool {
	for _, m := range a.messages() {
		for _, id := range ids {
			if got := m.str("MessageId"); got == id || strings.HasSuffix(got, "."+id) {
				return true
			}
		}
	}
	for _, id := range ids {
		if code := a.body.obj("error").str("code"); code == id || strings.HasSuffix(code, "."+id) {
			return true
		}
	}
	return false
}

// messages is the extended information of an error, wherever the service puts it.
func (a rfAnswer) messages() []object {
	const info = "@Message.ExtendedInfo"
	out := a.body.obj("error").objs(info)
	if one := a.body.obj("error").obj(info); one != nil { // some services send the object without the list
		out = append(out, one)
	}
	return append(out, a.body.objs(info)...)
}

// locked reports whether a refused login was refused for the failures before it.
func (a rfAnswer) locked() bool {
	if a.status == http.StatusTooManyRequests {
		return true
	}
	if a.status != http.StatusUnauthorized && a.status != http.StatusForbidden {
		return false
	}
	for _, m := range a.messages() {
		text := strings.ToLower(m.str("MessageId") + " " + m.str("Message"))
		if strings.Contains(text, "locked") || strings.Contains(text, "lockout") || strings.Contains(text, "loginattemptdelayed") {
			return true
		}
	}
	return false
}

// refusal is the error of an answer that is not a success. It holds the status alone: a message may quote the request.
func (a rfAnswer) refusal() *failure {
	kind := ErrUnsupported
	switch {
	case a.locked():
		kind = ErrLocked
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		kind = ErrCredentials
	case a.status == http.StatusConflict || a.status == http.StatusPreconditionFailed || a.status == http.StatusLocked || a.status == http.StatusTooEarly,
		a.status >= 500 && a.status != http.StatusNotImplemented:
		kind = ErrBusy
	}
	f := failf(kind, "HTTP %d", a.status)
	f.status = a.status
	if kind == ErrBusy || kind == ErrLocked {
		f.retry = a.retryAfter()
	}
	return f
}

// longestRetry is the longest Retry-After that is believed.
const longestRetry = time.Hour

// retryAfter is how long the service asks to be left alone; 0 where it does not.
func (a rfAnswer) retryAfter() time.Duration {
	text := strings.TrimSpace(a.header.Get("Retry-After"))
	if text == "" {
		return 0
	}
	d := time.Duration(0)
	if n, err := strconv.Atoi(text); err == nil {
		d = time.Duration(min(n, int(longestRetry/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		d = time.Until(at)
	}
	return max(0, min(d, longestRetry))
}
