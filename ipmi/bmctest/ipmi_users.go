package bmctest

import (
	"context"
	"errors"
	"strings"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/bareyard/bareyard/ipmi"
)

// Operations of Set User Password (IPMI 2.0 table 22-42).
const (
	passwordEnable = 1
	passwordSet    = 2
)

// registerUsers puts the faults in front of go-ipmi's own account commands.
func (b *IPMI) registerUsers(reg, plain *handlers.Registry) {
	reg.RegisterFunc(types.CommandSetUserPassword, func(ctx context.Context, h *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		fault := b.Faults.Now()
		if len(req) >= 2 {
			switch op := req[1] & 3; {
			case op <= passwordEnable && fault.DropEnable, op == passwordSet && fault.DropPassword:
				return nil, types.CodeOK, nil
			case op == passwordSet && fault.RefuseWeak:
				return nil, types.CodeRequestDataFieldInvalid, nil
			case op == passwordSet && fault.CutPassword > 0 && len(req) > 2+fault.CutPassword:
				req = append([]byte(nil), req...)
				clear(req[2+fault.CutPassword:])
			}
		}
		data, code, err := plain.Dispatch(ctx, h, uint8(types.CommandSetUserPassword.NetFn), types.CommandSetUserPassword.ID, req)
		if err == nil && code == types.CodeOK && b.OnPassword != nil && len(req) > 2 && req[1]&3 == passwordSet {
			if u, err := b.bmc.Users.Get(req[0] & 0x3f); err == nil {
				b.OnPassword(u.Name, strings.TrimRight(string(req[2:]), "\x00"))
			}
		}
		return data, code, err
	})
}

// userSlots is how many accounts fit.
const userSlots = 10

var privileges = map[ipmi.Privilege]bmc.PrivilegeLevel{
	ipmi.PrivilegeAdmin: bmc.PrivilegeLevelAdministrator, ipmi.PrivilegeOperator: bmc.PrivilegeLevelOperator,
	ipmi.PrivilegeReadOnly: bmc.PrivilegeLevelUser, ipmi.PrivilegeNone: bmc.PrivilegeLevelNoAccess,
}

// AddUser makes another account, enabled.
func (b *IPMI) AddUser(name, password string, p ipmi.Privilege) error {
	if _, err := b.Listen(); err != nil {
		return err
	}
	for id := uint8(3); id <= userSlots; id++ {
		if u, err := b.bmc.Users.Get(id); err == nil && u.Name != "" {
			continue
		}
		return b.bmc.Users.Upsert(id, func(u *bmc.User) error {
			u.Name, u.Enabled = name, true
			u.SetPassword([]byte(password))
			u.ChannelAccess[1] = bmc.UserChannelAccess{MaxPrivilege: privileges[p], Enabled: true}
			return nil
		})
	}
	return errors.New("add user: all slots are taken")
}

// SetPassword changes the password of an account, as another way to the same BMC would.
func (b *IPMI) SetPassword(name, password string) error {
	if _, err := b.Listen(); err != nil {
		return err
	}
	for id := uint8(1); id <= userSlots; id++ {
		if u, err := b.bmc.Users.Get(id); err == nil && u.Name == name {
			return b.bmc.Users.Update(id, func(u *bmc.User) error { u.SetPassword([]byte(password)); return nil })
		}
	}
	return errors.New("set password: no such account")
}
