package ipmi

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// object is a JSON object of which only the fields that are asked for are read, each by itself: a BMC that has a number
// where a string belongs in one field is not unreadable in the others. The methods work on nil.
type object map[string]json.RawMessage

// parseObject reads a JSON object, with or without a byte order mark and whatever its media type was.
func parseObject(data []byte) (object, bool) {
	data = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(data), []byte("\xef\xbb\xbf")))
	if len(data) == 0 || data[0] != '{' {
		return nil, false
	}
	var o object
	if json.Unmarshal(data, &o) != nil || o == nil {
		return nil, false
	}
	return o, true
}

// has reports whether the field is there and not null.
func (o object) has(key string) bool {
	v, ok := o[key]
	return ok && !bytes.Equal(bytes.TrimSpace(v), []byte("null"))
}

// clean is text of a BMC as it may be kept and shown: databases refuse NUL, and terminals obey control characters. Line ends and tabs become spaces.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// str is a field that is a string, or "".
func (o object) str(key string) string {
	var s string
	if json.Unmarshal(o[key], &s) != nil {
		return ""
	}
	return clean(s)
}

// flag is a field that is a boolean, or otherwise.
func (o object) flag(key string, otherwise bool) bool {
	var b *bool
	if json.Unmarshal(o[key], &b) != nil || b == nil {
		return otherwise
	}
	return *b
}

// number is a field that is a number, or a number in a string.
func (o object) number(key string) (float64, bool) {
	var v any
	if json.Unmarshal(o[key], &v) != nil {
		return 0, false
	}
	switch v := v.(type) {
	case float64:
		return v, true
	case string:
		if f, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, true
		}
	}
	return 0, false
}

// integer is a field that is a whole number, or one in a string.
func (o object) integer(key string) (int64, bool) {
	f, ok := o.number(key)
	if !ok || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// text is a field that is a string, or a number as it stands, or "". Placeholders for nothing are "".
func (o object) text(key string) string {
	s := strings.TrimSpace(o.str(key))
	if s == "" {
		var n json.Number
		if json.Unmarshal(o[key], &n) == nil {
			return n.String()
		}
	}
	switch strings.ToLower(s) {
	case "n/a", "na", "none", "null", "unknown", "not specified", "to be filled by o.e.m.":
		return ""
	}
	return s
}

// obj is a field that is an object, or nil.
func (o object) obj(key string) object {
	out, _ := parseObject(o[key])
	return out
}

// objs is the objects in a field that is a list.
func (o object) objs(key string) []object {
	var list []json.RawMessage
	if json.Unmarshal(o[key], &list) != nil {
		return nil
	}
	var out []object
	for _, raw := range list {
		if one, ok := parseObject(raw); ok {
			out = append(out, one)
		}
	}
	return out
}

// strs is the strings in a field that is a list; ok tells an empty list from a field that is no list.
func (o object) strs(key string) (out []string, ok bool) {
	var list []json.RawMessage
	if json.Unmarshal(o[key], &list) != nil || list == nil {
		return nil, false
	}
	for _, raw := range list {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			out = append(out, clean(s))
		}
	}
	return out, true
}
