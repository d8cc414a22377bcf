package accelerator

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

const (
	fewCards    = 8   // a limit from fewer is a guess
	farOut      = 4.0 // standard deviations below the median at which a card fails
	leastMargin = 0.05
	madToSigma  = 1.4826 // of normally distributed values
)

// Calibrate makes a profile from the reports of a fleet of one kind of card: of each test, tool and version the median, the spread, and the least
// that a card must reach. It is pure, and the order of the reports does not matter. Cards that failed their report are left out, and a card that
// was measured more than once counts with its newest report. What could not be calibrated is in the notes.
//
// A fleet that is slow as a whole looks healthy to it: compare the medians with another site or the maker's figures once.
func Calibrate(reports []Report, name, source string) (Profile, []string, error) {
	newest := slices.Clone(reports)
	slices.SortStableFunc(newest, func(a, b Report) int {
		if c := b.Taken.Compare(a.Taken); c != 0 {
			return c
		}
		return strings.Compare(reportKey(a), reportKey(b))
	})
	cards := map[string]bool{}
	c := calibration{rates: map[Limit][]float64{}, memory: map[int64]int{}, power: map[int64]int{}, boards: map[string]bool{}, ids: map[string]bool{}}
	for _, r := range newest {
		for _, k := range r.Cards {
			if k.PCI == nil || k.Outcome != Pass && k.Outcome != Warn {
				continue
			}
			id := cardIdentity(r, k)
			if cards[id] {
				continue
			}
			cards[id] = true
			c.card(r, k)
		}
	}
	switch {
	case len(cards) == 0:
		return Profile{}, nil, errors.New("calibrate profile: no report with a card that passed")
	case len(c.ids) > 1:
		return Profile{}, nil, fmt.Errorf("calibrate profile: reports are of cards of %d kinds (%s): calibrate one at a time", len(c.ids), strings.Join(sortedKeys(c.ids), ", "))
	case len(cards) < fewCards:
		return Profile{}, nil, fmt.Errorf("calibrate profile: %s, at least %d are needed", plural(len(cards), "card"), fewCards)
	}
	p := Profile{Name: name, Revision: 1, Match: []Match{{Device: sortedKeys(c.ids)[0]}}}
	if boards := sortedKeys(c.boards); len(boards) == 1 && pciID.MatchString(boards[0]) {
		p.Match[0].Subsystem = boards[0]
	}
	var notes []string
	if v, ok := only(c.memory); ok {
		p.Memory = Known[int64]{v, Calibrated, source}
	} else if len(c.memory) == 0 {
		notes = append(notes, "memory: no card tells its size, left unknown")
	} else {
		notes = append(notes, fmt.Sprintf("memory: drivers report %d different sizes, left unknown", len(c.memory)))
	}
	if v, ok := only(c.power); ok {
		p.Power = Known[int64]{v, Calibrated, source}
	} else if len(c.power) == 0 {
		notes = append(notes, "power: no card tells its factory limit, left unknown")
	} else {
		notes = append(notes, fmt.Sprintf("power: %d different factory limits, left unknown", len(c.power)))
	}
	for key, values := range c.rates {
		if len(values) < fewCards {
			notes = append(notes, fmt.Sprintf("%s of %s %s: %s, at least %d are needed", key.Test, key.Tool, key.Version, plural(len(values), "card"), fewCards))
			continue
		}
		p.Limits = append(p.Limits, limitOf(key, values, source))
	}
	slices.SortFunc(p.Limits, func(a, b Limit) int {
		return strings.Compare(a.Test+"\x00"+a.Tool+"\x00"+a.Version, b.Test+"\x00"+b.Tool+"\x00"+b.Version)
	})
	slices.Sort(notes)
	return p, notes, nil
}

type calibration struct {
	rates         map[Limit][]float64 // by test, tool, version and unit
	memory, power map[int64]int
	boards, ids   map[string]bool
}

func (c *calibration) card(r Report, k CardResult) {
	c.ids[k.PCI.ID()] = true
	c.boards[k.PCI.Subsystem] = true
	if k.Card != nil && k.Card.Fault == nil {
		if k.Card.Memory.Known() {
			c.memory[k.Card.Memory.Value>>20]++
		}
		if k.Card.PowerDefault.Known() {
			c.power[k.Card.PowerDefault.Value]++
		}
	}
	for _, l := range r.Loads {
		if l.Slot != k.Slot || l.Peer != "" || l.Fault != nil || l.Errors > 0 || !l.Rate.Known() || !(l.Rate.Value > 0) || math.IsInf(l.Rate.Value, 0) {
			continue
		}
		key := Limit{Test: l.Test, Tool: l.Tool, Version: l.Version, Unit: l.Rate.Unit}
		c.rates[key] = append(c.rates[key], l.Rate.Value)
	}
}

// limitOf sets the bar where a healthy card does not fall: four standard deviations below the middle, and 5 % at least. Median and median distance
// do not move for the few bad cards that every fleet has.
func limitOf(key Limit, values []float64, source string) Limit {
	m := median(values)
	key.Median, key.Spread = round4(m), round4(deviation(values))
	key.Min = round4(max(m-max(farOut*key.Spread, leastMargin*m), m/2))
	key.Cards, key.Status, key.Source = int64(len(values)), Calibrated, source
	return key
}

// deviation is the median distance from the median, made comparable to a standard deviation.
func deviation(values []float64) float64 {
	m := median(values)
	distances := make([]float64, 0, len(values))
	for _, v := range values {
		distances = append(distances, math.Abs(v-m))
	}
	return madToSigma * median(distances)
}

// round4 keeps four significant digits: no rate is known better.
func round4(v float64) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// cardIdentity tells a card from others over reports: by its serial number, its UUID, or where it is in which machine.
func cardIdentity(r Report, k CardResult) string {
	if k.Card != nil {
		for _, v := range []Value[string]{k.Card.Serial, k.Card.UUID} {
			if v.Known() && v.Value != "" {
				return v.Value
			}
		}
	}
	return reportKey(r) + " " + k.Slot
}

// reportKey is something of a report that differs between machines.
func reportKey(r Report) string {
	var parts []string
	for _, n := range r.Host.NICs {
		parts = append(parts, n.MAC.Value)
	}
	for _, d := range r.Host.Disks {
		parts = append(parts, d.Serial.Value)
	}
	for _, k := range r.Cards {
		if k.Card != nil {
			parts = append(parts, k.Card.Serial.Value, k.Card.UUID.Value)
		}
	}
	return strings.Join(parts, " ")
}

func sortedKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// only returns the value that all have.
func only(m map[int64]int) (int64, bool) {
	for v := range m {
		return v, len(m) == 1 && v > 0
	}
	return 0, false
}
