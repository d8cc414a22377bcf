package provisioner_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/provisioner"
)

const (
	benchSpan   = 4 * time.Second
	benchRounds = 3
)

// TestBenchAllocation measures how many orders a second 64 customers get an address for, beside the same rows taken with a plain lock,
// and beside the search for a gap. It judges speed by nothing; that an address has two holders it does not forgive.
func TestBenchAllocation(t *testing.T) {
	if os.Getenv("BAREYARD_BENCH") == "" {
		t.Skip("measures allocation: run make bench-edge")
	}
	y := newYard(t)
	_, err := y.db.AddAddresses(t.Context(), "bgp", netip.MustParsePrefix("198.18.0.0/16"))
	y.must(err)
	plain := func(pick string) func(ctx context.Context, id string) error {
		return func(ctx context.Context, id string) error {
			return pgx.BeginFunc(ctx, y.db.Conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO orders (id, project, digest, class, image, image_digest, line, bandwidth, ssh_keys, hostname, months, price, currency, state, placed, updated, bandwidth_down)
					VALUES ($1, 'p', 'd', 'rtx5090x2', 'debian-12', 'd', 'bgp', 100, '{}', 'h', 1, 1, 'CNY', 'placed', now(), now(), 100)`, id)
				if err != nil {
					return err
				}
				var addr netip.Prefix
				if err := tx.QueryRow(ctx, pick, id).Scan(&addr); err != nil {
					return err
				}
				_, err = tx.Exec(ctx, `INSERT INTO assignment (addr, order_id, project, during) VALUES ($1, $2, 'p', tstzrange(clock_timestamp(), NULL))`, addr, id)
				return err
			})
		}
	}
	ways := map[string]func(context.Context, string) error{
		"ours": func(ctx context.Context, id string) error {
			return y.take(ctx, id, provisioner.Want{Line: "bgp", Family: 4, Count: 1}, func() error { return nil })
		},
		"lock": plain(`UPDATE address SET order_id = $1, since = now() WHERE addr =
			(SELECT addr FROM address WHERE line = 'bgp' AND family = 4 AND order_id IS NULL AND state = 'stock' AND free_at <= now() ORDER BY free_at, addr LIMIT 1 FOR UPDATE) RETURNING addr`),
		"table-lock": func(ctx context.Context, id string) error {
			return plain(`WITH x AS (SELECT pg_advisory_xact_lock(7)) UPDATE address SET order_id = $1, since = now() FROM x WHERE addr =
			(SELECT addr FROM address WHERE line = 'bgp' AND family = 4 AND order_id IS NULL AND state = 'stock' AND free_at <= now() ORDER BY free_at, addr LIMIT 1) RETURNING addr`)(ctx, id)
		},
	}
	rates, worst := map[string][]float64{}, map[string]time.Duration{}
	for round := range benchRounds {
		for name, take := range ways {
			got, slow, failed := y.storm(name, round, take)
			rates[name] = append(rates[name], float64(got)/benchSpan.Seconds())
			worst[name] = max(worst[name], slow)
			if failed != nil && name == "ours" {
				t.Errorf("%s: %v", name, failed)
			}
		}
	}
	var twice int
	y.must(y.db.Conn.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT addr FROM assignment WHERE upper_inf(during) GROUP BY addr HAVING count(*) > 1) d`).Scan(&twice))
	if twice > 0 {
		t.Errorf("%d addresses have two holders", twice)
	}
	mid := func(name string) float64 { return slices.Sorted(slices.Values(rates[name]))[benchRounds/2] }
	for _, name := range []string{"ours", "lock", "table-lock"} {
		fmt.Printf("  allocate   %-10s %6.0f orders/s with 64 at once (%.0f to %.0f), the 99th percentile waits up to %s\n", name, mid(name), slices.Min(rates[name]), slices.Max(rates[name]), worst[name].Round(time.Millisecond))
	}
	fmt.Printf("ratio allocate lock %.2f\n", mid("ours")/mid("lock"))
	fmt.Printf("ratio allocate table-lock %.2f\n", mid("ours")/mid("table-lock"))
}

// storm has 64 customers order for a while.
func (y *yard) storm(name string, round int, take func(context.Context, string) error) (got int, slow time.Duration, failed error) {
	var mu sync.Mutex
	var waits []time.Duration
	var wg sync.WaitGroup
	end := time.Now().Add(benchSpan)
	for i := range crowd {
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				began := time.Now()
				err := take(y.t.Context(), fmt.Sprintf("o-%s-%d-%d-%d", name, round, i, n))
				mu.Lock()
				if err != nil {
					failed = err
				} else {
					waits = append(waits, time.Since(began))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(waits)
	if len(waits) > 0 {
		slow = waits[len(waits)*99/100]
	}
	return len(waits), slow, failed
}
