package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/netboot/dhcp"
)

// bootConfig is the provisioning network, and the further ones; without an interface the server does not network-boot anything.
type bootConfig struct {
	Interface string         `yaml:"interface"`
	Address   netip.Addr     `yaml:"address"` // ours on the interface, IPv4
	Address6  netip.Prefix   `yaml:"address6"`
	HTTPPort  uint16         `yaml:"http_port"`
	Mode      string         `yaml:"mode"`
	Prefix    netip.Prefix   `yaml:"prefix"` // the network: machines get their reserved addresses from it
	Range     netboot.Range  `yaml:"range"`
	Discovery bool           `yaml:"discovery"` // look at machines that nobody knows
	Router    netip.Addr     `yaml:"router"`
	DNS       []netip.Addr   `yaml:"dns"`
	Subnets   []subnetConfig `yaml:"subnets"`

	OtherServers []netip.Addr `yaml:"other_dhcp_servers"`

	LoaderDir  string        `yaml:"loader_dir"` // undionly.kpxe and snponly.efi
	Loaders    loadersConfig `yaml:"loaders"`
	SecureBoot string        `yaml:"secure_boot"`
	Classes    []string      `yaml:"secure_boot_classes"`
	Shim       string        `yaml:"shim"`
	GRUB       string        `yaml:"grub"`
	Kernel     string        `yaml:"kernel"`  // of the RAM disk
	RAMDisk    string        `yaml:"ramdisk"` // with bareyard-agent

	MediaListen string `yaml:"media_listen"` // where BMCs fetch discs, for machines without a boot from the network; none
	MediaISO    string `yaml:"media_iso"`

	KernelArgs string `yaml:"kernel_args"` // more of them, for every machine; never a secret
}

// subnetConfig is one further network.
type subnetConfig struct {
	Prefix    netip.Prefix  `yaml:"prefix"`
	Interface string        `yaml:"interface"` // empty: heard through relays only
	Address   netip.Addr    `yaml:"address"`
	Address6  netip.Prefix  `yaml:"address6"`
	Prefix6   netip.Prefix  `yaml:"prefix6"` // of a network without an interface
	Range     netboot.Range `yaml:"range"`
	Router    netip.Addr    `yaml:"router"`
	DNS       []netip.Addr  `yaml:"dns"`
}

// loadersConfig names the first file of each kind of firmware.
type loadersConfig struct {
	BIOS  string `yaml:"bios"`
	IA32  string `yaml:"ia32"`
	X64   string `yaml:"x64"`
	ARM64 string `yaml:"arm64"`
}

// Values of boot.mode and boot.secure_boot.
const (
	modeAuthoritative = "authoritative"
	modeProxy         = "proxy"
	secureOff         = "off"
	secureShim        = "shim"
)

func (b *bootConfig) fill(folder string) {
	b.HTTPPort = cmp.Or(b.HTTPPort, 80)
	b.Mode = cmp.Or(b.Mode, modeAuthoritative)
	b.SecureBoot = cmp.Or(b.SecureBoot, secureOff)
	for _, l := range []struct {
		name     *string
		platform dhcp.Platform
	}{
		{&b.Loaders.BIOS, dhcp.PlatformBIOS}, {&b.Loaders.IA32, dhcp.PlatformIA32}, {&b.Loaders.X64, dhcp.PlatformX64}, {&b.Loaders.ARM64, dhcp.PlatformARM64},
	} {
		*l.name = cmp.Or(*l.name, l.platform.Loader())
		if strings.Contains(*l.name, "/") {
			*l.name = absolute(folder, *l.name)
		}
	}
}

// loaders returns those that are not the usual ones.
func (b *bootConfig) loaders() map[dhcp.Platform]string {
	all := map[dhcp.Platform]string{
		dhcp.PlatformBIOS: b.Loaders.BIOS, dhcp.PlatformIA32: b.Loaders.IA32, dhcp.PlatformX64: b.Loaders.X64, dhcp.PlatformARM64: b.Loaders.ARM64,
	}
	for p, name := range all {
		if name == p.Loader() {
			delete(all, p)
		}
	}
	return all
}

// networks returns all networks, the one of the interface first. In one that is ours and not the first the way to the server leads through
// our own address there, unless a router is named.
func (b *bootConfig) networks() []netboot.Subnet {
	all := []netboot.Subnet{{Prefix: b.Prefix, Interface: b.Interface, Addr: b.Address, Range: b.Range, Router: b.Router, DNS: b.DNS, Addr6: b.Address6}}
	for _, s := range b.Subnets {
		n := netboot.Subnet{Prefix: s.Prefix, Interface: s.Interface, Addr: s.Address, Range: s.Range, Router: s.Router, DNS: s.DNS, Addr6: s.Address6, Prefix6: s.Prefix6}
		if !n.Router.IsValid() {
			n.Router = n.Addr
		}
		all = append(all, n)
	}
	return all
}

