package accelerator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// straggler is the share of the node's median below which a card fails: a card at 90 % slows the whole node down to itself.
const straggler = 0.95

// performance judges rates: against the other cards of the machine, and against what the profile asks of this tool in this version.
func (j *judge) performance() []Check {
	return []Check{
		j.rates("perf.compute", "compute as fast as they should", TestBurn),
		j.rates("perf.memory", "read their memory as fast as they should", TestRead),
		j.rates("perf.copy", "copy to and from the host as fast as they should", TestToCard, TestToHost),
		j.pairs(),
		j.rates("perf.allreduce", "reduce together as fast as they should", TestReduce),
	}
}

// rates judges the rates of one test or several.
func (j *judge) rates(id, good string, tests ...string) Check {
	c := Check{ID: id, Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(id)
	}
	measured, judged := 0, 0
	slow := map[string]bool{}
	seen := map[string]bool{}
	for _, group := range j.groups(tests...) {
		var all []float64
		for _, l := range group {
			if l.Rate.Known() {
				all = append(all, l.Rate.Value)
			}
		}
		middle := median(all)
		for _, l := range group {
			name := strings.TrimSpace(l.Slot + " " + l.Test + " by " + l.Tool)
			if l.Fault != nil && !l.Rate.Known() {
				if f := loadFault(l.Fault); f.outcome != Skip && l.Test != TestBurn { // the burn has a check of its own for it
					c.add(name, f)
					j.blame(l.Slot, id, f.outcome, l.Test+": "+f.text)
				}
				continue
			}
			if l.Errors > 0 && l.Test != TestBurn { // the burn has a check of its own for it
				slow[l.Slot] = true
				c.add(name, failed(ActReplace, fmt.Sprintf("%d wrong values arrived%s", l.Errors, after(": ", l.Detail))))
				j.blame(l.Slot, id, Fail, l.Test+": wrong values arrived")
			}
			if !l.Rate.Known() {
				continue
			}
			measured++
			seen[l.Slot] = true
			f, verdict := j.rate(l, middle, len(all))
			if verdict {
				judged++
			}
			if f.outcome != Pass {
				slow[l.Slot] = true
				c.add(name, f)
				j.blame(l.Slot, id, f.outcome, l.Test+": "+f.text)
			}
		}
		if len(all) > 0 {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s by %s: median %.4g %s of %d, from %.4g to %.4g", group[0].Test,
				strings.TrimSpace(group[0].Tool+" "+group[0].Version), middle, group[0].Rate.Unit, len(all), slices.Min(all), slices.Max(all)))
		}
	}
	switch {
	case measured == 0 && c.Outcome == Pass:
		c.Outcome, c.Summary = Skip, "not run"
		if !j.ownBurn() {
			c.Required = false
		}
	case judged == 0 && c.Outcome == Pass:
		c.Outcome, c.Required, c.Summary = Skip, false, "measured, not judged: the profile asks for no rate, and there is no second card to compare with"
	default:
		c.Summary = fmt.Sprintf("%d of %s %s", len(seen)-len(slow), plural(len(seen), "card"), good)
		if id == "perf.allreduce" {
			c.Summary = "cards " + good
		}
	}
	if c.Outcome == Fail {
		c.Advice = "look at link, heat and power limit of the slow card; if they are right, take it out"
	}
	return c
}

// rate judges one rate; the verdict is false when there was nothing to judge it by.
func (j *judge) rate(l Load, middle float64, n int) (finding, bool) {
	p := j.profile(l.Slot)
	if l.Slot == "" && len(j.slots()) > 0 {
		p = j.profile(j.slots()[0])
	}
	if l.Rate.Value <= 0 {
		return failed(ActReplace, "does nothing: "+l.Rate.String()), true
	}
	limit, known := p.Limit(l.Test, l.Tool, l.Version)
	known = known && limit.Unit == l.Rate.Unit && (l.Test != TestReduce || j.expect.Count == 8)
	switch {
	case known && l.Rate.Value < limit.Min:
		return failed(ActReplace, fmt.Sprintf("%.4g %s, %s asks for %.4g (%s)", l.Rate.Value, l.Rate.Unit, p.Name, limit.Min, limit.Status)), true
	case n > 1 && l.Rate.Value < straggler*middle:
		return failed(ActReplace, fmt.Sprintf("%.4g %s, %.0f %% of the median of the machine's cards (%.4g)", l.Rate.Value, l.Rate.Unit, 100*l.Rate.Value/middle, middle)), true
	}
	return fine(), known || n > 1
}

