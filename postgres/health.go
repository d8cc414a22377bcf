package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/provisioner"
)

// inventoryEvery is how old the inventory of a BMC may be.
const inventoryEvery = 24 * time.Hour

// mostEntries bounds what is kept of one BMC's event log.
const mostEntries = 2000

// openEvents counts the critical entries of a log that nobody has acknowledged and that are not over.
const openEvents = `(SELECT count(*) FROM bmc_event e WHERE e.machine_id = h.machine_id AND e.severity = 'critical' AND NOT e.cleared AND e.id > h.acknowledged
	AND NOT EXISTS (SELECT FROM bmc_event l WHERE l.machine_id = e.machine_id AND l.id > e.id AND l.cleared AND l.sensor = e.sensor AND l.kind = e.kind))`

const healthColumns = `h.at, h.overall, h.power, h.silent, h.failed, h.error, h.readings, h.unread, h.cursor, h.history, ` + openEvents

func healthFields(h *provisioner.Health, at, silent **time.Time) []any {
	return []any{at, &h.Sensors, &h.Power, silent, &h.Failed, &h.Error, &h.Readings, &h.Unread, &h.Cursor, &h.History, &h.Open}
}

func seenHealth(h provisioner.Health, at, silent *time.Time) provisioner.Health {
	h.At, h.Silent, h.Overall = orZero(at), orZero(silent), h.Sensors
	if h.Open > 0 {
		h.Overall = ipmi.Critical
	}
	return h
}

// DuePolls claims the BMCs that are due, each for one period: no two servers get the same one.
func (db *DB) DuePolls(ctx context.Context, period time.Duration) ([]ipmi.PollTarget, error) {
	// A little before its time: the round of the next period must not miss it by a second.
	rows, err := db.pool.Query(ctx, `WITH pick AS (SELECT h.machine_id FROM bmc_health h JOIN machine m ON m.id = h.machine_id
			WHERE h.due <= now() + $1::interval / 10 AND m.state NOT IN ('retired', 'discovered') ORDER BY h.due FOR UPDATE OF h SKIP LOCKED)
		UPDATE bmc_health h SET due = now() + $1::interval FROM pick JOIN bmc b ON b.machine_id = pick.machine_id WHERE h.machine_id = pick.machine_id
		RETURNING h.machine_id, h.cursor, coalesce(b.inventory_at < now() - $2::interval, true)`, period, inventoryEvery)
	if err != nil {
		return nil, fmt.Errorf("claim BMCs to poll: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ipmi.PollTarget, error) {
		t := ipmi.PollTarget{Events: true}
		err := row.Scan(&t.Key, &t.Cursor, &t.Inventory)
		return t, err
	})
}

// Polled implements provisioner.Doctor.
func (db *DB) Polled(ctx context.Context, machineID string, fn func(provisioner.Health, *ipmi.Inventory) provisioner.Polled) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var was provisioner.Health
		var at, silent *time.Time
		var inventory *ipmi.Inventory
		err := tx.QueryRow(ctx, `SELECT `+healthColumns+`, b.inventory FROM bmc_health h JOIN bmc b ON b.machine_id = h.machine_id WHERE h.machine_id = $1 FOR UPDATE`, machineID).
			Scan(append(healthFields(&was, &at, &silent), &inventory)...)
		if isNoRows(err) {
			return notFound("machine", machineID)
		}
		if err != nil {
			return fmt.Errorf("read health: %w", err)
		}
		p := fn(seenHealth(was, at, silent), inventory)
		h := p.Health
		if _, err := tx.Exec(ctx, `UPDATE bmc_health SET at=$2, overall=$3, power=$4, silent=$5, failed=$6, error=$7, readings=$8, unread=$9, cursor=$10,
			due = greatest(due, now() + $11::interval), history=$12 WHERE machine_id=$1`,
			machineID, nilTime(h.At), h.Sensors, h.Power, nilTime(h.Silent), h.Failed, h.Error, append([]ipmi.Reading{}, h.Readings...), append([]string{}, h.Unread...), h.Cursor, p.Pause, h.History); err != nil {
			return fmt.Errorf("write health: %w", err)
		}
		if err := putEntries(ctx, tx, machineID, p); err != nil {
			return err
		}
		if p.Inventory != nil {
			if _, err := tx.Exec(ctx, `UPDATE bmc SET inventory = $2, inventory_at = now() WHERE machine_id = $1`, machineID, p.Inventory); err != nil {
				return fmt.Errorf("write inventory of a BMC: %w", err)
			}
		}
		for _, ev := range p.Events {
			if err := tell(ctx, tx, machineID, ev.Kind, ev.Text); err != nil {
				return fmt.Errorf("write event: %w", err)
			}
		}
		return nil
	})
}

