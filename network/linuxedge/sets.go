package linuxedge

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathbits "math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// Names of the sets and maps. In the maps, "up" turns MAC and source address into the class, "down" the destination address.
const (
	setPorts = "ports" // one element per record
	setUp4   = "up4"
	setUp6   = "up6"
	setDown4 = "down4"
	setDown6 = "down6"
	setDeny4 = "deny4"
	setDeny6 = "deny6"
)

// element is an nftables element in a form that can be compared and used as a key.
type element struct {
	key, end, value string
	comment         string
	intervalEnd     bool
}

type elements map[element]bool

func (e elements) add(v ...element) {
	for _, x := range v {
		e[x] = true
	}
}

// without returns the elements that are not in o, in the order of their keys: the kernel takes the start of an interval
// before its end, and the end of one before the start of the next (EEXIST otherwise).
func (e elements) without(o elements) []nftables.SetElement {
	var left []element
	for x := range e {
		if !o[x] {
			left = append(left, x)
		}
	}
	slices.SortFunc(left, func(a, b element) int {
		ends := func(x element) int {
			if x.intervalEnd {
				return 0
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.key, b.key), ends(a)-ends(b))
	})
	out := make([]nftables.SetElement, 0, len(left))
	for _, x := range left {
		out = append(out, nftables.SetElement{
			Key: []byte(x.key), KeyEnd: []byte(x.end), Val: []byte(x.value), Comment: x.comment, IntervalEnd: x.intervalEnd,
		})
	}
	return out
}

// definitions returns the sets of the table. IPv4 is looked up by hash, as its prefixes are single addresses. The nft command
// prints the classes with their bytes reversed, 1000:100 for 1:10: the library cannot tell it that they are in host order.
func definitions(t *nftables.Table) []*nftables.Set {
	concat := func(ip nftables.SetDatatype) nftables.SetDatatype {
		return nftables.MustConcatSetType(nftables.TypeEtherAddr, ip)
	}
	big := binaryutil.BigEndian
	return []*nftables.Set{
		{Table: t, Name: setPorts, KeyType: nftables.TypeEtherAddr, KeyByteOrder: big},
		{Table: t, Name: setUp4, IsMap: true, Concatenation: true, KeyType: concat(nftables.TypeIPAddr), DataType: nftables.TypeClassID, KeyByteOrder: big},
		{Table: t, Name: setUp6, IsMap: true, Concatenation: true, Interval: true, KeyType: concat(nftables.TypeIP6Addr), DataType: nftables.TypeClassID, KeyByteOrder: big},
		{Table: t, Name: setDown4, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeClassID, KeyByteOrder: big},
		{Table: t, Name: setDown6, IsMap: true, Interval: true, KeyType: nftables.TypeIP6Addr, DataType: nftables.TypeClassID, KeyByteOrder: big},
		{Table: t, Name: setDeny4, Interval: true, KeyType: nftables.TypeIPAddr, KeyByteOrder: big},
		{Table: t, Name: setDeny6, Interval: true, KeyType: nftables.TypeIP6Addr, KeyByteOrder: big},
	}
}

// layout returns the elements that records ask for. The down maps hold the addresses of every port, whatever its mode: they
// are where Read finds them. That nothing passes to a port that is off or blackholed is the routes' doing.
func (n numbering) layout(records map[string]record) map[string]elements {
	out := map[string]elements{setPorts: {}, setUp4: {}, setUp6: {}, setDown4: {}, setDown6: {}}
	for _, r := range records {
		mac, _ := net.ParseMAC(r.MAC)
		out[setPorts].add(element{key: string(mac), comment: r.comment()})
		value := string(binary.NativeEndian.AppendUint32(nil, n.classID(r.minor)))
		padded := string(mac) + "\x00\x00"
		for _, p := range r.Addrs {
			first, last := bounds(p)
			up, down := setUp6, setDown6
			if p.Addr().Is4() {
				up, down = setUp4, setDown4
				out[down].add(element{key: first, value: value})
			} else {
				out[down].add(interval(first, last, value)...)
			}
			if !r.passes() {
				continue
			}
			e := element{key: padded + first, value: value}
			if up == setUp6 {
				e.end = padded + last
			}
			out[up].add(e)
		}
	}
	return out
}

// denied returns the elements of the deny sets: the configured prefixes and link-local, which is never routed.
func denied(deny []netip.Prefix) map[string]elements {
	all := append(slices.Clone(deny), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"))
	slices.SortFunc(all, netip.Prefix.Compare)
	out := map[string]elements{setDeny4: {}, setDeny6: {}}
	var widest netip.Prefix
	for _, p := range all {
		if widest.IsValid() && widest.Overlaps(p) {
			continue // sorted, so it is a part of the one before
		}
		widest = p
		name := setDeny6
		if p.Addr().Is4() {
			name = setDeny4
		}
		first, last := bounds(p)
		out[name].add(interval(first, last, "")...)
	}
	return out
}

// bounds returns the first and last address of a prefix as bytes.
func bounds(p netip.Prefix) (first, last string) {
	b := p.Masked().Addr().AsSlice()
	first = string(b)
	for i := range b {
		if n := p.Bits() - 8*i; n < 8 {
			b[i] |= 0xff >> max(n, 0)
		}
	}
	return first, string(b)
}

// interval returns the two elements by which nftables writes an interval: its start, and the end of it one past the last
// key. An interval that runs to the end of the address space has no end.
func interval(first, last, value string) []element {
	out := []element{{key: first, value: value}}
	end := []byte(last)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return append(out, element{key: string(end), intervalEnd: true})
		}
	}
	return out
}

