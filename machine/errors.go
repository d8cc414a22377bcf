package machine

import "errors"

// Code classes an error for whoever must act on it; HTTP status and exit code follow from it in one place each.
type Code string

// The five codes. An error without one is internal: its text is logged and not shown.
const (
	Invalid     Code = "invalid"     // the request is wrong: change it
	NotFound    Code = "not-found"   // no such thing, or not yours
	Conflict    Code = "conflict"    // right request, wrong moment
	Exhausted   Code = "exhausted"   // sold out
	Unavailable Code = "unavailable" // something we depend on does not answer: try later
)

// Error is an error that a user can act on.
type Error struct {
	Code    Code
	Message string // what is wrong, lower case
	Field   string // which field of the request, if one
	Hint    string // what to do about it
}

func (e *Error) Error() string { return e.Message }

// CodeOf returns the code of err, or "" when it is internal.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