// putEntries keeps what is new in a BMC's event log, and drops the oldest of it where there is too much.
func putEntries(ctx context.Context, tx pgx.Tx, machineID string, p provisioner.Polled) error {
	if len(p.Entries) == 0 {
		return nil
	}
	for _, e := range p.Entries {
		if _, err := tx.Exec(ctx, `INSERT INTO bmc_event (machine_id, entry, at, read_at, severity, sensor, kind, message, cleared) VALUES ($1,$2,$3,now(),$4,$5,$6,$7,$8)`,
			machineID, e.ID, nilTime(e.At), e.Severity, e.Sensor, e.Kind, e.Message, e.Cleared); err != nil {
			return fmt.Errorf("write entry of an event log: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, `DELETE FROM bmc_event WHERE machine_id = $1 AND id <= (SELECT id FROM bmc_event WHERE machine_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1)`,
		machineID, mostEntries); err != nil {
		return fmt.Errorf("drop entries of an event log: %w", err)
	}
	if !p.First {
		return nil
	}
	_, err := acknowledge(ctx, tx, machineID)
	return err
}

func acknowledge(ctx context.Context, tx pgx.Tx, machineID string) (n int, err error) {
	err = tx.QueryRow(ctx, `UPDATE bmc_health h SET acknowledged = coalesce((SELECT max(id) FROM bmc_event WHERE machine_id = $1), 0)
		FROM (SELECT `+openEvents+` AS open FROM bmc_health h WHERE h.machine_id = $1) AS was WHERE h.machine_id = $1 RETURNING was.open`, machineID).Scan(&n)
	if isNoRows(err) {
		return 0, notFound("machine", machineID)
	}
	if err != nil {
		return 0, fmt.Errorf("acknowledge entries of an event log: %w", err)
	}
	return n, nil
}

// Acknowledge takes note of the critical entries of a machine's event log, and says how many there were.
func (db *DB) Acknowledge(ctx context.Context, machineID string) (n int, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if n, err = acknowledge(ctx, tx, machineID); err != nil || n == 0 {
			return err
		}
		return tell(ctx, tx, machineID, "bmc.acknowledge", fmt.Sprintf("an operator acknowledged %d critical entries of the BMC's event log", n))
	})
	return n, err
}

// Health returns the health of a machine.
func (db *DB) Health(ctx context.Context, machineID string) (h provisioner.Health, err error) {
	var at, silent *time.Time
	err = db.pool.QueryRow(ctx, `SELECT `+healthColumns+` FROM bmc_health h WHERE h.machine_id = $1`, machineID).Scan(healthFields(&h, &at, &silent)...)
	if isNoRows(err) {
		return h, notFound("machine", machineID)
	}
	if err != nil {
		return h, fmt.Errorf("read health: %w", err)
	}
	return seenHealth(h, at, silent), nil
}

// AllHealth lists the health of every machine that is not retired, by name.
func (db *DB) AllHealth(ctx context.Context) ([]provisioner.MachineHealth, error) {
	rows, err := db.pool.Query(ctx, `SELECT m.name, m.state, `+healthColumns+` FROM bmc_health h JOIN machine m ON m.id = h.machine_id WHERE m.state <> 'retired' ORDER BY m.name`)
	if err != nil {
		return nil, fmt.Errorf("list health: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (provisioner.MachineHealth, error) {
		var h provisioner.MachineHealth
		var at, silent *time.Time
		err := row.Scan(append([]any{&h.Machine, &h.State}, healthFields(&h.Health, &at, &silent)...)...)
		h.Health = seenHealth(h.Health, at, silent)
		return h, err
	})
}

// LogEntries lists the newest entries of a machine's event log, the newest first.
func (db *DB) LogEntries(ctx context.Context, machineID string, n int) ([]provisioner.LogEntry, error) {
	rows, err := db.pool.Query(ctx, `SELECT e.id, e.entry, e.at, e.read_at, e.severity, e.sensor, e.kind, e.message, e.cleared, e.id <= h.acknowledged
		FROM bmc_event e JOIN bmc_health h ON h.machine_id = e.machine_id WHERE e.machine_id = $1 ORDER BY e.id DESC LIMIT $2`, machineID, n)
	if err != nil {
		return nil, fmt.Errorf("list entries of an event log: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (provisioner.LogEntry, error) {
		var e provisioner.LogEntry
		var at *time.Time
		err := row.Scan(&e.ID, &e.Entry, &at, &e.ReadAt, &e.Severity, &e.Sensor, &e.Kind, &e.Message, &e.Cleared, &e.Acknowledged)
		e.At = orZero(at)
		return e, err
	})
}
