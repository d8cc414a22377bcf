package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/billing"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Round implements provisioner.Books.
func (db *DB) Round(ctx context.Context, slot time.Time, now []network.Counter, measure func(before []network.Counter, holder map[string]string) []provisioner.OrderSample) (done bool, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := lockMeters(ctx, tx); err != nil {
			return err
		}
		// Of two servers the second waits here until the first has committed, and then has nothing to do.
		tag, err := tx.Exec(ctx, `INSERT INTO traffic_round (slot) VALUES ($1) ON CONFLICT DO NOTHING`, slot)
		if err != nil {
			return fmt.Errorf("begin round: %w", err)
		}
		if done = tag.RowsAffected() == 1; !done {
			return nil
		}
		before, err := readMeters(ctx, tx, "")
		if err != nil {
			return err
		}
		holder, err := holders(ctx, tx)
		if err != nil {
			return err
		}
		samples, err := withRests(ctx, tx, slot, before, now, measure(before, holder))
		if err != nil {
			return err
		}
		if err := writeSamples(ctx, tx, samples); err != nil {
			return err
		}
		return writeMeters(ctx, tx, now)
	})
	return done && err == nil, err
}

// Rest implements provisioner.Books. A second reading of the same count takes the place of the first.
func (db *DB) Rest(ctx context.Context, machineID, orderID string, now []network.Counter) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := lockMeters(ctx, tx); err != nil {
			return err
		}
		before, err := readMeters(ctx, tx, machineID)
		if err != nil {
			return err
		}
		for _, c := range now {
			at := slices.IndexFunc(before, func(b network.Counter) bool { return b.Direction == c.Direction })
			var was *network.Counter
			if at >= 0 {
				was = &before[at]
			}
			bytes, doubt := provisioner.RestOf(was, c)
			if int64(bytes) < 0 {
				bytes, doubt = 0, "it is more than any line carries"
			}
			if bytes == 0 && doubt == "" {
				continue
			}
			_, err := tx.Exec(ctx, `INSERT INTO traffic_rest (order_id, machine_id, direction, epoch, bytes, at, doubt) VALUES ($1, $2, $3, $4, $5, $6, $7)
				ON CONFLICT (order_id, machine_id, direction, epoch) DO UPDATE SET bytes = $5, at = $6, doubt = $7`,
				orderID, machineID, c.Direction, c.Epoch, int64(bytes), c.At, doubt)
			if err != nil {
				return fmt.Errorf("write rest of traffic: %w", err)
			}
		}
		return nil
	})
}

