package ipmi

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/types"
)

// What can go wrong with a BMC. Every error of a Controller matches one of these or the context's error with errors.Is.
// No error text holds a user name, a password, a request body or an argument vector.
var (
	// ErrCredentials means that the BMC refused the user, the password or the privilege. Trying again makes a lock-out.
	ErrCredentials = errors.New("credentials refused")
	// ErrForbidden comes with ErrCredentials where the login worked and one request was refused: the password is right.
	ErrForbidden = errors.New("not allowed to this user")
	// ErrUnreachable means that nothing which speaks the protocol answers.
	ErrUnreachable = errors.New("unreachable")
	// ErrBusy means that the BMC cannot take the request now, for example because all its session slots are taken.
	ErrBusy = errors.New("busy")
	// ErrLocked means that the BMC locks this user or this address out after failed logins.
	ErrLocked = errors.New("locked out")
	// ErrUnsupported means that the BMC, or this package, cannot do what was asked.
	ErrUnsupported = errors.New("unsupported")
	// ErrLied means that the BMC accepted a request and did not do it.
	ErrLied = errors.New("accepted but not done")
	// ErrUntrusted means that the BMC's certificate is not the pinned one, or nobody vouches for it. Nothing secret was sent.
	ErrUntrusted = errors.New("certificate not trusted")
	// ErrOff means that the BMC takes this request only while the host is on. BootFrom knows the way round.
	ErrOff = errors.New("refused while the host is off")
	// ErrTaken means that somebody else holds the serial console.
	ErrTaken = errors.New("console taken")
	// ErrPassword means that a new password cannot be given to this BMC; nothing was sent.
	ErrPassword = errors.New("password not possible")
)

// Public is what a customer may read of err: what was asked and what kind of failure it was, without the BMC's address, its answers
// or anything of its configuration. The error's own text is for operators. Neither holds a secret.
func Public(err error) string {
	var e *bmcError
	if !errors.As(err, &e) {
		return "the machine's management controller failed"
	}
	return e.public()
}

// RetryAfter is how long a BMC asked to be left alone, in the error that said so.
func RetryAfter(err error) (time.Duration, bool) {
	var e *bmcError
	if !errors.As(err, &e) || e.retry <= 0 {
		return 0, false
	}
	return e.retry, true
}

// bmcError carries the address, the verb and a text that holds no secret beside the errors that callers match.
type bmcError struct {
	name    string // of the machine; may be empty
	address string
	doing   string
	detail  string
	kinds   []error
	retry   time.Duration
}

// public is the error without address and detail.
func (e *bmcError) public() string {
	text := "management controller"
	if e.name != "" {
		text += " of " + e.name
	}
	text += ": " + e.doing
	for _, k := range e.kinds {
		text += ": " + k.Error()
	}
	return text
}

func (e *bmcError) Error() string {
	text := "BMC " + e.address + ": " + e.doing
	if e.name != "" {
		text = "BMC of " + e.name + " at " + e.address + ": " + e.doing
	}
	for _, k := range e.kinds {
		text += ": " + k.Error()
	}
	if e.detail != "" {
		text += " (" + e.detail + ")"
	}
	return text
}

func (e *bmcError) Unwrap() []error { return e.kinds }

// failure is an error of one exchange, before anyone knows the address or the verb. Its detail is our own text, status
// codes and the kernel's words: never text from a library or a BMC, which may quote what we sent.
type failure struct {
	kind   error
	detail string
	cause  error                // the context's error, where that ended it; may be nil
	retry  time.Duration        // how long the BMC asked to be left alone; 0 is not
	sent   bool                 // the request may have reached the BMC
	login  bool                 // it is about the login, not about one request
	code   types.CompletionCode // of IPMI, where the BMC answered; 0 otherwise
	status int                  // of HTTP, where the BMC answered; 0 otherwise
}

func (f *failure) Error() string {
	if f.detail == "" {
		return f.kind.Error()
	}
	return f.kind.Error() + " (" + f.detail + ")"
}

func (f *failure) Unwrap() error { return f.kind }

func failf(kind error, format string, args ...any) *failure {
	return &failure{kind: kind, detail: fmt.Sprintf(format, args...)}
}

// on turns the error of an exchange into one that names the BMC and what was being done.
func (t Target) on(doing string, err error) error {
	if err == nil {
		return nil
	}
	e := &bmcError{name: t.Name, address: displayAddress(t.Address), doing: doing, kinds: []error{err}}
	var f *failure
	if errors.As(err, &f) {
		e.kinds, e.detail, e.retry = []error{f.kind}, f.detail, f.retry
		if f.kind == ErrCredentials && !f.login {
			e.kinds = append(e.kinds, ErrForbidden)
		}
		if f.cause != nil {
			e.kinds = append(e.kinds, f.cause)
		}
	}
	return e
}

// displayAddress is an address that is safe to print: an operator may have pasted a URL with credentials in it.
func displayAddress(a string) string {
	if u, err := url.Parse(a); err == nil && u.User != nil {
		u.User = nil
		return u.String()
	}
	if i := strings.LastIndexByte(a, '@'); i >= 0 {
		return a[i+1:]
	}
	return a
}

// transient reports whether waiting may cure err.
func transient(err error) bool {
	return errors.Is(err, ErrUnreachable) || errors.Is(err, ErrBusy)
}

// mayHaveArrived reports whether the BMC may have taken the request that ended in err.
func mayHaveArrived(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.sent
}
