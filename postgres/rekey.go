package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
)

// servingLock is held shared by every server, and alone by whoever changes the key: a server that knows the old key only would
// write what nobody can read later.
const servingLock = "bareyard-serving"

// Serving says that this server works on the database, until the function that it returns is called.
func (db *DB) Serving(ctx context.Context) (func(), error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("say that this server works: %w", err)
	}
	var free bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared(hashtext($1))`, servingLock).Scan(&free); err != nil || !free {
		conn.Release()
		if err != nil {
			return nil, fmt.Errorf("say that this server works: %w", err)
		}
		return nil, &machine.Error{Code: machine.Conflict, Message: "the key of this database is being changed", Hint: "start again when `bareyard serve --rekey` has ended, with the new key file"}
	}
	return func() {
		conn.Conn().Close(context.WithoutCancel(ctx)) // which gives the lock back
		conn.Release()
	}, nil
}

// alone runs fn while no server works on the database.
func (db *DB) alone(ctx context.Context, fn func() error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("look for other servers: %w", err)
	}
	defer func() {
		conn.Conn().Close(context.WithoutCancel(ctx)) // which gives the lock back
		conn.Release()
	}()
	var free bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtext($1))`, servingLock).Scan(&free); err != nil {
		return fmt.Errorf("look for other servers: %w", err)
	}
	if !free {
		return &machine.Error{Code: machine.Conflict, Message: "a server works on this database", Hint: "stop every server of it first: one that knows the old key only could not go on"}
	}
	return fn()
}

// reseal seals every secret anew with the first key, all in one transaction.
func (db *DB) reseal(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		n = 0
		for _, place := range sealedPlaces {
			here, err := db.resealPlace(ctx, tx, place)
			if err != nil {
				return fmt.Errorf("seal %s.%s anew: %w", place.table, place.column, err)
			}
			n += here
		}
		return nil
	})
	return n, err
}

func (db *DB) resealPlace(ctx context.Context, tx pgx.Tx, p sealedPlace) (int, error) {
	sql := func(text string) string {
		return strings.NewReplacer("TABLE", p.table, "KEY", p.key, "COLUMN", p.column).Replace(text)
	}
	rows, err := tx.Query(ctx, sql(`SELECT KEY, COLUMN FROM TABLE WHERE COLUMN IS NOT NULL FOR UPDATE`))
	if err != nil {
		return 0, err
	}
	type entry struct {
		Key    string
		Sealed []byte
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
	if err != nil {
		return 0, err
	}
	batch := &pgx.Batch{}
	for _, e := range list {
		secret, err := db.seal.Open(e.Sealed, p.purpose+e.Key)
		if err != nil {
			return 0, err
		}
		batch.Queue(sql(`UPDATE TABLE SET COLUMN = $2 WHERE KEY = $1`), e.Key, db.seal.Close(secret, p.purpose+e.Key))
	}
	return len(list), tx.SendBatch(ctx, batch).Close()
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
