package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lease is the address that the port we booted from has.
type lease struct {
	link netlink.Link
	got  *nclient4.Lease
}

// linkByName is netlink's, for main.
func linkByName(name string) (netlink.Link, error) { return netlink.LinkByName(name) }

// bootTime bounds the way to the network: a machine that finds none is powered off, and its job tries again.
const bootTime = 10 * time.Minute

// bringUp brings up the port with this MAC address and gets it an address by DHCP.
func bringUp(ctx context.Context, mac string, log *slog.Logger) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	link, err := waitLink(ctx, mac)
	if err != nil {
		return nil, err
	}
	name := link.Attrs().Name
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", name, err)
	}
	if lo, err := netlink.LinkByName("lo"); err == nil {
		netlink.LinkSetUp(lo) // nothing of ours needs it
	}
	waitCarrier(ctx, name)
	for {
		got, err := request(ctx, name)
		if err == nil {
			l := &lease{link, got}
			if err := l.apply(); err != nil {
				return nil, err
			}
			log.Info("on the network", "port", name, "mac", mac, "address", got.ACK.YourIPAddr)
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("get an address on %s: %w", name, err)
		}
		log.Warn("no DHCP answer: trying again", "port", name, "error", err)
	}
}

// waitLink waits for the port: some cards take seconds to load their firmware.
func waitLink(ctx context.Context, mac string) (netlink.Link, error) {
	want, err := net.ParseMAC(mac)
	if err != nil {
		return nil, err
	}
	for {
		links, err := netlink.LinkList()
		if err != nil {
			return nil, fmt.Errorf("list network ports: %w", err)
		}
		for _, l := range links {
			a := l.Attrs()
			if bytes.Equal(a.HardwareAddr, want) || bytes.Equal(a.PermHWAddr, want) {
				return l, nil
			}
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, fmt.Errorf("find port %s: there is none", mac)
		}
	}
}

// waitCarrier waits for the link for up to 20 s: a frame sent before is lost, and each lost one costs a time-out. A port that
// shows no carrier is tried all the same.
func waitCarrier(ctx context.Context, name string) {
	for range 400 {
		raw, err := os.ReadFile("/sys/class/net/" + name + "/carrier")
		if err == nil && strings.TrimSpace(string(raw)) == "1" {
			return
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// request makes one full DHCP exchange.
func request(ctx context.Context, name string) (*nclient4.Lease, error) {
	client, err := nclient4.New(name, nclient4.WithTimeout(time.Second), nclient4.WithRetry(4)) // 1, 2, 4, 8 s
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Request(ctx)
}

// apply sets the address, the default route and the name servers. The address has no lifetime in the kernel: a DHCP server
// that is down for a while must not stop a write.
func (l *lease) apply() error {
	ack := l.got.ACK
	mask := ack.SubnetMask()
	if mask == nil {
		mask = ack.YourIPAddr.DefaultMask()
	}
	name := l.link.Attrs().Name
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: mask}}
	if err := netlink.AddrReplace(l.link, addr); err != nil {
		return fmt.Errorf("set address %s on %s: %w", addr.IPNet, name, err)
	}
	if routers := ack.Router(); len(routers) > 0 {
		route := &netlink.Route{LinkIndex: l.link.Attrs().Index, Gw: routers[0]}
		if err := netlink.RouteReplace(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("set default route by %s: %w", routers[0], err)
		}
	}
	var conf strings.Builder
	for _, ip := range ack.DNS() {
		fmt.Fprintf(&conf, "nameserver %s\n", ip)
	}
	if conf.Len() > 0 {
		if err := os.WriteFile("/etc/resolv.conf", []byte(conf.String()), 0o644); err != nil {
			return fmt.Errorf("set name servers: %w", err)
		}
	}
	return nil
}

// keep renews the lease until ctx ends: erasing large disks takes days. A renewal that fails is tried again; the address
// stays, for it is reserved for this machine.
func (l *lease) keep(ctx context.Context, log *slog.Logger) {
	for {
		wait := l.got.ACK.IPAddressLeaseTime(time.Hour) / 2
		if pause(ctx, max(wait, 30*time.Second)) != nil {
			return
		}
		got, err := request(ctx, l.link.Attrs().Name)
		if err != nil {
			if ctx.Err() == nil {
				log.Warn("the lease was not renewed", "error", err)
			}
			continue
		}
		if !got.ACK.YourIPAddr.Equal(l.got.ACK.YourIPAddr) {
			log.Warn("another address was leased: keeping the first", "address", got.ACK.YourIPAddr)
			continue
		}
		l.got = got
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