// groups returns the loads of some tests, those of one test, tool and version together.
func (j *judge) groups(tests ...string) [][]Load {
	var out [][]Load
	for _, l := range j.facts.Loads {
		if !slices.Contains(tests, l.Test) {
			continue
		}
		i := slices.IndexFunc(out, func(g []Load) bool { return g[0].Test == l.Test && g[0].Tool == l.Tool && g[0].Version == l.Version })
		if i < 0 {
			out = append(out, []Load{l})
			continue
		}
		out[i] = append(out[i], l)
	}
	return out
}

// pairs judges copies from each card to each other. Where cards have links of their own, every pair must be direct and as fast as the others.
// Over PCIe a pair behind one switch is faster than one across the sockets: that is how the machine is built, and told, not judged.
func (j *judge) pairs() Check {
	c := Check{ID: "perf.peer", Required: true, Outcome: Pass}
	if j.expect.Count == 0 {
		return none(c.ID)
	}
	if j.expect.Count == 1 {
		c.Outcome, c.Required, c.Summary = Skip, false, "one card has no peer"
		return c
	}
	judged, measured, direct := 0, 0, 0
	for _, group := range j.groups(TestPeer) {
		var all []float64
		for _, l := range group {
			if l.Rate.Known() {
				all = append(all, l.Rate.Value)
			}
		}
		middle := median(all)
		for _, l := range group {
			name := l.Slot + " to " + cmp.Or(l.Peer, "any")
			p := j.profile(l.Slot)
			linked := p.Peer.Judges() && p.Peer.Value == Yes && p.Links.Judges()
			switch {
			case l.Errors > 0:
				c.add(name, failed(ActReplace, fmt.Sprintf("%d bytes arrived wrong%s", l.Errors, after(": ", l.Detail))))
				j.blame(l.Slot, c.ID, Fail, "data arrived wrong at "+l.Peer)
			case l.Fault != nil:
				if f := loadFault(l.Fault); f.outcome != Skip {
					c.add(name, f)
				}
				continue
			case !l.Rate.Known():
				continue
			}
			measured++
			if l.Direct {
				direct++
			}
			if linked && l.Tool == "bareyard-burn" && !l.Direct {
				c.add(name, failed(ActReset, "no direct way, though the cards have links"))
				j.blame(l.Slot, c.ID, Fail, "no direct way to "+l.Peer)
			}
			limit, known := p.Limit(TestPeer, l.Tool, l.Version)
			switch {
			case known && l.Rate.Value < limit.Min:
				judged++
				c.add(name, failed(ActReset, fmt.Sprintf("%.4g GB/s, %s asks for %.4g (%s)", l.Rate.Value, p.Name, limit.Min, limit.Status)))
				j.blame(l.Slot, c.ID, Fail, "slow to "+l.Peer)
			case linked && len(all) > 1 && l.Rate.Value < straggler*middle:
				judged++
				c.add(name, failed(ActReset, fmt.Sprintf("%.4g GB/s, the median of all pairs is %.4g", l.Rate.Value, middle)))
				j.blame(l.Slot, c.ID, Fail, "slow to "+l.Peer)
			case known || linked:
				judged++
			}
		}
		if len(all) > 0 {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%s: median %.4g GB/s of %s, from %.4g to %.4g", group[0].Tool, middle, plural(len(all), "pair"), slices.Min(all), slices.Max(all)))
		}
	}
	c.Summary = fmt.Sprintf("%s measured, %d of them direct", plural(measured, "pair"), direct)
	switch {
	case measured == 0 && c.Outcome == Pass:
		c.Outcome, c.Summary = Skip, "not run"
		c.Required = j.ownBurn()
	case judged == 0 && c.Outcome == Pass:
		c.Outcome, c.Required = Skip, false
		c.Summary += "; not judged: these cards have no links of their own"
	}
	if c.Outcome == Fail {
		c.Advice = "check links and switches between the cards named"
	}
	return c
}

// median returns the middle of some values, 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
