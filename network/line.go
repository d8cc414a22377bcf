package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Line is a carrier at a site. A customer chooses the line of the public address: BGP, Telecom, Unicom, Mobile …
type Line struct {
	Name         string  `json:"name"`
	Site         string  `json:"site"`
	MinBandwidth int     `json:"min_bandwidth"` // Mbit/s from the machine, the least that is sold
	MaxBandwidth int     `json:"max_bandwidth"` // Mbit/s from the machine, the most that is sold, packs included
	Carrier      string  `json:"carrier,omitempty"`
	Step         int     `json:"step"`          // Mbit/s between one bandwidth that is sold and the next, both ways
	MinDown      int     `json:"min_down"`      // Mbit/s to the machine, the least
	MaxDown      int     `json:"max_down"`      // Mbit/s to the machine, the most
	Models       []Model `json:"models"`        // how its bandwidth is sold
	Percentile   Basis   `json:"percentile"`    // what a burst is billed by
	MaxAddresses int     `json:"max_addresses"` // of each family, per order
}

// Model is how bandwidth is sold.
type Model string

// Models.
const (
	ModelFixed Model = "fixed" // the bandwidth is the customer's at any time
	ModelBurst Model = "burst" // billed by the 95th percentile above what was committed
)

// Basis says which 95th percentile is billed. Carriers bill one direction or the higher, never the sum.
type Basis string

// Bases, as the machine sees its traffic.
const (
	BasisUp     Basis = "up"
	BasisDown   Basis = "down"
	BasisHigher Basis = "higher"
)

// Rates is what passes each way, in Mbit/s.
type Rates struct {
	Up   int `json:"up"`   // from the machine to the world
	Down int `json:"down"` // to the machine
}

// Add returns the sum.
func (r Rates) Add(q Rates) Rates { return Rates{r.Up + q.Up, r.Down + q.Down} }

func (r Rates) String() string {
	if r.Up == r.Down {
		return fmt.Sprintf("%d Mbit/s", r.Up)
	}
	return fmt.Sprintf("%d Mbit/s up, %d down", r.Up, r.Down)
}

// WithDefaults returns the line with what was left out: one Mbit/s as the step, the same bandwidths both ways, fixed bandwidth,
// the higher percentile, eight addresses.
func (l Line) WithDefaults() Line {
	l.Step = max(l.Step, 1)
	if l.MinDown == 0 {
		l.MinDown = l.MinBandwidth
	}
	if l.MaxDown == 0 {
		l.MaxDown = l.MaxBandwidth
	}
	if len(l.Models) == 0 {
		l.Models = []Model{ModelFixed}
	}
	if l.Percentile == "" {
		l.Percentile = BasisHigher
	}
	if l.MaxAddresses == 0 {
		l.MaxAddresses = 8
	}
	return l
}

// Validate returns an Invalid error that names the field; what WithDefaults fills in may be left out.
func (l Line) Validate() error {
	if err := checkName("name", l.Name); err != nil {
		return err
	}
	if err := checkName("site", l.Site); err != nil {
		return err
	}
	if l.Carrier != "" {
		if err := checkName("carrier", l.Carrier); err != nil {
			return err
		}
	}
	most := MaxKbit / 1000
	for _, f := range []struct {
		field    string
		min, max int
	}{{"bandwidth", l.MinBandwidth, l.MaxBandwidth}, {"down", l.MinDown, l.MaxDown}} {
		if f.min < 0 || f.min > most {
			return invalid("min_"+f.field, fmt.Sprintf("%d Mbit/s cannot be sold", f.min), fmt.Sprintf("give 1 to %d", most))
		}
		if f.max < 0 || f.max > most {
			return invalid("max_"+f.field, fmt.Sprintf("%d Mbit/s cannot be sold", f.max), fmt.Sprintf("give 1 to %d", most))
		}
		if f.max < f.min {
			return invalid("max_"+f.field, "the most is less than the least", "swap the two")
		}
	}
	if l.Step < 0 || l.Step > most {
		return invalid("step", fmt.Sprintf("a step of %d Mbit/s leads nowhere", l.Step), "give the Mbit/s between two bandwidths that you sell, e.g. 10")
	}
	for _, m := range l.Models {
		if m != ModelFixed && m != ModelBurst {
			return invalid("models", fmt.Sprintf("%q is no way to sell bandwidth", m), "use fixed, burst or both")
		}
	}
	if !slices.Contains([]Basis{"", BasisUp, BasisDown, BasisHigher}, l.Percentile) {
		return invalid("percentile", fmt.Sprintf("%q is no direction", l.Percentile), "use up, down or higher")
	}
	if l.MaxAddresses < 0 || l.MaxAddresses > 256 {
		return invalid("max_addresses", fmt.Sprintf("an order cannot hold %d addresses", l.MaxAddresses), "give 1 to 256")
	}
	return nil
}

// CheckBandwidth returns an Invalid error when the line does not offer a bandwidth.
func (l Line) CheckBandwidth(r Rates) error {
	if err := l.check("bandwidth", r.Up, l.MinBandwidth, l.MaxBandwidth); err != nil {
		return err
	}
	return l.check("bandwidth_down", r.Down, l.MinDown, l.MaxDown)
}

func (l Line) check(field string, mbit, least, most int) error {
	if mbit >= least && mbit <= most && (mbit-least)%l.Step == 0 {
		return nil
	}
	hint := fmt.Sprintf("choose %d to %d Mbit/s", least, most)
	if l.Step > 1 {
		hint += fmt.Sprintf(" in steps of %d", l.Step)
		if near := least + (mbit-least)/l.Step*l.Step; mbit > least && mbit < most {
			hint += fmt.Sprintf(", e.g. %d or %d", near, min(near+l.Step, most))
		}
	}
	return invalid(field, fmt.Sprintf("line %s does not offer %d Mbit/s", l.Name, mbit), hint)
}

// CheckModel returns an Invalid error when the line does not sell in this way. committed is what a burst pays for in any case.
func (l Line) CheckModel(m Model, committed int, r Rates) error {
	if !slices.Contains(l.Models, m) {
		return invalid("model", fmt.Sprintf("line %s does not sell %s bandwidth", l.Name, m), fmt.Sprintf("choose one of %v", l.Models))
	}
	if m == ModelFixed && committed != 0 {
		return invalid("committed", "fixed bandwidth is committed as a whole", "leave it out, or order with model burst")
	}
	if m == ModelBurst && (committed < 0 || committed > r.Up) {
		return invalid("committed", fmt.Sprintf("%d Mbit/s cannot be committed of %d", committed, r.Up), fmt.Sprintf("give 0 to %d Mbit/s", r.Up))
	}
	return nil
}

// ParseAddress reads what people write for an address: 203.0.113.7, 203.0.113.7/32, 2001:db8:7::, 2001:db8:7::/64. An IPv6
// address without a length is one address, which the caller may look up the prefix of.
func ParseAddress(field, text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, checkPublic(field, p)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, invalid(field, fmt.Sprintf("%q is no address", text), "write it as 203.0.113.7 or 2001:db8:7::/64")
	}
	p := netip.PrefixFrom(a, a.BitLen())
	return p, checkPublic(field, p)
}
