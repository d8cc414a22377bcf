package netboot

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// BenchmarkDHCP is the way of one DISCOVER of a machine through the server, bytes to bytes, without the sockets.
func BenchmarkDHCP(b *testing.B) {
	booter := &fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24"), Hostname: "r1-n7"}}}
	s := &Server{Booter: booter, Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1")}
	files(b, s)
	c, err := newConversation(s)
	if err != nil {
		b.Fatal(err)
	}
	// A DISCOVER of EDK2.
	msg := make([]byte, 240)
	copy(msg, []byte{1, 1, 6})
	msg[10] = 0x80
	copy(msg[28:], []byte{0x02, 0x00, 0x5e, 0x10, 0x20, 0x30})
	copy(msg[236:], "\x63\x82\x53\x63")
	for _, o := range [][]byte{
		{53, 1}, append([]byte{57}, 0x05, 0xc0),
		{55, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97, 128, 129, 130, 131, 132, 133, 134, 135},
		append([]byte{97}, make([]byte, 17)...), {94, 1, 3, 0}, {93, 0, 7}, append([]byte{60}, "PXEClient:Arch:00007:UNDI:003000"...),
	} {
		msg = append(append(msg, o[0], byte(len(o)-1)), o[1:]...)
	}
	msg = append(msg, 0xff)
	b.ReportAllocs()
	for b.Loop() {
		req, err := dhcp.Parse(msg)
		if err != nil {
			b.Fatal(err)
		}
		c.links[0].Admit(req)
		rep := c.links[0].Answer(b.Context(), req)
		if rep == nil || !bytes.Contains(rep.Bytes(), []byte("snponly.efi")) {
			b.Fatalf("answered %v", rep)
		}
	}
}
