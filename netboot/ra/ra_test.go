package ra

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
)

var testMAC = net.HardwareAddr{0x52, 0x54, 0, 0x99, 0, 1}

// TestAdvertisement checks the frame field by field against RFC 4861; over a packet with its checksum the sum is
// all ones.
func TestAdvertisement(t *testing.T) {
	f := advertisement(testMAC, netip.Prefix{})
	ip, icmp := f[14:54], f[54:]
	if !bytes.Equal(f[:6], allNodesMAC) || !bytes.Equal(f[6:12], testMAC) || !bytes.Equal(f[12:14], []byte{0x86, 0xdd}) {
		t.Errorf("Ethernet header % x", f[:14])
	}
	if src := net.IP(ip[8:24]).String(); src != "fe80::5054:ff:fe99:1" || net.IP(ip[24:40]).String() != "ff02::1" || ip[7] != 255 {
		t.Errorf("from %s to %s, hop limit %d", src, net.IP(ip[24:40]), ip[7])
	}
	if got := checksum(ip[8:], []byte{0, 0, 0, byte(len(icmp)), 0, 0, 0, 58}, icmp); got != 0 {
		t.Errorf("checksum is off by %#x", got)
	}
	if !bytes.Equal(icmp[4:16], []byte{64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("it says more than that there is no router: % x", icmp)
	}
	if !bytes.Equal(icmp[16:], append([]byte{1, 1}, testMAC...)) {
		t.Errorf("source link-layer address % x", icmp[16:])
	}
}

// TestPrefix: with a prefix it is told that DHCPv6 gives addresses on the link, and that nobody makes one himself.
func TestPrefix(t *testing.T) {
	f := advertisement(testMAC, netip.MustParsePrefix("fd00:99::1/64"))
	ip, icmp := f[14:54], f[54:]
	if got := checksum(ip[8:], []byte{0, 0, 0, byte(len(icmp)), 0, 0, 0, 58}, icmp); got != 0 || int(ip[5]) != len(icmp) {
		t.Errorf("checksum is off by %#x, length %d of %d", got, ip[5], len(icmp))
	}
	if icmp[5] != 0xc0 || icmp[6] != 0 || icmp[7] != 0 {
		t.Errorf("flags %#x, router for % x s", icmp[5], icmp[6:8])
	}
	want := append([]byte{3, 4, 64, 0x80, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0}, net.ParseIP("fd00:99::")...)
	if !bytes.Equal(icmp[24:], want) {
		t.Errorf("prefix option % x", icmp[24:])
	}
}

// TestFilter: solicitations pass, everything else stays in the kernel.
func TestFilter(t *testing.T) {
	vm, err := bpf.NewVM(solicitations)
	if err != nil {
		t.Fatal(err)
	}
	solicitation := advertisement(testMAC, netip.Prefix{})
	solicitation[54] = 133
	change := func(at int, to byte) []byte {
		b := bytes.Clone(solicitation)
		b[at] = to
		return b
	}
	for name, test := range map[string]struct {
		frame []byte
		pass  bool
	}{
		"solicitation":  {solicitation, true},
		"advertisement": {advertisement(testMAC, netip.Prefix{}), false},
		"IPv4":          {change(12, 8), false},
		"UDP":           {change(20, 17), false},
		"short":         {solicitation[:30], false},
		"empty":         {nil, false},
	} {
		if n, err := vm.Run(test.frame); err != nil || (n > 0) != test.pass {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	for name, want := range map[string]string{"nothing9": "nothing9", "lo": "not Ethernet"} {
		if s, err := Listen(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Listen(%s): %v, %v", name, s, err)
		}
	}
}
