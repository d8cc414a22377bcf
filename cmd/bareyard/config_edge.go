package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/frr"
	"github.com/bareyard/bareyard/network/linuxedge"
)

// edgeConfig is what carries public addresses: a Linux box, this one or another. Without an uplink or an address none is driven.
type edgeConfig struct {
	Driver   string         `yaml:"driver"`  // manual: people do its work; else it follows from what else there is
	Name     string         `yaml:"name"`    // of an edge on another box, as in its credentials
	Address  string         `yaml:"address"` // where that box listens, host:port
	Netns    string         `yaml:"netns"`   // name as in `ip netns`; empty is our own
	Uplink   string         `yaml:"uplink"`
	Downlink string         `yaml:"downlink"`
	Deny     []netip.Prefix `yaml:"deny"`     // what no customer may reach
	Capacity mbit           `yaml:"capacity"` // of either device; what bursts share
	BGP      edgeBGPConfig  `yaml:"bgp"`
}

// edgeBGPConfig is what FRR on the edge's box tells carriers; without an AS number it is left alone.
type edgeBGPConfig struct {
	ASN       asn                  `yaml:"asn"`
	RouterID  netip.Addr           `yaml:"router_id"`
	Ranges    []netip.Prefix       `yaml:"ranges"`
	Blackhole []string             `yaml:"blackhole_communities"`
	Sockets   string               `yaml:"sockets"` // folder of FRR's vty sockets
	Neighbors []edgeNeighborConfig `yaml:"neighbors"`
}

// edgeNeighborConfig is a carrier's router.
type edgeNeighborConfig struct {
	Address      netip.Addr `yaml:"address"`
	ASN          asn        `yaml:"asn"`
	Announce     string     `yaml:"announce"` // hosts or ranges
	PasswordFile string     `yaml:"password_file"`
}

// asn is a number of an autonomous system.
type asn uint32

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *asn) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no AS number: give 1 to 4294967295", text)
	}
	*a = asn(n)
	return nil
}

func (b *edgeBGPConfig) speaker(downlink string) frr.Config {
	c := frr.Config{ASN: uint32(b.ASN), RouterID: b.RouterID, Downlink: downlink, Ranges: b.Ranges, Blackhole: b.Blackhole, Sockets: b.Sockets}
	for _, n := range b.Neighbors {
		c.Neighbors = append(c.Neighbors, frr.Neighbor{Address: n.Address, ASN: uint32(n.ASN), Hosts: n.Announce == "hosts", PasswordFile: n.PasswordFile})
	}
	return c
}

func (b *edgeBGPConfig) problem(at, downlink string) (key, problem, hint string) {
	if b.ASN == 0 {
		if len(b.Neighbors) > 0 || len(b.Ranges) > 0 {
			return at + ".asn", "is missing", "give our AS number, or leave bgp out"
		}
		return "", "", ""
	}
	for i, n := range b.Neighbors {
		if n.Announce != "" && n.Announce != "hosts" && n.Announce != "ranges" {
			return fmt.Sprintf("%s.neighbors[%d].announce", at, i), fmt.Sprintf("%q is nothing to announce", n.Announce), "hosts (each address) or ranges (which carriers want; blackholes besides)"
		}
	}
	if e := (*machine.Error)(nil); errors.As(b.speaker(downlink).Validate(), &e) {
		field := e.Field
		if field == "blackhole" {
			field = "blackhole_communities"
		}
		return at + "." + field, "is not right: " + e.Message, e.Hint
	}
	return "", "", ""
}

// siteEdgeConfig is the edge of one site.
type siteEdgeConfig struct {
	Site string     `yaml:"site"`
	Edge edgeConfig `yaml:"edge"`
}

// mbit is a bandwidth in Mbit/s.
type mbit int

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *mbit) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 || n > network.MaxKbit/1000 {
		return fmt.Errorf("%q is no bandwidth: give 1 to %d Mbit/s", text, network.MaxKbit/1000)
	}
	*m = mbit(n)
	return nil
}

