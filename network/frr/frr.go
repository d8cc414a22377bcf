// Package frr has FRR announce what a Linux edge carries: the addresses of machines, and blackholes as such (RTBH).
//
// The edge writes kernel routes only; bgpd redistributes them. A route-map takes those whose destination is in our ranges and
// which lead to the downlink, or are blackholes, and gives the latter the communities by which carriers know them. So an address is
// announced, withdrawn or blackholed by the same act by which it is routed, with nothing that could be forgotten between them, and
// FRR needs nobody to tell it again after a restart.
//
// FRR 8.4 matches no number of rtm_protocol in a route-map (zebra calls every route that is not of a daemon of its own "kernel"): the
// device, the kind of route and our ranges together say which are ours.
//
// no-export is never set here: bgpd would keep the blackhole from the carrier for whom it is meant. The carrier adds it (RFC 7999).
package frr

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/bareyard/bareyard/machine"
)

// Config is what is to be announced to whom.
type Config struct {
	ASN       uint32         // ours
	RouterID  netip.Addr     // IPv4
	Downlink  string         // device of the edge to which the machines' addresses are routed
	Ranges    []netip.Prefix // of which the addresses are
	Neighbors []Neighbor
	Blackhole []string // communities of a blackhole, e.g. 65535:666 (RFC 7999), which is the default, and the carriers' own
	Sockets   string   // folder of the daemons' vty sockets; "" is FRR's own
}

// Neighbor is a router that is told.
type Neighbor struct {
	Address      netip.Addr
	ASN          uint32
	Hosts        bool   // it is told of each address; else of ranges that have one, and of each blackhole
	PasswordFile string // of TCP MD5 signatures; "" for none
}

// Validate returns an Invalid error that names the field.
func (c Config) Validate() error {
	switch {
	case c.ASN == 0:
		return invalid("asn", "our AS number is missing", "give the one that the carriers know")
	case !c.RouterID.Is4():
		return invalid("router_id", fmt.Sprintf("%s is no router ID", c.RouterID), "give an IPv4 address of this edge")
	case c.Downlink == "":
		return invalid("downlink", "the downlink is missing", "give the edge's")
	case len(c.Ranges) == 0:
		return invalid("ranges", "there is nothing to announce", "give the prefixes of which the machines' addresses are")
	case len(c.Neighbors) == 0:
		return invalid("neighbors", "there is nobody to tell", "give at least one router")
	}
	for i, r := range c.Ranges {
		if !r.IsValid() || r != r.Masked() || r.Addr().Is4In6() {
			return invalid("ranges", fmt.Sprintf("%s is not a prefix without host bits", r), "write it as 203.0.113.0/24")
		}
		for _, o := range c.Ranges[:i] {
			if r.Overlaps(o) {
				return invalid("ranges", fmt.Sprintf("%s overlaps %s", r, o), "leave the smaller one out")
			}
		}
	}
	for i, n := range c.Neighbors {
		if !n.Address.IsValid() || n.Address.Zone() != "" || n.ASN == 0 {
			return invalid("neighbors", fmt.Sprintf("neighbor %d lacks an address or an AS number", i+1), "give both")
		}
		for _, o := range c.Neighbors[:i] {
			if n.Address == o.Address {
				return invalid("neighbors", fmt.Sprintf("%s is there twice", n.Address), "keep one")
			}
		}
	}
	_, err := c.communities()
	return err
}

func invalid(field, message, hint string) error {
	return &machine.Error{Code: machine.Invalid, Field: field, Message: message, Hint: hint}
}

// community is one of 16 + 16 bits (RFC 1997).
type community uint32

const blackhole community = 65535<<16 | 666 // RFC 7999

func (c community) String() string {
	if c == blackhole {
		return "blackhole"
	}
	return fmt.Sprintf("%d:%d", c>>16, uint16(c))
}

