package ipmi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"
)

// Limits of IPMI 2.0: a longer password would be cut by some BMCs and accepted by others.
const (
	maxUserName = 16
	maxPassword = 20
)

// rmcpSuites is the cipher suites in the order in which they are tried. What a BMC says about its suites is not asked for:
// some list 17 and refuse it, some cannot list and take 17.
var rmcpSuites = []types.CipherSuiteID{types.CipherSuiteID17, types.CipherSuiteID3}

// Refusals of a login that another login, with other parameters and the same password, may cure. Neither of them is a
// failed login for the BMC.
var (
	errSuite     = errors.New("cipher suite refused")
	errPrivilege = errors.New("privilege refused")
)

// rmcpConn is an RMCP+ session. Its client never retransmits: a power command that is repeated by the wire is a second
// power command for some BMCs.
type rmcpConn struct {
	c      *client.Client
	wire   *rmcpWire
	answer time.Duration
	log    *slog.Logger
	t      Target
}

// openRMCP logs in. Only a refused cipher suite or privilege leads to a second attempt: after a wrong password, another
// suite would be one more failed login on the way to a lock-out.
func openRMCP(ctx context.Context, t Target, m *memory, k *known, answer time.Duration, log *slog.Logger) (conn, error) {
	if len(t.Username) > maxUserName || len(t.Password) > maxPassword {
		return nil, failf(ErrCredentials, "longer than IPMI allows: nothing was sent")
	}
	suites := rmcpSuites
	if worked := types.CipherSuiteID(k.suite()); slices.Contains(rmcpSuites, worked) {
		suites = []types.CipherSuiteID{worked}
		for _, s := range rmcpSuites {
			if s != suites[0] {
				suites = append(suites, s)
			}
		}
	}
	level := types.PrivilegeLevelAdministrator
	var err error
	for i := 0; i < len(suites); i++ {
		var c *rmcpConn
		c, err = login(ctx, t, suites[i], level, answer, m.worked == t.Username)
		switch {
		case err == nil:
			k.keepSuite(int(suites[i]))
			c.log = log
			if !m.looked {
				m.looked = true
				c.closeLeft(ctx)
			}
			return c, nil
		case errors.Is(err, errPrivilege) && level == types.PrivilegeLevelAdministrator:
			level = types.PrivilegeLevelOperator // which is all that power and boot options need
			k.quirk("the user is an operator only: accounts cannot be changed")
			i--
		case errors.Is(err, errPrivilege):
			return nil, failf(ErrCredentials, "the user is not even an operator")
		case !errors.Is(err, errSuite):
			return nil, err
		}
	}
	return nil, failf(ErrUnsupported, "the BMC refuses the cipher suites 17 and 3")
}

// login opens one session on a socket of its own, so that late answers to an earlier attempt go nowhere.
func login(ctx context.Context, t Target, suite types.CipherSuiteID, level types.PrivilegeLevel, answer time.Duration, workedBefore bool) (*rmcpConn, error) {
	host, portText := splitAddress(t.Address)
	port, err := strconv.Atoi(portText)
	if err != nil || host == "" {
		return nil, failf(ErrUnsupported, "the address is not host:port")
	}
	c, err := client.NewClient(host, port, t.Username, t.Password)
	if err != nil {
		return nil, failf(ErrCredentials, "refused by the client")
	}
	socket, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(host, portText))
	if err != nil {
		return nil, wireError(err)
	}
	r := &rmcpConn{c: c, answer: answer, t: t, wire: &rmcpWire{Conn: socket, suite: suite, username: t.Username, password: t.Password}}
	// The client's own limit is the longest of ours; it cannot be changed once the client is in use.
	c.WithUDPProxy(r.wire).WithTimeout(max(answer, controlAnswer)).WithRetry(0).WithCipherSuiteID(suite).WithMaxPrivilegeLevel(level)
	active, shaking := false, ctx
	const opensSession = 2
	for i, step := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := c.OpenSession(ctx); return loginError(err, false) },
		func(ctx context.Context) error { _, err := c.RAKPMessage1(ctx); return loginError(err, workedBefore) },
		func(ctx context.Context) error {
			_, err := c.RAKPMessage3(ctx)
			active = err == nil
			return loginError(err, workedBefore)
		},
		func(ctx context.Context) error {
			_, err := c.SetSessionPrivilegeLevel(ctx, level)
			if res, ok := types.IsResponseError(err); ok && (res.CompletionCode() == 0x80 || res.CompletionCode() == 0x81) {
				return errPrivilege
			}
			return commandError(err)
		},
	} {
		if i == opensSession {
			// From here on the BMC may hold a session: a caller who gives up must not leave it there.
			if ctx.Err() != nil {
				r.end(ctx, false)
				return nil, over(ctx)
			}
			shaking = context.WithoutCancel(ctx)
		}
		if err := r.wire.exchange(shaking, answer, step); err != nil {
			r.end(ctx, active)
			return nil, err
		}
	}
	if ctx.Err() != nil {
		r.end(ctx, true)
		return nil, over(ctx)
	}
	return r, nil
}

