package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Disc implements provisioner.Discs.
func (db *DB) Disc(ctx context.Context, machineID string) (image string, err error) {
	err = db.pool.QueryRow(ctx, `SELECT media FROM bmc WHERE machine_id = $1`, machineID).Scan(&image)
	if isNoRows(err) {
		return "", notFound("machine", machineID)
	}
	if err != nil {
		return "", fmt.Errorf("read which disc is in a drive: %w", err)
	}
	return image, nil
}

// PutDisc implements provisioner.Discs.
func (db *DB) PutDisc(ctx context.Context, machineID, image string) error {
	return db.exec(ctx, "write which disc is in a drive", `UPDATE bmc SET media = $2 WHERE machine_id = $1`, machineID, image)
}

// EmptyDisc implements provisioner.Discs.
func (db *DB) EmptyDisc(ctx context.Context, machineID, was string) error {
	_, err := db.pool.Exec(ctx, `UPDATE bmc SET media = '' WHERE machine_id = $1 AND media = $2`, machineID, was)
	if err != nil {
		return fmt.Errorf("write that no disc is in a drive: %w", err)
	}
	return nil
}

// DiscsLeft implements provisioner.Discs.
func (db *DB) DiscsLeft(ctx context.Context) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT b.machine_id FROM bmc b JOIN machine m ON m.id = b.machine_id WHERE b.media <> '' AND m.job_id = '' ORDER BY b.machine_id`)
	if err != nil {
		return nil, fmt.Errorf("list discs that were left in drives: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
