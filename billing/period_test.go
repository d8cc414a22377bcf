package billing_test

import (
	"testing"
	"time"

	"github.com/bareyard/bareyard/billing"
)

// TestI01MonthEnds: periods are anchor + n months, clamped, contiguous, for every anchor day of four years.
func TestI01MonthEnds(t *testing.T) {
	for _, name := range []string{"UTC", "Asia/Shanghai", "America/New_York"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for day := range 4 * 366 {
			anchor := time.Date(2024, 1, 1+day, 2, 30, 0, 0, zone)
			for _, months := range []int{1, 3, 6, 12} {
				prev := anchor.UTC()
				for n := range 48 / months {
					start, end := billing.Period(anchor, months, n, zone)
					if !start.Equal(prev) && n > 0 {
						t.Fatalf("%s anchor %s: period %d of %d months starts %s, the one before ends %s", name, anchor, n, months, start, prev)
					}
					if !end.After(start) {
						t.Fatalf("%s anchor %s: period %d ends %s before it starts", name, anchor, n, end)
					}
					if got, want := end.In(zone).Day(), anchor.Day(); got > want || got < min(want, 28) {
						t.Fatalf("%s anchor %s: period %d ends on day %d", name, anchor, n, got)
					}
					prev = end
				}
			}
		}
	}
}

func TestI01Samples(t *testing.T) {
	anchor := time.Date(2025, 1, 31, 12, 0, 0, 0, time.UTC)
	for n, want := range []string{"2025-02-28", "2025-03-31", "2025-04-30", "2025-05-31"} {
		if _, end := billing.Period(anchor, 1, n, time.UTC); end.Format(time.DateOnly) != want {
			t.Errorf("period %d ends %s, want %s", n, end.Format(time.DateOnly), want)
		}
	}
}

// TestI03Shanghai: the boundary is computed in the zone of the order, not in UTC.
func TestI03Shanghai(t *testing.T) {
	zone, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	anchor := time.Date(2025, 2, 28, 16, 30, 0, 0, time.UTC) // 1 March 00:30 in Shanghai
	_, end := billing.Period(anchor, 1, 0, zone)
	if want := time.Date(2025, 4, 1, 0, 30, 0, 0, zone); !end.Equal(want) {
		t.Errorf("period ends %s, want %s", end, want)
	}
}
