package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bareyard/bareyard/machine"
)

// TestWatchReservations: a change is told within moments, quiet does not end the watch, and the end of the connection is an error.
func TestWatchReservations(t *testing.T) {
	db := openDB(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sql := func(text string, args ...any) {
		t.Helper()
		if _, err := db.pool.Exec(ctx, text, args...); err != nil {
			t.Fatal(err)
		}
	}
	sql(`INSERT INTO class (name, description, accelerator, count, monthly_price, currency) VALUES ('c', '', '', 0, 1, 'CNY')`)
	add := func(n int) Reservation {
		t.Helper()
		m := machine.Machine{Name: fmt.Sprintf("n%d", n), Site: "lab", Class: "c", Firmware: machine.BIOS, BootAddr: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
			Hardware: machine.Hardware{NICs: []machine.NIC{{MAC: fmt.Sprintf("02:00:5f:00:%02x:%02x", n>>8, n&255), Role: machine.PublicNIC},
				{MAC: fmt.Sprintf("02:00:5e:00:%02x:%02x", n>>8, n&255), Role: machine.ProvisionNIC}}}}
		if _, err := db.Enroll(ctx, m, "secret", false); err != nil {
			t.Fatal(err)
		}
		return Reservation{MAC: m.Hardware.NICs[1].MAC, Machine: m.Name, Addr: m.BootAddr, Class: m.Class}
	}
	first := add(1)

	told := make(chan []Reservation, 1000)
	ended := make(chan error, 1)
	const every = 300 * time.Millisecond
	go func() {
		ended <- db.WatchReservations(ctx, every, func(all []Reservation, at time.Time) {
			if age := time.Since(at); age < 0 || age > 10*time.Second {
				t.Errorf("what is told was true %s ago", age)
			}
			told <- all
		})
	}()
	expect := func(want ...Reservation) {
		t.Helper()
		var diff string
		for {
			select {
			case got := <-told:
				less := func(a, b Reservation) bool { return a.Addr.Less(b.Addr) }
				if diff = cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.SortSlices(less)); diff == "" {
					return
				}
			case err := <-ended:
				t.Fatalf("WatchReservations: %v", err)
			case <-ctx.Done():
				t.Fatalf("not told: %s", diff)
			}
		}
	}
	expect(first)
	expect(first) // nothing has happened for a while
	expect(first)
	second := add(2)
	expect(first, second)
	sql(`UPDATE machine SET boot_addr = '10.9.9.9' WHERE name = 'n1'`)
	first.Addr = netip.MustParseAddr("10.9.9.9")
	expect(first, second)
	sql(`DELETE FROM machine WHERE name = 'n2'`)
	expect(first)

	sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%jsonb_path_query_first%'`)
	if err := <-ended; err == nil {
		t.Error("WatchReservations lost its connection and says nothing")
	}
	if err := db.WatchReservations(cancelled(ctx), every, func([]Reservation, time.Time) {}); err != nil {
		t.Errorf("WatchReservations of a context that has ended: %v", err)
	}
}

func cancelled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
