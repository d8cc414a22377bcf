package ipmi

import (
	"crypto/sha256"
	"errors"
	"testing"
)

// TestLockOutOutlastsAnothersLogin: credentials that were locked out stay so whatever comes of others, until they log in or a check asks for it.
func TestLockOutOutlastsAnothersLogin(t *testing.T) {
	locked, other := sha256.Sum256([]byte("locked")), sha256.Sum256([]byte("other"))
	lockOut := &failure{kind: ErrLocked, login: true}
	for name, c := range map[string]struct {
		then func(*holdOff)
		want error
	}{
		"another is refused":      {func(h *holdOff) { h.note(other, &failure{kind: ErrCredentials, login: true}) }, ErrLocked},
		"another logs in":         {func(h *holdOff) { h.note(other, nil) }, ErrLocked},
		"a check asks of another": {func(h *holdOff) { h.forget(other) }, ErrLocked},
		"it logs in":              {func(h *holdOff) { h.note(locked, nil) }, nil},
		"it is refused":           {func(h *holdOff) { h.note(locked, &failure{kind: ErrCredentials, login: true}) }, ErrCredentials},
		"a check asks":            {func(h *holdOff) { h.forget(locked) }, nil},
	} {
		var h holdOff
		h.note(locked, lockOut)
		c.then(&h)
		if err := h.allows(locked); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
