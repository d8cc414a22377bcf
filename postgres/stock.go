package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
)

// stock implements provisioner.Stock inside a transaction.
type stock struct{ tx pgx.Tx }

const fits = ` m.class = $1 AND (m.firmware = 'bios' AND $2 OR m.firmware = 'uefi' AND $3)
	AND EXISTS (SELECT 1 FROM jsonb_array_elements(m.hardware->'disks') d WHERE d->>'role' = 'system' AND (d->>'size')::bigint >= $4)
	AND NOT m.id = ANY ($5)`

func (s stock) Machine(ctx context.Context, class string, image machine.Image, except []string) (*machine.Machine, error) {
	if except == nil {
		except = []string{}
	}
	// First whoever is free at once; then, before saying "sold out", wait for those that another order is just looking
	// at, because it may roll back.
	for _, lock := range []string{"FOR UPDATE SKIP LOCKED", "FOR UPDATE"} {
		var m machine.Machine
		err := s.tx.QueryRow(ctx, `SELECT `+machineColumns+` FROM machine m WHERE m.state = 'available' AND `+fits+` ORDER BY m.updated LIMIT 1 `+lock,
			class, image.BIOS, image.UEFI, image.Size, except).Scan(machineFields(&m)...)
		if err == nil {
			return &m, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("pick machine: %w", err)
		}
	}
	var total, suitable int
	err := s.tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE `+fits+`) FROM machine m WHERE m.class = $1 AND m.state <> 'retired'`,
		class, image.BIOS, image.UEFI, image.Size, []string{}).Scan(&total, &suitable)
	if err != nil {
		return nil, fmt.Errorf("count stock: %w", err)
	}
	if total > 0 && suitable == 0 {
		return nil, &machine.Error{Code: machine.Invalid, Field: "image",
			Message: fmt.Sprintf("no machine of class %s can take image %s: it needs %d bytes of system disk and firmware that it boots under", class, image.Name, image.Size),
			Hint:    "choose a smaller image, or a class with larger system disks"}
	}
	return nil, &machine.Error{Code: machine.Exhausted, Message: fmt.Sprintf("class %s is sold out", class), Hint: "choose another class, or try again later"}
}

func (s stock) Address(ctx context.Context, line, orderID string) (netip.Addr, error) {
	var addr netip.Addr
	for _, lock := range []string{"FOR UPDATE SKIP LOCKED", "FOR UPDATE"} {
		err := s.tx.QueryRow(ctx, `WITH pick AS (
				SELECT addr FROM address WHERE line = $1 AND order_id IS NULL AND free_at <= now() ORDER BY free_at, addr LIMIT 1 `+lock+`)
			UPDATE address a SET order_id = $2 FROM pick WHERE a.addr = pick.addr AND a.order_id IS NULL RETURNING a.addr`, line, orderID).Scan(&addr)
		if err == nil {
			_, err = s.tx.Exec(ctx, `INSERT INTO assignment (addr, order_id, during) VALUES ($1, $2, tstzrange(clock_timestamp(), NULL))`, addr, orderID)
			if err != nil {
				return addr, fmt.Errorf("write assignment: %w", err)
			}
			return addr, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return addr, fmt.Errorf("pick address: %w", err)
		}
	}
	return addr, &machine.Error{Code: machine.Exhausted, Field: "line", Message: fmt.Sprintf("line %s has no free address", line),
		Hint: "choose another line, or try again later: released addresses cool down before they are given out again"}
}

func (s stock) FreeAddress(ctx context.Context, orderID string, used bool) error {
	_, err := s.tx.Exec(ctx, `UPDATE address a SET order_id = NULL, free_at = CASE WHEN $2 THEN now() + l.cool_down ELSE a.free_at END
		FROM line l WHERE l.name = a.line AND a.order_id = $1`, orderID, used)
	if err != nil {
		return fmt.Errorf("free address: %w", err)
	}
	_, err = s.tx.Exec(ctx, `UPDATE assignment SET during = tstzrange(lower(during), clock_timestamp()) WHERE order_id = $1 AND upper_inf(during)`, orderID)
	if err != nil {
		return fmt.Errorf("end assignment: %w", err)
	}
	return nil
}
