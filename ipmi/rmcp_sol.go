package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/bougou/go-ipmi/pkg/command/app"
	"github.com/bougou/go-ipmi/pkg/command/transport"
	"github.com/bougou/go-ipmi/pkg/types"
)

// go-ipmi's own SOL loop asks ten times a second, sends one key in a packet, and ends where a byte is missing. This one is driven by
// what arrives, marks what is missing and goes on; go-ipmi makes and seals the packets.

const (
	solInstance = 1
	solChunk    = 200 // bytes of keys in a packet; BMCs take 255 with the header at most

	// Status of a packet from the BMC (IPMI 2.0 table 15-2).
	solUnavailable  = 0x20
	solDeactivating = 0x10
	solOverrun      = 0x08
	// Operation of a packet to the BMC.
	solBreak = 0x10

	// Completion codes of Activate Payload (table 24-2).
	solActive       = 0x80
	solDisabled     = 0x81
	solLimit        = 0x82
	solNoEncryption = 0x83

	solResend = 400 * time.Millisecond // between two sendings of the same keys
	solTries  = 8
)

// solSession is one activation of the console payload.
type solSession struct {
	k     *Console
	r     *rmcpConn
	send  func(types.Request) error
	heard time.Time // when the BMC was last heard
	tells bool      // the BMC tells truly whose the console is
	took  time.Time // when bytes of the host last came

	packets chan solPacket
	in      uint8 // sequence number of the last data from the BMC
	inLen   int   // how much of it was taken
	out     uint8 // sequence number of the last data to the BMC
	pending *keystrokes
	tries   int
}

type solPacket struct {
	kind types.PayloadType
	data []byte
}

// openSOL opens a session and activates the console in it.
func (k *Console) openSOL(ctx context.Context, takeOver bool) (*solSession, error) {
	r, err := k.l.openOwn(ctx)
	if err != nil {
		return nil, err
	}
	s := &solSession{k: k, r: r, packets: make(chan solPacket, 16)}
	s.send = s.transmit
	if err := s.activate(ctx, takeOver); err != nil {
		r.end(ctx, true)
		return nil, err
	}
	s.heard = time.Now()
	s.took = s.heard
	return s, nil
}

// openOwn opens a session beside the one that is shared, while nobody else logs in to the BMC.
func (l *link) openOwn(ctx context.Context) (*rmcpConn, error) {
	select {
	case <-ctx.Done():
		return nil, over(ctx)
	case <-l.b.turn:
	}
	defer func() { l.b.turn <- struct{}{} }()
	as := l.t.credentials()
	if err := l.b.off.waits(); err != nil {
		return nil, err
	}
	if err := l.b.off.allows(as); err != nil {
		return nil, err
	}
	conn, err := l.open(ctx)
	l.b.off.note(as, err)
	if err != nil {
		return nil, err
	}
	r, ok := conn.(*rmcpConn)
	if !ok {
		conn.close(ctx)
		return nil, failf(ErrUnsupported, "no console by %s", l.t.Protocol)
	}
	return r, nil
}

// activate activates the payload, and ends a session of ours that is in the way.
func (s *solSession) activate(ctx context.Context, takeOver bool) error {
	for try := 0; ; try++ {
		_, err := ask(ctx, s.r, func(ctx context.Context) (*transport.ActivatePayloadResponse, error) {
			return s.r.c.ActivatePayload(ctx, &transport.ActivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: solInstance,
				EnableEncryption: true, EnableAuthentication: true})
		})
		switch code(err) {
		case 0:
			if err == nil {
				s.k.l.b.ownConsole(s.r.wire.session)
				info, err := s.instance(ctx)
				s.tells = err == nil && info.SessionID == s.r.wire.session
			}
			return err
		case solDisabled:
			return failf(ErrUnsupported, "the console is disabled in the BMC, or for this user")
		case solNoEncryption:
			return failf(ErrUnsupported, "the BMC sends the console in clear only")
		case solActive, solLimit:
		default:
			return err
		}
		held, who, ours := s.holder(ctx)
		if try > 0 || !ours && !takeOver {
			return taken(who)
		}
		s.k.c.log().Info("console session ended to make room", "bmc", s.k.t, "held_by", who, "ours", ours)
		if ours {
			s.bury(ctx, held)
		}
		if _, err := ask(ctx, s.r, func(ctx context.Context) (*transport.DeactivatePayloadResponse, error) {
			return s.r.c.DeactivatePayload(ctx, &transport.DeactivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: solInstance})
		}); err != nil && !errors.Is(err, ErrUnsupported) { // unsupported: it is over already
			return err
		}
	}
}

