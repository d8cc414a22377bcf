package network_test

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

var update = flag.Bool("update", false, "rewrite golden files")

func seeds() map[string]network.Seed {
	plain := network.Seed{
		PublicMAC:    "52:54:00:12:34:01",
		Addrs:        prefixes("203.0.113.7/32"),
		DNS:          []netip.Addr{netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("2620:fe::fe")},
		ProvisionMAC: "52:54:00:12:34:02",
	}
	dual := plain
	dual.Addrs = prefixes("203.0.113.7/32", "203.0.113.8/32", "2001:db8:7::/56", "2001:db8:9::9/128")
	fixed := plain
	fixed.DNS = nil
	fixed.ProvisionAddr = netip.MustParsePrefix("10.99.0.12/24")
	return map[string]network.Seed{"plain": plain, "dual": dual, "fixed": fixed}
}

func TestNetworkConfig(t *testing.T) {
	for name, seed := range seeds() {
		t.Run(name, func(t *testing.T) {
			got, err := seed.NetworkConfig()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", file, d)
			}
		})
	}
}

// TestG05 holds the file to the field case: one host whose NIC is called eno1, eth0 or eno1np0 by whoever looks. Each NIC is
// matched by its MAC address and by nothing else, and none is renamed.
func TestG05(t *testing.T) {
	for name, seed := range seeds() {
		got, err := seed.NetworkConfig()
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Ethernets map[string]map[string]any `json:"ethernets"`
		}
		if err := yaml.Unmarshal(got, &file); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"public":    map[string]any{"macaddress": seed.PublicMAC},
			"provision": map[string]any{"macaddress": seed.ProvisionMAC},
		}
		matches := map[string]any{}
		for id, nic := range file.Ethernets {
			matches[id] = nic["match"]
			if to, ok := nic["set-name"]; ok {
				t.Errorf("%s: renames %s to %v", name, id, to)
			}
		}
		if d := cmp.Diff(want, matches); d != "" {
			t.Errorf("%s: NICs are matched otherwise (-want +got):\n%s", name, d)
		}
	}
}

func TestNetworkConfigRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(*network.Seed)
		code  machine.Code
		field string
	}{
		"NoPublicMAC":    {func(s *network.Seed) { s.PublicMAC = "" }, machine.Invalid, "public_mac"},
		"NoProvisionMAC": {func(s *network.Seed) { s.ProvisionMAC = "eth0" }, machine.Invalid, "provision_mac"},
		"OneNIC":         {func(s *network.Seed) { s.ProvisionMAC = s.PublicMAC }, machine.Conflict, "provision_mac"},
		"NoAddress":      {func(s *network.Seed) { s.Addrs = nil }, machine.Invalid, "addrs"},
		"Subnet":         {func(s *network.Seed) { s.Addrs = prefixes("203.0.113.0/24") }, machine.Invalid, "addrs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := seeds()["plain"]
			c.edit(&s)
			_, err := s.NetworkConfig()
			refused(t, err, c.code, c.field)
		})
	}
}
