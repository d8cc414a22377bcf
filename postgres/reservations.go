package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
)

// Reservation is the address that is kept for a machine's provisioning port.
type Reservation struct {
	MAC     string // lower case with colons
	Machine string // its name
	Addr    netip.Addr
	Class   string
}

// reservationSettle is how long a change waits for others: an import of a thousand machines is read a few times, not a thousand.
const reservationSettle = 20 * time.Millisecond

// WatchReservations calls fn with all reservations and the time at which they were true for certain: at once, whenever one has
// changed, and after every, whether or not one has. It returns nil when ctx ends, or an error when the database does not answer; fn
// has then been told all there was.
func (db *DB) WatchReservations(ctx context.Context, every time.Duration, fn func([]Reservation, time.Time)) error {
	err := db.watchReservations(ctx, every, fn)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch reservations: %w", err)
	}
	return nil
}

func (db *DB) watchReservations(ctx context.Context, every time.Duration, fn func([]Reservation, time.Time)) error {
	pooled, err := db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // it listens, which the pool's next user would not expect
	defer conn.Close(context.WithoutCancel(ctx))
	if err := bounded(ctx, every, func(ctx context.Context) error { _, err := conn.Exec(ctx, `LISTEN bareyard_reservation`); return err }); err != nil {
		return err
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	for {
		for err = nil; err == nil; { // what is here already will be in what is read now
			_, err = conn.WaitForNotification(over)
		}
		asked := time.Now()
		var all []Reservation
		err = bounded(ctx, every, func(ctx context.Context) (err error) { all, err = reservations(ctx, conn); return err })
		if err != nil {
			return err
		}
		fn(all, asked)
		err = bounded(ctx, every, func(ctx context.Context) error { _, err := conn.WaitForNotification(ctx); return err })
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
		if err == nil {
			time.Sleep(reservationSettle)
		}
	}
}

func reservations(ctx context.Context, conn *pgx.Conn) ([]Reservation, error) {
	rows, err := conn.Query(ctx, `SELECT n.mac, m.name, m.boot_addr, coalesce(m.class, '') FROM machine m,
		LATERAL (SELECT jsonb_path_query_first(m.hardware, '$.nics[*] ? (@.role == "provision")')->>'mac' AS mac) n
		WHERE n.mac IS NOT NULL AND m.boot_addr IS NOT NULL`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Reservation])
}

func bounded(ctx context.Context, d time.Duration, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return fn(ctx)
}
