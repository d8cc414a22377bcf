package dhcp

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

func mustAnswer(t testing.TB, terms Terms, b []byte) *Reply {
	t.Helper()
	rep, err := mustParse(t, b).Answer(terms)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// wire is a reply as a client reads it.
type wire struct {
	bytes   []byte
	options []wireOption
}

func onWire(t testing.TB, r *Reply) wire {
	t.Helper()
	b := r.Bytes()
	if r.Len() != len(b) {
		t.Errorf("a reply of %d bytes says that it has %d", len(b), r.Len())
	}
	return wire{b, wireOptions(t, b)}
}

func (w wire) file() string { return string(bytes.TrimRight(w.bytes[108:236], "\x00")) }

func (w wire) get(code byte) (v []byte, ok bool) {
	for _, o := range w.options {
		if o.code == code {
			v, ok = append(v, o.value...), true
		}
	}
	return v, ok
}

func (w wire) last() byte { return w.options[len(w.options)-1].code }

// TestA01HTTPFirmware: HTTP firmware gets its own vendor class back and a whole URL, in OFFER and ACK.
func TestA01HTTPFirmware(t *testing.T) {
	for arch, loader := range map[string]string{"00 10": "snponly.efi", "00 13": "snponly-arm64.efi", "00 0F": "snponly-ia32.efi"} {
		for _, typ := range []string{"01", "03"} {
			rep := mustAnswer(t, testTerms(), message(t, "8000", "", "", "35 01 "+typ, `3C"HTTPClient:Arch:00016:UNDI:003001"`,
				"5D 02 "+arch, "5E 03 01 03 00", "61 11 00 00112233445566778899AABBCCDDEEFF", "37 03 3C 42 43", "32 04 0A630040", "FF"))
			w := onWire(t, rep)
			if class, _ := w.get(60); string(class) != "HTTPClient" {
				t.Errorf("arch %s: vendor class %q", arch, class)
			}
			if want := "http://10.99.0.1:8080/boot/" + loader; w.file() != want {
				t.Errorf("arch %s: file %q, want %q", arch, w.file(), want)
			}
			if _, ok := w.get(43); ok {
				t.Errorf("arch %s: PXE options for an HTTP client", arch)
			}
		}
	}
}

// TestA03NoUUID: option 97 is echoed when it was sent and absent when it was not.
func TestA03NoUUID(t *testing.T) {
	const class = `3C"PXEClient:Arch:00000:UNDI:002001"`
	w := onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "", "35 01 01", class, "5D 02 00 00", "FF")))
	if v, ok := w.get(97); ok {
		t.Errorf("option 97 invented: %x", v)
	}
	if w.file() != "undionly.kpxe" {
		t.Errorf("file %q", w.file())
	}
	sent := "00 33221100554477668899AABBCCDDEEFF"
	w = onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "", "35 01 01", class, "61 11 "+sent, "FF")))
	if v, _ := w.get(97); !bytes.Equal(v, unhex(t, sent)) {
		t.Errorf("option 97 not echoed byte for byte: %x", v)
	}
}

// TestA07SameAddressAllTheWay: the identity that a stage sends does not matter, the port does.
func TestA07SameAddressAllTheWay(t *testing.T) {
	for _, id := range []string{
		"", "3D 07 01 02005E102030",
		"3D 13 FF 5E102030 0002 0000AB11 0102030405060708", "3D 13 FF 5E102030 0002 0000AB11 1112131415161718",
	} {
		for _, typ := range []string{"01", "03"} {
			b := message(t, "", "", "", "35 01 "+typ, "32 04 0A630040", id, "FF")
			rep := mustAnswer(t, testTerms(), b)
			if rep.Addr().String() != "10.99.0.64" {
				t.Errorf("client-id %q: %s", id, rep)
			}
			v, ok := onWire(t, rep).get(61)
			if ok != (id != "") || ok && !bytes.Equal(v, unhex(t, id)[2:]) {
				t.Errorf("client-id %q echoed as %x (RFC 6842)", id, v)
			}
		}
	}
	renew := mustAnswer(t, testTerms(), message(t, "", "0A630040", "", "35 01 03", "FF"))
	if renew.Type != dhcpv4.MessageTypeAck || renew.Addr().String() != "10.99.0.64" || renew.How != Routed {
		t.Errorf("renewal without a client-id: %s by %s", renew, renew.How)
	}
}

