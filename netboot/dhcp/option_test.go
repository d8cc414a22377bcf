package dhcp

import (
	"bytes"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestServerIdentifierOverride: a relay that wants renewals to pass through it gives us its name (RFC 5107), and knows
// us by no other.
func TestServerIdentifierOverride(t *testing.T) {
	const info = "52 0C 0504 0A630002 0B04 0A630002"
	w := onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "0A630002", "35 01 01", info, "FF")))
	if v, _ := w.get(54); !bytes.Equal(v, []byte{10, 99, 0, 2}) {
		t.Errorf("server identifier % d", v)
	}
	if !bytes.Equal(w.bytes[20:24], []byte{10, 99, 0, 1}) {
		t.Errorf("next server % d: files are still ours", w.bytes[20:24])
	}
	for _, chosen := range []string{"0A630002", "0A630001"} {
		rep := mustAnswer(t, testTerms(), message(t, "", "", "0A630002", "35 01 03", "36 04 "+chosen, "32 04 0A630040", info, "FF"))
		if rep.Type != dhcpv4.MessageTypeAck {
			t.Errorf("chosen %s: %s", chosen, rep)
		}
	}
	if _, server := mustParse(t, message(t, "", "", "0A630002", "35 01 03", "36 04 0A630002", info, "FF")).Chosen(); server.IsValid() {
		t.Errorf("our own name is taken for another server's: %s", server)
	}
	// Without a relay the option is the client's own word.
	w = onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "", "35 01 01", info, "FF")))
	if v, _ := w.get(54); !bytes.Equal(v, []byte{10, 99, 0, 1}) {
		t.Errorf("believed without a relay: % d", v)
	}
}

// TestPropose: beside another server only who boots gets an offer, with nothing of an address in it.
func TestPropose(t *testing.T) {
	const pxe = `3C"PXEClient:Arch:00007:UNDI:003000"`
	propose := func(options ...string) (*Reply, error) {
		return mustParse(t, message(t, "0000", "", "", append(options, "FF")...)).Propose(testTerms())
	}
	rep, err := propose("35 01 01", pxe, "5D 02 00 07", "37 03 01 03 43", "61 11 00 33221100554477668899AABBCCDDEEFF")
	if err != nil {
		t.Fatal(err)
	}
	w := onWire(t, rep)
	for _, code := range []byte{1, 3, 6, 12, 51, 58, 59} {
		if v, ok := w.get(code); ok {
			t.Errorf("option %d % x", code, v)
		}
	}
	v, _ := w.get(43)
	if rep.Addr().IsValid() || rep.To.String() != "255.255.255.255:68" || rep.How != Broadcast || w.file() != "snponly.efi" || !bytes.Equal(v, []byte{6, 1, 8}) || len(w.bytes) < 300 {
		t.Errorf("%s to %s, file %q, 43 % x, %d bytes", rep, rep.To, w.file(), v, len(w.bytes))
	}
	if id, _ := w.get(97); len(id) != 17 {
		t.Errorf("option 97 % x", id)
	}
	relayed, err := mustParse(t, message(t, "", "", "0A620001", "35 01 01", pxe, "52 03 0101 07", "FF")).Propose(testTerms())
	if err != nil || relayed.To.String() != "10.98.0.1:67" || onWire(t, relayed).last() != 82 {
		t.Errorf("relayed: %v, %v", relayed, err)
	}
	for name, options := range map[string][]string{
		"operating system": {"35 01 01"}, "request": {"35 01 03", pxe}, "release": {"35 01 07", pxe}, "no loader": {"35 01 01", pxe, "5D 02 00 1B"},
	} {
		if rep, err := propose(options...); !IsSilence(err) {
			t.Errorf("%s: %v, %v", name, rep, err)
		}
	}
}

// TestBootItem: what a client asks a boot server for comes back in the answer.
func TestBootItem(t *testing.T) {
	for vendor, want := range map[string]string{
		"2B 06 47 04 80 00 00 00":          "06 01 08 47 04 80 00 00 00",
		"2B 07 47 04 00 01 00 00 FF":       "06 01 08 47 04 00 01 00 00",
		"2B 09 06 01 08 47 04 80 01 00 00": "06 01 08 47 04 80 01 00 00",
		"2B 03 47 04 80":                   "06 01 08",
		"2B 02 47 00":                      "06 01 08",
		"":                                 "06 01 08",
	} {
		r := mustParse(t, message(t, "", "0A630040", "", "35 01 03", `3C"PXEClient:Arch:00000:UNDI:002001"`, vendor, "FF"))
		rep, err := r.Direct(testTerms())
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := onWire(t, rep).get(43); !bytes.Equal(v, unhex(t, want)) {
			t.Errorf("%s: % x, want %s", vendor, v, want)
		}
	}
}

// FuzzVendor: option 43 of any content is read without a panic, and comes back only as a whole boot item.
func FuzzVendor(f *testing.F) {
	for _, s := range []string{"\x47\x04\x80\x00\x00\x00", "\x06\x01\x08\xff", "\x00\x00\x47\x04\x00\x01\x00\x00\xff", "\x47\xff", "\x47"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		if item := bootItem(v); item != nil && (len(item) != 4 || !bytes.Contains(v, append([]byte{pxeBootItem, 4}, item...))) {
			t.Fatalf("% x out of % x", item, v)
		}
	})
}

// FuzzAgentInfo: option 82 of any content is read without a panic, and comes back byte for byte and last.
func FuzzAgentInfo(f *testing.F) {
	for _, s := range []string{"\x01\x08vxl1:111\x02\x10AGENT-REMOTE-ID1\x05\x04\x0a\x0f\x40\x02", "\x05\x04\x0a", "\x0b\x04\x0a\x63\x00\x02", "\x05", "\x97\x00\x98\x00", ""} {
		f.Add([]byte(s))
	}
	head := message(f, "8000", "", "0A630002", "35 01 01")
	f.Fuzz(func(t *testing.T, v []byte) {
		if len(v) > 255 {
			return
		}
		b := append(bytes.Clone(head), append([]byte{82, byte(len(v))}, v...)...)
		r, err := Parse(append(b, 0xff))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Facts()
		terms := testTerms()
		if link := r.Link(); link.IsValid() && link.Is4() {
			terms.Addr, err = link.Prefix(32)
			if err != nil {
				t.Fatal(err)
			}
		}
		rep, err := r.Answer(terms)
		if err != nil {
			t.Fatal(err)
		}
		out := rep.Bytes()
		end := bytes.TrimRight(out, "\x00")
		if len(v) > 0 && (len(end) < len(v)+3 || !bytes.Equal(end[len(end)-len(v)-1:len(end)-1], v)) {
			t.Fatalf("option 82 % x is not the end of % x", v, out[240:])
		}
	})
}