func (b *bootConfig) problem() (key, problem, hint string) {
	if !slices.Contains([]string{modeAuthoritative, modeProxy}, b.Mode) {
		return "boot.mode", fmt.Sprintf("%q is no mode", b.Mode), "authoritative (this server gives the addresses) or proxy (another DHCP server does)"
	}
	if !slices.Contains([]string{secureOff, secureShim}, b.SecureBoot) {
		return "boot.secure_boot", fmt.Sprintf("%q is no way to boot", b.SecureBoot), "off, or shim for UEFI machines with Secure Boot"
	}
	if len(b.Classes) > 0 && b.SecureBoot == secureOff {
		return "boot.secure_boot_classes", "names classes, and boot.secure_boot is off", "set boot.secure_boot: shim"
	}
	for key, name := range map[string]string{"bios": b.Loaders.BIOS, "ia32": b.Loaders.IA32, "x64": b.Loaders.X64, "arm64": b.Loaders.ARM64} {
		if base := filepath.Base(name); strings.ContainsAny(name, "\\ ") || base == "." || base == ".." || base == "/" {
			return "boot.loaders." + key, fmt.Sprintf("%q is not the name of a file", name), "write a name in boot.loader_dir, or a path"
		}
	}
	if b.MediaListen != "" {
		if a, err := netip.ParseAddrPort(b.MediaListen); err != nil || a.Addr().IsUnspecified() || a.Port() == 0 {
			return "boot.media_listen", fmt.Sprintf("%q is not address:port", b.MediaListen), "write this server's address on the BMCs' network, as 10.98.0.1:8081: BMCs are told it"
		}
	}
	if b.Interface == "" {
		if b.Address.IsValid() || b.Prefix.IsValid() || len(b.Subnets) > 0 {
			return "boot.interface", "is missing", "name the interface on the provisioning network, as in `ip link`"
		}
		return "", "", ""
	}
	if !isDevice(b.Interface) {
		return "boot.interface", fmt.Sprintf("%q is not the name of a network device", b.Interface), "see `ip link`"
	}
	if !b.Prefix.IsValid() || !b.Prefix.Addr().Is4() || b.Prefix != b.Prefix.Masked() {
		return "boot.prefix", fmt.Sprintf("must be the IPv4 network on %s, without host bits", b.Interface), "write it as 10.99.0.0/24"
	}
	if !b.Address.IsValid() || !b.Prefix.Contains(b.Address) {
		return "boot.address", fmt.Sprintf("must be this server's address on %s, within %s", b.Interface, b.Prefix), "see `ip addr`"
	}
	for i, a := range b.OtherServers {
		if !a.Is4() {
			return fmt.Sprintf("boot.other_dhcp_servers[%d]", i), fmt.Sprintf("%s is not an IPv4 address", a), "name each DHCP server by its server identifier, option 54"
		}
	}
	return b.subnetProblem()
}

// subnetProblem is problem for what all networks have in common.
func (b *bootConfig) subnetProblem() (key, problem, hint string) {
	at := func(i int) string {
		if i == 0 {
			return "boot"
		}
		return fmt.Sprintf("boot.subnets[%d]", i-1)
	}
	all := b.networks()
	for i, n := range all {
		switch {
		case n.Interface != "" && !isDevice(n.Interface):
			return at(i) + ".interface", fmt.Sprintf("%q is not the name of a network device", n.Interface), "see `ip link`; leave it out for a network behind relays"
		case !n.Prefix.IsValid():
			return at(i) + ".prefix", "is missing", "write it as 10.98.0.0/24"
		case n.Interface == "" && !n.Router.IsValid() && !n.Addr.IsValid():
			return at(i) + ".router", "is missing", "machines behind a relay reach this server through a router: name it; or name an interface"
		case b.Mode == modeProxy && n.Range != (netboot.Range{}):
			return at(i) + ".range", "gives addresses, and boot.mode is proxy", "leave it out: the other DHCP server gives the addresses"
		case b.Mode == modeProxy && n.Addr6.IsValid():
			return at(i) + ".address6", "gives addresses, and boot.mode is proxy", "leave it out: in proxy mode machines boot over IPv4"
		case b.Mode == modeProxy && n.Prefix6.IsValid():
			return at(i) + ".prefix6", "gives addresses, and boot.mode is proxy", "leave it out: in proxy mode machines boot over IPv4"
		}
	}
	if i, err := netboot.CheckSubnets(all); err != nil {
		field, problem, _ := strings.Cut(err.Error(), ": ")
		return at(i) + "." + field, problem, subnetHints[field]
	}
	ranged := slices.ContainsFunc(all, func(n netboot.Subnet) bool { return n.Range != (netboot.Range{}) })
	if b.Discovery && b.Mode == modeAuthoritative && !ranged {
		return "boot.discovery", "is on, and no network has addresses for machines that nobody knows", "set boot.range, e.g. to 10.99.0.200-10.99.0.250: addresses of the network that nobody else has"
	}
	return "", "", ""
}

var subnetHints = map[string]string{
	"prefix":   "write it as 10.98.0.0/24; networks do not overlap",
	"address":  "this server's address on the interface of that network; a network without an interface has none",
	"address6": "write it as fd00:98::1/64",
	"prefix6":  "write it as fd00:98::/64, for a network behind relays; one with an interface has address6",
	"range":    "write it as 10.98.0.200-10.98.0.250: addresses of the network that nobody else has",
	"router":   "the gateway of the machines in that network",
}
