package netboot

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/bareyard/bareyard/netboot/tftp"
)

// transferred is the TFTP side: what became of a file.
func (c *conversation) transferred(t tftp.Transfer) {
	from := c.nets.four(t.Peer.Addr())
	ex := Exchange{At: t.Began, Took: t.Took, MAC: c.macOf(from), From: t.Peer.Addr(), Proto: "tftp", Asked: t.Name, File: t.Name, Bytes: t.Sent, Size: int64(t.Size)}
	switch {
	case t.Probe:
		c.trace(ex, Probed, fmt.Sprintf("size %d", t.Size), "")
		return
	case t.Err == nil:
		c.trace(ex, Answered, "sent", "")
		return
	case errors.Is(t.Err, errOptional):
		c.trace(ex, Absent, "", "not there, and need not be")
		return
	}
	c.log.Warn("TFTP", "mac", ex.MAC, "from", from, "name", t.Name, "sent", t.Sent, "err", t.Err)
	switch {
	case errors.Is(t.Err, fs.ErrNotExist), errors.Is(t.Err, fs.ErrPermission):
		c.trace(ex, Refused, "", t.Err.Error())
	case t.Blocks > 0 || t.Size > 0:
		c.trace(ex, Broken, "", fmt.Sprintf("%v at %d of %d bytes", t.Err, t.Sent, t.Size))
	default:
		c.trace(ex, Failed, "", t.Err.Error())
	}
}

// trace hands on a finished exchange. got is what a person reads of an answer; why stands in for it where there is none.
func (c *conversation) trace(ex Exchange, outcome Outcome, got, why string) {
	ex.Outcome, ex.Got, ex.Why = outcome, got, why
	ex.Failed = outcome == Refused || outcome == Broken || outcome == Failed
	if got == "" {
		ex.Got = string(outcome) + ": " + why
	}
	if ex.Took == 0 {
		ex.Took = time.Since(ex.At)
	}
	c.Metrics.exchange(ex)
	if c.Trace != nil {
		c.Trace(ex)
	}
}
