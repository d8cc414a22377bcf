package netboot

import (
	"net/netip"
	"os"
	"testing"
	"time"
)

// TestQEMUIPv6 boots real firmware over IPv6: DHCPv6, TFTP, iPXE. Where IPv4 is answered too, iPXE takes its script by
// IPv4; where it is not, firmware and iPXE each spend half a minute on it before they go on, so that is tried only when
// asked for, and what the firmware says is in dhcp6/testdata.
func TestQEMUIPv6(t *testing.T) {
	b := newQEMU(t)
	for _, test := range []struct {
		name string
		only bool     // IPv4 is not answered
		off  []string // parts of the firmware that are switched off
		seen []string
	}{
		{"pxe", false, []string{"IPv4PXESupport"}, []string{"REQUEST pxe arch 7 over IPv6", "tftp snponly.efi sent", "REQUEST ipxe arch 7 over IPv6", ".ipxe", "vmlinuz", "ramdisk", "archive/52:54:00:99:00:00 200"}},
		{"pxe-only", true, []string{"IPv4PXESupport"}, []string{"REQUEST pxe arch 7 over IPv6", "tftp snponly.efi sent", "REQUEST ipxe arch 7 over IPv6", ".ipxe", "vmlinuz", "ramdisk", "archive/52:54:00:99:00:00 200"}},
		{"http-only", true, []string{"IPv4PXESupport", "IPv6PXESupport"}, []string{"REQUEST http-boot arch 16 over IPv6", "/boot/snponly.efi 200", "REQUEST ipxe arch 7 over IPv6", ".ipxe", "vmlinuz", "archive/52:54:00:99:00:00 200"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.only && os.Getenv("BAREYARD_QEMU_SLOW") != "1" {
				t.Skip("takes minutes: set BAREYARD_QEMU_SLOW=1")
			}
			ns := tapNetwork(t, "tap0")
			ip(t, "-n", ns, "addr", "add", "fd00:99::1/64", "dev", "tap0", "nodad")
			if test.only {
				ip(t, "netns", "exec", ns, "nft", "add table ip off; add chain ip off in { type filter hook input priority 0; }; add rule ip off in drop")
			}
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
			if dump := os.Getenv("BAREYARD_DUMP"); dump != "" {
				args = append(args, "-object", "filter-dump,id=f0,netdev=n0,file="+dump+"/"+test.name+".pcap")
			}
			began := time.Now()
			line := boot(t, ns, up, args)
			t.Logf("after %.1f s: %s", time.Since(began).Seconds(), line)
			seen.expect(t, test.seen...)
		})
	}
}
