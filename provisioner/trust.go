package provisioner

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Certificates shows what a BMC presents, without logging in; answered by ipmi.Controller.
type Certificates interface {
	Certificate(ctx context.Context, t ipmi.Target) (ipmi.Certificate, error)
}

// Pins keeps which certificate a BMC must show.
type Pins interface {
	// Pin records a certificate and who vouches for it, with an event.
	Pin(ctx context.Context, machineID, pin, how, text string) error
}

// Who vouches for a certificate that is pinned.
const (
	FirstUse = "first-use" // it was shown when the machine was enrolled
	Operator = "operator"
)

// firstUseTime is how long an enrolment waits for a BMC.
const firstUseTime = 10 * time.Second

// FirstUse completes the record of a machine that is being enrolled: a BMC that signs its certificate itself is trusted as it
// shows itself now, and from then on only so. A BMC that does not answer is left without a pin; no secret is sent to it until
// an operator trusts it.
func (e *Engine) FirstUse(ctx context.Context, m machine.Machine) (machine.Machine, error) {
	m.BMC.PinHow = ""
	if m.BMC.CertPin != "" {
		m.BMC.PinHow = Operator
		return m, nil
	}
	if e.Certificates == nil || m.BMC.Protocol != ipmi.Redfish || !strings.HasPrefix(m.BMC.Address, "https://") {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstUseTime)
	defer cancel()
	shown, err := e.Certificates.Certificate(ctx, Secrets{}.target(m, ""))
	switch {
	case err != nil:
		e.log().Warn("certificate of a BMC not seen at enrolment", "machine", m.Name, "err", err)
	case !shown.Vouched:
		m.BMC.CertPin, m.BMC.PinHow = shown.Pin, FirstUse
	}
	return m, nil
}

// Trust pins the certificate that a machine's BMC shows now. With want, a SHA-256 in hex, it refuses any other. It returns the pin
// before and the pin now.
func (e *Engine) Trust(ctx context.Context, machineID, want string) (was, is string, err error) {
	m, err := e.Shelf.Machine(ctx, machineID)
	if err != nil {
		return "", "", err
	}
	if m.BMC.Protocol != ipmi.Redfish || e.Certificates == nil {
		return "", "", &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("the BMC of %s speaks %s, which has no certificate", m.Name, m.BMC.Protocol), Hint: "nothing needs to be trusted"}
	}
	if want, err = cleanPin(want); err != nil {
		return "", "", err
	}
	shown, err := e.Certificates.Certificate(ctx, Secrets{}.target(m, ""))
	if err != nil {
		return "", "", &machine.Error{Code: machine.Unavailable, Message: discreet(m, err).Error(), Hint: "nothing was changed"}
	}
	if want != "" && want != shown.Pin {
		return "", "", &machine.Error{Code: machine.Conflict, Field: "sha256",
			Message: fmt.Sprintf("the BMC of %s shows the certificate %s, not %s", m.Name, shown.Pin, want), Hint: "somebody may stand between: compare with the BMC's own page, from its own network"}
	}
	was = m.BMC.CertPin
	text := fmt.Sprintf("an operator trusts the certificate %s", shown.Pin)
	if was != "" && was != shown.Pin {
		text += fmt.Sprintf(" in place of %s", was)
	}
	return was, shown.Pin, e.Pins.Pin(ctx, m.ID, shown.Pin, Operator, text)
}

// cleanPin reads a SHA-256 in hex, with colons or without.
func cleanPin(text string) (string, error) {
	text = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), ":", ""))
	if raw, err := hex.DecodeString(text); text != "" && (err != nil || len(raw) != 32) {
		return "", &machine.Error{Code: machine.Invalid, Field: "sha256", Message: "the fingerprint is not a SHA-256", Hint: "write 64 hex digits, with colons or without"}
	}
	return text, nil
}

// untrusted reports whether a BMC is not who it was.
func untrusted(err error) bool { return errors.Is(err, ipmi.ErrUntrusted) }
