package provisioner

import (
	"fmt"
	"slices"

	"github.com/bareyard/bareyard/machine"
)

// Identity is what says which machine one is. Its ports are physical ones; UUID and serial number may be missing, or be what
// the vendor puts on every board.
type Identity struct {
	ID     string // of a machine, enrolled or only discovered; empty for one that has just been seen
	Known  bool   // it is enrolled
	UUID   string
	Serial string
	MACs   []string
	Boot   string // the port that it booted from
}

// Resolution says which machine a sighting is of.
type Resolution struct {
	ID    string   // the machine; empty: none that we have seen
	Known bool     // it is enrolled
	Same  []string // other discoveries that turn out to be this machine
	Take  []string // its ports that another discovery has, which is not this machine: they were moved
	Leave []string // ports that say nothing, because another machine shows them too
	Doubt string   // why it cannot be told; the rest is then empty
}

// Resolve says which of the machines that share a port or a name with a sighting it is. A port alone does not decide: a
// network card can be moved, and a BMC's virtual port has the same address on every host (A25). UUID and serial number alone
// decide only together, because vendors repeat either.
func Resolve(seen Identity, others []Identity) Resolution {
	var r Resolution
	var same []Identity
	for _, o := range others {
		shared := common(seen.MACs, o.MACs)
		switch agree := agreement(seen, o); {
		case len(shared) > 0 && agree >= 0:
			same = append(same, o)
		case len(shared) > 0: // the same port in another machine
			for _, mac := range shared {
				switch {
				case mac != seen.Boot:
					r.Leave = append(r.Leave, mac)
				case o.Known:
					return Resolution{Doubt: fmt.Sprintf("it booted from port %s, which is on record for machine %s, and has another UUID and serial number", mac, o.ID)}
				default:
					r.Take = append(r.Take, mac)
				}
			}
		case agree == 2:
			same = append(same, o) // all its ports were replaced
		}
	}
	known := slices.DeleteFunc(slices.Clone(same), func(o Identity) bool { return !o.Known })
	switch {
	case len(known) > 1:
		return Resolution{Doubt: fmt.Sprintf("its ports are on record for the machines %s and %s", known[0].ID, known[1].ID)}
	case len(known) == 1:
		r.ID, r.Known = known[0].ID, true
	case len(same) > 0:
		r.ID = same[0].ID
	}
	for _, o := range same {
		if o.ID != r.ID {
			r.Same = append(r.Same, o.ID)
		}
	}
	if left := len(seen.MACs) - len(common(seen.MACs, r.Leave)); left <= 0 {
		return Resolution{Doubt: "it has no network port of its own that says which machine it is"}
	}
	return r
}

// agreement counts what two have in common of UUID and serial number, as far as both have one; −1 when they differ in all of
// that.
func agreement(a, b Identity) int {
	agree, differ := 0, 0
	for _, keys := range [][2]string{
		{machine.UUIDKey(a.UUID), machine.UUIDKey(b.UUID)},
		{machine.SerialKey(a.Serial), machine.SerialKey(b.Serial)},
	} {
		switch {
		case keys[0] == "" || keys[1] == "":
		case keys[0] == keys[1]:
			agree++
		default:
			differ++
		}
	}
	if agree == 0 && differ > 0 {
		return -1
	}
	return agree
}

func common(a, b []string) []string {
	var both []string
	for _, x := range a {
		if slices.Contains(b, x) {
			both = append(both, x)
		}
	}
	return both
}
