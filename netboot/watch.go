package netboot

import (
	"net/netip"
	"sync"
	"time"
)

const (
	quietFor  = 10 * time.Minute // an unknown machine is logged once in this time
	quietMax  = 4096             // machines remembered; beyond that nothing is logged
	loopTimes = 5                // the loader taken this often
	loopTime  = 10 * time.Minute // within this time, without a sign of iPXE: a loop
)

// quiet tells which of many repeated events to log. Its zero value is ready.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// first reports whether key was not seen for quietFor.
func (q *quiet) first(key string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t, ok := q.last[key]; ok && now.Sub(t) < quietFor {
		return false
	}
	if len(q.last) >= quietMax {
		for k, t := range q.last {
			if now.Sub(t) >= quietFor {
				delete(q.last, k)
			}
		}
		if len(q.last) >= quietMax { // a flood of made-up addresses
			return false
		}
	}
	if q.last == nil {
		q.last = map[string]time.Time{}
	}
	q.last[key] = now
	return true
}

// loops finds machines that load the loader for ever: a card with an iPXE that does not say so gets the loader, which
// chains back into the card's iPXE, and so on. Its zero value is ready. It holds known machines only.
type loops struct {
	mu   sync.Mutex
	seen map[string]loop
}

type loop struct {
	since time.Time
	times int
}

// count notes that a machine is about to load the loader, and reports whether that makes it a loop.
func (l *loops) count(mac string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]loop{}
	}
	n := l.seen[mac]
	if now.Sub(n.since) >= loopTime {
		n = loop{since: now}
	}
	n.times++
	l.seen[mac] = n
	return n.times == loopTimes
}

// tripped reports whether a machine is in a loop.
func (l *loops) tripped(mac string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.seen[mac]
	return n.times >= loopTimes && now.Sub(n.since) < loopTime
}

// clear forgets a machine that got further.
func (l *loops) clear(mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, mac)
}

const (
	nosyTimes = 20 // refusals
	nosyTime  = time.Minute
	nosyMax   = 4096 // addresses remembered
)

// nosy finds who asks for what is not his, again and again. Its zero value is ready.
type nosy struct {
	mu   sync.Mutex
	seen map[netip.Addr]loop
}

// refused notes a refusal, and reports whether that makes it too many.
func (n *nosy) refused(a netip.Addr, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen == nil || len(n.seen) >= nosyMax {
		n.seen = map[netip.Addr]loop{}
	}
	l := n.seen[a]
	if now.Sub(l.since) >= nosyTime {
		l = loop{since: now}
	}
	l.times++
	n.seen[a] = l
	return l.times == nosyTimes
}

// shut reports whether an address gets no more answers for now.
func (n *nosy) shut(a netip.Addr, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.seen[a]
	return l.times >= nosyTimes && now.Sub(l.since) < nosyTime
}