// communities returns those of a blackhole as bgpd writes them: sorted by number.
func (c Config) communities() (string, error) {
	var all []community
	for _, s := range c.Blackhole {
		high, low, ok := strings.Cut(s, ":")
		h, err1 := strconv.ParseUint(high, 10, 16)
		l, err2 := strconv.ParseUint(low, 10, 16)
		if !ok || err1 != nil || err2 != nil {
			return "", invalid("blackhole", fmt.Sprintf("%q is not a community", s), "write it as 65535:666")
		}
		n := community(h<<16 | l)
		if h == 65535 && n != blackhole {
			return "", invalid("blackhole", fmt.Sprintf("%s is reserved", s), "no-export and its like stop the announcement: leave them out, the carrier adds them")
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		all = []community{blackhole}
	}
	slices.Sort(all)
	var out []string
	for _, n := range slices.Compact(all) {
		out = append(out, n.String())
	}
	return strings.Join(out, " "), nil
}

// Names of our objects in FRR's configuration. Whatever begins with one of them is ours, and so is a neighbor with mark as its
// description.
const (
	mark      = "bareyard"
	hosts     = mark + "-hosts"     // prefix-lists: single addresses of our ranges
	ranges    = mark + "-ranges"    // prefix-lists: the ranges
	defaults  = mark + "-default"   // prefix-lists: the default route
	holes     = mark + "-blackhole" // community-list
	kernel    = mark + "-kernel"    // route-maps, by family: what is taken from the kernel
	outHosts  = mark + "-out-hosts"
	outRanges = mark + "-out-ranges"
	in        = mark + "-in"
	whole     = mark + "-whole" // route-map of the ranges that we aggregate: says that they are ours
)

// families are IPv4 and IPv6 as FRR's commands name them.
func families() []family {
	return []family{{"ip", "ipv4", "4", 32, 32}, {"ipv6", "ipv6", "6", 48, 128}}
}

type family struct {
	word, afi, suffix string
	shortest, longest int // prefixes of machines
}

func (f family) of(a netip.Addr) bool { return a.Is4() == (f.suffix == "4") }

// statements returns the configuration that is wanted. explicit says that bgpd activates no neighbor for IPv4 by itself.
func (c Config) statements(explicit bool) ([]statement, error) {
	var out []statement
	add := func(path ...string) { out = append(out, path) }
	communities, err := c.communities()
	if err != nil {
		return nil, err
	}
	for _, f := range families() {
		n := 0
		for _, r := range c.sorted() {
			if !f.of(r.Addr()) {
				continue
			}
			n += 5
			list := func(name, r string) {
				add(fmt.Sprintf("%s prefix-list %s%s seq %d permit %s", f.word, name, f.suffix, n, r))
			}
			if r.Bits() < f.longest {
				list(hosts, fmt.Sprintf("%s ge %d", r, max(f.shortest, r.Bits()+1)))
			} else {
				list(hosts, r.String())
			}
			list(ranges, r.String())
		}
		add(fmt.Sprintf("%s prefix-list %s%s seq 5 permit %s", f.word, defaults, f.suffix, map[string]string{"4": "0.0.0.0/0", "6": "::/0"}[f.suffix]))
	}
	add("bgp community-list standard " + holes + " seq 5 permit " + communities)
	routeMap := func(name string, seq int, lines ...string) {
		for _, l := range lines {
			add(fmt.Sprintf("route-map %s permit %d", name, seq), l)
		}
	}
	for _, f := range families() {
		host := "match " + f.word + " address prefix-list " + hosts + f.suffix
		routeMap(kernel+f.suffix, 10, host, "match "+f.word+" next-hop type blackhole", "set community "+communities)
		routeMap(kernel+f.suffix, 20, host, "match interface "+c.Downlink)
		routeMap(outHosts+f.suffix, 10, host)
		routeMap(outRanges+f.suffix, 10, host, "match community "+holes)
		routeMap(outRanges+f.suffix, 20, "match "+f.word+" address prefix-list "+ranges+f.suffix)
		routeMap(in+f.suffix, 10, "match "+f.word+" address prefix-list "+defaults+f.suffix)
	}
	add("route-map " + whole + " permit 10")
	return out, c.router(explicit, add)
}

// router adds the statements of bgpd's router.
func (c Config) router(explicit bool, add func(...string)) error {
	bgp := c.bgp()
	add(bgp, "bgp router-id "+c.RouterID.String())
	// While this timer of update groups runs, by default a second after a session came up, bgpd 8.4 skips withdrawals and never makes
	// up for them: a carrier would be told of addresses that no machine has until the session ends.
	add(bgp, "coalesce-time 0")
	for _, n := range c.Neighbors {
		peer := "neighbor " + n.Address.String()
		add(bgp, fmt.Sprintf("%s remote-as %d", peer, n.ASN))
		add(bgp, peer+" description "+mark)
		if n.PasswordFile != "" {
			password, err := readPassword(n.PasswordFile)
			if err != nil {
				return err
			}
			add(bgp, peer+" password "+password)
		}
	}
	for _, f := range families() {
		section := "address-family " + f.afi + " unicast"
		add(bgp, section, "redistribute kernel route-map "+kernel+f.suffix)
		for _, r := range c.sorted() {
			if f.of(r.Addr()) && r.Bits() < f.longest {
				add(bgp, section, "aggregate-address "+r.String()+" route-map "+whole)
			}
		}
		for _, n := range c.Neighbors {
			peer, out := "neighbor "+n.Address.String(), outRanges
			if n.Hosts {
				out = outHosts
			}
			if !f.of(n.Address) {
				if f.suffix == "4" && !explicit { // bgpd has activated it by itself
					add(bgp, section, "no "+peer+" activate")
				}
				continue
			}
			if f.suffix == "6" || explicit {
				add(bgp, section, peer+" activate")
			}
			add(bgp, section, peer+" next-hop-self")
			add(bgp, section, peer+" route-map "+in+f.suffix+" in")
			add(bgp, section, peer+" route-map "+out+f.suffix+" out")
		}
	}
	return nil
}

func (c Config) bgp() string { return fmt.Sprintf("router bgp %d", c.ASN) }

func (c Config) sorted() []netip.Prefix {
	return slices.SortedFunc(slices.Values(c.Ranges), netip.Prefix.Compare)
}

// readPassword reads the first line of a file.
func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", invalid("password_file", err.Error(), "write the password that the neighbor expects into it, with mode 0600")
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSpace(line)
	if line == "" || len(line) > 80 || strings.ContainsFunc(line, unicode.IsSpace) {
		return "", invalid("password_file", file+" does not begin with a password", "write one of up to 80 bytes without white space")
	}
	return line, nil
}

