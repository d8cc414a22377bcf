package netboot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/tftp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	bootPrefix = "/boot/"
	defaultDir = "/usr/lib/ipxe"

	// askTime is how long a Booter may think about a DHCP request: after that the client has asked again.
	askTime = 5 * time.Second
)

// conversation is a Server at work: the questions of machines go to the Booter, the answers back. What it remembers
// (who has which address, who loops) serves only logs and the loop breaker; another replica may know otherwise.
type conversation struct {
	Server // a copy with the defaults filled in
	log    *slog.Logger
	base   string // URL of the boot listener, without a slash at the end
	seen   quiet
	loops  loops

	mu   sync.Mutex
	macs map[netip.Addr]string // by leased address
}

func newConversation(s *Server) (*conversation, error) {
	c := &conversation{Server: *s, log: s.Log, macs: map[netip.Addr]string{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.LoaderDir = cmp.Or(s.LoaderDir, defaultDir)
	c.HTTPPort = cmp.Or(s.HTTPPort, 80)
	c.base = "http://" + s.Addr.String()
	if c.HTTPPort != 80 {
		c.base += fmt.Sprintf(":%d", c.HTTPPort)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *conversation) scriptURL(mac string) string {
	return c.base + bootPrefix + "ipxe/" + mac + ".ipxe"
}

// answer is the DHCP side: who is it, what is reserved for it, what does it boot next.
func (c *conversation) answer(ctx context.Context, req *dhcp.Request) *dhcp.Reply {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ex := heard(req)
	lease, err := c.Booter.Lease(ctx, req.MAC)
	if errors.Is(err, ErrUnknown) {
		if c.seen.first(req.MAC, time.Now()) {
			c.log.Info("DHCP request of an unknown machine, not answered", "mac", req.MAC, "asked", ex.Asked)
			c.trace(ex, Silent, "", "no machine with this MAC address is known")
		}
		return nil
	}
	if err != nil {
		c.log.Error("look up lease", "mac", req.MAC, "err", err)
		c.trace(ex, Failed, "", "look-up failed")
		return nil
	}
	looping := req.Stage == dhcp.PXE && c.loops.tripped(req.MAC, time.Now())
	rep, err := req.Answer(dhcp.Terms{
		Server: c.Addr, Addr: lease.Addr, Router: lease.Router, DNS: lease.DNS, Hostname: lease.Hostname, For: lease.For,
		Script: c.scriptURL(req.MAC), LoaderBase: c.base + bootPrefix, Looping: looping,
	})
	switch {
	case dhcp.IsSilence(err):
		c.log.Info("DHCP request not answered", "mac", req.MAC, "asked", ex.Asked, "why", err)
		c.trace(ex, Silent, "", err.Error())
		return nil
	case err != nil:
		c.log.Error("answer DHCP", "mac", req.MAC, "err", err)
		c.trace(ex, Failed, "", err.Error())
		return nil
	}
	c.note(req, rep, lease)
	ex.From = lease.Addr.Addr()
	ex.Bytes = int64(len(rep.Bytes()))
	ex.File = rep.Boot
	ex.DHCP.Answer, ex.DHCP.Addr = rep.Type.String(), rep.Addr()
	if rep.Type == dhcpv4.MessageTypeNak {
		c.trace(ex, Refused, rep.String(), "asked for another address than its own, "+lease.Addr.Addr().String())
	} else {
		ex.DHCP.Basis = Reserved
		c.trace(ex, Answered, rep.String(), "")
	}
	c.log.Debug("DHCP", "mac", req.MAC, "asked", ex.Asked, "got", rep.String(), "road", rep.How.String())
	return rep
}

// heard starts the record of a DHCP exchange.
func heard(req *dhcp.Request) Exchange {
	f := req.Facts()
	return Exchange{At: time.Now(), MAC: req.MAC, Proto: "dhcp", Asked: req.String(), DHCP: DHCPFacts{
		Message: req.Type.String(), Stage: req.Stage.String(), Arch: f.Arch, VendorClass: f.VendorClass, UserClass: f.UserClass,
		UUID: f.UUID, Relay: f.Relay, Link: f.Link, Circuit: f.Circuit, Server: f.Server,
	}}
}

// note remembers who has which address, and how often firmware took the loader.
func (c *conversation) note(req *dhcp.Request, rep *dhcp.Reply, lease Lease) {
	if rep.Type != dhcpv4.MessageTypeAck {
		return
	}
	c.mu.Lock()
	c.macs[lease.Addr.Addr()] = req.MAC
	c.mu.Unlock()
	switch req.Stage {
	case dhcp.IPXE, dhcp.System:
		c.loops.clear(req.MAC)
	case dhcp.PXE:
		if c.loops.count(req.MAC, time.Now()) {
			c.log.Warn("machine takes the loader again and again and never asks for its script; offering the script itself",
				"mac", req.MAC, "arch", req.Arch)
		}
	}
}

// transferred is the TFTP side: what became of a loader.
func (c *conversation) transferred(t tftp.Transfer) {
	from := t.Peer.Addr()
	ex := Exchange{At: t.Began, Took: t.Took, MAC: c.macOf(from), From: from, Proto: "tftp", Asked: t.Name, File: t.Name, Bytes: t.Sent, Size: int64(t.Size)}
	switch {
	case t.Probe:
		c.trace(ex, Probed, fmt.Sprintf("size %d", t.Size), "")
		return
	case t.Err == nil:
		c.trace(ex, Answered, "sent", "")
		return
	}
	c.log.Warn("TFTP", "mac", ex.MAC, "from", from, "name", t.Name, "sent", t.Sent, "err", t.Err)
	switch {
	case errors.Is(t.Err, fs.ErrNotExist), errors.Is(t.Err, fs.ErrPermission):
		c.trace(ex, Refused, "", t.Err.Error())
	case t.Blocks > 0 || t.Size > 0:
		c.trace(ex, Broken, "", fmt.Sprintf("%v at %d of %d bytes", t.Err, t.Sent, t.Size))
	default:
		c.trace(ex, Failed, "", t.Err.Error())
	}
}

// trace hands on a finished exchange. got is what a person reads of an answer; why stands in for it where there is none.
func (c *conversation) trace(ex Exchange, outcome Outcome, got, why string) {
	if c.Trace == nil {
		return
	}
	ex.Outcome, ex.Got, ex.Why = outcome, got, why
	ex.Failed = outcome != Answered && outcome != Probed && outcome != Silent
	if got == "" {
		ex.Got = string(outcome) + ": " + why
	}
	if ex.Took == 0 {
		ex.Took = time.Since(ex.At)
	}
	c.Trace(ex)
}

func (c *conversation) macOf(a netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.macs[a]
}

// parseMAC returns a MAC address as a Booter wants it, from any of the usual spellings.
func parseMAC(s string) (string, bool) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return "", false
	}
	return strings.ToLower(mac.String()), true
}
