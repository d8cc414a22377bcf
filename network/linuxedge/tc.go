package linuxedge

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// readTree reads what a device has of its tree, except for the queues below the classes.
func (s *session) readTree(side side) (*tree, error) {
	t := &tree{numbering: s.cfg.numbering(), shards: map[uint16]bool{}, classes: map[uint32]class{}}
	link := s.links[side]
	qdiscs, err := dump("queues of "+link.Attrs().Name, func() ([]netlink.Qdisc, error) { return s.rt.QdiscList(link) })
	if err != nil {
		return nil, err
	}
	taken := false // a handle of ours, by something else
	for _, q := range qdiscs {
		htb, ok := q.(*netlink.Htb)
		ok = ok && htb.Defcls == 0
		m := uint16(q.Attrs().Handle >> 16)
		switch {
		case q.Attrs().Parent == netlink.HANDLE_ROOT && q.Attrs().Handle == rootID():
			t.root, t.squatted = ok, !ok
		case m <= 1 || m > shards:
		case q.Attrs().Parent == shardID(m) && ok:
			t.shards[m] = true
		default:
			taken = true
		}
	}
	if taken && t.root {
		t.root, t.squatted = false, true
	}
	if !t.root {
		t.shards = map[uint16]bool{}
		return t, nil
	}
	if t.filters, err = dump("filters of "+link.Attrs().Name, func() ([]netlink.Filter, error) { return s.rt.FilterList(link, rootID()) }); err != nil {
		return nil, err
	}
	if len(t.filters) == 1 {
		if t.filtered, err = s.ours(t.filters[0]); err != nil {
			return nil, err
		}
	}
	classes, err := s.dumpClasses(link)
	if err != nil {
		return nil, err
	}
	for _, c := range classes {
		htb, ok := c.(*netlink.HtbClass)
		if !ok || htb.Handle>>16 == 0 || htb.Handle>>16 > shards {
			continue // of a queue that hangs where one of ours should
		}
		have := class{parent: htb.Parent, rate: bandwidth(htb.Rate, htb.Ceil)}
		if htb.Statistics != nil {
			have.bytes = htb.Statistics.Basic.Bytes
		}
		t.classes[htb.Handle] = have
	}
	t.check()
	return t, nil
}

// bandwidth is what a class has whose rate and ceiling are so many bytes per second.
func bandwidth(rate, ceil uint64) network.Bandwidth {
	b := network.Fixed(int(rate * 8 / 1000))
	if ceil != rate {
		b.Burst = int(ceil * 8 / 1000)
	}
	return b
}

// check finds a tree in which a trunk or a shard hangs elsewhere than it should: classes cannot be moved.
func (t *tree) check() {
	for h, c := range t.classes {
		m := uint16(h >> 16)
		switch {
		case h == trunkID(m) && c.parent != netlink.HANDLE_ROOT, m == 1 && uint16(h) > trunkMinor && uint16(h) <= shards && c.parent != trunkID(1):
			*t = tree{numbering: t.numbering, squatted: true, shards: map[uint16]bool{}, classes: map[uint32]class{}, filters: t.filters}
			return
		}
	}
}

func (s *session) listClasses(link netlink.Link) ([]netlink.Class, error) {
	return dump("classes of "+link.Attrs().Name, func() ([]netlink.Class, error) { return s.rt.ClassList(link, 0) })
}

// readQueues reads the byte FIFOs below the classes, which the netlink package does not know.
func (s *session) readQueues(t *tree, side side) error {
	index := int32(s.links[side].Attrs().Index)
	msgs, err := dump("queues", func() ([][]byte, error) {
		req := s.request(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: index})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	})
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofTcMsg {
			continue
		}
		msg := nl.DeserializeTcMsg(m)
		c, ok := t.classes[msg.Parent]
		if msg.Ifindex != index || !ok {
			continue
		}
		attrs, err := nl.ParseRouteAttrAsMap(m[msg.Len():])
		if err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
		options := attrs[nl.TCA_OPTIONS].Value
		if nl.BytesToString(attrs[nl.TCA_KIND].Value) != "bfifo" || len(options) < 4 {
			continue
		}
		c.queue = int(binary.NativeEndian.Uint32(options))
		t.classes[msg.Parent] = c
	}
	return nil
}

func (s *session) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s.tc}
	return req
}

// class makes or changes a class. A change keeps what is queued and what was counted.
func (s *session) class(t *tree, side side, handle, parent uint32, rate network.Bandwidth) error {
	have, ok := t.classes[handle]
	if ok && have.rate == rate {
		return nil
	}
	link := s.links[side].Attrs()
	c := netlink.NewHtbClass(
		netlink.ClassAttrs{LinkIndex: link.Index, Parent: parent, Handle: handle},
		netlink.HtbClassAttrs{
			Rate: uint64(rate.Kbit) * 1000, Ceil: uint64(rate.Ceil()) * 1000, Buffer: burstBytes(rate.Kbit), Cbuffer: burstBytes(rate.Ceil()), Quantum: quantum,
		})
	if err := s.rt.ClassReplace(c); err != nil {
		return fmt.Errorf("replace class %s of %s: %w", netlink.HandleStr(handle), link.Name, err)
	}
	if have.parent = parent; uint16(parent) == 0 {
		have.parent = netlink.HANDLE_ROOT // as the kernel says it
	}
	have.rate = rate
	t.classes[handle] = have
	return nil
}

// shape makes or changes the class of a machine and its queue.
func (s *session) shape(t *tree, side side, minor uint16, rate network.Bandwidth) error {
	id := t.classID(minor)
	if err := s.class(t, side, id, trunkID(t.major(minor)), rate); err != nil {
		return err
	}
	have, want := t.classes[id], queueBytes(rate.Ceil())
	if have.queue == want {
		return nil
	}
	// tc qdisc replace dev DEVICE parent ID bfifo limit WANT
	req := s.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.links[side].Attrs().Index), Parent: id})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bfifo")))
	req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, nl.Uint32Attr(uint32(want)))) // struct tc_fifo_qopt
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("replace queue of class %s of %s: %w", netlink.HandleStr(id), s.links[side].Attrs().Name, err)
	}
	have.queue = want
	t.classes[id] = have
	return nil
}

// prune removes the classes of a device that are not in use: those of machines first, then whole shards.
func (s *session) prune(t *tree, side side, minors map[uint16]bool) error {
	if !t.root {
		return nil
	}
	used := map[uint16]bool{1: true}
	for m := range minors {
		used[t.major(m)] = true
	}
	for m := range t.shards {
		if used[m] {
			continue
		}
		if err := s.remove(t, side, shardID(m)); err != nil { // with all that hangs below it
			return err
		}
		delete(t.shards, m)
		t.forget(m)
	}
	for h, c := range t.classes {
		m, minor := uint16(h>>16), uint16(h)
		if minor == trunkMinor || m == 1 && minor <= shards && used[minor] {
			continue
		}
		if minors[minor] && h == t.classID(minor) && c.parent == trunkID(m) {
			continue
		}
		if err := s.remove(t, side, h); err != nil {
			return err
		}
	}
	return s.direct(t, side, len(used) > 1)
}

func (s *session) remove(t *tree, side side, handle uint32) error {
	link := s.links[side].Attrs()
	c := &netlink.HtbClass{ClassAttrs: netlink.ClassAttrs{LinkIndex: link.Index, Parent: netlink.MakeHandle(uint16(handle>>16), 0), Handle: handle}}
	if err := s.rt.ClassDel(c); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove class %s of %s: %w", netlink.HandleStr(handle), link.Name, err)
	}
	delete(t.classes, handle)
	return nil
}
