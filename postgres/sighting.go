package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/provisioner"
)

// Sighted notes that a machine was seen on the provisioning network, by the MAC address of one of its ports. Of a machine that
// nobody knows nothing is noted.
func (db *DB) Sighted(ctx context.Context, mac, what string) error {
	_, err := db.pool.Exec(ctx, `INSERT INTO sighting (machine_id, at, what) SELECT machine_id, now(), $2 FROM machine_mac WHERE mac = $1::macaddr
		ON CONFLICT (machine_id) DO UPDATE SET at = now(), what = $2`, mac, what)
	if err != nil {
		return fmt.Errorf("note sighting: %w", err)
	}
	return nil
}

// sighting is the last sign of a machine since it was switched on.
func sighting(ctx context.Context, tx pgx.Tx, machineID string) (s provisioner.Sighting, err error) {
	err = tx.QueryRow(ctx, `SELECT at, what FROM sighting WHERE machine_id = $1`, machineID).Scan(&s.At, &s.What)
	if isNoRows(err) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read sighting: %w", err)
	}
	return s, nil
}
