package ipmi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/bougou/go-ipmi/pkg/crypto"
	"github.com/bougou/go-ipmi/pkg/protocol"
	"github.com/bougou/go-ipmi/pkg/types"
)

// sessionWire is a wire with a session of a suite.
func sessionWire(t testing.TB, suite types.CipherSuiteID) *rmcpWire {
	t.Helper()
	w := &rmcpWire{suite: suite, username: "admin", password: "secret", role: 0x14}
	if !w.derive() {
		t.Fatal("no keys")
	}
	w.active = true
	return w
}

// seal makes a packet of the session as a BMC would.
func seal(t testing.TB, w *rmcpWire, plain []byte) []byte {
	t.Helper()
	enc, err := crypto.EncryptAESPayload(plain, w.k2, bytes.Repeat([]byte{7}, 16))
	if err != nil {
		t.Fatal(err)
	}
	return authenticate(t, w, protocol.BuildRMCPPlusPacket(0, 0xc0, 0xa0a1a2a3, 1, enc))
}

func authenticate(t testing.TB, w *rmcpWire, p []byte) []byte {
	t.Helper()
	pad := types.IntegrityPadLen(12, len(p)-16)
	p = append(p, bytes.Repeat([]byte{0xff}, pad)...)
	p = append(p, byte(pad), 7)
	_, integrity, _, _ := types.GetCipherSuiteAlgorithms(w.suite)
	code, err := crypto.SessionIntegrityAuthCode(integrity, p[4:], w.k1, "")
	if err != nil {
		t.Fatal(err)
	}
	return append(p, code...)
}

func authentic(w *rmcpWire, p []byte) bool {
	_, _, ok := w.open(p)
	return ok
}

func TestWireBelievesOnlyTheBMC(t *testing.T) {
	for _, suite := range rmcpSuites {
		w := sessionWire(t, suite)
		answer := protocol.BuildIPMIResponse(0, 1, 1, 0, []byte{0, 0, 0, 0})
		good := seal(t, w, answer)
		if !authentic(w, good) {
			t.Fatalf("suite %d: a packet of the BMC was dropped", suite)
		}
		for i := range good {
			if i < rmcpHeader {
				continue // not covered by the code
			}
			bad := bytes.Clone(good)
			bad[i] ^= 1
			if authentic(w, bad) {
				t.Errorf("suite %d: believed with byte %d changed", suite, i)
			}
			if authentic(w, good[:i]) {
				t.Errorf("suite %d: believed when cut at %d", suite, i)
			}
		}
		if authentic(w, protocol.BuildRMCPPlusPacket(0, 0, 0xa0a1a2a3, 1, answer)) {
			t.Errorf("suite %d: believed a packet in clear", suite)
		}
		for name, payload := range map[string][]byte{"empty": nil, "vector only": make([]byte, 16), "odd": make([]byte, 33)} {
			if authentic(w, authenticate(t, w, protocol.BuildRMCPPlusPacket(0, 0xc0, 0xa0a1a2a3, 1, payload))) {
				t.Errorf("suite %d: believed a payload that is %s", suite, name)
			}
		}
	}
}

func TestWireMendsShortRefusals(t *testing.T) {
	w := &rmcpWire{}
	buf := make([]byte, 64)
	n := copy(buf, protocol.BuildRMCPPlusPacket(uint8(types.PayloadTypeRmcpOpenSessionResponse), 0, 0, 0, []byte{0, 4}))
	n, ok := w.accept(buf, n)
	if !ok || n != rmcpPayload+refusalLen || binary.LittleEndian.Uint16(buf[rmcpLength:]) != refusalLen || buf[rmcpPayload+1] != 4 {
		t.Errorf("% x, %t", buf[:n], ok)
	}
}

// Whatever arrives, the wire drops it or hands on something that go-ipmi survives.
func FuzzWire(f *testing.F) {
	w := sessionWire(f, types.CipherSuiteID3)
	f.Add(seal(f, w, []byte{1, 2, 3}), true)
	f.Add(protocol.BuildRMCPPlusPacket(uint8(types.PayloadTypeRAKPMessage2), 0, 0, 0, make([]byte, 60)), false)
	f.Add(protocol.BuildRMCPPlusPacket(uint8(types.PayloadTypeRmcpOpenSessionResponse), 0, 0, 0, []byte{0, 4}), false)
	f.Add([]byte{6, 0, 255, 7, 6}, false)
	f.Fuzz(func(t *testing.T, p []byte, active bool) {
		w := &rmcpWire{suite: types.CipherSuiteID3}
		if active {
			w = sessionWire(t, types.CipherSuiteID3)
		}
		buf := make([]byte, 4096)
		n, ok := w.accept(buf, copy(buf, p))
		if !ok {
			return
		}
		var r types.Rmcp
		if r.Unpack(buf[:n]) != nil {
			return
		}
		if !active && (r.Session20 == nil || len(r.Session20.SessionPayload) < 2) {
			t.Errorf("handed on % x", buf[:n])
		}
	})
}

// Whatever a service answers, reading it does not panic and an unreadable power state is unknown.
func FuzzObject(f *testing.F) {
	f.Add([]byte(`{"Id":"1","PowerState":"On","Boot":{},"ProcessorSummary":{"Count":"2"},"MemorySummary":{"TotalSystemMemoryGiB":null},"Location":{"PartLocation":[]},"Status":"OK","UUID":null,"SerialNumber":123}`))
	f.Add([]byte("\xef\xbb\xbf{\"PowerState\":7,\"Actions\":[],\"Members\":{}}"))
	f.Add([]byte(`{"error":{"code":1,"@Message.ExtendedInfo":{"MessageId":"IDRAC.2.4.RAC0218","RelatedProperties":["#/Boot/BootSourceOverrideMode"]}}}`))
	f.Add([]byte(`<!DOCTYPE html>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, ok := parseObject(data)
		c := &rfConn{log: (&Controller{}).log()}
		p := c.powerOf(o)
		if p != On && p != Off && p != Unknown || !ok && p != Unknown {
			t.Errorf("power = %q", p)
		}
		a := rfAnswer{status: 400, body: o}
		a.says("RAC0218")
		a.locked()
		a.about(rfMode)
		ifMatch(a)
		settingsPath(o)
		showsBoot(o.obj("Boot"), override{DevicePXE, true, BootOnce})
		o.obj("Actions").obj("#ComputerSystem.Reset").strs("ResetType@Redfish.AllowableValues")
		o.objs("Members")
	})
}
