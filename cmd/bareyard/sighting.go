package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// sightings notes which machines are seen on the provisioning network: whether a BMC's "next boot: network" was true shows there
// and nowhere else.
type sightings struct {
	db  *postgres.DB
	log *slog.Logger

	seen   chan sighting
	others chan netboot.OtherServer

	mu        sync.Mutex
	last      map[string]time.Time // by MAC address: when it was noted
	lastOther time.Time
}

type sighting struct{ mac, what string }

// sightingPause is how long further packets of a machine are not noted.
const sightingPause = 3 * time.Second

func newSightings(db *postgres.DB, log *slog.Logger) *sightings {
	return &sightings{db: db, log: log, seen: make(chan sighting, 256), others: make(chan netboot.OtherServer, 16), last: map[string]time.Time{}}
}

// trace takes an exchange in. It does not wait: a packet that is not noted is followed by others.
func (s *sightings) trace(x netboot.Exchange) {
	if x.MAC == "" || x.DHCP.Stage == "system" { // an installed system was not booted by us just now
		return
	}
	s.mu.Lock()
	now := time.Now()
	if now.Sub(s.last[x.MAC]) < sightingPause {
		s.mu.Unlock()
		return
	}
	if len(s.last) > 10_000 { // of strangers
		clear(s.last)
	}
	s.last[x.MAC] = now
	s.mu.Unlock()
	select {
	case s.seen <- sighting{x.MAC, x.Asked}:
	default:
	}
}

// run writes what was seen until ctx ends.
func (s *sightings) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-s.seen:
			if err := s.db.Sighted(ctx, x.mac, clipped(x.what)); err != nil && ctx.Err() == nil {
				s.log.Warn("sighting not noted", "mac", x.mac, "err", err)
			}
		case o := <-s.others:
			if err := s.db.Note(ctx, otherEvent(o)); err != nil && ctx.Err() == nil {
				s.log.Warn("event not noted", "err", err)
			}
		}
	}
}

// otherPause is how long further servers wait for their event: whoever makes packets can name any number of them.
const otherPause = 10 * time.Second

// other takes in a DHCP server that is not ours. Only some are noted; the log and the metrics have all of them.
func (s *sightings) other(o netboot.OtherServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Seen.Sub(s.lastOther) < otherPause {
		return
	}
	select {
	case s.others <- o:
		s.lastOther = o.Seen
	default:
	}
}

// otherEvent tells operators of a DHCP server that is not ours.
func otherEvent(o netboot.OtherServer) provisioner.Event {
	text := fmt.Sprintf("another DHCP server, %s, answers machines on %s", o.Addr, o.Interface)
	if o.MAC != "" {
		text += " (seen from " + o.MAC + ")"
	} else {
		text += " (as machine " + o.Client + " says)"
	}
	return provisioner.Event{At: o.Seen, Kind: "network.dhcp", Text: text + ": they may boot what it says; find it and switch it off, or set boot.other_dhcp_servers where it belongs there"}
}

func clipped(s string) string { return s[:min(len(s), 200)] }
