package network

import (
	"fmt"
	"time"
)

// Counter is what a port had delivered in one direction at a moment. It counts from zero since its epoch, in bytes of frames with
// their Ethernet header.
type Counter struct {
	Machine   string        `json:"machine"`
	Direction Direction     `json:"direction"`
	Bytes     uint64        `json:"bytes"`
	Epoch     int64         `json:"epoch"`           // when the count began at zero, in Unix nanoseconds. Nanoseconds count: keep it as an integer
	Slack     time.Duration `json:"slack,omitempty"` // how far the epoch of one and the same count may be off from read to read; 0: it is exact
	At        time.Time     `json:"at"`              // when it was read
	Doubt     string        `json:"doubt,omitempty"` // why nothing may be billed by it, in words; "" when it can be trusted
}

// Since returns what was delivered between an earlier counter of the same port and direction and this one. When that cannot be
// known there is a reason and nothing may be billed for the time between; the later counter, if it is not in doubt itself,
// serves as the earlier one the next time. A count that began again in between gives what it has counted since then: the
// customer is spared what was lost.
func (c Counter) Since(earlier Counter) (bytes uint64, doubt string) {
	slack := max(c.Slack, earlier.Slack)
	same := time.Duration(c.Epoch-earlier.Epoch).Abs() <= slack
	switch {
	case c.Doubt != "":
		return 0, c.Doubt
	case earlier.Doubt != "":
		return 0, "the counter before it was in doubt: " + earlier.Doubt
	case !c.At.After(earlier.At):
		return 0, fmt.Sprintf("the clock went back: read at %s, after %s", c.At.UTC().Format(time.RFC3339), earlier.At.UTC().Format(time.RFC3339))
	case same && c.Bytes >= earlier.Bytes:
		return c.Bytes - earlier.Bytes, ""
	case same:
		return 0, fmt.Sprintf("the count fell from %d to %d, and its device does not say why", earlier.Bytes, c.Bytes)
	case time.Unix(0, c.Epoch).Add(slack).Before(earlier.At):
		return 0, "it is another count than the one before, and began earlier than that was read"
	case slack > 0 && c.Bytes >= earlier.Bytes:
		// sysUpTime begins again after 497 days without anything being reset.
		return 0, "the device says that it began again, yet its count did not fall"
	}
	return c.Bytes, ""
}
