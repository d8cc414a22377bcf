package linuxedge

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// queueBytes returns the length of a class's queue: 50 ms at its rate, and at least what one packet of 64 KiB counts as,
// which offloads make of 45 TCP segments: in a shorter queue it would always be dropped whole.
func queueBytes(kbit int) int { return max(kbit*1000/8/20, 70_000) }

// burstBytes returns how much a class may send at once: 2 ms at its rate, which bridges a late timer, and at least 3 full
// frames.
func burstBytes(kbit int) uint32 { return uint32(max(kbit*1000/8/500, 3*1514)) }

// quantum is given so that the kernel need not guess it from the rate; classes never borrow, so it has no other effect.
const quantum = 20_000

func rootID() uint32 { return netlink.MakeHandle(1, 0) }

// root puts HTB at the root of a device. Its default is class 0: what the edge itself sends is not shaped, and forwarded
// packets always have a class, as the forward chain drops those without.
func (s *session) root(st *state, side side) error {
	if st.roots[side] {
		return nil
	}
	link := s.links[side].Attrs()
	if st.squatted[side] { // our handle, but not as we want it, and neither default nor kind of a root can be changed
		old := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Index, Handle: rootID(), Parent: netlink.HANDLE_ROOT}}
		if err := s.rt.QdiscDel(old); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete foreign queue of %s: %w", link.Name, err)
		}
	}
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: link.Index, Handle: rootID(), Parent: netlink.HANDLE_ROOT})
	if err := s.rt.QdiscReplace(q); err != nil {
		return fmt.Errorf("put HTB on %s: %w", link.Name, err)
	}
	st.roots[side] = true
	st.classes[side] = map[uint16]class{}
	return nil
}

func (s *session) readClasses(st *state, side side) error {
	link := s.links[side]
	st.classes[side] = map[uint16]class{}
	qdiscs, err := dump("queues of "+link.Attrs().Name, func() ([]netlink.Qdisc, error) { return s.rt.QdiscList(link) })
	if err != nil {
		return err
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent != netlink.HANDLE_ROOT || q.Attrs().Handle != rootID() {
			continue
		}
		htb, ok := q.(*netlink.Htb)
		st.roots[side] = ok && htb.Defcls == 0
		st.squatted[side] = !st.roots[side]
	}
	if !st.roots[side] {
		return nil
	}
	classes, err := dump("classes of "+link.Attrs().Name, func() ([]netlink.Class, error) { return s.rt.ClassList(link, 0) })
	if err != nil {
		return err
	}
	for _, c := range classes {
		htb, ok := c.(*netlink.HtbClass)
		if !ok || htb.Handle>>16 != 1 {
			continue
		}
		have := class{kbit: int(htb.Rate * 8 / 1000)}
		if ceil := htb.Ceil; ceil != htb.Rate && ceil < 1<<32-1 { // beyond that the netlink package does not tell
			have.kbit = 0
		}
		if htb.Statistics != nil {
			have.bytes = htb.Statistics.Basic.Bytes
		}
		st.classes[side][uint16(htb.Handle)] = have
	}
	return s.readQueues(st, side)
}

// readQueues reads the byte FIFOs below the classes, which the netlink package does not know.
func (s *session) readQueues(st *state, side side) error {
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
		if msg.Ifindex != index || msg.Parent>>16 != 1 {
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
		minor := uint16(msg.Parent)
		if c, ok := st.classes[side][minor]; ok {
			c.queue = int(binary.NativeEndian.Uint32(options))
			st.classes[side][minor] = c
		}
	}
	return nil
}

func (s *session) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s.tc}
	return req
}

// shape makes or changes a class and its queue. A change keeps what is queued and what was counted.
func (s *session) shape(st *state, side side, minor uint16, kbit int) error {
	have := st.classes[side][minor]
	index := s.links[side].Attrs().Index
	if have.kbit != kbit {
		bits := uint64(kbit) * 1000
		c := netlink.NewHtbClass(
			netlink.ClassAttrs{LinkIndex: index, Parent: rootID(), Handle: netlink.MakeHandle(1, minor)},
			netlink.HtbClassAttrs{Rate: bits, Ceil: bits, Buffer: burstBytes(kbit), Cbuffer: burstBytes(kbit), Quantum: quantum})
		if err := s.rt.ClassReplace(c); err != nil {
			return fmt.Errorf("replace class: %w", err)
		}
		have.kbit = kbit
	}
	if want := queueBytes(kbit); have.queue != want {
		// tc qdisc replace dev DEVICE parent 1:MINOR bfifo limit WANT
		req := s.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: netlink.MakeHandle(1, minor)})
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bfifo")))
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, nl.Uint32Attr(uint32(want)))) // struct tc_fifo_qopt
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("replace queue: %w", err)
		}
		have.queue = want
	}
	st.classes[side][minor] = have
	return nil
}

func (s *session) unshape(st *state, side side, minor uint16) error {
	c := &netlink.HtbClass{ClassAttrs: netlink.ClassAttrs{LinkIndex: s.links[side].Attrs().Index, Parent: rootID(), Handle: netlink.MakeHandle(1, minor)}}
	if err := s.rt.ClassDel(c); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	delete(st.classes[side], minor)
	return nil
}
