package accelerator

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// FleetRate is what one card of a fleet reached in a test, by its newest report.
type FleetRate struct {
	MachineID string    `json:"machine_id"`
	Machine   string    `json:"machine"` // name
	Slot      string    `json:"slot"`
	Serial    string    `json:"serial,omitempty"`
	Model     string    `json:"model"` // PCI vendor:device
	Test      string    `json:"test"`
	Tool      string    `json:"tool"`
	Version   string    `json:"version"`
	Unit      string    `json:"unit"`
	Rate      float64   `json:"rate"`
	Report    string    `json:"report"`
	At        time.Time `json:"at"`
	Outcome   Outcome   `json:"outcome"` // of the card in that report
}

// card tells a card from the others of a fleet.
func (r FleetRate) card() string { return cmp.Or(r.Serial, r.MachineID+" "+r.Slot) }

// Baseline is what the cards of a fleet reach in a test.
type Baseline struct {
	Model    string     `json:"model"`
	Test     string     `json:"test"`
	Tool     string     `json:"tool"`
	Version  string     `json:"version"`
	Unit     string     `json:"unit"`
	Cards    int        `json:"cards"`
	Machines int        `json:"machines"`
	Median   float64    `json:"median"`
	Spread   float64    `json:"spread"` // median distance from the median, made comparable to a standard deviation
	P5       float64    `json:"p5"`
	P95      float64    `json:"p95"`
	Slow     []SlowPart `json:"slow"` // below 95 % of the median, the slowest first
}

// SlowPart is a card that is slower than its fleet, or a whole machine.
type SlowPart struct {
	FleetRate     // of the card; of the machine the median, the newest report, and neither slot nor serial number
	Cards     int `json:"cards"`
}

// Baselines says what a fleet reaches in each test. A machine that is slow as a whole is named instead of its cards. Fewer than three cards are no fleet:
// nothing is slow in it.
func Baselines(rates []FleetRate) []Baseline {
	groups := map[rateKey][]FleetRate{}
	for _, r := range rates {
		if r.Rate > 0 && !math.IsInf(r.Rate, 0) {
			key := rateKey{r.Model, r.Test, r.Tool, r.Version, r.Unit}
			groups[key] = append(groups[key], r)
		}
	}
	out := []Baseline{}
	for key, list := range groups {
		b := Baseline{Model: key.card, Test: key.test, Tool: key.tool, Version: key.version, Unit: key.unit, Cards: len(list), Slow: []SlowPart{}}
		values := make([]float64, 0, len(list))
		machines := map[string][]FleetRate{}
		for _, r := range list {
			values = append(values, r.Rate)
			machines[r.MachineID] = append(machines[r.MachineID], r)
		}
		slices.Sort(values)
		b.Machines, b.Median, b.Spread = len(machines), median(values), deviation(values)
		b.P5, b.P95 = values[(len(values)-1)*5/100], values[(len(values)*95+99)/100-1]
		if b.Cards >= fewMachines {
			for _, cards := range machines {
				b.Slow = append(b.Slow, slowParts(cards, straggler*b.Median)...)
			}
		}
		slices.SortFunc(b.Slow, func(x, y SlowPart) int {
			return cmp.Or(cmp.Compare(x.Rate, y.Rate), strings.Compare(x.Machine+x.Slot, y.Machine+y.Slot))
		})
		out = append(out, b)
	}
	slices.SortFunc(out, func(x, y Baseline) int {
		return strings.Compare(x.Model+"\x00"+x.Test+"\x00"+x.Tool+"\x00"+x.Version+"\x00"+x.Unit, y.Model+"\x00"+y.Test+"\x00"+y.Tool+"\x00"+y.Version+"\x00"+y.Unit)
	})
	return out
}

// slowParts are the cards of a machine that are below a rate, or the machine, when the middle of its cards is.
func slowParts(cards []FleetRate, least float64) []SlowPart {
	var out []SlowPart
	whole := SlowPart{FleetRate: cards[0], Cards: len(cards)}
	var values []float64
	for _, c := range cards {
		values = append(values, c.Rate)
		if c.At.After(whole.At) {
			whole.FleetRate = c
		}
		if c.Rate < least {
			out = append(out, SlowPart{c, 1})
		}
	}
	if whole.Rate = median(values); len(cards) > 1 && whole.Rate < least {
		whole.Slot, whole.Serial = "", ""
		return []SlowPart{whole}
	}
	return out
}

// CalibrateRates makes a profile as Calibrate does, out of the rates that a server keeps. Limits from fewer cards than least are left out.
func CalibrateRates(rates []FleetRate, name, source string, least int) (Profile, []string, error) {
	if least < fewCards {
		return Profile{}, nil, fmt.Errorf("calibrate profile: a limit from fewer than %d cards is a guess", fewCards)
	}
	reports := map[string]*Report{} // by card
	for _, r := range rates {
		id := r.card()
		if reports[id] == nil {
			reports[id] = &Report{Taken: r.At}
		}
		of := reports[id]
		slot := id // a card that was moved has rates from two slots
		if len(of.Cards) == 0 {
			of.Cards = []CardResult{{Slot: slot, Outcome: r.Outcome, PCI: &PCICard{Slot: slot}, Card: &Card{Slot: slot, Serial: Measured(id, "", "report")}}}
			vendor, device, _ := strings.Cut(r.Model, ":")
			of.Cards[0].PCI.Vendor, of.Cards[0].PCI.Device = vendor, device
		}
		of.Cards[0].Outcome = Worse(of.Cards[0].Outcome, r.Outcome)
		of.Loads = append(of.Loads, Load{Test: r.Test, Tool: r.Tool, Version: r.Version, Slot: slot, Rate: Measured(r.Rate, r.Unit, "report")})
	}
	var list []Report
	for _, r := range reports {
		list = append(list, *r)
	}
	p, notes, err := Calibrate(list, name, source)
	if err != nil {
		return p, notes, err
	}
	p.Limits = slices.DeleteFunc(p.Limits, func(l Limit) bool {
		if l.Cards >= int64(least) {
			return false
		}
		notes = append(notes, fmt.Sprintf("%s of %s %s: %s, %d were wanted", l.Test, l.Tool, l.Version, plural(int(l.Cards), "card"), least))
		return true
	})
	return p, notes, nil
}
