package machine

import (
	"encoding/hex"
	"slices"
	"strings"
)

// UUIDKey returns one key for all the ways in which a UUID is written: SMBIOS before 2.6, iPXE and EDK2 disagree about the
// byte order of its first three fields, and IPMI stores the whole thing reversed. It returns "" for what is not a UUID, and
// for those that vendors put on every board.
func UUIDKey(s string) string {
	b, err := hex.DecodeString(strings.NewReplacer("-", "", "{", "", "}", "").Replace(strings.TrimSpace(s)))
	if err != nil || len(b) != 16 {
		return ""
	}
	forms := map[string]bool{}
	for todo := [][]byte{b}; len(todo) > 0; todo = todo[1:] {
		if form := hex.EncodeToString(todo[0]); !forms[form] {
			forms[form] = true
			reversed := slices.Clone(todo[0])
			slices.Reverse(reversed)
			todo = append(todo, swapFields(todo[0]), reversed)
		}
	}
	key := ""
	for form := range forms {
		if noUUID[form] {
			return ""
		}
		if key == "" || form < key {
			key = form
		}
	}
	return key
}

// SameUUID compares UUIDs whatever their case and byte order. What is no UUID, or a vendor's placeholder, is the same as
// nothing.
func SameUUID(a, b string) bool {
	x := UUIDKey(a)
	return x != "" && x == UUIDKey(b)
}

func swapFields(b []byte) []byte {
	c := slices.Clone(b)
	slices.Reverse(c[0:4])
	slices.Reverse(c[4:6])
	slices.Reverse(c[6:8])
	return c
}

// noUUID are those of boards whose maker has not set one.
var noUUID = map[string]bool{
	"00000000000000000000000000000000": true,
	"ffffffffffffffffffffffffffffffff": true,
	"03000200040005000006000700080009": true, // AMI's default
	"00020003000400050006000700080009": true, // the same in the other byte order
	"12345678123456789012345678901234": true,
	"00112233445566778899001122334455": true,
	"000102030405060708090a0b0c0d0e0f": true,
}

// SerialKey returns a serial number as it is compared: without case and spaces. It returns "" for what firmware says when
// nobody has set one.
func SerialKey(s string) string {
	key := strings.ToLower(strings.Join(strings.Fields(s), " "))
	letters := strings.Trim(key, ".0-_/x ")
	switch {
	case letters == "", len(key) < 3:
		return ""
	case strings.Contains(key, "filled by o.e.m"), strings.Contains(key, "o.e.m."), strings.Contains(key, "serial number"),
		strings.HasPrefix(key, "default string"), strings.HasPrefix(key, "not "), strings.HasPrefix(key, "system serial"):
		return ""
	}
	switch key {
	case "none", "null", "n/a", "unknown", "empty", "oem", "invalid", "123456789", "0123456789", "1234567890":
		return ""
	}
	return key
}
