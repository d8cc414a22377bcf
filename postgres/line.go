package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

const lineColumns = `l.name, l.site, l.min_bandwidth, l.max_bandwidth, l.carrier, l.step, l.min_down, l.max_down, l.models, l.percentile, l.max_addresses`

// Line implements provisioner.Shelf.
func (db *DB) Line(ctx context.Context, name string) (network.Line, error) {
	return getLine(ctx, db.pool, name)
}

func getLine(ctx context.Context, q querier, name string) (network.Line, error) {
	l, err := one[network.Line](ctx, q, "line", name, `SELECT `+lineColumns+` FROM line l WHERE name = $1`)
	return l.WithDefaults(), err
}

// Lines lists the carrier lines and how many IPv4 addresses of each are free.
func (db *DB) Lines(ctx context.Context) ([]provisioner.LineStock, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+lineColumns+`,
		count(a.addr) FILTER (WHERE a.family = 4 AND a.order_id IS NULL AND a.state = 'stock' AND a.free_at <= now()),
		count(a.addr) FILTER (WHERE a.family = 4 AND a.order_id IS NULL AND a.state = 'stock' AND a.free_at > now()),
		count(a.addr) FILTER (WHERE a.family = 4),
		count(a.addr) FILTER (WHERE a.family = 6 AND a.order_id IS NULL AND a.state = 'stock' AND a.free_at <= now())
		FROM line l LEFT JOIN address a ON a.line = l.name GROUP BY l.name ORDER BY l.name`)
	list, err := collect[provisioner.LineStock](rows, err, "list lines")
	for i := range list {
		list[i].Line = list[i].WithDefaults()
	}
	return list, err
}

// PutLine inserts or replaces a line; coolDown is that of the addresses which are added to it by AddAddresses. A line whose
// addresses are in use stays at its site.
func (db *DB) PutLine(ctx context.Context, l network.Line, coolDown time.Duration) error {
	l = l.WithDefaults()
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var site string
		err := tx.QueryRow(ctx, `SELECT site FROM line WHERE name = $1 AND EXISTS (SELECT 1 FROM address WHERE line = $1 AND order_id IS NOT NULL) FOR UPDATE`, l.Name).Scan(&site)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("write line: %w", err)
		}
		if err == nil && site != l.Site {
			return &machine.Error{Code: machine.Conflict, Field: "site", Message: fmt.Sprintf("line %s has addresses in use at site %s", l.Name, site),
				Hint: "give the line of the other site a name of its own"}
		}
		_, err = tx.Exec(ctx, `INSERT INTO line (name, site, min_bandwidth, max_bandwidth, cool_down, carrier, step, min_down, max_down, models, percentile, max_addresses)
			VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)
			ON CONFLICT (name) DO UPDATE SET site=$2, min_bandwidth=$3, max_bandwidth=$4, cool_down=$5, carrier=$6, step=$7, min_down=$8, max_down=$9, models=$10, percentile=$11, max_addresses=$12`,
			l.Name, l.Site, l.MinBandwidth, l.MaxBandwidth, coolDown, l.Carrier, l.Step, l.MinDown, l.MaxDown, l.Models, l.Percentile, l.MaxAddresses)
		if err != nil {
			return explain("write line", err)
		}
		_, err = tx.Exec(ctx, `UPDATE address_pool SET cool_down = $2 WHERE line = $1 AND name IN ($1 || '-v4', $1 || '-v6')`, l.Name, coolDown)
		return err
	})
}
