package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/accelerator"
)

// Rates implements provisioner.Fleet.
func (db *DB) Rates(ctx context.Context, models []string) ([]accelerator.FleetRate, error) {
	rows, err := db.pool.Query(ctx, `SELECT DISTINCT ON (coalesce(nullif(x.serial, ''), r.machine_id || ' ' || x.slot), x.test, x.tool, x.version, x.unit)
			r.machine_id, m.name, x.slot, x.serial, x.model, x.test, x.tool, x.version, x.unit, x.value, r.id, r.kept, c.outcome
		FROM report_rate x JOIN report r ON r.id = x.report_id JOIN machine m ON m.id = r.machine_id JOIN report_card c ON c.report_id = x.report_id AND c.slot = x.slot
		WHERE x.model = ANY ($1) AND m.state <> 'retired'
		ORDER BY coalesce(nullif(x.serial, ''), r.machine_id || ' ' || x.slot), x.test, x.tool, x.version, x.unit, r.kept DESC, r.id`, append([]string{}, models...))
	return collect[accelerator.FleetRate](rows, err, "list rates of cards")
}

// CardModels implements provisioner.Fleet.
func (db *DB) CardModels(ctx context.Context) (map[string]int, error) {
	rows, err := db.pool.Query(ctx, `SELECT model, count(*) FROM card GROUP BY model`)
	if err != nil {
		return nil, fmt.Errorf("count cards: %w", err)
	}
	out := map[string]int{}
	var model string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&model, &n}, func() error { out[model] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count cards: %w", err)
	}
	return out, nil
}
