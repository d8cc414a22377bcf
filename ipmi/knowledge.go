package ipmi

import (
	"maps"
	"slices"
	"sync"
)

// BootMethod is a way to make a host boot from the network. Firmware that ignores one may honour another.
type BootMethod string

// Boot methods, in the order in which they are tried.
const (
	BootOnce       BootMethod = "once"        // IPMI: valid, not persistent; Redfish: Once, Pxe
	BootTarget     BootMethod = "uefi-target" // Redfish: Once, UefiTarget, the boot option of a network card
	BootHTTP       BootMethod = "uefi-http"   // Redfish: Once, UefiHttp
	BootPersistent BootMethod = "persistent"  // IPMI: valid and persistent; Redfish: Continuous, Pxe. The next SetNextBoot ends it
	BootOtherMode  BootMethod = "other-mode"  // once, as BIOS for a UEFI machine and the other way round
)

// Knowledge is what was found out about a BMC: keep it with the machine, and give it back with Learn after a restart.
// encoding/json writes and reads it.
type Knowledge struct {
	CipherSuite int                `json:"cipher_suite,omitempty"` // IPMI: the one that works
	Boot        BootMethod         `json:"boot,omitempty"`         // the method by which the machine was last seen on the wire
	Ignored     map[BootMethod]int `json:"ignored,omitempty"`      // how often a method was set and the machine was not seen
	Set         BootMethod         `json:"set,omitempty"`          // by which an override was last set, until BootSeen says what came of it: another server may be the one to say
	Quirks      []string           `json:"quirks,omitempty"`       // what else it does otherwise than it should, for operators
}

// maxQuirks bounds Knowledge.Quirks.
const maxQuirks = 20

// known guards what is known of a BMC.
type known struct {
	mu sync.Mutex
	k  Knowledge
}

// methods is the boot methods of a protocol, the most promising first.
func (k *known) methods(protocol string, uefi bool) []BootMethod {
	all := []BootMethod{BootOnce, BootPersistent, BootOtherMode}
	if protocol == Redfish && uefi {
		all = []BootMethod{BootOnce, BootTarget, BootHTTP, BootPersistent, BootOtherMode}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortStableFunc(all, func(a, b BootMethod) int {
		switch {
		case a == k.k.Boot && b != a:
			return -1
		case b == k.k.Boot && b != a:
			return 1
		}
		return k.k.Ignored[a] - k.k.Ignored[b]
	})
	return all
}

func (k *known) using(m BootMethod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.k.Set = m
}

// quirk notes what a BMC does otherwise than it should.
func (k *known) quirk(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.k.Quirks) < maxQuirks && !slices.Contains(k.k.Quirks, text) {
		k.k.Quirks = append(k.k.Quirks, text)
	}
}

func (k *known) suite() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.k.CipherSuite
}

func (k *known) keepSuite(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.k.CipherSuite = n
}

// BootSeen tells that the machine was seen on the wire, or was not, after SetNextBoot(DevicePXE) and a start. The next SetNextBoot
// takes the method that is known to work, or else the one that was ignored least often: the next one in turn.
func (c *Controller) BootSeen(t Target, seen bool) {
	k := &c.about(t).known
	k.mu.Lock()
	defer k.mu.Unlock()
	method := k.k.Set
	if method == "" {
		return
	}
	k.k.Set = ""
	if seen {
		k.k.Boot = method
		delete(k.k.Ignored, method)
		return
	}
	if k.k.Boot == method {
		k.k.Boot = ""
	}
	if k.k.Ignored == nil {
		k.k.Ignored = map[BootMethod]int{}
	}
	k.k.Ignored[method]++
	c.log().Warn("machine not seen after a boot override that its BMC kept", "bmc", t, "method", method, "times", k.k.Ignored[method])
}

// Known is what was found out about a BMC so far.
func (c *Controller) Known(t Target) Knowledge {
	k := &c.about(t).known
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.k
	out.Ignored, out.Quirks = maps.Clone(out.Ignored), slices.Clone(out.Quirks)
	return out
}

// Learn gives the Controller what is kept of a BMC. Another server may have found it out, and later than this one, so its boot
// methods replace what this one remembers; the rest is added.
func (c *Controller) Learn(t Target, earlier Knowledge) {
	k := &c.about(t).known
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.k.CipherSuite == 0 {
		k.k.CipherSuite = earlier.CipherSuite
	}
	if earlier.Boot != "" || earlier.Set != "" || len(earlier.Ignored) > 0 {
		k.k.Boot, k.k.Set, k.k.Ignored = earlier.Boot, earlier.Set, maps.Clone(earlier.Ignored)
	}
	for _, q := range earlier.Quirks {
		if len(k.k.Quirks) < maxQuirks && !slices.Contains(k.k.Quirks, q) {
			k.k.Quirks = append(k.k.Quirks, q)
		}
	}
}
