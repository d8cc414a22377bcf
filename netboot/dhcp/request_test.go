package dhcp

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// m1 is the machine of the field cases.
const m1 = "02:00:5e:10:20:30"

// message builds a request of M1: header fields by name, then options as hex with quoted text, as the field cases
// write them. The end option is not added.
func message(t testing.TB, flags, ci, gi string, options ...string) []byte {
	t.Helper()
	b := make([]byte, 240)
	b[0], b[1], b[2] = 1, 1, 6
	copy(b[4:], "\x11\x22\x33\x44")
	copy(b[10:], unhex(t, flags))
	copy(b[12:], unhex(t, ci))
	copy(b[24:], unhex(t, gi))
	copy(b[28:], unhex(t, "02005E102030"))
	copy(b[236:], "\x63\x82\x53\x63")
	for _, o := range options {
		b = append(b, option(t, o)...)
	}
	return b
}

// option reads `3C"text"` (length computed) or plain hex (length written).
func option(t testing.TB, s string) []byte {
	t.Helper()
	code, text, quoted := strings.Cut(s, `"`)
	b := unhex(t, code)
	if quoted {
		text = strings.TrimSuffix(text, `"`)
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return b
}

func mustParse(t testing.TB, b []byte) *Request {
	t.Helper()
	r, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParseStage(t *testing.T) {
	const pxe = `3C"PXEClient:Arch:00000:UNDI:002001"`
	for _, test := range []struct {
		name    string
		options []string
		stage   Stage
		arch    Arch
	}{
		{"BIOS ROM", []string{pxe, "5D 02 00 00"}, PXE, BIOS},
		{"UEFI", []string{`3C"PXEClient:Arch:00007:UNDI:003000"`, "5D 02 00 07"}, PXE, X64},
		{"UEFI that says 9", []string{`3C"PXEClient:Arch:00009:UNDI:003000"`, "5D 02 00 09"}, PXE, EBC},
		{"several architectures, first without a loader", []string{pxe, "5D 04 00 03 00 07"}, PXE, X64},
		{"A03 no option 93", []string{`3C"PXEClient:Arch:00007:UNDI:003000"`}, PXE, X64},
		{"A03 neither 93 nor a number", []string{`3C"PXEClient"`}, PXE, BIOS},
		{"iPXE by user class", []string{pxe, "5D 02 00 00", `4D"iPXE"`}, IPXE, BIOS},
		{"iPXE by user class, RFC 3004", []string{pxe, "5D 02 00 00", "4D 05 04 69 50 58 45"}, IPXE, BIOS},
		{"A09 FlexBoot: option 175 only", []string{pxe, "5D 02 00 00", "AF 06 13 01 01 12 01 01"}, IPXE, BIOS},
		{"an iPXE ROM without HTTP", []string{pxe, "5D 02 00 00", `4D"iPXE"`, "AF 06 B0 01 01 12 01 01"}, PXE, BIOS},
		{"iPXE whose 175 lists settings only", []string{pxe, "5D 02 00 00", `4D"iPXE"`, "AF 03 B0 01 01"}, IPXE, BIOS},
		{"175 cut short", []string{pxe, "5D 02 00 00", "AF 03 13 09 01"}, PXE, BIOS},
		{"another user class", []string{pxe, "5D 02 00 00", `4D"gPXE"`}, PXE, BIOS},
		{"U-Boot: architecture, no PXEClient", []string{`3C"U-Boot.armv8"`, "5D 02 00 0B"}, PXE, ARM64},
		{"UEFI HTTP", []string{`3C"HTTPClient:Arch:00016:UNDI:003001"`, "5D 02 00 10"}, HTTPBoot, X64HTTP},
		{"networkd", []string{`0C"r1-n7"`, "37 03 01 03 06"}, System, BIOS},
		{"Windows", []string{`3C"MSFT 5.0"`}, System, BIOS},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustParse(t, message(t, "", "", "", append([]string{"35 01 01"}, append(test.options, "FF")...)...))
			if r.Stage != test.stage || r.Arch != test.arch || r.MAC != m1 {
				t.Errorf("got %s arch %d from %s, want %s arch %d", r.Stage, r.Arch, r.MAC, test.stage, test.arch)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	change := func(at int, to ...byte) []byte {
		b := message(t, "", "", "", "35 01 01", "FF")
		copy(b[at:], to)
		return b
	}
	for name, b := range map[string][]byte{
		"reply of another server": change(0, 2),
		"token ring":              change(1, 6),
		"A21 hlen 0":              change(2, 0),
		"A25 zero MAC":            change(28, 0, 0, 0, 0, 0, 0),
		"group MAC":               change(28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"no cookie":               change(236, 0),
		"option cut short":        message(t, "", "", "", "35 01 01", "61 11 00 01"),
		"bad overload":            message(t, "", "", "", "35 01 01", "34 01 02", "FF")[:239],
	} {
		if r, err := Parse(b); err == nil {
			t.Errorf("%s: parsed as %s", name, r)
		}
	}
}

// TestA21Short: short packets and plain BOOTP end in an error, never in a panic, and what we send is long enough.
func TestA21Short(t *testing.T) {
	full := message(t, "", "", "", "35 01 01", "FF")
	for _, n := range []int{0, 235, 236, 239, 240} {
		if _, err := Parse(full[:n]); err == nil {
			t.Errorf("%d bytes: no error", n)
		}
	}
	onlyEnd := append(full[:240:240], bytes.Repeat([]byte{0xff}, 60)...)
	if _, err := Parse(onlyEnd); err == nil {
		t.Error("plain BOOTP: no error")
	}
	// [lab] the library refuses a packet without its final 0xff; some ROMs send that.
	r := mustParse(t, message(t, "", "", "", "35 01 01"))
	terms := Terms{Server: testTerms().Server, Addr: testTerms().Addr}
	rep, err := r.Answer(terms)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(rep.Bytes()); n < 300 || n != rep.Len() {
		t.Errorf("reply of %d bytes, it says %d: a BSD relay drops what is shorter than 300", n, rep.Len())
	}
}

// TestA23Overload: option 52 lends `file` and `sname` to options; they are read, and are no names.
func TestA23Overload(t *testing.T) {
	b := message(t, "", "", "", "35 01 03", "34 01 03", "FF")
	copy(b[108:], unhex(t, "32 04 0A 63 00 40 FF")) // file: requested address
	copy(b[44:], unhex(t, "36 04 0A 63 00 01 FF"))  // sname: server identifier
	// [lab] zero bytes inside values: a decoder that reads the field as a C string loses them.
	r := mustParse(t, b)
	if got := addr(r.pkt.RequestedIPAddress()); got.String() != "10.99.0.64" {
		t.Errorf("requested address %s", got)
	}
	if got := addr(r.pkt.ServerIdentifier()); got.String() != "10.99.0.1" {
		t.Errorf("server identifier %s", got)
	}
	if r.pkt.BootFileName != "" || r.pkt.ServerHostName != "" {
		t.Errorf("options taken for names: %q %q", r.pkt.BootFileName, r.pkt.ServerHostName)
	}
	if r.Type != dhcpv4.MessageTypeRequest {
		t.Errorf("type %s", r.Type)
	}
}

// FuzzParse: whatever arrives, Parse and Answer do not panic, and a reply is well formed: long enough, the message
// type in it, nothing after option 82, option 67 not the last.
func FuzzParse(f *testing.F) {
	for _, capture := range []string{"bios-rom-then-undionly.kpxe", "ovmf-native-pxe-snponly", "ovmf-uefi-httpboot", "secboot-shim-grub"} {
		for _, b := range requests(f, "testdata/"+capture+".pcap") {
			f.Add(b)
		}
	}
	f.Add(message(f, "8000", "", "0A010001", "35 01 01", "52 06 01 04 01 02 03 04", "FF"))
	f.Add(message(f, "", "", "", "35 01 03", "34 01 03", "FF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		rep, err := r.Answer(testTerms())
		if err != nil {
			return
		}
		out := rep.Bytes()
		if len(out) < 300 || rep.Len() != len(out) {
			t.Fatalf("reply of %d bytes, it says %d", len(out), rep.Len())
		}
		options := wireOptions(t, out)
		typed := false
		for i, o := range options {
			last := i == len(options)-1
			typed = typed || o.code == 53
			if o.code == 67 && last || o.code == 82 && !last && options[i+1].code != 82 {
				t.Fatalf("option %d at %d of %d", o.code, i, len(options))
			}
		}
		if !typed {
			t.Fatal("no message type")
		}
		if back, err := dhcpv4.FromBytes(out); err != nil || back.TransactionID != r.pkt.TransactionID {
			t.Fatalf("reply does not parse: %v", err)
		}
	})
}
