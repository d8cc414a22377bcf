package netboot

import "testing"

// TestTracedHTTP: a trace says how much of how much was sent, what a script told, and tells a HEAD from a download.
func TestTracedHTTP(t *testing.T) {
	w := serveHTTP(t, nil)
	script := "/boot/ipxe/" + testMAC + ".ipxe"
	w.raw(t, "HEAD", "/boot/vmlinuz")
	w.raw(t, "GET", "/boot/vmlinuz")
	w.raw(t, "GET", script)
	w.booter.boot = Boot{Kind: BootDisk}
	w.raw(t, "GET", script)
	w.raw(t, "GET", "/boot/missing")
	for i, want := range []struct {
		outcome Outcome
		boots   string
		whole   bool
	}{{Probed, "", false}, {Answered, "", true}, {Answered, "agent", true}, {Answered, "disk", true}, {Refused, "", true}} {
		x := w.seen.all[i]
		if x.Outcome != want.outcome || x.Boots != want.boots || x.Size <= 0 || (x.Bytes == x.Size) != want.whole {
			t.Errorf("%s: outcome %s, boots %q, %d of %d bytes; want %+v", x.Asked, x.Outcome, x.Boots, x.Bytes, x.Size, want)
		}
	}
}
