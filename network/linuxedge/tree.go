package linuxedge

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// Each device has a tree of HTB classes:
//
//	1:            root, default class 0
//	└ 1:1         trunk: what the device carries; classes that burst borrow from it what the others leave
//	  ├ 1:10 …    classes of the first machines, each with a byte FIFO
//	  ├ 1:2       second shard, its rate what was sold to its machines
//	  │ └ 2:      HTB
//	  │   └ 2:1   trunk
//	  │     └ 2:3f8 … classes of the next machines
//	  └ 1:3 …
//
// To create a class takes time in proportion to the number of classes in its HTB, so one holds no more than a shard of
// them. HTB finds a class of its own by skb->priority without a filter; the root's one filter turns priorities of other
// shards, 2:3f8, into the class below which they are, 1:2. A packet costs the same for every machine of a shard.
const (
	trunkMinor = 1
	firstMinor = 0x10 // of machines' classes, and the low half of their next hops (nextHop), where 0.1 is the gateway
	lastMinor  = 0xfff0
	shards     = 14 // as far as the minor numbers below firstMinor go
	perShard   = 1000
)

// numbering is how many machines there are to a shard; from it follows where the class of a minor number is.
type numbering uint16

// major returns the number of the HTB in which the class of a minor number is.
func (n numbering) major(minor uint16) uint16 { return 1 + (minor-firstMinor)/uint16(n) }

// classID returns the class of a minor number: what skb->priority must be.
func (n numbering) classID(minor uint16) uint32 { return netlink.MakeHandle(n.major(minor), minor) }

// last returns the highest minor number.
func (n numbering) last() uint16 { return uint16(min(firstMinor+shards*int(n)-1, lastMinor)) }

func rootID() uint32              { return netlink.MakeHandle(1, 0) }
func trunkID(major uint16) uint32 { return netlink.MakeHandle(major, trunkMinor) }

// shardID returns the class of the root below which the HTB of a major number hangs.
func shardID(major uint16) uint32 { return netlink.MakeHandle(1, major) }

// class is an HTB class and the queue below it.
type class struct {
	parent uint32
	rate   network.Bandwidth // Burst is 0 when rate and ceiling are the same
	queue  int               // bytes of the bfifo below; 0 when there is another queue or none
	bytes  uint64
}

// tree is what a device has of the tree.
type tree struct {
	numbering
	root     bool             // our HTB
	squatted bool             // the root has our handle, but must be made anew
	shards   map[uint16]bool  // HTBs below the root, by major number
	filters  []netlink.Filter // of the root
	filtered bool             // by the one that is wanted and no other
	classes  map[uint32]class // by handle
}

// has reports whether the class of a minor number is where it belongs.
func (t *tree) has(minor uint16) bool {
	c, ok := t.classes[t.classID(minor)]
	return ok && t.root && c.parent == trunkID(t.major(minor))
}

// leads reports whether packets of a minor number find their class, under trunks that carry so much.
func (t *tree) leads(minor uint16, trunk network.Bandwidth) bool {
	m := t.major(minor)
	return t.has(minor) && t.classes[trunkID(1)].rate == trunk && (m == 1 || t.shards[m] && t.classes[trunkID(m)].rate == trunk && t.filtered)
}

// queueBytes returns the length of a class's queue: 50 ms at its rate, and at least what one packet of 64 KiB counts as,
// which offloads make of 45 TCP segments: in a shorter queue it would always be dropped whole.
func queueBytes(kbit int) int { return max(kbit*1000/8/20, 70_000) }

// burstBytes returns how much a class may send at once: 2 ms at its rate, which bridges a late timer, and at least 3 full
// frames.
func burstBytes(kbit int) uint32 { return uint32(max(kbit*1000/8/500, 3*1514)) }

// quantum is given so that the kernel need not guess it from the rate: classes that borrow share what is left equally.
const quantum = 20_000

// dispatchName is the name of the filter from priority to shard.
const dispatchName = "bareyard-shard"

// dispatch returns the program of the filter: it turns skb->priority 2:3f8 into the class 1:2 of the root.
func dispatch() *ebpf.ProgramSpec {
	const priority = 32 // offset in struct __sk_buff
	return &ebpf.ProgramSpec{
		Name: "bareyard_shard", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R0, asm.R1, priority, asm.Word),
			asm.RSh.Imm(asm.R0, 16),
			asm.Or.Imm(asm.R0, 1<<16),
			asm.Return(),
		},
	}
}

