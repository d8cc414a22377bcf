package network

import "net/netip"

// Assignment is what has become of an address, as registries outside of Bareyard are told.
type Assignment struct {
	Prefix  netip.Prefix // IPv4 /32, IPv6 /64 or /56
	Held    bool         // by an order
	Name    string       // in the reverse DNS; "" for none
	OrderID string
	Project string
	Machine string // its name
}
