// Package billing is the arithmetic of periods and charges, exact in integer minor units.
package billing

import "time"

// Period returns the n-th period (from 0) of months months each that is anchored at an instant, in the billing zone:
// anchor + k months, clamped to the last day of a short month, so that periods neither overlap nor leave a gap
// (31 January → 28 February → 31 March). End is exclusive.
func Period(anchor time.Time, months, n int, zone *time.Location) (start, end time.Time) {
	return addMonths(anchor, months*n, zone), addMonths(anchor, months*(n+1), zone)
}

func addMonths(anchor time.Time, months int, zone *time.Location) time.Time {
	a := anchor.In(zone)
	first := time.Date(a.Year(), a.Month()+time.Month(months), 1, 0, 0, 0, 0, zone)
	last := first.AddDate(0, 1, -1).Day()
	return time.Date(first.Year(), first.Month(), min(a.Day(), last), a.Hour(), a.Minute(), a.Second(), a.Nanosecond(), zone).UTC()
}