// lockMeters makes a round and a last reading wait for each other: either sees what the other has counted, and neither counts it again.
func lockMeters(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('traffic', 0))`); err != nil {
		return fmt.Errorf("lock meters: %w", err)
	}
	return nil
}

// withRests adds what counters that are no more had counted to the samples of their orders, and forgets it. A count that goes on
// after all has it in itself, but for what passed after the round had read it: that is kept for the next round.
func withRests(ctx context.Context, tx pgx.Tx, slot time.Time, before, now []network.Counter, samples []provisioner.OrderSample) ([]provisioner.OrderSample, error) {
	rows, err := tx.Query(ctx, `DELETE FROM traffic_rest RETURNING order_id, machine_id, direction, epoch, bytes, at, doubt`)
	if err != nil {
		return nil, fmt.Errorf("read rests of traffic: %w", err)
	}
	var r provisioner.OrderSample
	var c network.Counter
	var bytes int64
	var doubt string
	keep := &pgx.Batch{}
	_, err = pgx.ForEachRow(rows, []any{&r.OrderID, &r.MachineID, &c.Direction, &c.Epoch, &bytes, &c.At, &doubt}, func() error {
		goesOn := func(n network.Counter) bool {
			return n.Machine == r.MachineID && n.Direction == c.Direction && time.Duration(n.Epoch-c.Epoch).Abs() <= n.Slack
		}
		if n := slices.IndexFunc(now, goesOn); n >= 0 {
			if !c.At.After(now[n].At) {
				return nil
			}
			var was *network.Counter
			if b := slices.IndexFunc(before, func(b network.Counter) bool { return b.Machine == r.MachineID && b.Direction == c.Direction }); b >= 0 {
				was = &before[b]
			}
			beyond := bytes
			if slices.ContainsFunc(samples, func(s provisioner.OrderSample) bool { return s.OrderID == r.OrderID && s.MachineID == r.MachineID }) {
				counted, _ := provisioner.RestOf(was, now[n])
				beyond -= int64(counted)
			}
			if beyond > 0 || doubt != "" {
				keep.Queue(`INSERT INTO traffic_rest (order_id, machine_id, direction, epoch, bytes, at, doubt) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
					r.OrderID, r.MachineID, c.Direction, c.Epoch, max(beyond, 0), c.At, doubt)
			}
			return nil
		}
		in := slot
		if c.At.Before(slot) || c.At.After(slot.Add(billing.SampleLength+time.Minute)) {
			in = billing.Slot(c.At)
		}
		at := slices.IndexFunc(samples, func(s provisioner.OrderSample) bool { return s.OrderID == r.OrderID && s.Slot.Equal(in) })
		if at < 0 {
			at = len(samples)
			samples = append(samples, provisioner.OrderSample{OrderID: r.OrderID, MachineID: r.MachineID, Sample: billing.Sample{Slot: in, Took: billing.SampleLength}})
		}
		s := &samples[at]
		if c.Direction == network.Up {
			s.Up += bytes
		} else {
			s.Down += bytes
		}
		if s.Doubt == "" {
			s.Doubt = doubt
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rests of traffic: %w", err)
	}
	if err := tx.SendBatch(ctx, keep).Close(); err != nil {
		return nil, fmt.Errorf("keep rests of traffic: %w", err)
	}
	return samples, nil
}

