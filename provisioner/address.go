package provisioner

import (
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/network"
)

// PoolStock is a pool of addresses and how many of them are where.
type PoolStock struct {
	network.AddressPool
	CoolDown string `json:"cool_down"` // e.g. 24h0m0s
	Free     int    `json:"free"`
	Cooling  int    `json:"cooling"`  // released, not yet given out again
	Held     int    `json:"held"`     // by orders
	Reserved int    `json:"reserved"` // kept back: gateways, reserved, in conflict
}

// AddressState says where an address is.
type AddressState string

// States of an address.
const (
	AddressFree     AddressState = "free"
	AddressHeld     AddressState = "held"     // by an order
	AddressLeaving  AddressState = "leaving"  // held, but being taken off the machine
	AddressCooling  AddressState = "cooling"  // released, and not given out again before its time
	AddressReserved AddressState = "reserved" // kept back by an operator
	AddressGateway  AddressState = "gateway"  // a router's
	AddressConflict AddressState = "conflict" // somebody answered on it who should not
)

// Address is one that a line hands out: an IPv4 /32, an IPv6 /64 or /56.
type Address struct {
	Prefix  netip.Prefix `json:"address"`
	Line    string       `json:"line"`
	Site    string       `json:"site"`
	Pool    string       `json:"pool"`
	State   AddressState `json:"state"`
	Note    string       `json:"note,omitempty"` // why it is kept back
	OrderID string       `json:"order_id,omitempty"`
	Project string       `json:"project,omitempty"`
	Since   time.Time    `json:"since,omitzero"`   // held since
	FreeAt  time.Time    `json:"free_at,omitzero"` // cooling until
}

// AddressFilter says which addresses to list; empty fields do not filter.
type AddressFilter struct {
	Line  string
	State AddressState
	Order string
	After netip.Prefix // larger ones
	Limit int          // zero means 1000
}

// Tenure is a time for which an order had an address, for the abuse desk.
type Tenure struct {
	Prefix    netip.Prefix `json:"address"`
	OrderID   string       `json:"order_id"`
	Project   string       `json:"project"`
	Hostname  string       `json:"hostname"`
	MachineID string       `json:"machine_id,omitempty"`
	Machine   string       `json:"machine,omitempty"` // its name
	From      time.Time    `json:"from"`
	To        time.Time    `json:"to,omitzero"` // exclusive; zero while it lasts
}