// holder says who holds the console, and whether that is a session which we lost: one that this Controller opened, or one from a
// socket of this host that nobody has open any more.
func (s *solSession) holder(ctx context.Context) (id uint32, who string, ours bool) {
	info, err := s.instance(ctx)
	if err != nil {
		return 0, "a session that the BMC does not tell of", false
	}
	if s.k.l.b.ownsConsole(info.SessionID) {
		return info.SessionID, "an earlier session of this program", true
	}
	session, err := ask(ctx, s.r, func(ctx context.Context) (*app.GetSessionInfoResponse, error) {
		return s.r.c.GetSessionInfo(ctx, &app.GetSessionInfoRequest{SessionIndex: 0xff, SessionID: info.SessionID})
	})
	if err != nil || session.RemoteConsoleIPAddr == nil {
		return info.SessionID, fmt.Sprintf("session %#x", info.SessionID), false
	}
	own, err := ask(ctx, s.r, func(ctx context.Context) (*app.GetSessionInfoResponse, error) {
		return s.r.c.GetCurrentSessionInfo(ctx)
	})
	who = fmt.Sprintf("user %d from %s", session.UserID, net.JoinHostPort(session.RemoteConsoleIPAddr.String(), fmt.Sprint(session.RemoteConsolePort)))
	return info.SessionID, who, err == nil && own.UserID == session.UserID && deadSocket(s.r.wire.LocalAddr(), session.RemoteConsoleIPAddr, session.RemoteConsolePort)
}

// instance asks in which session the console is active.
func (s *solSession) instance(ctx context.Context) (*transport.GetPayloadInstanceInfoResponse, error) {
	return ask(ctx, s.r, func(ctx context.Context) (*transport.GetPayloadInstanceInfoResponse, error) {
		return s.r.c.GetPayloadInstanceInfo(ctx, types.PayloadTypeSOL, solInstance)
	})
}

// stillOurs looks at the answer to such a question that came while the console runs.
func (s *solSession) stillOurs(data []byte) error {
	var res types.IPMIResponse
	var info transport.GetPayloadInstanceInfoResponse
	if !s.tells || res.Unpack(data) != nil || res.Command != types.CommandGetPayloadInstanceInfo.ID || res.CompletionCode != 0 || info.Unpack(res.Data) != nil {
		return nil
	}
	if info.SessionID != s.r.wire.session {
		return errDeactivated
	}
	return nil
}

// bury closes a session of ours that was lost, so that it does not hold a slot until it times out.
func (s *solSession) bury(ctx context.Context, session uint32) {
	if session == 0 || session == s.r.wire.session {
		return
	}
	_, _ = ask(ctx, s.r, func(ctx context.Context) (*app.CloseSessionResponse, error) {
		return s.r.c.CloseSession(ctx, &app.CloseSessionRequest{SessionID: session})
	}) // it may be gone
}

// deadSocket reports whether ip is the address from which we speak and nothing on this host has the port open.
func deadSocket(local net.Addr, ip net.IP, port uint16) bool {
	from, ok := local.(*net.UDPAddr)
	if !ok || port == 0 || !from.IP.Equal(ip) || from.Port == int(port) {
		return false
	}
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: int(port)})
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// serve carries bytes until the context ends, which is nil, or the link is lost.
func (s *solSession) serve(ctx context.Context) error {
	reading := make(chan struct{})
	_ = s.r.wire.SetReadDeadline(time.Time{}) // one is left over from the last command
	go s.read(reading)
	defer func() {
		_ = s.r.wire.SetReadDeadline(time.Now())
		for { // it may wait to hand on a packet
			select {
			case <-s.packets:
				continue
			case <-reading:
			}
			break
		}
		if s.pending != nil {
			s.pending.took <- &failure{kind: ErrUnreachable, detail: "the link was lost: the keys may have arrived", sent: true}
			s.pending = nil
		}
	}()
	alive := time.NewTicker(s.k.o.KeepAlive)
	defer alive.Stop()
	resend := time.NewTicker(solResend)
	defer resend.Stop()
	for {
		keys := s.k.keys
		if s.pending != nil {
			keys = nil
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case p := <-s.packets:
			s.heard = time.Now()
			switch p.kind {
			case types.PayloadTypeSOL:
				err = s.receive(p.data)
			case types.PayloadTypeIPMI:
				err = s.stillOurs(p.data)
			}
		case k := <-keys:
			err = s.press(&k)
		case <-resend.C:
			err = s.pressAgain()
		case <-alive.C:
			if time.Since(s.heard) > 4*s.k.o.KeepAlive {
				return failf(ErrUnreachable, "no sign of life")
			}
			// Any packet that comes back is a sign of life. A BMC whose console was taken over does not always say so by itself.
			err = s.send(&transport.GetPayloadInstanceInfoRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: solInstance})
		}
		if err != nil {
			return err
		}
	}
}

// read reads packets until the deadline that serve sets when it ends.
func (s *solSession) read(done chan<- struct{}) {
	defer close(done)
	buf := make([]byte, 4096)
	for {
		n, err := s.r.wire.Conn.Read(buf)
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, net.ErrClosed):
			return
		case err != nil: // a refused port while the BMC starts anew
			continue
		}
		if kind, plain, ok := s.r.wire.open(buf[:n]); ok {
			s.packets <- solPacket{kind, append([]byte(nil), plain...)}
		}
	}
}