// TestA09LoopBreaker: a machine in a loop gets the script in place of the loader.
func TestA09LoopBreaker(t *testing.T) {
	terms := testTerms()
	terms.Looping = true
	w := onWire(t, mustAnswer(t, terms, message(t, "", "", "", "35 01 01", `3C"PXEClient:Arch:00000:UNDI:002001"`, "FF")))
	if w.file() != terms.Script {
		t.Errorf("file %q", w.file())
	}
}

// TestA11DiscoveryControl: an offer that says PXEClient also says to use the file that it names.
func TestA11DiscoveryControl(t *testing.T) {
	w := onWire(t, mustAnswer(t, testTerms(), message(t, "8000", "", "", "35 01 01", `3C"PXEClient:Arch:00007:UNDI:003000"`, "5D 02 00 07", "FF")))
	if class, _ := w.get(60); string(class) != "PXEClient" {
		t.Errorf("vendor class %q", class)
	}
	if v, _ := w.get(43); !bytes.Equal(v, []byte{6, 1, 8}) {
		t.Errorf("option 43 is % x", v)
	}
}

// TestA13FileField: `file` always holds the name; option 67 is there for who asks, and never next to the end.
func TestA13FileField(t *testing.T) {
	for _, class := range []string{"PXEClient:Arch:00000:UNDI:002001", "HTTPClient:Arch:00016:UNDI:003001"} {
		for _, list := range []string{"", "37 02 01 03", "37 03 01 03 43"} {
			w := onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "", "35 01 01", `3C"`+class+`"`, list, "FF")))
			v, has := w.get(67)
			if w.file() == "" || w.bytes[235] != 0 {
				t.Errorf("%s: file %q", class, w.file())
			}
			if asked := strings.HasSuffix(list, "43"); has != asked || has && string(v) != w.file() {
				t.Errorf("%s asks %q: option 67 %q", class, list, v)
			}
			if w.last() == 67 {
				t.Errorf("%s: option 67 is the last", class)
			}
		}
	}
}

// TestA15BroadcastFlag: flags are copied, and decide the road of the reply.
func TestA15BroadcastFlag(t *testing.T) {
	terms := testTerms()
	for _, test := range []struct{ flags, gi, to, how string }{
		{"8000", "0A630002", "10.99.0.2:67", "routed"},
		{"0000", "0A630002", "10.99.0.2:67", "routed"},
		{"8000", "", "255.255.255.255:68", "broadcast"},
		{"0000", "", "10.99.0.64:68", "framed"},
	} {
		rep := mustAnswer(t, terms, message(t, test.flags, "", test.gi, "35 01 01", "FF"))
		if rep.To.String() != test.to || rep.How.String() != test.how {
			t.Errorf("flags %s gi %q: to %s %s", test.flags, test.gi, rep.To, rep.How)
		}
		w := onWire(t, rep)
		if !bytes.Equal(w.bytes[10:12], unhex(t, test.flags)) {
			t.Errorf("flags %x, sent %s", w.bytes[10:12], test.flags)
		}
		if test.gi != "" && !bytes.Equal(w.bytes[24:28], unhex(t, test.gi)) {
			t.Errorf("giaddr %x", w.bytes[24:28])
		}
	}
}

