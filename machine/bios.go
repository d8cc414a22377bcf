package machine

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// BIOSPolicy says what becomes of a machine whose firmware does not take its class's settings.
type BIOSPolicy string

// Policies.
const (
	BIOSQuarantine BIOSPolicy = "quarantine" // it is kept out of stock
	BIOSWarn       BIOSPolicy = "warn"       // its events say so
)

// BIOSProfile is the firmware settings that the machines of a class shall have, by the names that their BMCs give them.
type BIOSProfile struct {
	Attributes map[string]any `json:"attributes"` // string, bool, int64 or float64
	Policy     BIOSPolicy     `json:"policy"`
	Updated    time.Time      `json:"updated,omitzero"` // when it was last changed
}

// Bounds of a profile.
const (
	mostBIOSSettings = 200
	longestBIOSText  = 256
)

// Clean checks a profile, and gives whole numbers the type of one.
func (p BIOSProfile) Clean() (BIOSProfile, error) {
	switch p.Policy {
	case "":
		p.Policy = BIOSQuarantine
	case BIOSQuarantine, BIOSWarn:
	default:
		return p, bad("policy", "say quarantine or warn", "policy %q is not known", p.Policy)
	}
	if len(p.Attributes) > mostBIOSSettings {
		return p, bad("attributes", "name those alone that matter to the class", "%d settings are more than the %d that a profile may have", len(p.Attributes), mostBIOSSettings)
	}
	clean := make(map[string]any, len(p.Attributes))
	for name, value := range p.Attributes {
		field := "attributes." + name
		if name == "" || len(name) > longestBIOSText/2 || name != strings.TrimSpace(name) || !printable(name) || strings.ContainsRune(name, '=') {
			return p, bad("attributes", "write it as the BMC does: `bareyard machine bios NAME --all` lists them", "%q is not the name of a BIOS setting", name)
		}
		if lower := strings.ToLower(name); strings.HasSuffix(lower, "password") || strings.HasSuffix(lower, "passphrase") {
			return p, bad(field, "set passwords at the BMC; a profile is shown to every operator", "BIOS setting %s is a password, and a profile keeps none", name)
		}
		v, err := biosValue(value)
		if err != nil {
			return p, bad(field, "give text, a number, or true or false", "BIOS setting %s: %v", name, err)
		}
		clean[name] = v
	}
	p.Attributes = clean
	return p, nil
}

func biosValue(v any) (any, error) {
	switch v := v.(type) {
	case bool, int64:
		return v, nil
	case int:
		return int64(v), nil
	case string:
		if v == "" || len(v) > longestBIOSText || !printable(v) {
			return nil, fmt.Errorf("a value is 1 to %d printable characters", longestBIOSText)
		}
		return v, nil
	case float64:
		if math.IsNaN(v) || math.Abs(v) >= 1<<53 {
			return nil, fmt.Errorf("the number is too large")
		}
		if v == math.Trunc(v) {
			return int64(v), nil
		}
		return v, nil
	}
	return nil, fmt.Errorf("this is no value of a setting")
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
