package bridgeport

import (
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names in nftables: everything is in one table of the bridge family.
const (
	tableName = "bareyard-ports"
	setOpen   = "open"
	setClosed = "closed"
	setPinned = "pinned" // ports that have a pin
	setPins   = "pins"   // port and MAC address
)

// state is what the table says.
type state struct {
	ports map[string]bool // open or not
	pins  map[string]string
}

func read(c *nftables.Conn) (*state, error) {
	s := &state{map[string]bool{}, map[string]string{}}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyBridge)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
	if i < 0 {
		return s, nil
	}
	sets, err := c.GetSets(tables[i])
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			if len(e.Key) < unix.IFNAMSIZ {
				continue
			}
			name := unix.ByteSliceToString(e.Key[:unix.IFNAMSIZ])
			switch {
			case set.Name == setOpen:
				if _, closed := s.ports[name]; !closed { // wins, should somebody have put it into both
					s.ports[name] = true
				}
			case set.Name == setClosed:
				s.ports[name] = false
			case set.Name == setPins && len(e.Key) >= unix.IFNAMSIZ+6:
				s.pins[name] = net.HardwareAddr(e.Key[unix.IFNAMSIZ : unix.IFNAMSIZ+6]).String()
			}
		}
	}
	return s, nil
}

// write rewrites the table in one transaction: frames see the old rules or the new ones.
func (s *state) write(c *nftables.Conn) error {
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName})
	elements := map[string][]nftables.SetElement{}
	for port, open := range s.ports {
		name := setClosed
		if open {
			name = setOpen
		}
		elements[name] = append(elements[name], nftables.SetElement{Key: ifname(port)})
	}
	for port, mac := range s.pins {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return fmt.Errorf("pin port %s: %w", port, err)
		}
		elements[setPinned] = append(elements[setPinned], nftables.SetElement{Key: ifname(port)})
		elements[setPins] = append(elements[setPins], nftables.SetElement{Key: append(ifname(port), append(hw, 0, 0)...)})
	}
	sets := map[string]*nftables.Set{}
	for i, name := range []string{setOpen, setClosed, setPinned, setPins} {
		// The ID counts within the transaction; without one the library takes it from a global that it does not lock.
		set := &nftables.Set{ID: uint32(i + 1), Table: t, Name: name, KeyType: nftables.TypeIFName}
		if name == setPins {
			set.Concatenation, set.KeyType = true, nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr)
		}
		sets[name] = set
		if err := c.AddSet(set, nil); err != nil {
			return fmt.Errorf("define nftables set %s: %w", name, err)
		}
		c.FlushSet(set)
		for part := range slices.Chunk(elements[name], 500) { // more do not fit into one netlink attribute
			if err := c.SetAddElements(set, part); err != nil {
				return fmt.Errorf("fill nftables set %s: %w", name, err)
			}
		}
	}
	rules(c, t, sets)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("commit nftables table %s: %w", tableName, err)
	}
	return nil
}

func rules(c *nftables.Conn, t *nftables.Table, sets map[string]*nftables.Set) {
	in := func(key expr.MetaKey, set string) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: key, Register: unix.NFT_REG_1},
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, SetID: sets[set].ID},
		}
	}
	drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	// The name fills one 16-byte register, the MAC address the beginning of the next.
	wrongMAC := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Payload{DestRegister: unix.NFT_REG_2, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: setPins, SetID: sets[setPins].ID, Invert: true},
	}
	accept := nftables.ChainPolicyAccept
	chain := func(name string, hook *nftables.ChainHook, rules ...[]expr.Any) {
		ch := c.AddChain(&nftables.Chain{Table: t, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &accept})
		c.FlushChain(ch)
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: r})
		}
	}
	iif, oif := expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME
	chain("in", nftables.ChainHookPrerouting,
		slices.Concat(in(iif, setClosed), drop),
		slices.Concat(in(iif, setPinned), wrongMAC, drop))
	chain("across", nftables.ChainHookForward, slices.Concat(in(iif, setOpen), in(oif, setOpen), drop))
	chain("out", nftables.ChainHookPostrouting, slices.Concat(in(oif, setClosed), drop))
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
