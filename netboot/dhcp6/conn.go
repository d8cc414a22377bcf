package dhcp6

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/net/ipv6"
	"golang.org/x/sync/errgroup"

	"github.com/bareyard/bareyard/netboot/dhcp"
)

// Conn is a server's socket on one interface.
type Conn struct {
	udp  *net.UDPConn
	duid dhcpv6.DUID
	zone string // of link-local addresses: the interface by its number, which is right in every network namespace
}

// Groups that clients and relays send to.
var (
	allRelaysAndServers = net.ParseIP("ff02::1:2")
	allServers          = net.ParseIP("ff05::1:3")
)

// Listen opens port 547 on an interface. It needs CAP_NET_BIND_SERVICE and CAP_NET_RAW.
func Listen(ifname string) (*Conn, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", ifname, err)
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not Ethernet", ifname)
	}
	udp, err := server6.NewIPv6UDPConn(ifname, &net.UDPAddr{IP: net.IPv6unspecified, Port: serverPort})
	if err != nil {
		return nil, fmt.Errorf("listen on port 547 of %s: %w", ifname, err)
	}
	p := ipv6.NewPacketConn(udp)
	for _, g := range []net.IP{allRelaysAndServers, allServers} {
		if err := p.JoinGroup(ifi, &net.UDPAddr{IP: g}); err != nil {
			return nil, errors.Join(fmt.Errorf("join %s on %s: %w", g, ifname, err), udp.Close())
		}
	}
	return &Conn{udp: udp, duid: &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: ifi.HardwareAddr}, zone: strconv.Itoa(ifi.Index)}, nil
}

// DUID returns who we are: it follows from the interface, so that it is the same after a restart.
func (c *Conn) DUID() dhcpv6.DUID { return c.duid }

// Close releases the socket.
func (c *Conn) Close() error { return c.udp.Close() }

// room is how many requests of each lane are being answered at once.
var room = [...]int{dhcp.Machines: 64, dhcp.Strangers: 32}

// Handler answers requests, as in package dhcp.
type Handler interface {
	Admit6(*Request) dhcp.Lane
	Answer6(context.Context, dhcpv6.DUID, *Request) *Reply
}

// Serve asks the handler for each request and sends what it returns. It returns nil when ctx is cancelled, after the
// last answer. Nothing that arrives ends it.
func (c *Conn) Serve(ctx context.Context, log *slog.Logger, h Handler) error {
	stop := context.AfterFunc(ctx, func() { c.udp.SetReadDeadline(time.Now()) })
	defer stop()
	var lanes [len(room)]errgroup.Group
	for i, n := range room {
		lanes[i].SetLimit(n)
	}
	defer func() {
		for i := range lanes {
			_ = lanes[i].Wait()
		}
	}()
	buf := make([]byte, 4096)
	for {
		n, peer, err := c.udp.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("read DHCPv6: %w", err)
		}
		if err != nil { // the interface went down and comes back
			log.Warn("read DHCPv6", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if a := peer.Addr(); a.Zone() != "" {
			peer = netip.AddrPortFrom(a.WithZone(c.zone), peer.Port())
		}
		req, err := Parse(buf[:n], peer)
		if err != nil {
			log.Debug("DHCPv6 packet ignored", "err", err)
			continue
		}
		lane := h.Admit6(req)
		if lane == dhcp.Drop {
			continue
		}
		lanes[lane].TryGo(func() error { // where there is no room it asks again
			if rep := h.Answer6(ctx, c.duid, req); rep != nil {
				if _, err := c.udp.WriteToUDPAddrPort(rep.Bytes(), rep.To); err != nil {
					log.Warn("send DHCPv6 reply", "mac", req.MAC, "to", rep.To, "err", err)
				}
			}
			return nil
		})
	}
}
