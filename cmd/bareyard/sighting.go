package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
)

// sightings notes which machines are seen on the provisioning network: whether a BMC's "next boot: network" was true shows there
// and nowhere else.
type sightings struct {
	db  *postgres.DB
	log *slog.Logger

	seen chan sighting
	mu   sync.Mutex
	last map[string]time.Time // by MAC address: when it was noted
}

type sighting struct{ mac, what string }

// sightingPause is how long further packets of a machine are not noted.
const sightingPause = 3 * time.Second

func newSightings(db *postgres.DB, log *slog.Logger) *sightings {
	return &sightings{db: db, log: log, seen: make(chan sighting, 256), last: map[string]time.Time{}}
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
		}
	}
}

func clipped(s string) string { return s[:min(len(s), 200)] }
