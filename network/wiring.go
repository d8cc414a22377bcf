package network

import (
	"context"
	"strings"
)

// PortDriver opens and closes the ports that machines are wired to.
type PortDriver interface {
	// Set opens or closes a port. It is idempotent. Until a person has done it the error is ErrPending.
	Set(ctx context.Context, port string, open bool) error
	// Pin lets only frames from this MAC address in at a port, or any when mac is "", where the driver can.
	Pin(ctx context.Context, port, mac string) error
}

// Wiring is every port that machines are wired to: those of switches are named SWITCH:PORT, and the others are ports of this
// box's bridges.
type Wiring struct {
	Switches map[string]PortDriver
	Bridges  PortDriver
}

func (w *Wiring) driver(port string) PortDriver {
	if name, _, ok := strings.Cut(port, ":"); ok {
		if d, ok := w.Switches[name]; ok {
			return d
		}
	}
	return w.Bridges
}

// Set implements PortDriver.
func (w *Wiring) Set(ctx context.Context, port string, open bool) error {
	return w.driver(port).Set(ctx, port, open)
}

// Pin implements PortDriver.
func (w *Wiring) Pin(ctx context.Context, port, mac string) error {
	return w.driver(port).Pin(ctx, port, mac)
}
