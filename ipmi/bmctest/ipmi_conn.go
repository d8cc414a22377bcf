package bmctest

import (
	"encoding/binary"
	"net"
	"slices"
	"sync/atomic"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/protocol"
	"github.com/bougou/go-ipmi/pkg/rmcpplus"
	"github.com/bougou/go-ipmi/pkg/types"
)

// ipmiConn plays the faults that sit below IPMI's commands: silence, refused suites, full slots and lock-outs.
type ipmiConn struct {
	*net.UDPConn
	owner   *IPMI
	logins  atomic.Int64
	failed  atomic.Int64 // logins since the last that succeeded
	lose    atomic.Int64 // replies still to lose
	refused atomic.Int64
}

// ReadFrom returns the next packet that the server shall see.
func (c *ipmiConn) ReadFrom(buf []byte) (int, net.Addr, error) {
	for {
		n, addr, err := c.UDPConn.ReadFrom(buf)
		if err != nil {
			return n, addr, err
		}
		fault := c.owner.Faults.Now()
		if fault.Unreachable {
			continue
		}
		if kind, reply := c.answer(buf[:n], fault); reply != nil {
			_, _ = c.UDPConn.WriteTo(protocol.BuildRMCPPlusPacket(uint8(kind), 0, 0, 0, reply), addr)
			continue
		}
		return n, addr, nil
	}
}

// answer is the reply to a message that does not get as far as the server, or nil.
func (c *ipmiConn) answer(pkt []byte, fault Fault) (types.PayloadType, []byte) {
	if len(pkt) < 5 || pkt[3]&0x1f != 0x07 || pkt[4] != byte(types.AuthTypeRMCPPlus) {
		return 0, nil
	}
	_, _, kind, _, p, ok := protocol.ParseRMCPPlusHeader(pkt)
	if !ok {
		return 0, nil
	}
	switch types.PayloadType(kind) {
	case types.PayloadTypeRmcpOpenSessionRequest:
		if len(p) < rmcpplus.OpenSessionRequestSize {
			return 0, nil
		}
		r := rmcpplus.OpenSessionResponse{MessageTag: p[0], RemoteConsoleSessionID: binary.LittleEndian.Uint32(p[4:])}
		suite := 3
		if types.AuthAlg(p[12]) == types.AuthAlg_HMAC_SHA256 {
			suite = 17
		}
		switch {
		case slices.Contains(fault.RefuseSuites, suite) || fault.OnlySuite != 0 && fault.OnlySuite != suite:
			c.refused.Add(1)
			r.RmcpStatusCode = types.RmcpStatusCodeInvalidAuthAlg
		case fault.SessionsFull:
			r.RmcpStatusCode = types.RmcpStatusCodeNoResToCreateSess
		default:
			return 0, nil
		}
		return types.PayloadTypeRmcpOpenSessionResponse, r.Pack()
	case types.PayloadTypeRAKPMessage1:
		c.logins.Add(1)
		limit := bmc.PrivilegeLevelAdministrator
		if fault.OperatorOnly {
			limit = bmc.PrivilegeLevelOperator
		}
		_ = c.owner.bmc.Users.Update(2, func(u *bmc.User) error {
			u.ChannelAccess[1] = bmc.UserChannelAccess{MaxPrivilege: limit, Enabled: true}
			return nil
		})
		locked := fault.LockAfter > 0 && c.failed.Load() >= int64(fault.LockAfter)
		c.failed.Add(1)
		if !locked || len(p) < 8 {
			return 0, nil
		}
		r := rmcpplus.RAKPMessage2{MessageTag: p[0], RmcpStatusCode: types.RmcpStatusCodeUnauthorizedName}
		if s, err := c.owner.bmc.Sessions.Get(binary.LittleEndian.Uint32(p[4:])); err == nil {
			r.RemoteConsoleSessionID = s.ConsoleID
			_ = c.owner.bmc.Sessions.Close(s.BMCID)
		}
		return types.PayloadTypeRAKPMessage2, r.Pack()
	}
	return 0, nil
}

// WriteTo sends a reply, unless it is to be lost, and notes logins that succeeded.
func (c *ipmiConn) WriteTo(pkt []byte, addr net.Addr) (int, error) {
	for n := c.lose.Load(); n > 0; n = c.lose.Load() {
		if c.lose.CompareAndSwap(n, n-1) {
			return len(pkt), nil
		}
	}
	if _, _, kind, _, p, ok := protocol.ParseRMCPPlusHeader(pkt); ok && types.PayloadType(kind) == types.PayloadTypeRmcpOpenSessionResponse && len(p) >= 12 && p[1] == 0 {
		c.owner.mu.Lock()
		c.owner.begun[binary.LittleEndian.Uint32(p[4:])] = binary.LittleEndian.Uint32(p[8:])
		c.owner.mu.Unlock()
	}
	if _, _, kind, _, p, ok := protocol.ParseRMCPPlusHeader(pkt); ok && types.PayloadType(kind) == types.PayloadTypeRAKPMessage4 && len(p) > 1 && p[1] == 0 && len(p) >= 8 {
		c.failed.Store(0)
		c.owner.mu.Lock()
		c.owner.opened++
		if console := binary.LittleEndian.Uint32(p[4:]); c.owner.begun[console] != 0 {
			c.owner.ids = append(c.owner.ids, c.owner.begun[console])
			delete(c.owner.begun, console)
		}
		c.owner.most = max(c.owner.most, c.owner.opened-c.owner.closed)
		c.owner.mu.Unlock()
	}
	return c.UDPConn.WriteTo(pkt, addr)
}