// statement is a line of FRR's configuration below the sections that it is in.
type statement []string

func (s statement) key() string { return strings.Join(s, "\x00") }

// parse reads a configuration as `show running-config` writes it: indented by section.
func parse(text string) []statement {
	var out []statement
	var path []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n ")
		word := strings.TrimLeft(line, " ")
		depth := len(line) - len(word)
		if word == "" || word == "!" || word == "end" || strings.HasPrefix(word, "exit") {
			continue
		}
		if depth > len(path) {
			continue // no line of a section that we know
		}
		path = append(path[:depth:depth], word)
		out = append(out, slices.Clone(path))
	}
	return out
}

// changes returns the commands that turn a running configuration into the one that is wanted: nothing when it is there. What is
// not ours is left alone.
func changes(c Config, running []statement) ([]string, error) {
	explicit := slices.ContainsFunc(running, func(s statement) bool { return len(s) == 2 && s[0] == c.bgp() && s[1] == "no bgp default ipv4-unicast" })
	want, err := c.statements(explicit)
	if err != nil {
		return nil, err
	}
	have, wanted, sections := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range running {
		have[s.key()] = true
		if word, ok := strings.CutPrefix(s[0], "router bgp "); ok && len(s) == 1 && word != strconv.FormatUint(uint64(c.ASN), 10) && !strings.Contains(word, " ") {
			return nil, &machine.Error{Code: machine.Conflict, Field: "asn", Message: fmt.Sprintf("FRR is AS %s already, not %d", word, c.ASN), Hint: "correct the one or the other: bgpd is one AS"}
		}
	}
	for _, s := range want {
		wanted[s.key()] = true
		for i := 1; i < len(s); i++ {
			sections[s[:i].key()] = true
		}
	}
	var out []string
	emit := func(s statement, line string) {
		out = append(out, s[:len(s)-1]...)
		out = append(out, line)
		for range len(s) - 1 {
			out = append(out, "exit")
		}
		if len(s) == 1 && strings.HasPrefix(line, "route-map ") {
			out = append(out, "exit")
		}
	}
	for _, s := range running {
		if wanted[s.key()] || sections[s.key()] || !ours(s, running) {
			continue
		}
		if len(s) > 1 && ours(s[:1], running) && !sections[s[:1].key()] {
			continue // goes with its section
		}
		line := "no " + strings.TrimPrefix(s[len(s)-1], "no ")
		if peer, _, ok := strings.Cut(line, " password "); ok {
			line = peer + " password" // FRR wants it without, and nobody need see it
		}
		emit(s, line)
	}
	for _, s := range want {
		if !have[s.key()] {
			emit(s, s[len(s)-1])
		}
	}
	return out, nil
}

// ours reports whether a statement is about an object of ours.
func ours(s statement, running []statement) bool {
	f := strings.Fields(s[0])
	switch {
	case len(f) > 2 && f[0] == "route-map":
		return strings.HasPrefix(f[1], mark+"-")
	case len(f) > 3 && f[1] == "prefix-list":
		return strings.HasPrefix(f[2], mark+"-")
	case len(f) > 4 && f[1] == "community-list":
		return strings.HasPrefix(f[3], mark+"-")
	case len(s) > 1 && len(f) > 1 && f[0] == "router":
		last := strings.Fields(s[len(s)-1])
		if len(s) == 2 && len(last) > 2 && last[0] == "neighbor" && (last[2] == "remote-as" || last[2] == "password") { // with the first goes all of the neighbor
			return slices.ContainsFunc(running, func(o statement) bool {
				return len(o) == 2 && o[0] == s[0] && o[1] == "neighbor "+last[1]+" description "+mark
			})
		}
		return len(s) == 3 && last[0] == "aggregate-address" && last[len(last)-1] == whole
	}
	return false
}
