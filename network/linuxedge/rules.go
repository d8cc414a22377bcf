package linuxedge

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
)

// Names in nftables: everything is in one table of the inet family.
const (
	tableName    = "bareyard"
	chainGuard   = "guard"
	chainForward = "forward"
	chainInput   = "input"
)

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4861).
const (
	echoRequest     = 8
	neighborSolicit = 135
	neighborAdvert  = 136
)

// match is a part of a rule.
type match []expr.Any

// Registers: the first 4 bytes of each of two 16-byte registers, and the 4-byte register that follows a MAC address, which
// fills two.
const (
	reg      = unix.NFT_REG_1
	afterMAC = unix.NFT_REG32_00 + 2
)

func (m match) and(more ...match) match {
	for _, x := range more {
		m = append(m[:len(m):len(m)], x...)
	}
	return m
}

// rules rewrites the chains. The order of rules in a chain is their meaning.
func (s *session) rules(t *nftables.Table, sets map[string]*nftables.Set) {
	policyAccept, policyDrop := nftables.ChainPolicyAccept, nftables.ChainPolicyDrop
	chain := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority, policy *nftables.ChainPolicy, rules ...match) {
		c := s.nft.AddChain(&nftables.Chain{Table: t, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: prio, Policy: policy})
		s.nft.FlushChain(c)
		for _, r := range rules {
			s.nft.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: r})
		}
	}
	var (
		up, down         = s.cfg.Uplink, s.cfg.Downlink
		accept, drop     = verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)
		v4, v6           = family(unix.NFPROTO_IPV4), family(unix.NFPROTO_IPV6)
		sent4, received4 = v4.and(send(sets[setUp4], 12, 4)), v4.and(receive(sets[setDown4], 16, 4))
		sent6, received6 = v6.and(send(sets[setUp6], 8, 16)), v6.and(receive(sets[setDown6], 24, 16))
	)
	// Before routing, which would answer a spoofed packet with an ICMP error to whomever it names. Neighbour discovery from
	// link-local (or no) addresses passes, but only from a port's own MAC address, and slowly enough not to fill the
	// neighbour table.
	solicit, advert := icmp6(neighborSolicit), icmp6(neighborAdvert)
	known := ether().and(in(sets[setPorts], ll(6, 6)))
	linkLocal := network.Gateway6().As16()
	local, nobody := v6.and(eq(nh(8, 8), linkLocal[:8])), v6.and(eq(nh(8, 16), make([]byte, 16)))
	chain(chainGuard, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, &policyAccept,
		notIif(down).and(accept),
		iif(down).and(local, solicit, known, slow(), accept),
		iif(down).and(local, advert, known, slow(), accept),
		iif(down).and(nobody, solicit, known, slow(), accept),
		iif(down).and(sent4, accept),
		iif(down).and(sent6, accept),
		iif(down).and(drop),
	)

	// From machine to machine only the receiver's class counts.
	chain(chainForward, nftables.ChainHookForward, nftables.ChainPriorityFilter, &policyDrop,
		iif(down).and(v4, in(sets[setDeny4], nh(16, 4)), drop),
		iif(down).and(v6, in(sets[setDeny6], nh(24, 16)), drop),
		iif(down).and(oif(up), sent4, accept),
		iif(down).and(oif(up), sent6, accept),
		iif(up).and(oif(down), received4, accept),
		iif(up).and(oif(down), received6, accept),
		iif(down).and(oif(down), received4, accept),
		iif(down).and(oif(down), received6, accept),
	)

	gateway4 := network.Gateway4().AsSlice()
	chain(chainInput, nftables.ChainHookInput, nftables.ChainPriorityFilter, &policyAccept,
		notIif(down).and(accept),
		iif(down).and(v4, eq(nh(16, 4), gateway4), l4(unix.IPPROTO_ICMP), eq(th(0, 1), []byte{echoRequest}), accept),
		iif(down).and(v6, solicit, accept),
		iif(down).and(v6, advert, accept),
		iif(down).and(drop),
	)
}

// send looks MAC and source address up, which both checks them and finds the class.
func send(set *nftables.Set, offset, length uint32) match {
	return ether().and(match{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Payload{DestRegister: afterMAC, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetID: set.ID, SetName: set.Name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg},
	})
}

// receive looks the destination address up.
func receive(set *nftables.Set, offset, length uint32) match {
	return match{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetID: set.ID, SetName: set.Name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg},
	}
}

func load(base expr.PayloadBase, offset, length uint32) match {
	return match{&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}}
}

func ll(offset, length uint32) match { return load(expr.PayloadBaseLLHeader, offset, length) }
func nh(offset, length uint32) match { return load(expr.PayloadBaseNetworkHeader, offset, length) }
func th(offset, length uint32) match {
	return load(expr.PayloadBaseTransportHeader, offset, length)
}

func meta(key expr.MetaKey) match { return match{&expr.Meta{Key: key, Register: reg}} }

func compare(value match, op expr.CmpOp, data []byte) match {
	return value.and(match{&expr.Cmp{Op: op, Register: reg, Data: data}})
}

func eq(value match, data []byte) match { return compare(value, expr.CmpOpEq, data) }

// in matches when a value is in a set.
func in(set *nftables.Set, value match) match {
	return value.and(match{&expr.Lookup{SourceRegister: reg, SetID: set.ID, SetName: set.Name}})
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func iif(name string) match { return eq(meta(expr.MetaKeyIIFNAME), ifname(name)) }
func notIif(name string) match {
	return compare(meta(expr.MetaKeyIIFNAME), expr.CmpOpNeq, ifname(name))
}
func oif(name string) match { return eq(meta(expr.MetaKeyOIFNAME), ifname(name)) }
func family(f byte) match   { return eq(meta(expr.MetaKeyNFPROTO), []byte{f}) }
func l4(proto byte) match   { return eq(meta(expr.MetaKeyL4PROTO), []byte{proto}) }

func icmp6(icmpType byte) match {
	return l4(unix.IPPROTO_ICMPV6).and(eq(th(0, 1), []byte{icmpType}))
}

// ether matches frames of an Ethernet device; without it nft cannot print what is read from their header by name.
func ether() match {
	return eq(meta(expr.MetaKeyIIFTYPE), binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER))
}

// slow matches up to 100 packets per second.
func slow() match {
	return match{&expr.Limit{Type: expr.LimitTypePkts, Rate: 100, Unit: expr.LimitTimeSecond, Burst: 50}}
}

func verdict(k expr.VerdictKind) match { return match{&expr.Verdict{Kind: k}} }
