package bmctest

import (
	"net/http"
	"strconv"

	"github.com/bareyard/bareyard/ipmi"
)

// rfAccount is an account; one without a name is an empty slot.
type rfAccount struct {
	id, name, password, role string
	enabled, locked          bool
}

var rfRoleOf = map[ipmi.Privilege]string{ipmi.PrivilegeAdmin: "Administrator", ipmi.PrivilegeOperator: "Operator", ipmi.PrivilegeReadOnly: "ReadOnly", ipmi.PrivilegeNone: "NoAccess"}

func (r *Redfish) serveAccounts() {
	r.mu.Lock()
	r.accounts = append([]*rfAccount{{name: r.User, password: r.Password, role: "Administrator", enabled: true}}, r.accounts...)
	first := 1
	if r.p.slots > 0 { // the first slot is reserved, the second is the administrator's
		r.accounts = append([]*rfAccount{{}}, r.accounts...)
		for len(r.accounts) < r.p.slots {
			r.accounts = append(r.accounts, &rfAccount{})
		}
	}
	for i, a := range r.accounts {
		a.id = strconv.Itoa(first + i)
	}
	r.mu.Unlock()
	r.mux.HandleFunc("GET /redfish/v1/AccountService", func(w http.ResponseWriter, req *http.Request) {
		out := doc{"@odata.type": "#AccountService.v1_13_0.AccountService", "Id": "AccountService", "Name": "Account Service", "MinPasswordLength": 8,
			"MaxPasswordLength": 40, "Accounts": link(rfAccounts), "Roles": link("/redfish/v1/AccountService/Roles")}
		if r.Vendor == OpenBMC {
			out["MaxPasswordLength"] = 20
		}
		r.show(w, req, out)
	})
	r.mux.HandleFunc("GET "+rfAccounts, func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		var paths []string
		for _, a := range r.accounts {
			paths = append(paths, rfAccounts+"/"+a.id)
		}
		r.mu.Unlock()
		r.show(w, req, collection(paths...))
	})
	r.mux.HandleFunc("GET "+rfAccounts+"/{id}", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		a := r.account(req.PathValue("id"))
		var out doc
		if a != nil {
			out = doc{"@odata.type": "#ManagerAccount.v1_10_0.ManagerAccount", "Id": a.id, "Name": "User Account", "UserName": a.name, "RoleId": a.role,
				"Enabled": a.enabled, "Locked": a.locked, "Password": nil}
		}
		r.mu.Unlock()
		if out == nil {
			missing(w)
			return
		}
		r.show(w, req, out)
	})
	r.mux.HandleFunc("PATCH "+rfAccounts+"/{id}", r.patchAccount)
}

// account is the account of an ID, or nil. r.mu is held.
func (r *Redfish) account(id string) *rfAccount {
	for _, a := range r.accounts {
		if a.id == id {
			return a
		}
	}
	return nil
}

// knows reports whether the credentials are those of an account. r.mu is held.
func (r *Redfish) knows(user, password string) bool {
	for _, a := range r.accounts {
		if a.name == user && user != "" && a.password == password && a.enabled {
			return true
		}
	}
	return false
}

func (r *Redfish) patchAccount(w http.ResponseWriter, req *http.Request) {
	var in struct {
		Password *string
		Enabled  *bool
	}
	if !decode(w, req, &in) || !r.matches(w, req) {
		return
	}
	fault := r.fault()
	if in.Password != nil && fault.RefuseWeak {
		fail(w, http.StatusBadRequest, "Base.1.18.PropertyValueFormatError", "The value "+*in.Password+" for the property Password is not acceptable.", "#/Password")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.account(req.PathValue("id"))
	if a == nil || a.name == "" {
		missing(w)
		return
	}
	if in.Password != nil && !fault.DropPassword {
		a.password = *in.Password
		if n := fault.CutPassword; n > 0 && len(a.password) > n {
			a.password = a.password[:n]
		}
		if r.OnPassword != nil {
			r.OnPassword(a.name, a.password)
		}
	}
	if in.Enabled != nil && !fault.DropEnable {
		a.enabled = *in.Enabled
	}
	w.WriteHeader(http.StatusNoContent)
}

// AddUser makes another account, enabled.
func (r *Redfish) AddUser(name, password string, p ipmi.Privilege) error {
	r.build()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.accounts[1:] { // the first is the administrator's, or reserved
		if a.name == "" {
			a.name, a.password, a.role, a.enabled = name, password, rfRoleOf[p], true
			return nil
		}
	}
	r.accounts = append(r.accounts, &rfAccount{id: strconv.Itoa(len(r.accounts) + 1), name: name, password: password, role: rfRoleOf[p], enabled: true})
	return nil
}
