package ipmi

import "context"

// Privilege is what a user of a BMC may do.
type Privilege string

// Privileges.
const (
	PrivilegeNone     Privilege = "none"
	PrivilegeReadOnly Privilege = "read-only" // IPMI: callback or user
	PrivilegeOperator Privilege = "operator"
	PrivilegeAdmin    Privilege = "administrator"
	PrivilegeOther    Privilege = "other" // OEM, or a role of the vendor's own
)

// User is an account of a BMC.
type User struct {
	ID        string // IPMI: the user number; Redfish: the account's Id
	Name      string
	Enabled   bool
	Locked    bool // Redfish tells, IPMI does not
	Privilege Privilege
	Role      string // as the BMC words it
}

// Users lists the accounts that have a name or may log in.
func (c *Controller) Users(ctx context.Context, t Target) ([]User, error) {
	return nil, t.on("list users", failf(ErrUnsupported, "not yet"))
}

// SetPassword gives the account called name a new password and returns nil only when a login of its own with the new password
// worked. Until then keep both: the caller stores the new one before the call and forgets the old one after it.
//
// When the new password does not log in, the old one of t.Username is put back in the session that is still open:
// ErrLied then means that the BMC took the new one, does not honour it, and the old one works again. Any other error leaves
// open which of the two holds; Check tells. ErrPassword means that nothing was sent.
//
// The password of another account than t.Username cannot be put back.
func (c *Controller) SetPassword(ctx context.Context, t Target, name, password string) error {
	return t.on("set password", failf(ErrUnsupported, "not yet"))
}

// EnableUser lets the account called name log in, or stops it, and looks that it is so. It refuses to stop t.Username.
func (c *Controller) EnableUser(ctx context.Context, t Target, name string, enabled bool) error {
	return t.on("enable user", failf(ErrUnsupported, "not yet"))
}

// NewPassword makes a password that every BMC known to us takes whole: 16 characters, letters of both cases, digits and a
// sign that needs no quoting.
func NewPassword() string { return "" }
