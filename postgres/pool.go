package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// Pools lists address pools with their ranges, of one line or of all.
func (db *DB) Pools(ctx context.Context, line string) ([]provisioner.PoolStock, error) {
	rows, err := db.pool.Query(ctx, `SELECT p.name, l.site, p.line, p.bits, extract(epoch FROM p.cool_down)::bigint,
		ARRAY(SELECT r.range::inet FROM address_range r WHERE r.pool = p.name ORDER BY r.range),
		count(a.addr) FILTER (WHERE a.order_id IS NULL AND a.state = 'stock' AND a.free_at <= now()),
		count(a.addr) FILTER (WHERE a.order_id IS NULL AND a.state = 'stock' AND a.free_at > now()),
		count(a.order_id), count(a.addr) FILTER (WHERE a.state <> 'stock')
		FROM address_pool p JOIN line l ON l.name = p.line LEFT JOIN address a ON a.pool = p.name
		WHERE $1 = '' OR p.line = $1 GROUP BY p.name, l.name ORDER BY p.line, p.name`, line)
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p provisioner.PoolStock, err error) {
		var seconds int64
		err = row.Scan(&p.Name, &p.Site, &p.Line, &p.Bits, &seconds, &p.Ranges, &p.Free, &p.Cooling, &p.Held, &p.Reserved)
		p.AddressPool.CoolDown = time.Duration(seconds) * time.Second
		p.CoolDown = p.AddressPool.CoolDown.String()
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	return list, nil
}

// PutPool makes a pool, or changes its cool-down, and adds ranges to it. A range that it has already stays as it is; one that
// overlaps another is refused, and then nothing is changed. It returns how many prefixes were added.
func (db *DB) PutPool(ctx context.Context, p network.AddressPool) (added int64, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		added, err = putPool(ctx, tx, p)
		return err
	})
	return added, err
}

func putPool(ctx context.Context, tx pgx.Tx, p network.AddressPool) (added int64, err error) {
	tag, err := tx.Exec(ctx, `INSERT INTO address_pool (name, line, bits, cool_down) VALUES ($1, $2, $3, $4)
		ON CONFLICT (name) DO UPDATE SET cool_down = $4 WHERE address_pool.line = $2 AND address_pool.bits = $3`, p.Name, p.Line, p.Bits, p.CoolDown)
	if err != nil {
		return 0, explain("write pool "+p.Name, err)
	}
	if tag.RowsAffected() == 0 {
		return 0, &machine.Error{Code: machine.Conflict, Field: "name", Message: fmt.Sprintf("pool %s is of another line, or hands out other prefixes", p.Name), Hint: "choose another name"}
	}
	for _, r := range p.Ranges {
		n, err := addRange(ctx, tx, p, r)
		if err != nil {
			return 0, err
		}
		added += n
	}
	for state, kept := range map[string][]netip.Prefix{"reserved": p.Reserved, "gateway": p.Gateways} {
		for _, k := range kept {
			if _, err := tx.Exec(ctx, `UPDATE address SET state = $3 WHERE pool = $2 AND addr <<= $1::inet AND state = 'stock' AND order_id IS NULL`, k, p.Name, state); err != nil {
				return 0, fmt.Errorf("keep addresses back: %w", err)
			}
		}
	}
	return added, nil
}

func addRange(ctx context.Context, tx pgx.Tx, p network.AddressPool, r netip.Prefix) (int64, error) {
	if err := network.ValidateRange(r, p.Bits); err != nil {
		return 0, err
	}
	// Two who add at once wait for each other, and the second is told what is wrong rather than that a constraint is.
	if _, err := tx.Exec(ctx, `LOCK TABLE address_range IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return 0, fmt.Errorf("add range: %w", err)
	}
	var other netip.Prefix
	var pool string
	err := tx.QueryRow(ctx, `SELECT range::inet, pool FROM address_range WHERE range && $1::inet ORDER BY range LIMIT 1`, r).Scan(&other, &pool)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return 0, fmt.Errorf("add range: %w", err)
	case other == r && pool == p.Name:
		return 0, nil
	default:
		return 0, &machine.Error{Code: machine.Conflict, Field: "ranges", Message: fmt.Sprintf("%s overlaps %s of pool %s", r, other, pool),
			Hint: "add only what is not there yet; see `bareyard address pools`"}
	}
	if _, err := tx.Exec(ctx, `INSERT INTO address_range (range, pool) VALUES ($1::inet::cidr, $2)`, r, p.Name); err != nil {
		return 0, explain("add range", err)
	}
	var all []netip.Prefix
	for a := range network.Assignments(r, p.Bits) {
		all = append(all, a)
	}
	tag, err := tx.Exec(ctx, `INSERT INTO address (addr, line, pool) SELECT a, $2, $3 FROM unnest($1::inet[]) a`, all, p.Line, p.Name)
	if err != nil {
		return 0, explain("add addresses", err)
	}
	return tag.RowsAffected(), nil
}

// AddAddresses adds a range to the line's pool of its family, which is called by the line's name and -v4 or -v6 and hands
// out a /32 or a /64. A range that is there already stays as it is.
func (db *DB) AddAddresses(ctx context.Context, line string, r netip.Prefix) (added int64, err error) {
	p := network.AddressPool{Name: line + "-v4", Line: line, Ranges: []netip.Prefix{r}, Bits: 32}
	if r.Addr().Is6() {
		p.Name, p.Bits = line+"-v6", 64
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT cool_down FROM line WHERE name = $1`, line).Scan(&p.CoolDown)
		if errors.Is(err, pgx.ErrNoRows) {
			return notFound("line", line)
		}
		if err != nil {
			return fmt.Errorf("read line: %w", err)
		}
		added, err = putPool(ctx, tx, p)
		return err
	})
	return added, err
}

// RetireRange gives up a range as it was added. Its addresses must be nobody's and have cooled down; who had them stays on
// record.
func (db *DB) RetireRange(ctx context.Context, r netip.Prefix) (removed int64, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM address_range WHERE range = $1::inet::cidr`, r)
		if err != nil {
			return fmt.Errorf("retire range: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return &machine.Error{Code: machine.NotFound, Field: "range", Message: fmt.Sprintf("%s is no range of a pool", r), Hint: "give a range as it was added; see `bareyard address pools`"}
		}
		var busy int
		var example *netip.Prefix
		if _, err := tx.Exec(ctx, `SELECT 1 FROM address WHERE addr <<= $1::inet FOR UPDATE`, r); err != nil {
			return fmt.Errorf("retire range: %w", err)
		}
		err = tx.QueryRow(ctx, `SELECT count(*), (array_agg(addr))[1] FROM address WHERE addr <<= $1::inet AND (order_id IS NOT NULL OR free_at > now() OR EXISTS (SELECT 1 FROM ptr WHERE ptr.prefix = address.addr))`, r).Scan(&busy, &example)
		if err != nil {
			return fmt.Errorf("retire range: %w", err)
		}
		if busy > 0 {
			return &machine.Error{Code: machine.Conflict, Field: "range", Message: fmt.Sprintf("%d addresses of %s are held or cool down, e.g. %s", busy, r, bare(*example)),
				Hint: "keep its free ones back with `bareyard address reserve`, and retire it when the orders have ended"}
		}
		tag, err = tx.Exec(ctx, `DELETE FROM address WHERE addr <<= $1::inet`, r)
		removed = tag.RowsAffected()
		return err
	})
	return removed, err
}

// bare writes a single address without its length.
func bare(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
