package provisioner

import (
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// ClassStock is a class and how many machines of it are available now.
type ClassStock struct {
	machine.Class
	Available int            `json:"available"`
	Sites     map[string]int `json:"sites"` // where they are: a line serves the machines of its own site
}

// LineStock is a line and its addresses.
type LineStock struct {
	network.Line
	Free    int `json:"free"`    // IPv4
	Cooling int `json:"cooling"` // released, not yet given out again
	Total   int `json:"total"`
	Free6   int `json:"free_v6"` // IPv6 prefixes
}

// EventFilter says which events to list; empty fields do not filter.
type EventFilter struct {
	After     int64 // events with a larger id
	Settled   bool  // only events before which none can appear any more: for who goes on from the last one
	MachineID string
	OrderID   string
	JobID     string
	Limit     int // zero means 1000
}
