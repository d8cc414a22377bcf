// Package neighbour hears by LLDP which switch ports a machine's ports are wired to.
package neighbour

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/mdlayher/lldp"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// groups are the addresses to which switches send LLDP (IEEE 802.1AB, 7.1): the nearest bridge, the nearest that is no relay
// of two ports, and the nearest customer bridge.
var groups = []net.HardwareAddr{
	{0x01, 0x80, 0xc2, 0, 0, 0x0e}, {0x01, 0x80, 0xc2, 0, 0, 0x03}, {0x01, 0x80, 0xc2, 0, 0, 0x00},
}

// Listen hears all the named ports at once until each has a neighbour or ctx ends; switches speak every 30 seconds. Ports
// must be up. A port that cannot be heard, or hears nobody, is left out; the errors say why of the former. All sockets are
// opened in the network namespace of the caller's thread.
//
// What it cannot hear: Intel's X710 and E810 answer LLDP in their own firmware and pass nothing on, unless that was turned off
// in it (ethtool --set-priv-flags … disable-fw-lldp on).
func Listen(ctx context.Context, names []string) (map[string]machine.Neighbour, error) {
	var errs []error
	var ears []*ear
	for _, name := range names {
		e, err := open(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %s: %w", name, err))
			continue
		}
		defer e.conn.Close()
		ears = append(ears, e)
	}
	found := map[string]machine.Neighbour{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, e := range ears {
		all.Go(func() {
			n, heard, err := e.listen(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("listen on %s: %w", e.port.Name, err))
			}
			if heard {
				found[e.port.Name] = n
			}
		})
	}
	all.Wait()
	return found, errors.Join(errs...)
}

// ear is a port that is listened on.
type ear struct {
	port *net.Interface
	conn *packet.Conn
}

func open(name string) (*ear, error) {
	port, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(port, packet.Raw, int(lldp.EtherType), nil)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := join(conn, port.Index, g); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return &ear{port, conn}, nil
}

// listen waits for the first frame that can be read.
func (e *ear) listen(ctx context.Context) (n machine.Neighbour, heard bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = e.conn.SetReadDeadline(time.Unix(1, 0)) }) // a closed one reads no more either
	defer stop()
	buf := make([]byte, 9216)
	for {
		size, _, err := e.conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return n, false, nil
		}
		if err != nil {
			return n, false, err
		}
		if size <= ethernetHeader || net.HardwareAddr(buf[6:12]).String() == e.port.HardwareAddr.String() {
			continue // too short, or what this port itself has sent
		}
		if n, ok := Parse(buf[ethernetHeader:size]); ok {
			return n, true, nil
		}
	}
}

const ethernetHeader = 14

// join lets the port take frames to a group address.
func join(conn *packet.Conn, index int, group net.HardwareAddr) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	m := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
	copy(m.Address[:], group)
	var set error
	err = raw.Control(func(fd uintptr) {
		_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0)
		if errno != 0 {
			set = os.NewSyscallError("setsockopt", errno)
		}
	})
	return errors.Join(err, set)
}

// Types of TLVs that are of use here (IEEE 802.1AB, table 8-1, and 802.1Q annex D).
const (
	tlvPortText   = 4
	tlvSystemName = 5
	tlvSpecific   = 127
)

// Parse reads what follows the Ethernet header of an LLDP frame. Text is cut to what can be shown. It reports false for what
// is no LLDP, and for a neighbour that says goodbye.
func Parse(b []byte) (machine.Neighbour, bool) {
	var f lldp.Frame
	if err := f.UnmarshalBinary(unpadded(b)); err != nil || f.TTL == 0 {
		return machine.Neighbour{}, false
	}
	n := machine.Neighbour{
		Chassis: identity(byte(f.ChassisID.Subtype) == byte(lldp.ChassisIDSubtypeMACAddress), byte(f.ChassisID.Subtype) == byte(lldp.ChassisIDSubtypeNetworkAddress), f.ChassisID.ID),
		Port:    identity(byte(f.PortID.Subtype) == byte(lldp.PortIDSubtypeMACAddress), byte(f.PortID.Subtype) == byte(lldp.PortIDSubtypeNetworkAddress), f.PortID.ID),
	}
	for _, t := range f.Optional {
		switch {
		case t.Type == tlvPortText:
			n.Text = machine.CleanText(string(t.Value))
		case t.Type == tlvSystemName:
			n.System = machine.CleanText(string(t.Value))
		case t.Type == tlvSpecific && len(t.Value) == 6 && string(t.Value[:4]) == "\x00\x80\xc2\x01": // port VLAN id
			n.VLAN = int(binary.BigEndian.Uint16(t.Value[4:]))
		}
	}
	return n, n.Port != "" || n.Chassis != ""
}

// unpadded ends a frame at its End TLV: short frames are padded to 60 bytes, and the padding is no TLV.
func unpadded(b []byte) []byte {
	for at := 0; at+2 <= len(b); {
		head := binary.BigEndian.Uint16(b[at:])
		if head == 0 {
			return b[:at+2]
		}
		at += 2 + int(head&0x1ff)
	}
	return b
}

// identity shows a chassis or port id.
func identity(mac, address bool, id []byte) string {
	switch {
	case mac && len(id) == 6:
		return net.HardwareAddr(id).String()
	case address && len(id) > 1: // the family comes first (RFC 2922)
		if a, ok := netip.AddrFromSlice(id[1:]); ok {
			return a.String()
		}
	}
	return machine.CleanText(string(id))
}
