package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

func keepErasure(ctx context.Context, tx pgx.Tx, k provisioner.KeptErasure) error {
	_, err := tx.Exec(ctx, `INSERT INTO erasure (id, machine_id, order_id, serial, clean, at, key, body) VALUES ($1,$2,$3,$4,$5,$6,$7,$8) ON CONFLICT (id) DO NOTHING`,
		k.ID, k.Machine, k.Order, k.Serial, k.Clean, k.At, k.Key, k.Body)
	if err != nil {
		return fmt.Errorf("keep certificate of erasure: %w", err)
	}
	return nil
}

// Erasures implements api.Erasures.
func (db *DB) Erasures(ctx context.Context, f provisioner.ErasureFilter) ([]machine.ErasureCertificate, error) {
	rows, err := db.pool.Query(ctx, `SELECT body FROM erasure WHERE ($1 = '' OR machine_id = $1) AND ($2 = '' OR order_id = $2) AND ($3 = '' OR serial = $3) ORDER BY at DESC, id LIMIT $4`,
		f.MachineID, f.OrderID, f.Serial, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list erasures: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (machine.ErasureCertificate, error) {
		var body []byte
		if err := row.Scan(&body); err != nil {
			return machine.ErasureCertificate{}, err
		}
		c, _, err := document.OpenErasure(body)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list erasures: %w", err)
	}
	return list, nil
}

// Erasure implements api.Erasures.
func (db *DB) Erasure(ctx context.Context, id string) (k provisioner.KeptErasure, err error) {
	err = db.pool.QueryRow(ctx, `SELECT body FROM erasure WHERE id = $1`, id).Scan(&k.Body)
	if isNoRows(err) {
		return k, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no certificate of erasure %q", id), Hint: "list them with `bareyard erasure list`"}
	}
	if err == nil {
		k.ErasureCertificate, k.Key, err = document.OpenErasure(k.Body)
	}
	if err != nil {
		return k, fmt.Errorf("read certificate of erasure: %w", err)
	}
	return k, nil
}
