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
	Bandwidth   int        `json:"bandwidth"`    // Mbit/s, each way
	SSHKeys     []string   `json:"ssh_keys"`     // authorized_keys lines
	Hostname    string     `json:"hostname"`
	Months      int        `json:"months"`   // length of the term
	Price       int64      `json:"price"`    // of the term, integer minor units, fixed when the order was placed
	Currency    string     `json:"currency"` // ISO 4217
	State       OrderState `json:"state"`
	Reason      string     `json:"reason,omitempty"` // why it failed, in words

	MachineID string     `json:"machine_id,omitempty"`
	JobID     string     `json:"job_id,omitempty"` // the newest job for this order
	Address   netip.Addr `json:"address"`          // the fixed public address
	Tried     []string   `json:"tried,omitempty"`  // machines that failed this order

	Placed  time.Time `json:"placed"`
	Started time.Time `json:"started,omitzero"` // hand-over: the term's anchor
	Until   time.Time `json:"until,omitzero"`   // end of the paid term, exclusive
	Updated time.Time `json:"updated"`
}
