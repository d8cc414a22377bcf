package billing

import (
	"math/bits"
	"time"
)

// Rest is what is left of a paid term: a part of the month under way, and whole months after it.
type Rest struct {
	From   time.Time `json:"from,omitzero"` // the month under way
	To     time.Time `json:"to,omitzero"`   // exclusive
	Left   Micros    `json:"left_us"`       // what is left of it, in microseconds
	Of     Micros    `json:"of_us"`         // its length, in microseconds
	Months int       `json:"months"`        // whole months after it
}

// Micros is a time in microseconds, as exact as the database keeps instants.
type Micros int64

// Remaining returns what is left at a time of a term that is anchored at an instant and paid until another, which is a whole
// number of months after it. Nothing is left after until; all of it before anchor.
func Remaining(anchor, until, at time.Time, zone *time.Location) Rest {
	if !at.Before(until) || !anchor.Before(until) {
		return Rest{}
	}
	if at.Before(anchor) {
		at = anchor
	}
	n := max(0, int(at.Sub(anchor)/(31*24*time.Hour))) // at most as many months
	from, to := Period(anchor, 1, n, zone)
	for !at.Before(to) {
		n++
		from, to = Period(anchor, 1, n, zone)
	}
	r := Rest{From: from, To: to, Left: micros(to.Sub(at)), Of: micros(to.Sub(from))}
	for end := to; end.Before(until); r.Months++ {
		_, end = Period(anchor, 1, n+r.Months+1, zone)
	}
	return r
}

func micros(d time.Duration) Micros { return Micros(d / time.Microsecond) }

// Difference is what a change of the monthly price costs for the rest of a term: (new − old) × remaining ÷ period for the month
// under way, rounded towards zero, and new − old for each whole month after it. It is in the same integer minor units; a
// lower price gives a negative one.
func Difference(before, after int64, r Rest) int64 {
	diff := after - before
	return share(diff, r.Left, r.Of) + diff*int64(r.Months)
}

// share returns amount × part ÷ whole, rounded towards zero, without overflow on the way.
func share(amount int64, part, whole Micros) int64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	part = min(part, whole)
	sign, size := int64(1), uint64(amount)
	if amount < 0 {
		sign, size = -1, -size
	}
	hi, lo := bits.Mul64(size, uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(whole)) // hi < whole, because part ≤ whole
	return sign * int64(q)
}
