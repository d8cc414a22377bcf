package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/bareyard/bareyard/machine"
)

// lease gets a machine that nobody has enrolled its address by DHCP, as iPXE asks: no address is reserved for it. give takes
// the address off the interface that all simulated machines share.
func (s *Simulated) lease(l *life) (give func(), err error) {
	mac, err := net.ParseMAC(s.provMAC)
	if err != nil {
		return nil, err
	}
	var client *nclient4.Client
	err = s.net.Enter(Racks, func() error {
		client, err = nclient4.New("rack0", nclient4.WithHWAddr(mac), nclient4.WithTimeout(time.Second), nclient4.WithRetry(4))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open DHCP client: %w", err)
	}
	defer client.Close()
	var got *nclient4.Lease
	for range firmwareTries {
		got, err = client.Request(l.ctx, dhcpv4.WithBroadcast(true), dhcpv4.WithUserClass("iPXE", false), dhcpv4.WithOption(dhcpv4.OptClientArch(iana.INTEL_X86PC)),
			dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00000:UNDI:002001")))
		if err == nil || l.ctx.Err() != nil || !pause(l.ctx, firmwarePause) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ask for an address: %w", err)
	}
	addr, ok := netip.AddrFromSlice(got.ACK.YourIPAddr.To4())
	if !ok {
		return nil, errors.New("ask for an address: none given")
	}
	l.addr = addr
	if addr == s.bootAddr { // enrolled by now; the lab has put it on the interface
		return func() {}, nil
	}
	if err := s.onRack(addr, true); err != nil {
		return nil, err
	}
	return func() {
		if err := s.onRack(addr, false); err != nil {
			s.log.Warn("address not taken off", "err", err)
		}
	}, nil
}

// onRack puts an address on the simulated machines' interface, or takes it off.
func (s *Simulated) onRack(addr netip.Addr, on bool) error {
	verb := map[bool]string{true: "replace", false: "del"}[on]
	out, err := s.net.Command(context.Background(), Racks, "ip", "address", verb, netip.PrefixFrom(addr, ProvisionNet.Bits()).String(), "dev", "rack0").CombinedOutput()
	if err != nil {
		return fmt.Errorf("address %s on rack0: %w: %s", addr, err, out)
	}
	return nil
}

// discovered is what the agent finds on a machine that nobody has enrolled.
func (h *hands) discovered() machine.Inventory {
	r := h.record()
	found := r.Hardware
	found.Accelerators = found.Accelerators[:max(0, len(found.Accelerators)-h.Absent)]
	inv := machine.Inventory{Hardware: found, CPU: "simulated", Cores: 1, Sockets: 1, Memory: int64(h.Memory) << 20, Firmware: h.Firmware, Kernel: "simulated",
		System: machine.System{Vendor: "Bareyard", Model: "Lab", BIOSVersion: "1.0"},
		BMC:    &machine.BMCFacts{Address: h.bmcAddr.String(), Firmware: "1.0", IPMI: "2.0"}}
	for _, n := range found.NICs {
		inv.Ports = append(inv.Ports, machine.PortFacts{Name: string(n.Role), MAC: n.MAC, Bus: "virtio", Link: true, Booted: n.MAC == h.provMAC,
			Neighbour: &machine.Neighbour{System: "fabric", Port: n.Port}})
	}
	return inv
}
