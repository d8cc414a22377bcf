package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
)

// fakeBook is a database that can be cut off, and counts how often it is asked for one machine.
type fakeBook struct {
	tell  chan []postgres.Reservation // what a watch is told; closing it cuts the watch off
	asked int
}

const bookMAC, publicMAC = "02:00:5e:00:00:01", "02:00:5e:00:00:02"

func (b *fakeBook) WatchReservations(ctx context.Context, _ time.Duration, fn func([]postgres.Reservation, time.Time)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case all, ok := <-b.tell:
			if !ok {
				return errors.New("connection lost")
			}
			fn(all, time.Now())
		}
	}
}

func (b *fakeBook) ByMAC(_ context.Context, mac string) (machine.Machine, *machine.Job, error) {
	b.asked++
	if mac != bookMAC && mac != publicMAC {
		return machine.Machine{}, nil, &machine.Error{Code: machine.NotFound}
	}
	return machine.Machine{Name: "n1", BootAddr: netip.MustParseAddr("10.99.0.77"), Hardware: machine.Hardware{NICs: []machine.NIC{
		{MAC: publicMAC, Role: machine.PublicNIC}, {MAC: bookMAC, Role: machine.ProvisionNIC}}}}, nil, nil
}

// TestReservations: what was told is believed, without a question, for half a minute; then the database is asked each time.
func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		book := &fakeBook{tell: make(chan []postgres.Reservation)}
		r := &reservations{db: book, log: slog.New(slog.DiscardHandler)}
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		expect := func(when, mac, addr string, asked int) {
			t.Helper()
			got, err := r.find(ctx, mac)
			switch {
			case addr == "" && !errors.Is(err, netboot.ErrUnknown):
				t.Errorf("%s: %s has %v, %v; it is unknown", when, mac, got.Addr, err)
			case addr != "" && (err != nil || got.Addr.String() != addr || got.Machine != "n1"):
				t.Errorf("%s: %s has %v, %v; want %s", when, mac, got, err, addr)
			}
			if book.asked != asked {
				t.Errorf("%s: the database was asked %d times, want %d", when, book.asked, asked)
			}
			book.asked = 0
		}
		expect("before it is read", bookMAC, "10.99.0.77", 1)
		expect("before it is read", publicMAC, "", 1)
		book.tell <- []postgres.Reservation{{MAC: bookMAC, Machine: "n1", Addr: netip.MustParseAddr("10.99.0.64")}}
		synctest.Wait()
		expect("when it is read", bookMAC, "10.99.0.64", 0)
		expect("when it is read", publicMAC, "", 0)
		book.tell <- []postgres.Reservation{{MAC: bookMAC, Machine: "n1", Addr: netip.MustParseAddr("10.99.0.65")}}
		synctest.Wait()
		expect("when it has changed", bookMAC, "10.99.0.65", 0)
		close(book.tell)
		time.Sleep(reservationsTrust - time.Second)
		expect("cut off for a moment", bookMAC, "10.99.0.65", 0)
		time.Sleep(time.Second)
		expect("cut off for long", bookMAC, "10.99.0.77", 1)
		expect("cut off for long", "02:00:5e:00:00:03", "", 1)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