// guarded reports whether the forward chain is there, and drops by default.
func (s *session) guarded() (bool, error) {
	chains, err := s.nft.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Table.Name == tableName && c.Name == chainForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
	}), nil
}

// readSets reads the table: which elements there are, and the records that they make up. An element that makes no sense is
// no record; the next commit removes it.
func (s *session) readSets(st *state) error {
	st.records, st.sets = map[string]record{}, map[string]elements{}
	tables, err := s.nft.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
	if i < 0 {
		return nil
	}
	present, err := s.nft.GetSets(tables[i])
	if err != nil {
		return fmt.Errorf("list nftables sets: %w", err)
	}
	for _, set := range present {
		got, err := s.nft.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		e := make(elements, len(got))
		for _, x := range got {
			e.add(element{string(x.Key), string(x.KeyEnd), string(x.Val), x.Comment, x.IntervalEnd})
		}
		st.sets[set.Name] = e
	}
	st.decode()
	return nil
}

// decode turns elements into records.
func (st *state) decode() {
	var all []record
	for e := range st.sets[setPorts] {
		if r, err := parseRecord(net.HardwareAddr(e.key).String(), e.comment); err == nil {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b record) int { return cmp.Or(cmp.Compare(b.epoch, a.epoch), cmp.Compare(a.MAC, b.MAC)) })
	byMinor := map[uint16]string{}
	for _, r := range all {
		if byMinor[r.minor] != "" || st.records[r.Machine].minor != 0 {
			continue // two of a machine or a class: the newer counts
		}
		byMinor[r.minor] = r.Machine
		st.records[r.Machine] = r
	}
	own := func(value string, p netip.Prefix) {
		if len(value) != 4 {
			return
		}
		id := binary.NativeEndian.Uint32([]byte(value))
		if r, ok := st.records[byMinor[uint16(id)]]; ok && id == st.classID(r.minor) {
			one := r.Port
			if one.Addrs = []netip.Prefix{p}; one.Validate() != nil {
				return // an address that no port can have
			}
			r.Addrs = append(r.Addrs, p)
			slices.SortFunc(r.Addrs, netip.Prefix.Compare)
			st.records[r.Machine] = r
		}
	}
	for e := range st.sets[setDown4] {
		if a, ok := netip.AddrFromSlice([]byte(e.key)); ok {
			own(e.value, netip.PrefixFrom(a, 32))
		}
	}
	var ends []string
	for e := range st.sets[setDown6] {
		if e.intervalEnd {
			ends = append(ends, e.key)
		}
	}
	slices.Sort(ends)
	for e := range st.sets[setDown6] {
		if p, ok := span(e.key, ends); ok && !e.intervalEnd {
			own(e.value, p)
		}
	}
}

// span returns the prefix that begins at an address and ends before the next end.
func span(first string, ends []string) (netip.Prefix, bool) {
	i, _ := slices.BinarySearch(ends, first+"\x00") // one past first at the earliest
	a, ok := netip.AddrFromSlice([]byte(first))
	if !ok || i == len(ends) || len(ends[i]) != len(first) {
		return netip.Prefix{}, false
	}
	// The bits in which the first and the last address agree are the prefix.
	bits := 0
	for j, end := 0, before(ends[i]); j < len(first); j++ {
		if x := first[j] ^ end[j]; x != 0 {
			bits += mathbits.LeadingZeros8(x)
			break
		}
		bits += 8
	}
	p := netip.PrefixFrom(a, bits)
	from, to := bounds(p)
	return p, from == first && to == before(ends[i])
}

// before returns the key that precedes another.
func before(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return string(b)
}

// perMessage is how many elements fit into one netlink attribute, whose length has 16 bits.
const perMessage = 500

// commit makes the table hold exactly these records, in one transaction: packets see the old table or the new one.
func (s *session) commit(st *state, records map[string]record) error {
	table := s.nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	var have, want map[string]elements
	if st.named != nil {
		have, want = st.concern(records)
	} else {
		have, want = st.sets, st.layout(records)
		maps.Copy(want, denied(s.cfg.Deny))
	}
	sets := map[string]*nftables.Set{}
	for i, set := range definitions(table) {
		set.ID = uint32(i + 1) // counts within the transaction; without one the library takes it from a global that it does not lock
		sets[set.Name] = set
		if err := s.nft.AddSet(set, nil); err != nil {
			return fmt.Errorf("define nftables set %s: %w", set.Name, err)
		}
	}
	// Everything that goes first: adding an element that is there keeps the old value without a word.
	for name, set := range sets {
		for part := range slices.Chunk(have[name].without(want[name]), perMessage) {
			if err := s.nft.SetDeleteElements(set, part); err != nil {
				return fmt.Errorf("delete from nftables set %s: %w", name, err)
			}
		}
	}
	for name, set := range sets {
		for part := range slices.Chunk(want[name].without(have[name]), perMessage) {
			if err := s.nft.SetAddElements(set, part); err != nil {
				return fmt.Errorf("add to nftables set %s: %w", name, err)
			}
		}
	}
	s.rules(table, sets)
	if err := s.nft.Flush(); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("commit nftables table %s (if another version made it, delete it once): %w", tableName, err)
		}
		return fmt.Errorf("commit nftables table %s: %w", tableName, err)
	}
	st.records = records
	if st.named == nil {
		st.sets = want
		return nil
	}
	for name := range want {
		maps.DeleteFunc(st.sets[name], func(e element, _ bool) bool { return have[name][e] })
		maps.Copy(st.sets[name], want[name])
	}
	return nil
}
