package dhcp6

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// requests returns what a machine sent to port 547 in a capture (classic pcap, Ethernet, IPv6 without extension headers).
func requests(t testing.TB, capture string) (payloads [][]byte, peers []netip.AddrPort) {
	t.Helper()
	b, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is not a little-endian pcap file", capture)
	}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		f := b[16 : 16+n]
		b = b[16+n:]
		udp := f[14+40:]
		from := netip.AddrFrom16([16]byte(f[14+8 : 14+24]))
		payloads = append(payloads, udp[8:binary.BigEndian.Uint16(udp[4:])])
		peers = append(peers, netip.AddrPortFrom(from, binary.BigEndian.Uint16(udp)))
	}
	if len(payloads) == 0 {
		t.Fatalf("nothing in %s", capture)
	}
	return payloads, peers
}

// TestConversations replays what OVMF and iPXE sent in TestQEMUIPv6 and compares our answers with the golden files.
func TestConversations(t *testing.T) {
	captures, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(captures) != 2 {
		t.Fatalf("captures %v, %v", captures, err)
	}
	for _, capture := range captures {
		t.Run(filepath.Base(capture), func(t *testing.T) {
			var text strings.Builder
			payloads, peers := requests(t, capture)
			for i, b := range payloads {
				r, err := Parse(b, peers[i])
				if err != nil {
					t.Fatal(err)
				}
				terms := testTerms()
				if id := r.msg.Options.ServerID(); id != nil { // of the server that was there
					terms.Server = id
				}
				terms.Boot = map[dhcp.Stage]string{dhcp.PXE: "tftp://[fd00:99::1]/snponly.efi", dhcp.HTTPBoot: "http://[fd00:99::1]:8080/boot/snponly.efi",
					dhcp.IPXE: "http://[fd00:99::1]:8080/boot/ipxe/52:54:00:99:00:00.ipxe"}[r.Stage]
				rep, m := answer(t, r, terms)
				fmt.Fprintf(&text, "> %s from %s\n< %s to %s, %d bytes\n", r, r.MAC, rep, rep.To, len(rep.Bytes()))
				for _, ia := range m.Options.IANA() {
					for _, a := range ia.Options.Addresses() {
						fmt.Fprintf(&text, "  IA %x: %s for %s, T1 %s, T2 %s\n", ia.IaId, net.IP(a.IPv6Addr), a.ValidLifetime, ia.T1, ia.T2)
					}
				}
				for _, c := range m.Options.VendorClasses() {
					fmt.Fprintf(&text, "  vendor class %d %q\n", c.EnterpriseNumber, c.Data)
				}
				if url := m.Options.BootFileURL(); url != "" {
					fmt.Fprintf(&text, "  URL %s\n", url)
				}
			}
			golden := strings.TrimSuffix(capture, ".pcap") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (run with -update)", err)
			}
			if text.String() != string(want) {
				t.Errorf("answers differ from %s:\n%s", golden, text.String())
			}
		})
	}
}
