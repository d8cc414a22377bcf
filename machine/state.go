package machine

import (
	"fmt"
	"slices"
)

// State is the state of a machine.
type State string

// States of a machine.
const (
	Discovered   State = "discovered"   // seen on the wire, not yet ours
	Enrolled     State = "enrolled"     // recorded by an operator
	Accepting    State = "accepting"    // the acceptance run is on
	Available    State = "available"    // in stock, proven clean
	Reserved     State = "reserved"     // held for an order, untouched
	Provisioning State = "provisioning" // a job is putting an image on it
	Active       State = "active"       // in the customer's hands
	Reclaiming   State = "reclaiming"   // being isolated, wiped and proven clean
	Pool         State = "pool"         // designated to containers
	Maintenance  State = "maintenance"  // taken out by an operator or a fault; whoever holds it keeps it
	Quarantined  State = "quarantined"  // failed a check or could not be proven clean
	Retired      State = "retired"      // gone for good
)

// Event is what happens to a machine.
type Event string

// Events of a machine.
const (
	Enroll     Event = "enroll"     // an operator records it; or a run that had taken it is called off
	Accept     Event = "accept"     // the acceptance run starts
	Admit      Event = "admit"      // an operator vouches for it; or a run that had taken it from stock is called off
	Reserve    Event = "reserve"    // an order takes it
	Unreserve  Event = "unreserve"  // the order went away before anything was touched
	Provision  Event = "provision"  // a job starts to put an image on it
	HandOver   Event = "hand-over"  // every step done, the customer gets it
	Reclaim    Event = "reclaim"    // wipe it and return it to stock
	Reclaimed  Event = "reclaimed"  // proven clean
	Quarantine Event = "quarantine" // failed a check or could not be proven clean
	Park       Event = "park"       // maintenance, by an operator or a fault
	Unpark     Event = "unpark"     // an operator returns it to the customer who holds it
	Designate  Event = "designate"  // to the container pool
	Retire     Event = "retire"     // gone for good
)

// States lists every machine state in the order of a machine's life.
func States() []State {
	return []State{Discovered, Enrolled, Accepting, Available, Reserved, Provisioning, Active, Reclaiming, Pool, Maintenance, Quarantined, Retired}
}

// Events lists every machine event.
func Events() []Event {
	return []Event{Enroll, Accept, Admit, Reserve, Unreserve, Provision, HandOver, Reclaim, Reclaimed, Quarantine, Park, Unpark, Designate, Retire}
}

// table maps a state to the events that it takes; an event that is absent is refused.
type table[S, E ~string] map[S]map[E]S

var machineTable = table[State, Event]{
	Discovered:   {Enroll: Enrolled, Retire: Retired},
	Enrolled:     {Accept: Accepting, Admit: Available, Park: Maintenance, Retire: Retired},
	Accepting:    {Enroll: Enrolled, Admit: Available, Reclaim: Reclaiming, Quarantine: Quarantined, Park: Maintenance},
	Available:    {Accept: Accepting, Reserve: Reserved, Designate: Pool, Quarantine: Quarantined, Park: Maintenance, Retire: Retired},
	Reserved:     {Provision: Provisioning, Unreserve: Available, Quarantine: Quarantined},
	Provisioning: {HandOver: Active, Reclaim: Reclaiming, Quarantine: Quarantined, Park: Maintenance},
	Active:       {Provision: Provisioning, Reclaim: Reclaiming, Quarantine: Quarantined, Park: Maintenance},
	Reclaiming:   {Reclaimed: Available, Quarantine: Quarantined},
	Pool:         {Reclaim: Reclaiming, Quarantine: Quarantined, Park: Maintenance},
	Maintenance:  {Provision: Provisioning, Unpark: Active, Reclaim: Reclaiming, Quarantine: Quarantined, Retire: Retired},
	Quarantined:  {Accept: Accepting, Reclaim: Reclaiming, Park: Maintenance, Retire: Retired},
	Retired:      {},
}

// Next is the transition function of machines: the state after the event, or a Conflict error that names both.
func Next(s State, e Event) (State, error) { return machineTable.next("machine", s, e) }

func (t table[S, E]) next(noun string, s S, e E) (S, error) {
	if n, ok := t[s][e]; ok {
		return n, nil
	}
	takes := make([]string, 0, len(t[s]))
	for k := range t[s] {
		takes = append(takes, string(k))
	}
	slices.Sort(takes)
	return s, &Error{
		Code:    Conflict,
		Message: fmt.Sprintf("%s is %s and does not take %q", noun, s, e),
		Hint:    fmt.Sprintf("in this state it takes: %v", takes),
	}
}