// program loads the program of the filter into the kernel, once a session, and returns the kernel's digest of it.
func (s *session) program() (tag string, err error) {
	if s.prog == nil {
		if s.prog, err = ebpf.NewProgram(dispatch()); err != nil {
			return "", fmt.Errorf("load filter: %w", err)
		}
	}
	info, err := s.prog.Info()
	if err != nil {
		return "", fmt.Errorf("load filter: %w", err)
	}
	return info.Tag, nil
}

// ours reports whether a filter is the one that is wanted at the root.
func (s *session) ours(f netlink.Filter) (bool, error) {
	b, ok := f.(*netlink.BpfFilter)
	if !ok || b.Name != dispatchName || b.DirectAction || b.ClassId != 0 {
		return false, nil
	}
	tag, err := s.program()
	return b.Tag == tag, err
}

// plant makes the tree down to the trunks; sold is what was sold in each shard that is in use, in kbit/s by major number.
func (s *session) plant(t *tree, side side, sold map[uint16]int) error {
	if err := s.root(t, side); err != nil {
		return err
	}
	trunk := s.cfg.trunk()
	if err := s.class(t, side, trunkID(1), rootID(), trunk); err != nil {
		return err
	}
	if err := s.direct(t, side, len(sold) > 1); err != nil {
		return err
	}
	for _, m := range slices.Sorted(maps.Keys(sold)) {
		if m == 1 {
			continue
		}
		if err := s.class(t, side, shardID(m), trunkID(1), share(sold[m], trunk)); err != nil {
			return err
		}
		if err := s.shard(t, side, m); err != nil {
			return err
		}
		if err := s.class(t, side, trunkID(m), netlink.MakeHandle(m, 0), trunk); err != nil {
			return err
		}
	}
	return nil
}

// share returns the bandwidth of a shard: what was sold in it is its own, and it may borrow up to the whole trunk.
func share(sold int, trunk network.Bandwidth) network.Bandwidth {
	if sold >= trunk.Kbit {
		return trunk
	}
	return network.Bandwidth{Kbit: max(sold, network.MinKbit), Burst: trunk.Kbit}
}

// root puts HTB at the root of a device. Its default is class 0: what the edge itself sends is not shaped, and forwarded
// packets always have a class, as the forward chain drops those without.
func (s *session) root(t *tree, side side) error {
	if t.root {
		return nil
	}
	link := s.links[side].Attrs()
	if t.squatted { // our handle, but not as we want it, and neither default nor kind of a root can be changed
		old := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Index, Handle: rootID(), Parent: netlink.HANDLE_ROOT}}
		if err := s.rt.QdiscDel(old); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete foreign queue of %s: %w", link.Name, err)
		}
	}
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: link.Index, Handle: rootID(), Parent: netlink.HANDLE_ROOT})
	if err := s.rt.QdiscReplace(q); err != nil {
		return fmt.Errorf("put HTB on %s: %w", link.Name, err)
	}
	*t = tree{numbering: t.numbering, root: true, shards: map[uint16]bool{}, classes: map[uint32]class{}}
	return nil
}

// shard hangs an HTB below its class of the root.
func (s *session) shard(t *tree, side side, m uint16) error {
	if t.shards[m] {
		return nil
	}
	link := s.links[side].Attrs()
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: link.Index, Handle: netlink.MakeHandle(m, 0), Parent: shardID(m)})
	if err := s.rt.QdiscReplace(q); err != nil {
		return fmt.Errorf("hang HTB %x: below class 1:%x of %s: %w", m, m, link.Name, err)
	}
	t.shards[m] = true
	t.forget(m)
	return nil
}

// forget drops what is known of the classes of a shard, which went with its HTB.
func (t *tree) forget(m uint16) {
	for h := range t.classes {
		if uint16(h>>16) == m {
			delete(t.classes, h)
		}
	}
}

// direct sees to it that the root has the filter from priority to shard and no other, or none when there is one shard only.
func (s *session) direct(t *tree, side side, wanted bool) error {
	if wanted && t.filtered {
		return nil
	}
	link := s.links[side].Attrs()
	for _, f := range t.filters {
		if err := s.rt.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete foreign filter of %s: %w", link.Name, err)
		}
	}
	t.filters, t.filtered = nil, false
	if !wanted {
		return nil
	}
	if _, err := s.program(); err != nil {
		return err
	}
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Index, Parent: rootID(), Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}, Fd: s.prog.FD(), Name: dispatchName}
	if err := s.rt.FilterReplace(f); err != nil {
		return fmt.Errorf("put filter on %s: %w", link.Name, err)
	}
	t.filters, t.filtered = []netlink.Filter{f}, true
	return nil
}
