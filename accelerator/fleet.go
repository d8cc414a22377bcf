package accelerator

import (
	"fmt"
	"slices"
	"strings"
)

// Firmware is a piece of a machine's firmware, as its BMC says.
type Firmware struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// FleetMember is one machine of a fleet that was tried together.
type FleetMember struct {
	Machine string // id
	Name    string
	Rack    string
	Report  Report
}

// Comparison is a rate of a card or of a whole machine beside the middle of its peers.
type Comparison struct {
	Machine string  `json:"machine"`        // id
	Slot    string  `json:"slot,omitempty"` // "": the machine, by the median of its cards
	Test    string  `json:"test"`
	Tool    string  `json:"tool"`
	Version string  `json:"version"`
	Unit    string  `json:"unit"`
	Rate    float64 `json:"rate"`
	Median  float64 `json:"median"` // of the machine's cards, or of the fleet's machines
	Peers   int     `json:"peers"`  // that the median is of, itself among them
}

// Slow reports whether it is too far below its peers.
func (c Comparison) Slow() bool { return c.Rate < straggler*c.Median }

// String says how slow in one line.
func (c Comparison) String() string {
	of := "the machine's cards"
	if c.Slot == "" {
		of = fmt.Sprintf("%d machines", c.Peers)
	}
	return fmt.Sprintf("%s %.4g %s, %.0f %% of the median of %s, %.4g %s", c.Test, c.Rate, c.Unit, 100*c.Rate/c.Median, of, c.Median, c.Unit)
}

// fewMachines is how many machines of a kind make a middle that one of them can be held against.
const fewMachines = 3

// rateKey tells rates that can be compared from others: the same test by the same tool on the same card.
type rateKey struct{ card, test, tool, version, unit string }

// CompareFleet holds every card against the others of its machine, and every machine against the others of the fleet that have the same cards.
func CompareFleet(members []FleetMember) []Comparison {
	var out []Comparison
	machines := map[rateKey]map[string]float64{}
	for _, m := range members {
		for key, cards := range ratesOf(m.Report) {
			values := make([]float64, 0, len(cards))
			for _, v := range cards {
				values = append(values, v)
			}
			middle := median(values)
			for slot, v := range cards {
				if len(cards) > 1 {
					out = append(out, Comparison{m.Machine, slot, key.test, key.tool, key.version, key.unit, v, middle, len(cards)})
				}
			}
			if machines[key] == nil {
				machines[key] = map[string]float64{}
			}
			machines[key][m.Machine] = middle
		}
	}
	for key, nodes := range machines {
		if len(nodes) < fewMachines {
			continue
		}
		values := make([]float64, 0, len(nodes))
		for _, v := range nodes {
			values = append(values, v)
		}
		middle := median(values)
		for id, v := range nodes {
			out = append(out, Comparison{id, "", key.test, key.tool, key.version, key.unit, v, middle, len(nodes)})
		}
	}
	slices.SortFunc(out, func(a, b Comparison) int {
		return strings.Compare(a.Machine+"\x00"+a.Slot+"\x00"+a.Test+"\x00"+a.Tool+"\x00"+a.Version, b.Machine+"\x00"+b.Slot+"\x00"+b.Test+"\x00"+b.Tool+"\x00"+b.Version)
	})
	return out
}

// ratesOf are the rates of a report by card.
func ratesOf(r Report) map[rateKey]map[string]float64 {
	kind := map[string]string{}
	for _, k := range r.Cards {
		if k.PCI != nil {
			kind[k.Slot] = k.PCI.ID()
		}
	}
	out := map[rateKey]map[string]float64{}
	for _, l := range r.Loads {
		if l.Slot == "" || l.Peer != "" || l.Fault != nil || !l.Rate.Known() || !(l.Rate.Value > 0) {
			continue
		}
		key := rateKey{kind[l.Slot], l.Test, l.Tool, l.Version, l.Rate.Unit}
		if out[key] == nil {
			out[key] = map[string]float64{}
		}
		out[key][l.Slot] = l.Rate.Value
	}
	return out
}

// Version is a firmware version that differs between machines of one rack.
type Version struct {
	Rack     string   `json:"rack"`
	What     string   `json:"what"` // BIOS, BMC, VBIOS of NVIDIA H20 …
	Version  string   `json:"version"`
	Machines []string `json:"machines"` // ids
	Odd      bool     `json:"odd"`      // most machines of the rack have another one
}

// CompareFirmware tells of firmware of which the machines of a rack have more than one version, each version with its machines.
func CompareFirmware(members []FleetMember) []Version {
	type part struct{ rack, what string }
	seen := map[part]map[string][]string{}
	for _, m := range members {
		for what, versions := range firmwareOf(m.Report) {
			p := part{m.Rack, what}
			if seen[p] == nil {
				seen[p] = map[string][]string{}
			}
			seen[p][versions] = append(seen[p][versions], m.Machine)
		}
	}
	var out []Version
	for p, versions := range seen {
		if len(versions) < 2 {
			continue
		}
		most := 0
		for _, machines := range versions {
			most = max(most, len(machines))
		}
		for v, machines := range versions {
			alone := 0
			for _, others := range versions {
				if len(others) == most {
					alone++
				}
			}
			slices.Sort(machines)
			out = append(out, Version{p.rack, p.what, v, machines, len(machines) < most || alone > 1})
		}
	}
	slices.SortFunc(out, func(a, b Version) int {
		return strings.Compare(a.Rack+"\x00"+a.What+"\x00"+a.Version, b.Rack+"\x00"+b.What+"\x00"+b.Version)
	})
	return out
}

// firmwareOf are the versions of a machine's firmware: what its BMC tells, and that of its cards.
func firmwareOf(r Report) map[string]string {
	sets := map[string]map[string]bool{}
	add := func(what, version string) {
		if version == "" {
			return
		}
		if sets[what] == nil {
			sets[what] = map[string]bool{}
		}
		sets[what][version] = true
	}
	if r.BMC != nil {
		for _, f := range r.BMC.Firmware {
			add(f.Name, f.Version)
		}
	}
	for _, k := range r.Cards {
		if k.PCI != nil && k.Card != nil && k.Card.VBIOS.Known() {
			add("VBIOS of "+k.PCI.ID(), k.Card.VBIOS.Value)
		}
	}
	out := map[string]string{}
	for what, versions := range sets {
		out[what] = strings.Join(sortedKeys(versions), ", ")
	}
	return out
}
