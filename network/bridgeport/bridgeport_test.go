package bridgeport_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/bridgeport"
)

func TestOpenAndClosed(t *testing.T) {
	l := newLab(t)
	l.plug("ctl")
	l.plug("m1")
	l.plug("m2")
	l.reads(map[string]bool{})
	l.passes("ctl", "m1", nil, true)

	l.set("m1", false)
	l.set("m2", true)
	l.reads(map[string]bool{"m1": false, "m2": true})
	for _, c := range []struct {
		from, to string
		want     bool
	}{{"m1", "ctl", false}, {"ctl", "m1", false}, {"m1", "m2", false}, {"m2", "m1", false}, {"m2", "ctl", true}, {"ctl", "m2", true}} {
		l.passes(c.from, c.to, nil, c.want)
	}

	l.set("m1", true)
	l.passes("m1", "ctl", nil, true)
	l.passes("ctl", "m1", nil, true)
	l.passes("m1", "m2", nil, false) // open, and still apart
	l.passes("m2", "m1", nil, false)

	l.set("m1", true) // again
	l.set("m2", false)
	l.set("m2", false)
	l.reads(map[string]bool{"m1": true, "m2": false})
	l.passes("m2", "ctl", nil, false)
	l.passes("m1", "ctl", nil, true)
}

// TestClosedToTheHost checks the bridge's own device, on which a controller may live.
func TestClosedToTheHost(t *testing.T) {
	l := newLab(t)
	l.plug("m1")
	l.run("-n", l.ns, "addr", "add", "10.99.0.1/24", "dev", "br0")
	l.set("m1", false)
	l.hears("m1", false)
	l.set("m1", true)
	l.hears("m1", true)
}

// TestPortOutlivesItsDevice takes the tap device away and brings it back, as QEMU does from power-off to power-on. A port
// that the kernel would open by itself, with its carrier, must stay closed.
func TestPortOutlivesItsDevice(t *testing.T) {
	l := newLab(t)
	l.set("m1", false) // before it was ever there
	l.plug("ctl")
	l.plug("m1")
	l.passes("m1", "ctl", nil, false)
	for range 2 {
		l.taps["m1"].unplug()
		l.reads(map[string]bool{"m1": false})
		l.plug("m1")
		l.passes("m1", "ctl", nil, false)
		l.passes("ctl", "m1", nil, false)
	}
	l.run("-n", l.ns, "link", "set", "m1", "down")
	l.run("-n", l.ns, "link", "set", "m1", "up")
	l.passes("m1", "ctl", nil, false)
	l.set("m1", true)
	l.passes("m1", "ctl", nil, true)
	l.passes("ctl", "m1", nil, true)
}

func TestPin(t *testing.T) {
	l := newLab(t)
	l.plug("ctl")
	l.plug("m1")
	l.set("m1", true)
	other := []byte{2, 0, 0, 0, 9, 0x77}
	l.passes("m1", "ctl", other, true)
	pin := func(mac string) {
		t.Helper()
		if err := l.driver().Pin(t.Context(), "m1", mac); err != nil {
			t.Fatal(err)
		}
	}
	pin("02:00:00:00:09:02")
	l.passes("m1", "ctl", other, false)
	l.passes("m1", "ctl", nil, true)
	l.passes("ctl", "m1", nil, true)
	l.set("m1", false)
	l.set("m1", true) // the pin stays
	l.passes("m1", "ctl", other, false)
	pin("02:00:00:00:09:77")
	l.passes("m1", "ctl", other, true)
	l.passes("m1", "ctl", nil, false)
	pin("")
	l.passes("m1", "ctl", nil, true)
	l.reads(map[string]bool{"m1": true})
}

func TestRefuses(t *testing.T) {
	l := newLab(t)
	for _, port := range []string{"", "sixteen-letters-", "a b", "a/b"} {
		if err := l.driver().Set(t.Context(), port, false); machine.CodeOf(err) != machine.Invalid {
			t.Errorf("port %q: %v, want invalid", port, err)
		}
	}
	for _, port := range []string{"nope", "br0"} {
		if err := l.driver().Set(t.Context(), port, true); machine.CodeOf(err) != machine.NotFound {
			t.Errorf("open %s: %v, want not found", port, err)
		}
	}
	l.reads(map[string]bool{})
	if err := l.driver().Pin(t.Context(), "m1", "m1"); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("pin to a name: %v, want invalid", err)
	}
	if err := (&bridgeport.Driver{Netns: "nope"}).Set(t.Context(), "m1", false); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("no such namespace: %v, want unavailable", err)
	}
}

// TestMany has several servers set ports at once, more than fit into one netlink attribute.
func TestMany(t *testing.T) {
	l := newLab(t)
	var mu sync.Mutex
	want := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 150 {
				port := fmt.Sprintf("m%d", 150*i+j)
				if err := l.driver().Set(t.Context(), port, false); err != nil {
					t.Errorf("close %s: %v", port, err)
					return
				}
				mu.Lock()
				want[port] = false
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got, err := l.driver().Read(t.Context())
	if err != nil || len(want) != 600 || !maps.Equal(got, want) {
		t.Errorf("%d ports are closed of %d (%v)", len(got), len(want), err)
	}
}
