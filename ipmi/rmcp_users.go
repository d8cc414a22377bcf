package ipmi

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/bougou/go-ipmi/pkg/command/app"
	"github.com/bougou/go-ipmi/pkg/types"
)

// thisChannel is the channel that the session came in by.
const thisChannel = 0x0e

// shortPassword is the longest password of the 16-byte form of Set User Password.
const shortPassword = 16

// Enable status of a user (IPMI 2.0 table 22-31).
const (
	statusUnspecified = 0
	statusEnabled     = 1
)

var rmcpPrivileges = map[types.PrivilegeLevel]Privilege{
	types.PrivilegeLevelCallback: PrivilegeReadOnly, types.PrivilegeLevelUser: PrivilegeReadOnly, types.PrivilegeLevelOperator: PrivilegeOperator,
	types.PrivilegeLevelAdministrator: PrivilegeAdmin, types.PrivilegeLevelOEM: PrivilegeOther, 0x0f: PrivilegeNone, 0: PrivilegeNone,
}

func (r *rmcpConn) accounts(ctx context.Context) ([]account, error) {
	var out []account
	for id, last := uint8(1), uint8(1); id <= last; id++ {
		access, err := r.access(ctx, id)
		if err != nil {
			if id > 1 && errors.Is(err, ErrUnsupported) {
				continue // some BMCs answer for the slots in use only
			}
			return nil, err
		}
		last = min(access.MaxUsersIDCount, 63)
		name, err := ask(ctx, r, func(ctx context.Context) (*app.GetUsernameResponse, error) { return r.c.GetUsername(ctx, id) })
		if err != nil && !errors.Is(err, ErrUnsupported) {
			return nil, err
		}
		a := account{number: id, User: User{ID: strconv.Itoa(int(id)), Privilege: PrivilegeOther, Role: access.MaxPrivLevel.String()},
			extra: map[string]string{"messaging": strconv.FormatBool(access.IPMIMessagingEnabled), "callback-only": strconv.FormatBool(access.CallbackOnly)}}
		if err == nil {
			a.Name, _, _ = strings.Cut(name.Username, "\x00")
			a.Name = clean(strings.TrimRight(a.Name, " "))
		}
		if p, ok := rmcpPrivileges[access.MaxPrivLevel]; ok {
			a.Privilege = p
		}
		mayTalk := access.IPMIMessagingEnabled && a.Privilege != PrivilegeNone
		a.Enabled = access.EnableStatus == statusEnabled || access.EnableStatus == statusUnspecified && mayTalk
		if a.Name != "" || a.Enabled && mayTalk {
			out = append(out, a)
		}
	}
	return out, nil
}

func (r *rmcpConn) access(ctx context.Context, id uint8) (*app.GetUserAccessResponse, error) {
	return ask(ctx, r, func(ctx context.Context) (*app.GetUserAccessResponse, error) {
		return r.c.GetUserAccess(ctx, thisChannel, id)
	})
}

func (r *rmcpConn) admits(context.Context, string) error { return nil }

// setPassword takes the 20-byte form only where the password needs it: BMCs that know IPMI 1.5 log in with the other.
func (r *rmcpConn) setPassword(ctx context.Context, a account, password string) error {
	_, err := ask(ctx, r, func(ctx context.Context) (*app.SetUserPasswordResponse, error) {
		return r.c.SetUserPassword(ctx, a.number, password, len(password) > shortPassword)
	})
	if errors.Is(err, ErrUnsupported) {
		return failf(ErrPassword, "the BMC refuses it: completion code %#02x", uint8(code(err)))
	}
	return err
}

// setEnabled enables or disables a user. Where the BMC does not tell whether that had an effect, the user's right to talk is given or taken
// too.
func (r *rmcpConn) setEnabled(ctx context.Context, a account, enabled bool) error {
	if _, err := ask(ctx, r, func(ctx context.Context) (any, error) {
		if enabled {
			return nil, r.c.EnableUser(ctx, a.number)
		}
		return nil, r.c.DisableUser(ctx, a.number)
	}); err != nil {
		return err
	}
	access, err := r.access(ctx, a.number)
	if err != nil || access.EnableStatus != statusUnspecified || access.IPMIMessagingEnabled == enabled {
		return err
	}
	_, err = ask(ctx, r, func(ctx context.Context) (*app.SetUserAccessResponse, error) {
		return r.c.SetUserAccess(ctx, &app.SetUserAccessRequest{EnableChanging: true, EnableIPMIMessaging: enabled, EnableLinkAuth: access.LinkAuthEnabled,
			RestrictedToCallback: access.CallbackOnly, ChannelNumber: thisChannel, UserID: a.number, MaxPrivLevel: uint8(access.MaxPrivLevel)})
	})
	return err
}
