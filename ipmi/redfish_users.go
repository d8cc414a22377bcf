package ipmi

import (
	"context"
	"errors"
	"net/http"
)

var rfRoles = map[string]Privilege{
	"Administrator": PrivilegeAdmin, "Operator": PrivilegeOperator, "ReadOnly": PrivilegeReadOnly, "None": PrivilegeNone, "NoAccess": PrivilegeNone,
}

func (c *rfConn) accountService(ctx context.Context) (resource, error) {
	return follow(ctx, c, c.root, "AccountService")
}

// accounts lists the accounts with a name: some services show a fixed number of slots, most of them empty.
func (c *rfConn) accounts(ctx context.Context) ([]account, error) {
	service, err := c.accountService(ctx)
	if err != nil {
		return nil, err
	}
	list := service.body.obj("Accounts").str("@odata.id")
	if list == "" {
		return nil, failf(ErrUnsupported, "it has no Accounts")
	}
	var out []account
	_, err = each(ctx, c, list, rfMembers, func(r resource) bool {
		a := account{path: r.path, User: User{ID: r.body.str("Id"), Name: r.body.str("UserName"), Role: r.body.str("RoleId"),
			Enabled: r.body.flag("Enabled", true), Locked: r.body.flag("Locked", false)}}
		var known bool
		if a.Privilege, known = rfRoles[a.Role]; !known {
			a.Privilege = PrivilegeOther
		}
		if a.Name != "" {
			out = append(out, a)
		}
		return true
	})
	return out, err
}

func (c *rfConn) admits(ctx context.Context, password string) error {
	service, err := c.accountService(ctx)
	if err != nil {
		return err
	}
	shortest, told := service.body.integer("MinPasswordLength")
	if told && int64(len(password)) < shortest {
		return failf(ErrPassword, "this BMC wants at least %d characters", shortest)
	}
	if longest, told := service.body.integer("MaxPasswordLength"); told && longest > 0 && int64(len(password)) > longest {
		return failf(ErrPassword, "this BMC takes at most %d characters", longest)
	}
	return nil
}

func (c *rfConn) setPassword(ctx context.Context, a account, password string) error {
	err := c.changeAccount(ctx, a, map[string]any{"Password": password})
	var f *failure
	if errors.As(err, &f) && f.kind == ErrUnsupported && f.status == http.StatusBadRequest {
		return failf(ErrPassword, "the BMC refuses it: %s", f.detail)
	}
	return err
}

func (c *rfConn) setEnabled(ctx context.Context, a account, enabled bool) error {
	return c.changeAccount(ctx, a, map[string]any{"Enabled": enabled})
}

func (c *rfConn) changeAccount(ctx context.Context, a account, body any) error {
	r, err := c.get(ctx, a.path)
	if err == nil {
		_, err = c.change(ctx, r, body)
	}
	return err
}
