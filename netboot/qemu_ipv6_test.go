package netboot

import (
	"net/netip"
	"testing"
	"time"
)

// TestQEMUIPv6 boots real firmware over IPv6 alone: PXE by TFTP and HTTP boot, both to the agent's RAM disk.
func TestQEMUIPv6(t *testing.T) {
	b := newQEMU(t)
	for _, test := range []struct {
		name string
		off  []string // parts of the firmware that are switched off, so that it does not spend a minute on each
		seen []string
	}{
		{"pxe", []string{"IPv4PXESupport"}, []string{"REQUEST pxe arch 7 over IPv6", "tftp snponly.efi sent", "ipxe", ".ipxe", "vmlinuz", "ramdisk", "archive/52:54:00:99:00:00 200"}},
		{"http", []string{"IPv4PXESupport", "IPv6PXESupport"}, []string{"REQUEST http-boot arch 16 over IPv6", "/boot/snponly.efi 200", "ipxe", ".ipxe", "vmlinuz", "archive/52:54:00:99:00:00 200"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ns := tapNetwork(t, "tap0")
			ip(t, "-n", ns, "addr", "add", "fd00:99::1/64", "dev", "tap0", "nodad")
			var seen exchanges
			s := &Server{
				Booter: b.booter("10.99.0.64/24", false), Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
				Subnets:    []Subnet{{Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "tap0", Addr: netip.MustParseAddr("10.99.0.1"), Addr6: netip.MustParsePrefix("fd00:99::1/64")}},
				KernelPath: b.kernel, RAMDiskPath: b.initrd, Trace: seen.add,
			}
			start(t, ns, s)
			args := append(nic(",romfile="), ovmf(t, t.TempDir())...)
			for _, off := range test.off {
				args = append(args, "-fw_cfg", "name=opt/org.tianocore/"+off+",string=n")
			}
			began := time.Now()
			line := boot(t, ns, up, args)
			t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
			seen.expect(t, test.seen...)
		})
	}
}
