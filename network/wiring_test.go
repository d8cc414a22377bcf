package network_test

import (
	"context"
	"slices"
	"testing"

	"github.com/bareyard/bareyard/network"
)

// heard notes what it is told.
type heard []string

func (h *heard) Set(_ context.Context, port string, open bool) error {
	verb := "close "
	if open {
		verb = "open "
	}
	*h = append(*h, verb+port)
	return nil
}

func (h *heard) Pin(_ context.Context, port, mac string) error {
	*h = append(*h, "pin "+port+" "+mac)
	return nil
}

func TestWiring(t *testing.T) {
	var bridges, sw1 heard
	w := &network.Wiring{Bridges: &bridges, Switches: map[string]network.PortDriver{"sw1": &sw1}}
	for _, port := range []string{"tap7", "sw1:Ethernet1/7", "eth0:1"} {
		if err := w.Pin(t.Context(), port, "m"); err != nil {
			t.Fatal(err)
		}
		if err := w.Set(t.Context(), port, port == "tap7"); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"pin tap7 m", "open tap7", "pin eth0:1 m", "close eth0:1"}; !slices.Equal(bridges, want) {
		t.Errorf("the bridges heard %q", bridges)
	}
	if want := []string{"pin sw1:Ethernet1/7 m", "close sw1:Ethernet1/7"}; !slices.Equal(sw1, want) {
		t.Errorf("the switch heard %q", sw1)
	}
}
