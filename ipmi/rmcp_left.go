package ipmi

import (
	"context"

	"github.com/bougou/go-ipmi/pkg/command/app"
)

// mostSessions bounds how many sessions of a BMC are looked at.
const mostSessions = 16

// closeLeft closes the sessions that programs of this host left in the BMC when they died: those of the same user, from our address, from a
// port that nobody on this host has open. A BMC has few, and keeps each for a minute or more; a server that is killed again and
// again would take them all. It is done at a program's first login to a BMC. A BMC that does not tell its sessions, or closes none by its
// handle, is left to time them out.
func (r *rmcpConn) closeLeft(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 4*r.answer)
	defer cancel()
	info := func(req app.GetSessionInfoRequest) (*app.GetSessionInfoResponse, error) {
		return ask(ctx, r, func(ctx context.Context) (*app.GetSessionInfoResponse, error) { return r.c.GetSessionInfo(ctx, &req) })
	}
	own, err := info(app.GetSessionInfoRequest{})
	if err != nil || own.CurrentActiveSessions < 2 {
		return
	}
	var left []uint8
	for i := uint8(1); i <= min(own.CurrentActiveSessions, mostSessions); i++ {
		s, err := info(app.GetSessionInfoRequest{SessionIndex: i})
		if err != nil {
			break
		}
		if s.SessionHandle != 0 && s.SessionHandle != own.SessionHandle && s.UserID == own.UserID && s.RemoteConsoleIPAddr != nil &&
			deadSocket(r.wire.LocalAddr(), s.RemoteConsoleIPAddr, s.RemoteConsolePort) {
			left = append(left, s.SessionHandle)
		}
	}
	for _, handle := range left {
		_, err := ask(ctx, r, func(ctx context.Context) (*app.CloseSessionResponse, error) {
			return r.c.CloseSession(ctx, &app.CloseSessionRequest{SessionHandle: handle})
		})
		if r.log != nil && err == nil {
			r.log.Info("closed a session that a program of this host left in a BMC", "bmc", r.t)
		}
	}
}
