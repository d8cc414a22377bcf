package main

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
)

const (
	reservationsRead  = 10 * time.Second // they are read again at least this often
	reservationsTrust = 30 * time.Second // and believed for this long
	reservationsPause = 5 * time.Second  // before the database is watched again after an error
)

// reservations are all addresses that are kept for machines, in memory: a storm of DHCP must not become a storm of queries, and a flood of
// strangers not even one. The database tells of changes, so they are behind by milliseconds; cut off from it, by half a minute at most, and
// then it is asked for each packet. Only addresses are held: what a machine boots is asked for every time.
type reservations struct {
	db   reservationBook
	log  *slog.Logger
	list atomic.Pointer[reservationList]
}

// reservationBook is where reservations are written; postgres answers.
type reservationBook interface {
	WatchReservations(ctx context.Context, every time.Duration, fn func([]postgres.Reservation, time.Time)) error
	ByMAC(ctx context.Context, mac string) (machine.Machine, *machine.Job, error)
}

type reservationList struct {
	byMAC map[string]postgres.Reservation
	addrs map[netip.Addr]bool
	at    time.Time // when it was true
}

// Run keeps them up to date until ctx ends, and returns nil.
func (r *reservations) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.db.WatchReservations(ctx, reservationsRead, r.keep); err != nil {
			r.log.Warn("reservations grow old until the database can be watched again", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(reservationsPause):
			}
		}
	}
	return nil
}

func (r *reservations) keep(all []postgres.Reservation, at time.Time) {
	l := &reservationList{byMAC: make(map[string]postgres.Reservation, len(all)), addrs: make(map[netip.Addr]bool, len(all)), at: at}
	for _, one := range all {
		l.byMAC[one.MAC], l.addrs[one.Addr] = one, true
	}
	r.list.Store(l)
}

// knows reports whether a port was known when the list was last read, however long ago that is.
func (r *reservations) knows(mac string) bool {
	l := r.list.Load()
	if l == nil {
		return false
	}
	_, ok := l.byMAC[mac]
	return ok
}

// reserves reports whether an address was kept for a machine then.
func (r *reservations) reserves(a netip.Addr) bool {
	l := r.list.Load()
	return l != nil && l.addrs[a]
}

// find returns what is reserved for a port, or netboot.ErrUnknown.
func (r *reservations) find(ctx context.Context, mac string) (postgres.Reservation, error) {
	if l := r.list.Load(); l != nil && time.Since(l.at) < reservationsTrust {
		if one, ok := l.byMAC[mac]; ok {
			return one, nil
		}
		return postgres.Reservation{}, netboot.ErrUnknown
	}
	m, _, err := r.db.ByMAC(ctx, mac)
	if err != nil {
		return postgres.Reservation{}, unknown(err)
	}
	nic, ok := m.Hardware.NICByRole(machine.ProvisionNIC)
	if !ok || nic.MAC != mac {
		return postgres.Reservation{}, netboot.ErrUnknown // its other ports have no business here
	}
	return postgres.Reservation{MAC: mac, Machine: m.Name, Addr: m.BootAddr, Class: m.Class}, nil
}