// transmit makes, seals and sends a packet.
func (s *solSession) transmit(req types.Request) error {
	rmcp, err := s.r.c.BuildRmcpRequest(context.Background(), req)
	if err != nil {
		return failf(ErrUnsupported, "a packet cannot be made")
	}
	_, _ = s.r.wire.Conn.Write(rmcp.Pack()) // a lost link is seen by silence
	return nil
}

// receive takes a SOL packet of the BMC: bytes of the host, an acknowledgement of keys, or both.
func (s *solSession) receive(data []byte) error {
	var p types.SOLPayloadPacket
	if p.Unpack(data) != nil {
		return nil
	}
	if p.AckedSequenceNumber != 0 {
		s.acknowledged(p)
	}
	if p.ControlByte&solDeactivating != 0 {
		return errDeactivated
	}
	now := time.Now()
	if p.ControlByte&solOverrun != 0 {
		s.k.put(Output{At: now, Gap: &Gap{From: s.took, To: now, Reason: GapOverrun}})
	}
	if p.SequenceNumber == 0 {
		return nil
	}
	fresh := p.CharacterData
	switch ahead := (int(p.SequenceNumber) - int(s.in) + 15) % 15; {
	case s.in == 0 || ahead == 1: // the first, or the next
	case ahead == 0: // again, perhaps with more in it
		fresh = fresh[min(s.inLen, len(fresh)):]
	case ahead > 7: // an old one that was on its way
		return nil
	default:
		s.k.put(Output{At: now, Gap: &Gap{From: s.took, To: now, Reason: GapPackets}})
	}
	if len(fresh) > 0 && !s.k.room() {
		return nil // not acknowledged: the BMC keeps it, and says so when it cannot
	}
	if len(fresh) > 0 {
		s.took = now
		s.k.put(Output{At: now, Data: fresh})
	}
	s.in, s.inLen = p.SequenceNumber, len(p.CharacterData)
	return s.send(&types.SOLPayloadRequest{SOLPayloadPacket: types.SOLPayloadPacket{AckedSequenceNumber: s.in, AcceptedCharacterCount: uint8(min(s.inLen, 255))}})
}

// press sends keys.
func (s *solSession) press(k *keystrokes) error {
	s.pending, s.tries = k, 0
	s.out = s.out%15 + 1
	return s.send(s.keyPacket())
}

func (s *solSession) keyPacket() *types.SOLPayloadRequest {
	p := types.SOLPayloadPacket{SequenceNumber: s.out, AckedSequenceNumber: s.in, AcceptedCharacterCount: uint8(min(s.inLen, 255)), CharacterData: s.pending.data}
	if s.pending.brk {
		p.ControlByte = solBreak
	}
	return &types.SOLPayloadRequest{SOLPayloadPacket: p}
}

// pressAgain sends keys again that were not acknowledged, under the same number, so that the BMC takes them once.
func (s *solSession) pressAgain() error {
	if s.pending == nil {
		return nil
	}
	if s.tries++; s.tries >= solTries {
		s.pending.took <- &failure{kind: ErrUnreachable, detail: "no answer to the keys: they may have arrived", sent: true}
		s.pending = nil
		return nil
	}
	return s.send(s.keyPacket())
}

// acknowledged takes the BMC's word on the keys under way.
func (s *solSession) acknowledged(p types.SOLPayloadPacket) {
	if s.pending == nil || p.AckedSequenceNumber != s.out {
		return
	}
	k := s.pending
	s.pending = nil
	left := k.data[min(int(p.AcceptedCharacterCount), len(k.data)):]
	switch {
	case len(left) == 0:
		k.took <- nil
	case p.ControlByte&solUnavailable != 0:
		k.took <- failf(ErrBusy, "the host takes no keys now: it may be off")
	default: // the rest, under the next number; pressAgain paces it where nothing was taken
		tries := s.tries
		if len(left) < len(k.data) {
			tries = 0
		}
		s.pending, s.tries = &keystrokes{data: left, took: k.took}, tries
		s.out = s.out%15 + 1
		if tries == 0 {
			_ = s.send(s.keyPacket())
		}
	}
}

// end deactivates the console, unless somebody else has it now, and ends the session.
func (s *solSession) end() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = s.r.wire.exchange(ctx, s.r.answer, func(ctx context.Context) error {
		if info, err := s.r.c.GetPayloadInstanceInfo(ctx, types.PayloadTypeSOL, solInstance); err != nil || s.tells && info.SessionID != s.r.wire.session {
			return err
		}
		_, err := s.r.c.DeactivatePayload(ctx, &transport.DeactivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: solInstance})
		return err
	})
	s.r.end(ctx, true)
}
