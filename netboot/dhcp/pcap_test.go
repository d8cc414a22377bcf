package dhcp

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestConversations replays what real firmware sent and compares our answers, as text, with the golden files.
func TestConversations(t *testing.T) {
	captures, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(captures) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, capture := range captures {
		name := strings.TrimSuffix(capture, ".pcap")
		t.Run(filepath.Base(name), func(t *testing.T) {
			var text strings.Builder
			for _, b := range requests(t, capture) {
				req, err := Parse(b)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&text, "> %s from %s\n", req, req.MAC)
				rep, err := req.Answer(testTerms())
				if err != nil {
					fmt.Fprintf(&text, "< %v\n\n", err)
					continue
				}
				fmt.Fprintf(&text, "< to %s %s, %d bytes\n%s\n", rep.To, rep.How, len(rep.Bytes()), describe(t, rep.Bytes()))
			}
			golden := name + ".golden"
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

func testTerms() Terms {
	return Terms{
		Server:     netip.MustParseAddr("10.99.0.1"),
		Addr:       netip.MustParsePrefix("10.99.0.64/24"),
		Router:     netip.MustParseAddr("10.99.0.1"),
		DNS:        []netip.Addr{netip.MustParseAddr("10.99.0.1")},
		Hostname:   "r1-n7",
		Script:     "http://10.99.0.1:8080/boot/ipxe/52:54:00:99:00:00.ipxe",
		LoaderBase: "http://10.99.0.1:8080/boot/",
	}
}

// requests returns the payloads sent to port 67 in a capture (classic pcap, Ethernet, IPv4).
func requests(t testing.TB, capture string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is not a little-endian pcap file", capture)
	}
	var out [][]byte
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		f := b[16 : 16+n]
		b = b[16+n:]
		if binary.BigEndian.Uint16(f[12:]) != 0x0800 || f[14+9] != 17 {
			continue
		}
		udp := f[14+4*int(f[14]&15):]
		if binary.BigEndian.Uint16(udp[2:]) == serverPort {
			out = append(out, udp[8:binary.BigEndian.Uint16(udp[4:])])
		}
	}
	if len(out) == 0 {
		t.Fatalf("no DHCP requests in %s", capture)
	}
	return out
}

// describe prints a reply with its options in the order of the wire. It shares no code with the codec.
func describe(t testing.TB, b []byte) string {
	t.Helper()
	var s strings.Builder
	fmt.Fprintf(&s, "  op %d flags %#04x ci %s yi %s si %s gi %s\n", b[0], binary.BigEndian.Uint16(b[10:]),
		net.IP(b[12:16]), net.IP(b[16:20]), net.IP(b[20:24]), net.IP(b[24:28]))
	fmt.Fprintf(&s, "  file %q\n", bytes.TrimRight(b[108:236], "\x00"))
	for _, o := range wireOptions(t, b) {
		fmt.Fprintf(&s, "  %3d %s\n", o.code, valueText(o.value))
	}
	return s.String()
}

type wireOption struct {
	code  byte
	value []byte
}

func wireOptions(t testing.TB, b []byte) []wireOption {
	t.Helper()
	var out []wireOption
	for o := b[240:]; ; {
		if len(o) == 0 {
			t.Fatal("reply has no end option")
		}
		if o[0] == 0xff {
			return out
		}
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		n := int(o[1])
		out = append(out, wireOption{o[0], o[2 : 2+n]})
		o = o[2+n:]
	}
}

func valueText(v []byte) string {
	for _, c := range v {
		if c < ' ' || c > '~' || len(v) < 3 {
			return fmt.Sprintf("% x", v)
		}
	}
	return strconv.Quote(string(v))
}
