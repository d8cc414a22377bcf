package ipmi

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// BIOS is the firmware settings of a machine. A setting that is a password is not among them.
type BIOS struct {
	Version    string
	Attributes map[string]any // string, bool, int64 or float64
	Pending    map[string]any // what will hold after the next start, where that differs from Attributes
}

// BIOSState is how far a change of firmware settings is.
type BIOSState string

// States of a change.
const (
	BIOSApplied BIOSState = "applied" // every setting holds, as read back
	BIOSPending BIOSState = "pending" // restart the host, then call CheckBIOS
	BIOSFailed  BIOSState = "failed"  // SetBIOS asked for it, and the BMC dropped it or its job failed
	BIOSDiffers BIOSState = "differs" // settings do not hold, and no change is under way that is known of
)

// BIOSChange is the state of a wanted set of settings.
type BIOSChange struct {
	State BIOSState
	Wrong []Difference // settings that do not hold yet: Was is what holds, Is is what is wanted
	Job   string       // the BMC's job, where there is one
	Text  string       // what became of the job, in our words
}

// BIOS reads the firmware settings. IPMI has none: ErrUnsupported.
func (c *Controller) BIOS(ctx context.Context, t Target) (BIOS, error) {
	var b BIOS
	err := c.read(ctx, t, "read BIOS settings", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			b, err = l.bios(ctx)
			return err
		})
	})
	if err != nil {
		return BIOS{}, err
	}
	return b, nil
}

// SetBIOS asks for settings, each checked against what the BMC knows of it before anything is sent: a setting that there is
// not, or a value that it cannot have, is ErrUnsupported and names the setting. What holds already is not sent. It restarts nothing: BIOSPending
// means that the host must be restarted.
func (c *Controller) SetBIOS(ctx context.Context, t Target, want map[string]any) (BIOSChange, error) {
	var change BIOSChange
	err := c.operate(ctx, t, "set BIOS settings", func(ctx context.Context, l *link) (err error) {
		change, err = l.setBIOS(ctx, want)
		return err
	})
	if err != nil {
		return BIOSChange{}, err
	}
	return change, nil
}

// CheckBIOS compares the settings with want, after a restart too; a change that is still under way is BIOSPending.
func (c *Controller) CheckBIOS(ctx context.Context, t Target, want map[string]any) (BIOSChange, error) {
	var change BIOSChange
	err := c.read(ctx, t, "check BIOS settings", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			change, err = l.checkBIOS(ctx, want)
			return err
		})
	})
	if err != nil {
		return BIOSChange{}, err
	}
	return change, nil
}

// Differences lists the settings that are not as wanted, by name: Was is what holds, Is is what is wanted.
func (b BIOS) Differences(want map[string]any) []Difference { return compareBIOS(b.Attributes, want) }

// Holds reports whether every setting is as wanted, and nothing that waits for the next start would undo it.
func (b BIOS) Holds(want map[string]any) bool {
	for name, value := range want {
		if waiting, ok := b.Pending[name]; ok && !sameValue(waiting, value) {
			return false
		}
	}
	return len(b.Differences(want)) == 0
}

// BIOSText is a value of a setting as text, the same for a number whether it came as text, as an int or as a float.
func BIOSText(v any) string { return valueText(v) }

// compareBIOS lists the settings that are not as wanted, by name.
func compareBIOS(have, want map[string]any) []Difference {
	var out []Difference
	for name, value := range want {
		if is, ok := have[name]; !ok || !sameValue(is, value) {
			out = append(out, Difference{Path: name, Was: valueText(is), Is: valueText(value)})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// sameValue compares two values of a setting. A number is the same as text, as an int or as a float.
func sameValue(a, b any) bool { return a != nil && b != nil && valueText(a) == valueText(b) }

func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// asType turns a wanted value into the type of the value that the setting has now: a profile may hold "1" where the BMC wants 1.
func asType(want, now any) (any, bool) {
	text := valueText(want)
	switch now.(type) {
	case bool:
		b, err := strconv.ParseBool(text)
		return b, err == nil
	case int64:
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil
	case float64:
		f, err := strconv.ParseFloat(text, 64)
		return f, err == nil
	case string:
		return text, true
	}
	return nil, false
}
