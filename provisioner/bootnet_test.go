package provisioner_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// TestForeignDHCP: where another server gives the addresses, a machine boots with whatever it was given, and the nonce is
// still for its job and attempt alone.
func TestForeignDHCP(t *testing.T) {
	y := newYard(t)
	y.ForeignDHCP = true
	m := y.addMachine(1)
	nic, _ := m.Hardware.NICByRole(machine.ProvisionNIC)
	elsewhere := netip.MustParseAddr("10.77.3.9")
	if _, err := y.MintBoot(t.Context(), nic.MAC, elsewhere); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("boot archive without a job: %v", err)
	}
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	if _, err := y.MintBoot(t.Context(), nic.MAC, elsewhere); err != nil {
		t.Errorf("boot archive at an address of another server: %v", err)
	}
	r := y.bootAgent(m.ID)
	hello := machine.Hello{Nonce: r.nonce, MACs: []string{nic.MAC}}
	if _, err := y.Hello(t.Context(), machine.Hello{Nonce: r.nonce, MACs: []string{"02:00:00:00:00:99"}}, elsewhere); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("hello of another machine: %v", err)
	}
	if _, err := y.Hello(t.Context(), hello, elsewhere.Next()); err != nil {
		t.Errorf("hello from yet another address: %v", err)
	}
}

// TestSeedRoute: a machine behind a router gets a route to the server alone; one on the server's network gets none.
func TestSeedRoute(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o := machine.Order{Hostname: "h", SSHKeys: []string{"ssh-ed25519 x"}, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}}
	seed := func(net provisioner.BootNet) string {
		t.Helper()
		files, err := provisioner.Seed(m, machine.Job{ID: "j", Attempt: 1}, o, provisioner.SeedOptions{Agents: "https://10.99.0.1:8443", Token: "t", Net: net})
		y.must(err)
		return files["network-config"]
	}
	behind := seed(provisioner.BootNet{Prefix: netip.PrefixFrom(m.BootAddr, 24).Masked(), Router: m.BootAddr.Next()})
	if !strings.Contains(behind, "to: 10.99.0.1/32") || !strings.Contains(behind, "via: "+m.BootAddr.Next().String()) {
		t.Errorf("behind a router:\n%s", behind)
	}
	for name, net := range map[string]provisioner.BootNet{
		"no router": {Prefix: netip.PrefixFrom(m.BootAddr, 24).Masked()}, "same network": {Prefix: netip.MustParsePrefix("10.0.0.0/8"), Router: m.BootAddr.Next()},
	} {
		if text := seed(net); strings.Contains(text, "10.99.0.1") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
