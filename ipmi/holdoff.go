package ipmi

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"time"
)

// lockedFor is how long a BMC that locked us out is left alone, where it does not say itself: a login meanwhile would begin the
// lock-out anew on some.
const lockedFor = 5 * time.Minute

// longestPause bounds the growing pause between two tries on a BMC that is busy or silent.
const longestPause = 30 * time.Second

// holdOff is why a BMC must not be logged in to now.
type holdOff struct {
	refused [][sha256.Size]byte // credentials that it refused, the latest last; they are not sent again until they change
	locked  [sha256.Size]byte   // credentials that it locked out
	busy    time.Time           // it asked to be left alone until then
	until   time.Time           // end of the lock-out, as far as we know
}

// mostRefused bounds what is remembered as refused by one BMC: two passwords are on record while one is changed.
const mostRefused = 8

// allows returns the error of a login that must not be made now.
func (h *holdOff) allows(as [sha256.Size]byte) error {
	none := [sha256.Size]byte{}
	switch left := time.Until(h.until); {
	case slices.Contains(h.refused, as):
		return &failure{kind: ErrCredentials, detail: "refused before: not sent again until they change or a check asks for it", login: true}
	case h.locked != none && h.locked == as && left > 0:
		return &failure{kind: ErrLocked, detail: "left alone until the lock-out should be over", retry: left}
	}
	return nil
}

// waits returns the error of a request that comes before the BMC wants to be asked again.
func (h *holdOff) waits() error {
	if left := time.Until(h.busy); left > 0 {
		return &failure{kind: ErrBusy, detail: "it asked to be left alone", retry: left}
	}
	return nil
}

// note remembers what a login, or a request, came to.
func (h *holdOff) note(as [sha256.Size]byte, err error) {
	f, ok := err.(*failure)
	switch {
	case err == nil:
		h.forget(as)
	case !ok:
	case f.kind == ErrCredentials && f.login:
		h.forget(as)
		if h.refused = append(h.refused, as); len(h.refused) > mostRefused {
			h.refused = h.refused[1:]
		}
	case f.kind == ErrLocked && f.login:
		h.locked, h.until = as, time.Now().Add(max(f.retry, lockedFor))
	case f.kind == ErrBusy && f.retry > 0:
		h.busy = time.Now().Add(f.retry)
	}
}

// forget lets credentials be sent again. What was refused or locked out beside them stays so: a password that works says nothing for another.
func (h *holdOff) forget(as [sha256.Size]byte) {
	h.refused = slices.DeleteFunc(h.refused, func(r [sha256.Size]byte) bool { return r == as })
	h.busy = time.Time{}
	if h.locked == as {
		h.locked, h.until = [sha256.Size]byte{}, time.Time{}
	}
}

// pause waits before the next read or try, and reports whether there is time for one. failed is how many tries in a row found the
// BMC busy or silent: the pause doubles with each and is uneven, so that the servers of a site do not come back all at
// once. A BMC that said how long it wants to be left alone gets that.
func (c *Controller) pause(ctx context.Context, failed int, err error) bool {
	d := c.poll()
	if failed > 0 {
		d = min(d<<min(failed-1, 10), max(longestPause, d))
		d += time.Duration((c.random() - 0.5) / 2 * float64(d))
	}
	if f, ok := err.(*failure); ok && f.retry > d {
		d = f.retry
	}
	if end, ok := ctx.Deadline(); ok && err != nil && time.Until(end) < d {
		if f, ok := err.(*failure); ok && f.retry == d {
			return false // it would only be asked again before it said
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (c *Controller) random() float64 {
	if c.even {
		return 0.5
	}
	return rand.Float64()
}
