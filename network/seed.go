package network

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"
)

// Seed is what the network part of a machine's cloud-init seed is made of.
type Seed struct {
	PublicMAC string         // permanent MAC address of the public NIC
	Addrs     []netip.Prefix // as in Port
	Private   bool           // there is no public side: nobody holds the machine
	DNS       []netip.Addr   // resolvers that the public side reaches

	ProvisionMAC  string       // permanent MAC address of the provisioning NIC
	ProvisionAddr netip.Prefix // fixed address on the provisioning network; zero means DHCP

	Server          netip.Addr // of the provisioning API; where it is on another network, ProvisionRouter leads to it
	ProvisionRouter netip.Addr // zero means that the server is on the provisioning network
}

type netplan struct {
	Version   int                 `json:"version"`
	Ethernets map[string]ethernet `json:"ethernets"`
}

type ethernet struct {
	Match       match           `json:"match"`
	DHCP4       bool            `json:"dhcp4"`
	DHCP6       bool            `json:"dhcp6"`
	AcceptRA    bool            `json:"accept-ra"`
	Optional    bool            `json:"optional,omitempty"`
	Overrides   map[string]bool `json:"dhcp4-overrides,omitempty"`
	Addresses   []string        `json:"addresses,omitempty"`
	Nameservers *nameservers    `json:"nameservers,omitempty"`
	Routes      []route         `json:"routes,omitempty"`
}

type match struct {
	MACAddress string `json:"macaddress"`
}

type nameservers struct {
	Addresses []netip.Addr `json:"addresses"`
}

type route struct {
	To     string `json:"to"`
	Via    string `json:"via,omitempty"`
	OnLink bool   `json:"on-link,omitempty"`
	Scope  string `json:"scope,omitempty"`
}

// NetworkConfig returns the seed's network-config file, version 2. NICs are matched by permanent MAC address and never
// renamed: kernel and firmware disagree about names (field case G05).
//
// Both netplan 0.106 and cloud-init's own networkd renderer (22.4.2, Debian 12) were seen to bring up the wanted addresses
// and routes from it. The latter knows no on-link, so the gateway gets a link-scope route of its own; it turns ::/0 into
// ::/64, so the IPv6 default is 2000::/3, all that is routed on the Internet; and it drops dhcp4-overrides and optional of a
// NIC matched by MAC address: images without netplan want ProvisionAddr, or each boot of a machine that was handed over
// waits two minutes for a DHCP server behind a closed port.
//
// The provisioning NIC gets no route but one to the server alone, where that is on another network.
func (s Seed) NetworkConfig() ([]byte, error) {
	if err := checkMAC("public_mac", s.PublicMAC); err != nil {
		return nil, err
	}
	if err := checkMAC("provision_mac", s.ProvisionMAC); err != nil {
		return nil, err
	}
	if s.PublicMAC == s.ProvisionMAC {
		return nil, conflict("provision_mac", fmt.Sprintf("%s is both the public and the provisioning NIC", s.PublicMAC), "correct the machine's record")
	}
	ports := map[string]ethernet{"provision": s.provision()}
	if !s.Private {
		public, err := s.public()
		if err != nil {
			return nil, err
		}
		ports["public"] = public
	}
	out, err := yaml.Marshal(netplan{Version: 2, Ethernets: ports})
	if err != nil {
		return nil, fmt.Errorf("write network config: %w", err)
	}
	return out, nil
}

func (s Seed) public() (ethernet, error) {
	e := ethernet{Match: match{s.PublicMAC}}
	var four, six bool
	if len(s.Addrs) == 0 {
		return e, invalid("addrs", "a machine needs a public address", "assign one first")
	}
	for _, p := range s.Addrs {
		if err := checkAssigned(p); err != nil {
			return e, err
		}
		if p.Addr().Is4() {
			four = true
		} else {
			six = true
			p = FirstOf(p)
		}
		e.Addresses = append(e.Addresses, p.String())
	}
	if four {
		e.Routes = append(e.Routes,
			route{To: netip.PrefixFrom(Gateway4(), 32).String(), Scope: "link"},
			route{To: "0.0.0.0/0", Via: Gateway4().String(), OnLink: true})
	}
	if six {
		e.Routes = append(e.Routes, route{To: "2000::/3", Via: Gateway6().String(), OnLink: true})
	}
	if len(s.DNS) > 0 {
		e.Nameservers = &nameservers{s.DNS}
	}
	return e, nil
}

func (s Seed) provision() ethernet {
	e := ethernet{Match: match{s.ProvisionMAC}, Optional: true}
	if s.ProvisionAddr.IsValid() {
		e.Addresses = []string{s.ProvisionAddr.String()}
		if s.Server.IsValid() && s.ProvisionRouter.IsValid() && !s.ProvisionAddr.Contains(s.Server) {
			e.Routes = []route{{To: netip.PrefixFrom(s.Server, s.Server.BitLen()).String(), Via: s.ProvisionRouter.String()}}
		}
		return e
	}
	e.DHCP4 = true
	e.Overrides = map[string]bool{"use-dns": false, "use-domains": false, "use-hostname": false, "use-ntp": false, "use-routes": false}
	return e
}

// FirstOf is the address of an IPv6 prefix that the machine gets, with the length to configure it with; the rest is the
// customer's to use, as the whole prefix is routed to the machine.
func FirstOf(p netip.Prefix) netip.Prefix {
	if p.IsSingleIP() {
		return p
	}
	return netip.PrefixFrom(p.Addr().Next(), max(p.Bits(), 64))
}
