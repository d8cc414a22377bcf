package machine

import (
	"net/netip"
	"time"
)

// OrderState is the state of an order.
type OrderState string

// States of an order.
const (
	OrderPlaced       OrderState = "placed"       // accepted; a machine is held for it or being looked for
	OrderProvisioning OrderState = "provisioning" // a job is at work
	OrderActive       OrderState = "active"       // the customer has the machine
	OrderExpired      OrderState = "expired"      // past its term, in grace
	OrderEnded        OrderState = "ended"        // released; terminal
	OrderCancelled    OrderState = "cancelled"    // cancelled before hand-over; terminal
	OrderFailed       OrderState = "failed"       // could not be delivered; terminal
)

// OrderEvent is what happens to an order.
type OrderEvent string

// Events of an order.
const (
	OrderStart    OrderEvent = "start"     // its job starts
	OrderMove     OrderEvent = "move"      // its machine failed, another of the class is tried
	OrderHandOver OrderEvent = "hand-over" // the customer gets the machine
	OrderExpire   OrderEvent = "expire"    // the term is over
	OrderRenew    OrderEvent = "renew"     // another term
	OrderEnd      OrderEvent = "end"       // released
	OrderCancel   OrderEvent = "cancel"    // cancelled before hand-over
	OrderFail     OrderEvent = "fail"      // no machine could be delivered
)

// OrderStates lists every order state.
func OrderStates() []OrderState {
	return []OrderState{OrderPlaced, OrderProvisioning, OrderActive, OrderExpired, OrderEnded, OrderCancelled, OrderFailed}
}

// OrderEvents lists every order event.
func OrderEvents() []OrderEvent {
	return []OrderEvent{OrderStart, OrderMove, OrderHandOver, OrderExpire, OrderRenew, OrderEnd, OrderCancel, OrderFail}
}

var orderTable = table[OrderState, OrderEvent]{
	OrderPlaced:       {OrderStart: OrderProvisioning, OrderCancel: OrderCancelled, OrderFail: OrderFailed},
	OrderProvisioning: {OrderMove: OrderPlaced, OrderHandOver: OrderActive, OrderCancel: OrderCancelled, OrderFail: OrderFailed},
	OrderActive:       {OrderExpire: OrderExpired, OrderRenew: OrderActive, OrderEnd: OrderEnded},
	OrderExpired:      {OrderRenew: OrderActive, OrderEnd: OrderEnded},
	OrderEnded:        {},
	OrderCancelled:    {},
	OrderFailed:       {},
}

// NextOrder is the transition function of orders.
func NextOrder(s OrderState, e OrderEvent) (OrderState, error) { return orderTable.next("order", s, e) }

// Terminal reports whether the order can change no more.
func (s OrderState) Terminal() bool { return len(orderTable[s]) == 0 }

// Order is a customer's rental of one machine for a term.
type Order struct {
	ID          string     `json:"id"`
	Project     string     `json:"project"` // the tenant
	Class       string     `json:"class"`
	Image       string     `json:"image"`
	ImageDigest string     `json:"image_digest"` // pinned when the order was placed
	Line        string     `json:"line"`         // carrier of the public address
	Bandwidth   int        `json:"bandwidth"`    // Mbit/s from the machine
	SSHKeys     []string   `json:"ssh_keys"`     // authorized_keys lines
	Hostname    string     `json:"hostname"`
	Months      int        `json:"months"`   // length of the term
	Price       int64      `json:"price"`    // of the term, integer minor units, fixed when the order was placed
	Currency    string     `json:"currency"` // ISO 4217
	State       OrderState `json:"state"`
	Reason      string     `json:"reason,omitempty"` // why it failed, in words

	BandwidthDown int     `json:"bandwidth_down"`      // Mbit/s to the machine
	Model         string  `json:"model"`               // how the bandwidth is sold: fixed or burst
	Committed     int     `json:"committed,omitempty"` // burst: Mbit/s that are paid for in any case
	Network       Network `json:"network"`

	MachineID string         `json:"machine_id,omitempty"`
	JobID     string         `json:"job_id,omitempty"`    // the newest job for this order
	Address   netip.Addr     `json:"address"`             // the public address by which it is known, IPv4
	Addresses []netip.Prefix `json:"addresses,omitempty"` // all that the machine may use, that one first: IPv4 /32, IPv6 /64 or /56
	Unproven  []netip.Prefix `json:"-"`                   // of these, what is not routed yet: nobody knows whether somebody else uses it
	Tried     []string       `json:"tried,omitempty"`     // machines that failed this order

	Placed  time.Time `json:"placed"`
	Started time.Time `json:"started,omitzero"` // hand-over: the term's anchor
	Until   time.Time `json:"until,omitzero"`   // end of the paid term, exclusive
	Updated time.Time `json:"updated"`
}

// Network is what is added to an order's bandwidth for a time, and what an operator takes away.
type Network struct {
	ExtraUp         int       `json:"extra_up,omitempty"`   // Mbit/s of the packs that act now
	ExtraDown       int       `json:"extra_down,omitempty"` // Mbit/s
	Limit           int       `json:"limit,omitempty"`      // Mbit/s each way, while it is limited; zero when it is not
	LimitReason     string    `json:"limit_reason,omitempty"`
	BlackholeUntil  time.Time `json:"blackhole_until,omitzero"` // until then its addresses are null-routed
	BlackholeReason string    `json:"blackhole_reason,omitempty"`
	ChangeDue       time.Time `json:"change_due,omitzero"` // when the next of this changes by itself
}