// TestA17RelayInformation: option 82 comes back byte for byte and last, in every kind of reply, and its link selection
// counts, not giaddr.
func TestA17RelayInformation(t *testing.T) {
	const info = "0108 76786C312E313131 0210 4147454E542D52454D4F54452D494431 0504 0A0F4002"
	terms := testTerms()
	terms.Addr = netip.MustParsePrefix("10.15.64.20/24")
	for name, options := range map[string][]string{
		"discover":      {"35 01 01", `3C"PXEClient:Arch:00007:UNDI:003000"`, "61 11 00 33221100554477668899AABBCCDDEEFF"},
		"request":       {"35 01 03", "36 04 0A630001", "32 04 0A0F4014"},
		"init-reboot":   {"35 01 03", "32 04 0A0F4099"},
		"option 255 in": {"35 01 01", "37 01 FF"},
	} {
		rep := mustAnswer(t, terms, message(t, "8000", "", "C0000201", append(options, "52 22 "+info, "FF")...))
		w := onWire(t, rep)
		v, _ := w.get(82)
		if !bytes.Equal(v, unhex(t, info)) || w.last() != 82 {
			t.Errorf("%s: option 82 % x, last option %d", name, v, w.last())
		}
		if rep.To.String() != "192.0.2.1:67" {
			t.Errorf("%s: goes to %s", name, rep.To)
		}
		if (name == "init-reboot") != (rep.Type == dhcpv4.MessageTypeNak) {
			t.Errorf("%s: %s", name, rep.Type)
		}
	}
	// Option 82 without a relay is the client's own word: it does not move the machine to another link.
	if link := mustParse(t, message(t, "", "", "", "35 01 01", "52 22 "+info, "FF")).Link(); link.IsValid() {
		t.Errorf("link %s believed without a relay", link)
	}
	// A machine whose reservation is elsewhere gets nothing on this link.
	if _, err := mustParse(t, message(t, "", "", "C0000201", "35 01 01", "FF")).Answer(terms); !IsSilence(err) {
		t.Errorf("wrong link: %v", err)
	}
	// Link selection that lies about its length must not be read past its end.
	for _, bad := range []string{"52 02 0504", "52 05 0504 0A0F40", "52 03 05FF 0A", "52 01 05"} {
		if link := mustParse(t, message(t, "", "", "C0000201", "35 01 01", bad, "FF")).Link(); link.String() != "192.0.2.1" {
			t.Errorf("%s: link %s", bad, link)
		}
	}
}

// TestA19Nak: a NAK is bare and goes to everybody; somebody else's request is nobody's business.
func TestA19Nak(t *testing.T) {
	for name, b := range map[string][]byte{
		"init-reboot":       message(t, "", "", "", "35 01 03", "32 04 C0A80009", "3D 07 01 02005E102030", `3C"PXEClient:Arch:00000:UNDI:002001"`, "37 01 43", "FF"),
		"renewal":           message(t, "", "0A630099", "", "35 01 03", "FF"),
		"selecting another": message(t, "", "", "", "35 01 03", "36 04 0A630001", "32 04 0A630099", "FF"),
	} {
		rep := mustAnswer(t, testTerms(), b)
		w := onWire(t, rep)
		if rep.Type != dhcpv4.MessageTypeNak || rep.To.String() != "255.255.255.255:68" || rep.How != Broadcast {
			t.Errorf("%s: %s to %s %s", name, rep, rep.To, rep.How)
		}
		if !bytes.Equal(w.bytes[12:24], make([]byte, 12)) {
			t.Errorf("%s: ciaddr, yiaddr, siaddr % x", name, w.bytes[12:24])
		}
		if w.file() != "" {
			t.Errorf("%s: file %q in a NAK", name, w.file())
		}
		if v, _ := w.get(54); !bytes.Equal(v, []byte{10, 99, 0, 1}) {
			t.Errorf("%s: server identifier % x", name, v)
		}
		for _, o := range w.options {
			if !slices.Contains([]byte{53, 54, 61, 82}, o.code) {
				t.Errorf("%s: option %d in a NAK", name, o.code)
			}
		}
	}
	relayed := mustAnswer(t, testTerms(), message(t, "", "", "0A630002", "35 01 03", "32 04 C0A80009", "FF"))
	if b := relayed.Bytes(); relayed.To.String() != "10.99.0.2:67" || b[10] != 0x80 {
		t.Errorf("through a relay: to %s, flags %x", relayed.To, b[10:12])
	}
	_, err := mustParse(t, message(t, "", "", "", "35 01 03", "36 04 0A630002", "32 04 0A630040", "FF")).Answer(testTerms())
	if !IsSilence(err) {
		t.Errorf("request to another server: %v", err)
	}
}

