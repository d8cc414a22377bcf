package provisioner_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// crowd is how many order at once.
const crowd = 64

// TestNoFalseSoldOut: 64 orders at once for 32 addresses, of which many are rolled back while others look. Whoever is told
// that there is no address left is told the truth, and none is left over.
func TestNoFalseSoldOut(t *testing.T) {
	y := newYard(t)
	_, err := y.db.Conn.Exec(t.Context(), `DELETE FROM address`)
	y.must(err)
	_, err = y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("198.51.100.0/27"))
	y.must(err)
	rolledBack := errors.New("rolled back")
	held := func() (n int) {
		y.must(y.db.Conn.QueryRow(t.Context(), `SELECT count(order_id) FROM address`).Scan(&n))
		return n
	}
	var got, back sync.Map
	var crowdDone sync.WaitGroup
	for i := range crowd {
		crowdDone.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			for try := 0; ; try++ {
				id := fmt.Sprintf("o-%d-%d", i, try)
				err := y.take(t.Context(), id, provisioner.Want{Line: "bgp", Family: 4, Count: 1}, func() error {
					if r.IntN(2) == 0 {
						return rolledBack
					}
					return nil
				})
				switch {
				case err == nil:
					got.Store(id, true)
					return
				case errors.Is(err, rolledBack):
					back.Store(id, true)
				case machine.CodeOf(err) == machine.Exhausted:
					if n := held(); n != 32 {
						t.Errorf("order %s is told that there is no address when %d of 32 are held", id, n)
					}
					return
				default:
					t.Errorf("order %s: %v", id, err)
					return
				}
			}
		})
	}
	crowdDone.Wait()
	if n := held(); n != 32 || size(&got) != 32 {
		t.Errorf("%d of 32 addresses are held by %d orders", n, size(&got))
	}
	t.Logf("%d orders were rolled back meanwhile", size(&back))
}

func size(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// TestConcurrentAudit: 64 customers take and return two IPv4 addresses and an IPv6 prefix, again and again. At no time does
// anything have two holders, and the history says the same as the stock.
func TestConcurrentAudit(t *testing.T) {
	y := newYard(t)
	for _, r := range []string{"198.51.100.0/24", "2001:db8:7::/56"} {
		_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix(r))
		y.must(err)
	}
	var crowdDone sync.WaitGroup
	for i := range crowd {
		crowdDone.Go(func() {
			for round := range 4 {
				id := fmt.Sprintf("o-%d-%d", i, round)
				if err := y.take(t.Context(), id, provisioner.Want{Line: "bgp", Family: 4, Count: 2}, func() error { return nil }); err != nil {
					t.Errorf("order %s: %v", id, err)
					return
				}
				err := y.db.OnOrder(t.Context(), id, func(w *provisioner.Work) error {
					if _, err := w.Stock.Addresses(t.Context(), provisioner.Want{Line: "bgp", Family: 6, Count: 1}, id); err != nil {
						return err
					}
					if round < 3 {
						return w.Stock.FreeAddresses(t.Context(), id, false)
					}
					return nil
				})
				if err != nil {
					t.Errorf("order %s: %v", id, err)
				}
			}
		})
	}
	crowdDone.Wait()
	for what, query := range map[string]string{
		"addresses held, three by each": `SELECT count(*) - 3 * 64 FROM address WHERE order_id IS NOT NULL`,
		"orders with another number":    `SELECT count(*) FROM (SELECT order_id FROM address WHERE order_id IS NOT NULL GROUP BY order_id HAVING count(*) <> 3) x`,
		"open lines of the history that the stock does not know": `SELECT count(*) FROM assignment s WHERE upper_inf(during)
			AND NOT EXISTS (SELECT 1 FROM address a WHERE a.addr = s.addr AND a.order_id = s.order_id)`,
		"held addresses that the history does not know": `SELECT count(*) FROM address a WHERE order_id IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM assignment s WHERE a.addr = s.addr AND a.order_id = s.order_id AND upper_inf(during))`,
		"lines of the history that overlap":          `SELECT count(*) FROM assignment a JOIN assignment b ON a.addr = b.addr AND a.order_id <> b.order_id AND a.during && b.during`,
		"lines of the history, three for each order": `SELECT count(*) - 3 * 4 * 64 FROM assignment`,
	} {
		var n int
		y.must(y.db.Conn.QueryRow(t.Context(), query).Scan(&n))
		if n != 0 {
			t.Errorf("%s: off by %d", what, n)
		}
	}
}
