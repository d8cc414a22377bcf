package netboot

import (
	"net/netip"
	"os"
	"testing"
	"time"
)

// TestQEMURelay boots real firmware behind a router whose relay is dnsmasq: DHCP through the relay, TFTP and HTTP routed.
func TestQEMURelay(t *testing.T) {
	b := newQEMU(t)
	server, router := newNamespace(t), newNamespace(t)
	ip(t, "-n", server, "link", "add", "nb0", "type", "veth", "peer", "name", "up0", "netns", router)
	ip(t, "-n", router, "tuntap", "add", "tap0", "mode", "tap")
	for _, a := range [][3]string{{server, "nb0", "10.99.0.1/24"}, {router, "up0", "10.99.0.2/24"}, {router, "tap0", "10.98.0.1/24"}} {
		ip(t, "-n", a[0], "addr", "add", a[2], "dev", a[1])
		ip(t, "-n", a[0], "link", "set", a[1], "up")
	}
	ip(t, "-n", server, "route", "add", "10.98.0.0/24", "via", "10.99.0.2")
	if err := <-inNamespace(t, router, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }); err != nil {
		t.Fatal(err)
	}
	dnsmasq(t, router, "--dhcp-relay=10.98.0.1,10.99.0.1", "--interface=tap0", "--interface=up0")
	var seen exchanges
	s := behindRelay(b.booter("10.98.0.64/32", false))
	s.KernelPath, s.RAMDiskPath, s.Trace = b.kernel, b.initrd, seen.add
	start(t, server, s)
	began := time.Now()
	line := boot(t, router, up, append(append(nic(",romfile="), ovmf(t, t.TempDir())...), noIPv6...))
	t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
	seen.expect(t, "REQUEST pxe arch 7", "tftp snponly.efi sent", "REQUEST ipxe arch 7", ".ipxe", "vmlinuz", "archive/52:54:00:99:00:00 200")
	for _, x := range seen.list() {
		if x.Proto == "dhcp" && x.DHCP.Relay.String() != "10.98.0.1" {
			t.Errorf("not through the relay: %+v", x)
		}
	}
}

// TestQEMUProxy boots real firmware on a network where dnsmasq gives the addresses and we only say what to boot.
func TestQEMUProxy(t *testing.T) {
	b := newQEMU(t)
	for _, test := range []struct {
		name string
		args func(*testing.T) []string
		seen []string
	}{
		{"bios", func(*testing.T) []string { return nic("") }, []string{"DISCOVER ipxe arch 0 OFFER", ".ipxe", "vmlinuz", "archive/52:54:00:99:00:00 200"}},
		{"uefi", func(t *testing.T) []string {
			return append(append(nic(",romfile="), ovmf(t, t.TempDir())...), noIPv6...)
		},
			[]string{"DISCOVER pxe arch 7 OFFER", "tftp snponly.efi sent", "DISCOVER ipxe arch 7 OFFER", ".ipxe", "vmlinuz", "archive/52:54:00:99:00:00 200"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var seen exchanges
			booter := b.booter("10.99.0.64/24", false)
			booter.anywhere = true
			s := &Server{Booter: booter, KernelPath: b.kernel, RAMDiskPath: b.initrd, Trace: seen.add}
			h := besideDnsmasq(t, s)
			ip(t, "-n", h.server, "tuntap", "add", "tap0", "mode", "tap")
			ip(t, "-n", h.server, "link", "set", "tap0", "master", "br0", "up")
			start(t, h.server, s)
			began := time.Now()
			line := boot(t, h.server, up, test.args(t))
			t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
			seen.expect(t, test.seen...)
			for _, x := range seen.list() {
				if x.DHCP.Addr.IsValid() || x.From == netip.MustParseAddr("10.99.0.64") {
					t.Errorf("an address of ours: %+v", x)
				}
			}
		})
	}
}
