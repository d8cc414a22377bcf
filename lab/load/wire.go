package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	ethLen = 14
	ipLen  = 20
	udpLen = 8
	bootp  = ethLen + ipLen + udpLen // where the DHCP message of a frame begins
)

// wire is one packet socket that all machines share: frames leave with each machine's own MAC address, and answers find
// their machine by the transaction.
type wire struct {
	raw  *packet.Conn
	to   *packet.Addr
	done chan struct{} // closed when listen has ended

	mu      sync.Mutex
	waiting map[uint32]chan<- reply
}

// reply is what a machine needs of an answer.
type reply struct {
	kind   byte // option 53
	addr   [4]byte
	server [4]byte // option 54
	file   string  // only for those who asked for names
	at     time.Time
}

func openWire(ifname string) (*wire, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	filter, err := bpf.Assemble(toClients)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	raw, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open packet socket on %s: %w", ifname, err)
	}
	w := &wire{raw: raw, to: &packet.Addr{HardwareAddr: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, done: make(chan struct{}),
		waiting: map[uint32]chan<- reply{}}
	if err := w.roomy(); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	go w.listen() // ends with close
	return w, nil
}

// toClients lets UDP to port 68 through: IPv4 without options, as every boot server sends it.
var toClients = []bpf.Instruction{
	bpf.LoadAbsolute{Off: ethLen + 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 3},
	bpf.LoadAbsolute{Off: ethLen + ipLen + 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 68, SkipTrue: 1},
	bpf.RetConstant{Val: 0xffff},
	bpf.RetConstant{Val: 0},
}

// roomy gives the socket room for the answers to all machines at once: the load must not lose what the server sent.
func (w *wire) roomy() error {
	c, err := w.raw.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) }); err != nil {
		return err
	}
	return set
}

func (w *wire) close() {
	w.raw.Close()
	<-w.done
}

func (w *wire) listen() {
	defer close(w.done)
	buf := make([]byte, 2048)
	for {
		n, _, err := w.raw.ReadFrom(buf)
		if err != nil {
			return
		}
		if n < bootp+240 {
			continue
		}
		msg := buf[bootp:n]
		xid := binary.BigEndian.Uint32(msg[4:])
		w.mu.Lock()
		to := w.waiting[xid]
		w.mu.Unlock()
		if to == nil {
			continue
		}
		select {
		case to <- parseReply(msg):
		default: // a second answer
		}
	}
}

// expect has the answers of a transaction delivered until forget.
func (w *wire) expect(xid uint32, to chan<- reply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[xid] = to
}

func (w *wire) forget(xid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, xid)
}

func (w *wire) send(frame []byte) error {
	if _, err := w.raw.WriteTo(frame, w.to); err != nil {
		return fmt.Errorf("send frame: %w", err)
	}
	return nil
}

// broadcast puts a DHCP message of a machine that has no address into a frame from nobody to everybody. UDP goes without its
// checksum, which IPv4 allows.
func broadcast(msg []byte) []byte {
	f := make([]byte, bootp, bootp+len(msg))
	copy(f, "\xff\xff\xff\xff\xff\xff")
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip := f[ethLen : ethLen+ipLen]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(ipLen+udpLen+len(msg)))
	copy(ip[16:], netip.AddrFrom4([4]byte{255, 255, 255, 255}).AsSlice())
	var sum uint32
	for i := 0; i < ipLen; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	udp := f[ethLen+ipLen:]
	binary.BigEndian.PutUint16(udp[0:], 68)
	binary.BigEndian.PutUint16(udp[2:], 67)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+len(msg)))
	return append(f, msg...)
}