// TestA23LongURL: what `file` cannot hold is refused with words, never cut.
func TestA23LongURL(t *testing.T) {
	b := message(t, "", "", "", "35 01 01", `4D"iPXE"`, "FF")
	for _, n := range []int{128, 130, 256, 400} {
		terms := testTerms()
		terms.Script = "http://10.99.0.1/" + strings.Repeat("x", n-17)
		if _, err := mustParse(t, b).Answer(terms); err == nil || IsSilence(err) || !strings.Contains(err.Error(), "URL") {
			t.Errorf("script of %d bytes: %v", n, err)
		}
		terms = testTerms()
		terms.LoaderBase = terms.Script + strings.Repeat("x", n)
		if err := terms.Validate(); err == nil {
			t.Errorf("loader folder of %d bytes: no error", len(terms.LoaderBase))
		}
	}
	terms := testTerms()
	terms.Script = "http://10.99.0.1/" + strings.Repeat("x", 127-17)
	if w := onWire(t, mustAnswer(t, terms, b)); w.file() != terms.Script {
		t.Errorf("127 bytes were cut to %d", len(w.file()))
	}
}

// TestA27IPXEComplete: the iPXE stage gets everything again, whatever the stage before was told.
func TestA27IPXEComplete(t *testing.T) {
	w := onWire(t, mustAnswer(t, testTerms(), message(t, "", "", "", "35 01 01", `3C"PXEClient:Arch:00000:UNDI:002001"`, `4D"iPXE"`, "37 01 43", "FF")))
	url, _ := w.get(67)
	if w.file() != testTerms().Script || string(url) != w.file() || !bytes.Equal(w.bytes[20:24], []byte{10, 99, 0, 1}) {
		t.Errorf("file %q, 67 %q, next server % d", w.file(), url, w.bytes[20:24])
	}
	if v, _ := w.get(175); !bytes.Equal(v, []byte{0xb0, 1, 1}) {
		t.Errorf("option 175 % x: iPXE waits for ProxyDHCP", v)
	}
	for _, code := range []byte{43, 60} {
		if v, ok := w.get(code); ok {
			t.Errorf("option %d %x: iPXE would take the offer for a boot server's", code, v)
		}
	}
}

// TestInstalledSystem: an operating system on the provisioning port gets its address and nothing to boot.
func TestInstalledSystem(t *testing.T) {
	terms := testTerms()
	terms.For = 2 * time.Hour
	rep := mustAnswer(t, terms, message(t, "", "", "", "35 01 01", "37 04 01 03 06 0C", "3D 07 01 02005E102030", "FF"))
	w := onWire(t, rep)
	if rep.Boot != "" || w.file() != "" {
		t.Errorf("boots %q", rep.Boot)
	}
	for _, code := range []byte{43, 60, 66, 67, 97, 175} {
		if _, ok := w.get(code); ok {
			t.Errorf("boot option %d", code)
		}
	}
	if v, _ := w.get(51); !bytes.Equal(v, []byte{0, 0, 0x1c, 0x20}) {
		t.Errorf("lease % x", v)
	}
}

func TestInform(t *testing.T) {
	rep := mustAnswer(t, testTerms(), message(t, "", "0A630040", "", "35 01 08", "FF"))
	w := onWire(t, rep)
	if _, leased := w.get(51); leased || rep.Addr().IsValid() || rep.To.String() != "10.99.0.64:68" {
		t.Errorf("%s to %s", rep, rep.To)
	}
	if _, err := mustParse(t, message(t, "", "", "", "35 01 08", "FF")).Answer(testTerms()); !IsSilence(err) {
		t.Errorf("INFORM without an address: %v", err)
	}
}

// TestSmallReceiver: a reply grows no larger than the client can take; the address and `file` always stay.
func TestSmallReceiver(t *testing.T) {
	terms := testTerms()
	terms.Hostname = strings.Repeat("h", 63)
	terms.Script = "http://10.99.0.1/" + strings.Repeat("x", 100)
	id := "3D FA" + strings.Repeat("01", 250)
	rep := mustAnswer(t, terms, message(t, "", "", "", "35 01 01", `4D"iPXE"`, "37 01 43", id, "39 02 02 40", "FF"))
	w := onWire(t, rep)
	if len(w.bytes) > 576-28 {
		t.Errorf("reply of %d bytes", len(w.bytes))
	}
	if w.file() != terms.Script || rep.Addr().String() != "10.99.0.64" {
		t.Errorf("lost %q %s", w.file(), rep)
	}
	if _, ok := w.get(175); !ok {
		t.Error("option 175 dropped")
	}
}
