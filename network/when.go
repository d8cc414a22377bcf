package network

import (
	"fmt"
	"time"
)

// ParseInstant reads a time that says its zone: 2026-11-03T10:00Z, with or without seconds, or with an offset. An abuse report
// without a zone may be a day off, so it is refused.
func ParseInstant(field, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04Z07:00", "2006-01-02 15:04:05 Z07:00", "2006-01-02 15:04 Z07:00", "2006-01-02 15:04:05 MST", "2006-01-02 15:04 MST"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if name, offset := t.Zone(); offset == 0 && name != "" && name != "UTC" && name != "GMT" {
			continue // a zone's letters that Go does not know would be taken for UTC
		}
		return t.UTC(), nil
	}
	return time.Time{}, invalid(field, fmt.Sprintf("%q is no time with its zone", text), "write it as 2026-11-03T10:00Z or 2026-11-03T18:00+08:00")
}

// ParseDay reads a time as ParseInstant does, or a day, which begins at midnight UTC.
func ParseDay(field, text string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, nil
	}
	t, err := ParseInstant(field, text)
	if err != nil {
		return t, invalid(field, fmt.Sprintf("%q is no day and no time with its zone", text), "write it as 2026-11-03 or 2026-11-03T10:00Z")
	}
	return t, nil
}
