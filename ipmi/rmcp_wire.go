package ipmi

import (
	"context"
	"encoding/binary"
	"net"
	"time"

	"github.com/bougou/go-ipmi/pkg/crypto"
	"github.com/bougou/go-ipmi/pkg/types"
)

// Where things are in an RMCP+ packet without OEM payload (IPMI 2.0 tables 13-8, 13-9, 13-11).
const (
	rmcpHeader     = 4
	rmcpType       = 5
	rmcpSession    = 6
	rmcpLength     = 14
	rmcpPayload    = 16
	rmcpFlags      = 0xc0 // encrypted, authenticated
	rakpRandom     = 8    // in RAKP 1 and 2
	rakpRole       = 24   // in RAKP 1
	rakpRandomEnd  = rakpRandom + 16
	openBMCSession = 8 // in the Open Session response
	refusalLen     = 8 // what go-ipmi wants to see of a refusal
	aesBlock       = 16
	integrityFrame = 2 // pad length and next header
)

// rmcpWire is the socket under one RMCP+ session, and guards what go-ipmi v0.9.1 takes on trust. Its client believes an
// answer in clear and without authentication code inside a session, so that anybody who can forge the BMC's address could
// tell it that the host is off; it panics on encrypted payloads of odd length; and it cannot read the refusals that
// OpenIPMI and some BMCs send, which end after the status code.
type rmcpWire struct {
	net.Conn
	suite    types.CipherSuiteID
	password string
	username string

	session                  uint32 // as the BMC calls it
	consoleRandom, bmcRandom [16]byte
	role                     byte
	active                   bool
	k1, k2                   []byte
}

// Dial makes the wire a proxy.Dialer for go-ipmi, whose own idea of an address is wrong for IPv6.
func (w *rmcpWire) Dial(_, _ string) (net.Conn, error) { return w, nil }

// exchange runs fn, which sends something and waits at most d for the answer. go-ipmi reads in a goroutine of its own, which
// outlives a context that ends: it is woken, so that it does not hold up the end of the session.
// Its decoders may panic on answers of odd length: a BMC that somebody else runs must not end this program.
func (w *rmcpWire) exchange(ctx context.Context, d time.Duration, fn func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = w.SetReadDeadline(time.Now()) })
	defer stop()
	defer func() {
		if recover() != nil {
			err = &failure{kind: ErrUnsupported, detail: "an answer that cannot be read", sent: true}
		}
	}()
	return fn(ctx)
}

// Write notes what the session's keys are made of.
func (w *rmcpWire) Write(p []byte) (int, error) {
	if kind, payload, ok := setup(p); ok && kind == types.PayloadTypeRAKPMessage1 && len(payload) > rakpRole {
		w.consoleRandom = [16]byte(payload[rakpRandom:rakpRandomEnd])
		w.role = payload[rakpRole]
	}
	return w.Conn.Write(p)
}

// Read returns the next packet that may be believed.
func (w *rmcpWire) Read(p []byte) (int, error) {
	for {
		n, err := w.Conn.Read(p)
		if err != nil {
			return n, err
		}
		if n, ok := w.accept(p, n); ok {
			return n, nil
		}
	}
}

// accept looks at a packet of n bytes in buf and returns its length after repair, or false to drop it.
func (w *rmcpWire) accept(buf []byte, n int) (int, bool) {
	if w.active {
		kind, _, ok := w.open(buf[:n])
		return n, ok && kind == types.PayloadTypeIPMI
	}
	kind, payload, ok := setup(buf[:n])
	if !ok {
		return n, false
	}
	switch {
	case kind != types.PayloadTypeRmcpOpenSessionResponse && kind != types.PayloadTypeRAKPMessage2 && kind != types.PayloadTypeRAKPMessage4:
		return n, false
	case len(payload) < 2:
		return n, false
	case payload[1] != 0:
		if short := refusalLen - len(payload); short > 0 && n+short <= len(buf) {
			clear(buf[n : n+short])
			n += short
			binary.LittleEndian.PutUint16(buf[rmcpLength:], refusalLen)
		}
	case kind == types.PayloadTypeRmcpOpenSessionResponse && len(payload) >= openBMCSession+4:
		w.session = binary.LittleEndian.Uint32(payload[openBMCSession:])
	case kind == types.PayloadTypeRAKPMessage2 && len(payload) >= rakpRandomEnd:
		w.bmcRandom = [16]byte(payload[rakpRandom:rakpRandomEnd])
	case kind == types.PayloadTypeRAKPMessage4:
		w.active = w.derive()
	}
	return n, true
}

// setup splits a packet outside a session.
func setup(p []byte) (types.PayloadType, []byte, bool) {
	if len(p) < rmcpPayload || p[rmcpHeader] != byte(types.AuthTypeRMCPPlus) || p[rmcpType]&rmcpFlags != 0 {
		return 0, nil, false
	}
	end := rmcpPayload + int(binary.LittleEndian.Uint16(p[rmcpLength:]))
	if end > len(p) {
		return 0, nil, false
	}
	return types.PayloadType(p[rmcpType]), p[rmcpPayload:end], true
}

// derive makes the session's keys (IPMI 2.0 section 13.31 and 13.32).
func (w *rmcpWire) derive() bool {
	auth, _, _, ok := types.GetCipherSuiteAlgorithms(w.suite)
	if !ok {
		return false
	}
	sik, err := crypto.DeriveSIK(auth, w.consoleRandom[:], w.bmcRandom[:], w.role, w.username, crypto.PadPassword20([]byte(w.password)))
	if err != nil {
		return false
	}
	if w.k1, err = crypto.DeriveK1(auth, sik); err != nil {
		return false
	}
	w.k2, err = crypto.DeriveK2(auth, sik)
	return err == nil && len(w.k2) >= aesBlock
}

// open returns the kind and the plain payload of a packet of the session that carries the right authentication code and
// decrypts to something.
func (w *rmcpWire) open(p []byte) (types.PayloadType, []byte, bool) {
	if len(p) < rmcpPayload || p[rmcpHeader] != byte(types.AuthTypeRMCPPlus) || p[rmcpType]&rmcpFlags != rmcpFlags {
		return 0, nil, false
	}
	_, integrity, _, _ := types.GetCipherSuiteAlgorithms(w.suite)
	codeLen, ok := crypto.IntegrityAuthCodeLen(integrity)
	if !ok || codeLen == 0 {
		return 0, nil, false
	}
	length := int(binary.LittleEndian.Uint16(p[rmcpLength:]))
	code := len(p) - codeLen
	if rmcpPayload+length+integrityFrame > code {
		return 0, nil, false
	}
	want, err := crypto.SessionIntegrityAuthCode(integrity, p[rmcpHeader:code], w.k1, "")
	if err != nil || !crypto.Equal(want, p[code:]) {
		return 0, nil, false
	}
	payload := p[rmcpPayload : rmcpPayload+length]
	if len(payload) < 2*aesBlock || len(payload)%aesBlock != 0 {
		return 0, nil, false
	}
	plain, err := crypto.DecryptAES(payload[aesBlock:], w.k2[:aesBlock], payload[:aesBlock])
	if err != nil {
		return 0, nil, false
	}
	pad := int(plain[len(plain)-1])
	if pad >= aesBlock {
		return 0, nil, false
	}
	return types.PayloadType(p[rmcpType] &^ rmcpFlags), plain[:len(plain)-pad-1], true
}
