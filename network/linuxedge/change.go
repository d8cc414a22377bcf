package linuxedge

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// few is up to how many ports are changed without a look at the others.
const few = 16

// change is Apply for few ports, in a time that does not grow with the classes, queues, neighbours and routes of all others: it reads the
// records, which say what is whose, and of the rest only what the named ports need. What it finds otherwise than a whole Apply leaves it,
// it leaves to one: then it is not done.
func (s *session) change(ctx context.Context, set []network.Port, remove []string) (done bool, err error) {
	if guarded, err := s.guarded(); err != nil || !guarded {
		return false, err
	}
	st := &state{numbering: s.cfg.numbering(), named: map[string]bool{}, neighs: map[netip.Addr]string{}, routes: map[netip.Prefix]hop{}}
	if err := s.readSets(st); err != nil {
		return false, err
	}
	for name, want := range denied(s.cfg.Deny) {
		if !maps.Equal(st.sets[name], want) {
			return false, nil
		}
	}
	for _, set := range definitions(nil) {
		if _, there := st.sets[set.Name]; !there {
			return false, nil
		}
	}
	for _, p := range set {
		st.named[p.Machine] = true
	}
	for _, id := range remove {
		st.named[id] = true
	}
	var minors []uint16
	for id := range st.named {
		if r, ok := st.records[id]; ok {
			minors = append(minors, r.minor)
			maps.Copy(st.routes, r.routes())
			for _, n := range r.hops() {
				st.neighs[n] = r.MAC
			}
		}
	}
	st.suspect(st.records)
	majors := st.majors(st.records)
	for i := range s.links {
		if st.trees[i], err = s.glance(side(i), majors, minors); err != nil || st.trees[i] == nil {
			return false, err
		}
	}
	want, err := plan(st, set, remove)
	if err != nil {
		return false, err
	}
	if !maps.Equal(st.majors(want), majors) {
		return false, nil
	}
	st.suspect(want)
	for id := range st.named {
		r, wanted := want[id]
		if _, there := st.records[id]; there || !wanted {
			continue
		}
		for i := range s.links {
			if _, left, err := s.lookAt(side(i), st.classID(r.minor)); err != nil || left {
				return false, err // by a crash
			}
		}
	}
	if err := s.prepare(); err != nil {
		return false, err
	}
	if err := s.bring(ctx, st, want); err != nil {
		return false, ctx.Err() // something is in the way that was not looked at
	}
	return true, nil
}

// majors returns the HTBs in which records have their classes.
func (st *state) majors(records map[string]record) map[uint16]bool {
	out := map[uint16]bool{}
	for _, r := range records {
		out[st.major(r.minor)] = true
	}
	return out
}

// glance reads of a device's tree what leads to the classes of some machines, and these. It is nil when any of it is not as it should be.
func (s *session) glance(side side, majors map[uint16]bool, minors []uint16) (*tree, error) {
	t := &tree{numbering: s.cfg.numbering(), root: true, shards: map[uint16]bool{}, classes: map[uint32]class{}}
	parents := map[uint32]uint32{trunkID(1): netlink.HANDLE_ROOT}
	for m := range majors {
		if m == 1 {
			continue
		}
		t.shards[m], t.filtered = true, true
		parents[shardID(m)], parents[trunkID(m)] = trunkID(1), netlink.HANDLE_ROOT
	}
	for _, m := range minors {
		parents[t.classID(m)] = trunkID(t.major(m))
	}
	for h, parent := range parents {
		c, there, err := s.lookAt(side, h)
		if err != nil {
			return nil, err
		}
		if !there || c.parent != parent {
			return nil, nil
		}
		t.classes[h] = c
	}
	return t, nil
}

// lookAt reads one class, without its queue.
func (s *session) lookAt(side side, handle uint32) (c class, there bool, err error) {
	// Without NLM_F_ECHO the kernel tells the answer to whoever listens for changes, and not to who asks.
	req := s.request(unix.RTM_GETTCLASS, unix.NLM_F_ECHO|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.links[side].Attrs().Index), Handle: handle})
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWTCLASS)
	if err != nil || len(msgs) != 1 || len(msgs[0]) < nl.SizeofTcMsg {
		return c, false, nil // it is not there, or not to be asked for in this way
	}
	msg := nl.DeserializeTcMsg(msgs[0])
	attrs, err := nl.ParseRouteAttrAsMap(msgs[0][msg.Len():])
	if err != nil || msg.Handle != handle || nl.BytesToString(attrs[nl.TCA_KIND].Value) != "htb" {
		return c, false, nil
	}
	options, err := nl.ParseRouteAttrAsMap(attrs[nl.TCA_OPTIONS].Value)
	parms := options[nl.TCA_HTB_PARMS].Value
	if err != nil || len(parms) < nl.SizeofTcHtbCopt {
		return c, false, nil
	}
	opt := nl.DeserializeTcHtbCopt(parms)
	rate, ceil := uint64(opt.Rate.Rate), uint64(opt.Ceil.Rate)
	if v := options[nl.TCA_HTB_RATE64].Value; len(v) == 8 {
		rate = binary.NativeEndian.Uint64(v)
	}
	if v := options[nl.TCA_HTB_CEIL64].Value; len(v) == 8 {
		ceil = binary.NativeEndian.Uint64(v)
	}
	return class{parent: msg.Parent, rate: bandwidth(rate, ceil)}, true, nil
}

// suspect adds the routes and neighbours that a crash may have left of named ports beside those that their records ask for: they are deleted
// if they are there.
func (st *state) suspect(records map[string]record) {
	for id := range st.named {
		r, ok := records[id]
		if !ok {
			continue
		}
		for _, p := range r.Addrs {
			if _, known := st.routes[p]; !known {
				st.routes[p] = stray
			}
		}
		for _, n := range []netip.Addr{nextHop4(r.minor), nextHop6(r.minor)} {
			if _, known := st.neighs[n]; !known {
				st.neighs[n] = ""
			}
		}
	}
}

// doubt forgets the routes and neighbours that named ports are to have: their records say so, and nobody has looked. They are made again.
func (st *state) doubt(want map[string]record) {
	for id := range st.named {
		for p := range want[id].routes() {
			delete(st.routes, p)
		}
		for _, n := range want[id].hops() {
			delete(st.neighs, n)
		}
	}
}

// concern narrows what is wanted in a set, and what it has, to the named ports: to what their records said or say, and to whatever has the
// key of something that is wanted.
func (st *state) concern(want map[string]record) (have, wanted map[string]elements) {
	of := func(records map[string]record) map[string]elements {
		some := map[string]record{}
		for id := range st.named {
			if r, ok := records[id]; ok {
				some[id] = r
			}
		}
		return st.layout(some)
	}
	said, wanted := of(st.records), of(want)
	have = map[string]elements{}
	for name, e := range wanted {
		type key struct {
			key string
			end bool
		}
		keys := map[key]bool{}
		for x := range e {
			keys[key{x.key, x.intervalEnd}] = true
		}
		have[name] = elements{}
		for x := range st.sets[name] {
			if said[name][x] || keys[key{x.key, x.intervalEnd}] {
				have[name].add(x)
			}
		}
	}
	return have, wanted
}