func (c *config) edgesProblem() (key, problem, hint string) {
	if key, problem, hint := c.Edge.problem("edge"); problem != "" {
		return key, problem, hint
	}
	sites := map[string]bool{}
	for i, e := range c.Edges {
		at := fmt.Sprintf("edges[%d]", i)
		switch {
		case e.Site == "":
			return at + ".site", "is missing", "name the site of the machines that this edge serves"
		case sites[e.Site]:
			return at + ".site", fmt.Sprintf("%q has an edge already", e.Site), "keep one"
		case !e.Edge.driven():
			return at + ".edge", "is missing", "give it an uplink and a downlink, or the name and address of another box"
		}
		sites[e.Site] = true
		if key, problem, hint := e.Edge.problem(at + ".edge"); problem != "" {
			return key, problem, hint
		}
	}
	return "", "", ""
}

func (e *edgeConfig) fill(folder string) {
	for i, n := range e.BGP.Neighbors {
		if n.PasswordFile != "" {
			e.BGP.Neighbors[i].PasswordFile = absolute(folder, n.PasswordFile)
		}
	}
}

func (e *edgeConfig) driven() bool {
	return e.Uplink != "" || e.Downlink != "" || e.Address != "" || e.Name != "" || e.Driver != ""
}

func (e *edgeConfig) problem(at string) (key, problem, hint string) {
	for i, p := range e.Deny {
		if p != p.Masked() {
			return fmt.Sprintf("%s.deny[%d]", at, i), fmt.Sprintf("%s has host bits", p), fmt.Sprintf("did you mean %s?", p.Masked())
		}
	}
	if e.Driver != "" {
		return e.driverProblem(at)
	}
	if e.Address != "" || e.Name != "" {
		return e.remoteProblem(at)
	}
	if !e.driven() {
		return "", "", ""
	}
	for _, d := range []struct{ key, device string }{{"uplink", e.Uplink}, {"downlink", e.Downlink}} {
		if !isDevice(d.device) {
			return at + "." + d.key, fmt.Sprintf("%q is not the name of a network device", d.device), "an edge needs both, uplink and downlink; see `ip link`"
		}
	}
	if e.Uplink == e.Downlink {
		return at + ".downlink", "is the same device as the uplink", "give the edge one device per side"
	}
	return e.BGP.problem(at+".bgp", e.Downlink)
}

func (e *edgeConfig) driverProblem(at string) (key, problem, hint string) {
	if e.Driver != manualDialect {
		return at + ".driver", fmt.Sprintf("%q is no driver", e.Driver), "write manual for an edge whose work people do; leave it out for a Linux box, this one or another"
	}
	if e.Uplink != "" || e.Downlink != "" || e.Address != "" || e.Name != "" || e.BGP.ASN != 0 || e.Capacity != 0 {
		return at + ".driver", "is manual, beside what a program would drive", "keep the one or the other"
	}
	return "", "", ""
}

func (e *edgeConfig) remoteProblem(at string) (key, problem, hint string) {
	if e.Uplink != "" || e.Downlink != "" || e.Netns != "" || len(e.Deny) > 0 || e.Capacity != 0 || e.BGP.ASN != 0 {
		return at + ".address", "is of another box, beside devices of this one", "its devices, deny, capacity and bgp belong into the configuration of that box: docs/edge.yaml"
	}
	if host, port, err := net.SplitHostPort(e.Address); err != nil || host == "" || !isPort(port) {
		return at + ".address", fmt.Sprintf("%q is not host:port", e.Address), "write it as 10.98.0.5:8444"
	}
	if !isEdgeName(e.Name) {
		return at + ".name", fmt.Sprintf("%q is not the name of an edge", e.Name), "give the name for which its credentials were issued: bareyard edge issue NAME"
	}
	return "", "", ""
}

// isEdgeName reports whether a name can be a label of DNS.
func isEdgeName(s string) bool {
	for i, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && (r != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

func (e *edgeConfig) linux() linuxedge.Config {
	return linuxedge.Config{Netns: e.Netns, Uplink: e.Uplink, Downlink: e.Downlink, Deny: e.Deny, Capacity: int(e.Capacity) * 1000}
}