// readMeters returns the newest readings of a machine, or of all.
func readMeters(ctx context.Context, tx pgx.Tx, machineID string) ([]network.Counter, error) {
	rows, err := tx.Query(ctx, `SELECT machine_id, direction, bytes, epoch, slack, at FROM traffic_meter WHERE $1 = '' OR machine_id = $1`, machineID)
	if err != nil {
		return nil, fmt.Errorf("read meters: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c network.Counter, err error) {
		var bytes int64
		err = row.Scan(&c.Machine, &c.Direction, &bytes, &c.Epoch, &c.Slack, &c.At)
		c.Bytes = uint64(bytes)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("read meters: %w", err)
	}
	return list, nil
}

// holders says which order holds which machine.
func holders(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
	rows, err := tx.Query(ctx, `SELECT id, order_id FROM machine WHERE order_id <> ''`)
	if err != nil {
		return nil, fmt.Errorf("read holders: %w", err)
	}
	found := map[string]string{}
	var id, order string
	_, err = pgx.ForEachRow(rows, []any{&id, &order}, func() error { found[id] = order; return nil })
	if err != nil {
		return nil, fmt.Errorf("read holders: %w", err)
	}
	return found, nil
}

func writeSamples(ctx context.Context, tx pgx.Tx, samples []provisioner.OrderSample) error {
	var orders, machines, doubts []string
	var slots []time.Time
	var took, up, down []int64
	for _, s := range samples {
		orders, machines, doubts = append(orders, s.OrderID), append(machines, s.MachineID), append(doubts, s.Doubt)
		slots, took, up, down = append(slots, s.Slot), append(took, int64(s.Took)), append(up, s.Up), append(down, s.Down)
	}
	_, err := tx.Exec(ctx, `INSERT INTO traffic_sample (order_id, slot, machine_id, took, up, down, doubt)
		SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) ON CONFLICT DO NOTHING`,
		orders, slots, machines, took, up, down, doubts)
	if err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// writeMeters keeps the new readings for the next round. One that is in doubt, or larger than the database counts, is not a
// reading to go on from.
func writeMeters(ctx context.Context, tx pgx.Tx, now []network.Counter) error {
	var machines, directions []string
	var bytes, epochs, slacks []int64
	var at []time.Time
	for _, c := range now {
		if c.Doubt != "" || int64(c.Bytes) < 0 {
			continue
		}
		machines, directions, bytes = append(machines, c.Machine), append(directions, string(c.Direction)), append(bytes, int64(c.Bytes))
		epochs, slacks, at = append(epochs, c.Epoch), append(slacks, int64(c.Slack)), append(at, c.At)
	}
	_, err := tx.Exec(ctx, `INSERT INTO traffic_meter (machine_id, direction, bytes, epoch, slack, at)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[])
		ON CONFLICT (machine_id, direction) DO UPDATE SET bytes = EXCLUDED.bytes, epoch = EXCLUDED.epoch, slack = EXCLUDED.slack, at = EXCLUDED.at`,
		machines, directions, bytes, epochs, slacks, at)
	if err != nil {
		return fmt.Errorf("write meters: %w", err)
	}
	return nil
}

// Samples implements provisioner.Books.
func (db *DB) Samples(ctx context.Context, orderID string, from, to time.Time) ([]billing.Sample, error) {
	rows, err := db.pool.Query(ctx, `SELECT slot, took, up, down, doubt FROM traffic_sample WHERE order_id = $1 AND slot >= $2 AND slot < $3 ORDER BY slot`, orderID, from, to)
	return collect[billing.Sample](rows, err, "list samples")
}

// Hours lists the traffic of an order by the hour, in their order: what can be trusted, as samples of an hour.
func (db *DB) Hours(ctx context.Context, orderID string, from, to time.Time) ([]billing.Sample, error) {
	rows, err := db.pool.Query(ctx, `SELECT hour, 3600000000000, up, down, CASE WHEN measured = 0 THEN 'no sample of this hour can be trusted' ELSE '' END
		FROM traffic_hour WHERE order_id = $1 AND hour >= $2 AND hour < $3 ORDER BY hour`, orderID, from, to)
	return collect[billing.Sample](rows, err, "list hours")
}

// Periods lists the months of an order that are over.
func (db *DB) Periods(ctx context.Context, orderID string) ([]provisioner.ClosedPeriod, error) {
	rows, err := db.pool.Query(ctx, `SELECT n, usage, last FROM traffic_period WHERE order_id = $1 ORDER BY n`, orderID)
	return collect[provisioner.ClosedPeriod](rows, err, "list periods")
}

// settling is how long after its end a period is closed: a round that was late is in it by then.
const settling = time.Hour

// ClosePeriods implements provisioner.Books.
func (db *DB) ClosePeriods(ctx context.Context, now time.Time) error {
	rows, err := db.pool.Query(ctx, `SELECT o.id, o.started, o.state IN ('ended', 'cancelled', 'failed'), coalesce(max(p.n) + 1, 0)
		FROM orders o LEFT JOIN traffic_period p ON p.order_id = o.id
		WHERE o.started IS NOT NULL AND NOT EXISTS (SELECT 1 FROM traffic_period l WHERE l.order_id = o.id AND l.last) GROUP BY o.id`)
	if err != nil {
		return fmt.Errorf("list open periods: %w", err)
	}
	type open struct {
		id      string
		started time.Time
		over    bool
		n       int
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o open, err error) {
		return o, row.Scan(&o.id, &o.started, &o.over, &o.n)
	})
	if err != nil {
		return fmt.Errorf("list open periods: %w", err)
	}
	var errs []error
	for _, o := range list {
		if err := db.closeOrder(ctx, o.id, o.started, o.over, o.n, now); err != nil {
			errs = append(errs, fmt.Errorf("close period of order %s: %w", o.id, err))
		}
	}
	return errors.Join(errs...)
}

func (db *DB) closeOrder(ctx context.Context, id string, started time.Time, over bool, n int, now time.Time) error {
	end := time.Time{} // of an order that is over: when it was measured last
	if over {
		var last *time.Time
		if err := db.pool.QueryRow(ctx, `SELECT max(slot) FROM traffic_sample WHERE order_id = $1`, id).Scan(&last); err != nil {
			return fmt.Errorf("find last sample: %w", err)
		}
		end = started
		if last != nil {
			end = last.Add(billing.SampleLength)
		}
		if now.Before(end.Add(settling)) {
			return nil
		}
	}
	for ; ; n++ {
		from, to := billing.Period(started, 1, n, time.UTC)
		last := over && !end.After(to)
		if last {
			to = from
			if end.After(from) {
				to = end
			}
		}
		if !last && now.Before(to.Add(settling)) {
			return nil
		}
		samples, err := db.Samples(ctx, id, from, to)
		if err != nil {
			return err
		}
		err = db.exec(ctx, "write period", `INSERT INTO traffic_period (order_id, n, usage, last) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			id, n, billing.Summarize(samples, from, to), last)
		if err != nil || last {
			return err
		}
	}
}

// chunk bounds what one statement deletes, so that none holds up the rounds.
const chunk = 20_000

// Condense implements provisioner.Books.
func (db *DB) Condense(ctx context.Context, now time.Time, keep provisioner.Retention) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("condense traffic: %w", err)
	}
	defer conn.Release()
	var mine bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtext('traffic-condense'))`).Scan(&mine); err != nil || !mine {
		return err // another server is at it
	}
	defer conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock(hashtext('traffic-condense'))`)
	if err := rollUp(ctx, conn.Conn(), now); err != nil {
		return err
	}
	for _, old := range []struct {
		sql    string
		before time.Time
	}{
		{`DELETE FROM traffic_sample WHERE ctid IN (SELECT ctid FROM traffic_sample WHERE slot < $1 LIMIT $2)`, now.Add(-keep.Samples)},
		{`DELETE FROM traffic_hour WHERE ctid IN (SELECT ctid FROM traffic_hour WHERE hour < $1 LIMIT $2)`, now.Add(-keep.Hours)},
		{`DELETE FROM traffic_round WHERE ctid IN (SELECT ctid FROM traffic_round WHERE slot < $1 LIMIT $2)`, now.Add(-48 * time.Hour)},
		{`DELETE FROM traffic_meter WHERE ctid IN (SELECT ctid FROM traffic_meter WHERE at < $1 LIMIT $2)`, now.Add(-48 * time.Hour)},
	} {
		for {
			tag, err := conn.Exec(ctx, old.sql, old.before, chunk)
			if err != nil {
				return fmt.Errorf("delete old traffic: %w", err)
			}
			if tag.RowsAffected() < chunk {
				break
			}
		}
	}
	return nil
}

// rollUp sums up the hours that are over. An hour is summed up once its last round is certain to be in it.
func rollUp(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	upto := now.Add(-settling).UTC().Truncate(time.Hour)
	_, err := conn.Exec(ctx, `INSERT INTO traffic_upkeep (rolled) SELECT coalesce(date_trunc('hour', min(slot), 'UTC'), $1) FROM traffic_sample ON CONFLICT DO NOTHING`, upto)
	if err != nil {
		return fmt.Errorf("roll up traffic: %w", err)
	}
	var rolled time.Time
	if err := conn.QueryRow(ctx, `SELECT rolled FROM traffic_upkeep`).Scan(&rolled); err != nil {
		return fmt.Errorf("roll up traffic: %w", err)
	}
	for rolled.Before(upto) {
		next := rolled.Add(24 * time.Hour)
		if next.After(upto) {
			next = upto
		}
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO traffic_hour (order_id, hour, measured, doubtful, up, down, peak_up, peak_down)
				SELECT order_id, date_trunc('hour', slot, 'UTC'), count(*) FILTER (WHERE doubt = ''), count(*) FILTER (WHERE doubt <> ''),
					coalesce(sum(up) FILTER (WHERE doubt = ''), 0), coalesce(sum(down) FILTER (WHERE doubt = ''), 0),
					coalesce(max(up::numeric * 8000000000 / took) FILTER (WHERE doubt = ''), 0)::bigint,
					coalesce(max(down::numeric * 8000000000 / took) FILTER (WHERE doubt = ''), 0)::bigint
				FROM traffic_sample WHERE slot >= $1 AND slot < $2 GROUP BY 1, 2 ON CONFLICT DO NOTHING`, rolled, next)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE traffic_upkeep SET rolled = $1`, next)
			return err
		})
		if err != nil {
			return fmt.Errorf("roll up traffic: %w", err)
		}
		rolled = next
	}
	return nil
}