// end closes the session, if there is one, and the socket.
func (r *rmcpConn) end(ctx context.Context, active bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	if !active {
		cancel() // which leaves the client only the socket to close
	}
	if err := r.wire.exchange(ctx, r.answer, r.c.Close); err != nil && active && r.log != nil {
		r.log.Debug("BMC session did not end in order", "bmc", r.t)
	}
	_ = r.wire.Close()
}

// loginError sorts the error of a message of the RMCP+ handshake (IPMI 2.0 table 13-15).
func loginError(err error, workedBefore bool) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, client.ErrRAKPAuthentication) {
		return failf(ErrCredentials, "wrong password")
	}
	var status *types.RmcpStatusError
	if !errors.As(err, &status) {
		return wireError(err)
	}
	switch code := status.StatusCode(); code {
	case types.RmcpStatusCodeInvalidAuthAlg, types.RmcpStatusCodeInvalidIntegrityAlg, types.RmcpStatusCodeInvalidConfidentAlg, types.RmcpStatusCodeNoCipherSuiteMatch:
		return errSuite
	case types.RmcpStatusCodeInvalidRole, types.RmcpStatusCodeUnauthorizedRoleOfPriLevel:
		return errPrivilege
	case types.RmcpStatusCodeUnauthorizedName:
		if workedBefore {
			return failf(ErrLocked, "the BMC no longer knows a user that logged in before")
		}
		return failf(ErrCredentials, "unknown or locked user")
	case types.RmcpStatusCodeInvalidNameLength, types.RmcpStatusCodeUnauthorizedGUID, types.RmcpStatusCodeInvalidIntegrityCheckValue:
		return failf(ErrCredentials, "RMCP+ status %#02x", uint8(code))
	case types.RmcpStatusCodeNoResToCreateSess, types.RmcpStatusCodeNoResToCreateSessAtRole:
		return failf(ErrBusy, "no free session slot")
	default:
		return failf(ErrUnreachable, "RMCP+ status %#02x", uint8(code))
	}
}

// wireError describes an exchange that got no answer which makes sense.
func wireError(err error) *failure {
	f := failf(ErrUnreachable, "no answer")
	var op *net.OpError
	var call *os.SyscallError
	switch {
	case errors.As(err, &call):
		f.detail = call.Err.Error()
	case errors.As(err, &op) && op.Op == "dial":
		f.detail = "address cannot be reached"
	}
	return f
}

// commandError sorts the error of a command within a session (IPMI 2.0 table 5-2).
func commandError(err error) error {
	if err == nil {
		return nil
	}
	r, ok := types.IsResponseError(err)
	if !ok {
		f := wireError(err)
		f.sent = true
		return f
	}
	f := refused(r.CompletionCode())
	f.code = r.CompletionCode()
	return f
}

func refused(code types.CompletionCode) *failure {
	switch code {
	case 0xc1, 0xc2, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xd6, 0x80:
		return failf(ErrUnsupported, "completion code %#02x", uint8(code))
	case 0x00:
		return failf(ErrUnsupported, "an answer that cannot be read")
	case 0xd4:
		return failf(ErrCredentials, "insufficient privilege")
	case 0xc3, 0xce: // no response in time: it may have happened
		f := failf(ErrBusy, "completion code %#02x", uint8(code))
		f.sent = true
		return f
	default: // among them 0xd5: not in the present state, which the next read of that state will tell
		return failf(ErrBusy, "completion code %#02x", uint8(code))
	}
}

func (r *rmcpConn) close(ctx context.Context) { r.end(ctx, true) }
