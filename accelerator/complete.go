package accelerator

import (
	"slices"
	"strings"
	"time"
)

// WithBMC returns a report with what the machine's BMC says judged in it, in place of what it held of that. Events from before since are history;
// it is of the clock of who asked the BMC, as b.Taken is: the machine's own may be wrong, or set so on purpose.
func (r Report) WithBMC(b *BMC, since time.Time) Report {
	j := &judge{facts: Facts{Taken: b.Taken, Plan: r.Plan, BMC: b, Before: &Snapshot{Taken: since}}}
	r.BMC = b
	for _, c := range j.worth(j.bmc()) {
		if c.Action == "" {
			c.Action = ActNone
		}
		r = r.With(c)
	}
	return r
}

// Brief returns a report with no more than the newest entries of the BMC's log: what all of them came to is in its checks.
func (r Report) Brief(entries int) Report {
	if r.BMC != nil && len(r.BMC.Events) > entries {
		b := *r.BMC
		b.Events = b.Events[len(b.Events)-entries:]
		r.BMC = &b
	}
	return r
}

// With returns a report with one more check, or with another in place of the one of that name.
func (r Report) With(c Check) Report {
	r.Checks = slices.Clone(r.Checks)
	for i, e := range c.Evidence {
		c.Evidence[i] = printable(e)
	}
	if c.Action == "" {
		c.Action = ActNone
	}
	if i := slices.IndexFunc(r.Checks, func(o Check) bool { return o.ID == c.ID }); i >= 0 {
		r.Checks[i] = c
	} else {
		r.Checks = append(r.Checks, c)
	}
	r.Outcome = overall(r.Checks)
	return r
}

// Unwaived returns a report in which nothing is waived and that names no machine: what a machine sent may claim anything.
func (r Report) Unwaived() Report {
	r.Subject, r.Checks = Subject{}, slices.Clone(r.Checks)
	for i := range r.Checks {
		r.Checks[i].Waived = ""
	}
	r.Outcome = overall(r.Checks)
	return r
}

// Waive returns a report in which a check blocks no more: all of it, or, where cards are given by their slots, only if all that it found is about
// those. note says who lets it pass. It returns false, and the report as it was, where that changes nothing.
func (r Report) Waive(check string, slots []string, note string) (Report, bool) {
	i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == check })
	if i < 0 || !r.Checks[i].Blocks() || note == "" {
		return r, false
	}
	if len(slots) > 0 {
		about := 0
		for _, e := range r.Checks[i].Evidence {
			slot, _, _ := strings.Cut(e, ": ")
			if !slices.Contains(slots, slot) {
				return r, false
			}
			about++
		}
		if about == 0 {
			return r, false
		}
	}
	r.Checks = slices.Clone(r.Checks)
	r.Checks[i].Waived = printable(note)
	r.Outcome = overall(r.Checks)
	return r, true
}

// futureSlack is how far the BMC's clock may be ahead before its times are not believed.
const futureSlack = 10 * time.Minute
