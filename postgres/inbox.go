package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

const foundColumns = `d.id, d.state, d.mac::text, d.addr, d.inventory, d.reason, d.first_seen, d.last_seen, d.times,
	COALESCE((SELECT x.name FROM expected x WHERE x.mac IN (SELECT s.mac FROM sighted_mac s WHERE s.discovery_id = d.id)
		OR x.serial = nullif(lower(d.inventory->'hardware'->>'serial'), '') LIMIT 1), '')`

func scanFound(row pgx.CollectableRow) (machine.Found, error) {
	var f machine.Found
	var addr *netip.Addr
	err := row.Scan(&f.ID, &f.State, &f.MAC, &addr, &f.Inventory, &f.Reason, &f.FirstSeen, &f.LastSeen, &f.Times, &f.Expected)
	if addr != nil {
		f.From = addr.String()
	}
	return f, err
}

func getFound(ctx context.Context, q querier, id, lock string) (machine.Found, error) {
	where := `d.id = $1 `
	if mac, ok := parseMAC(id); ok {
		id, where = mac, `d.id = (SELECT discovery_id FROM sighted_mac WHERE mac = $1::macaddr) `
	}
	rows, err := q.Query(ctx, `SELECT `+foundColumns+` FROM discovery d WHERE `+where+lock, id)
	if err != nil {
		return machine.Found{}, fmt.Errorf("read discovered machine: %w", err)
	}
	f, err := pgx.CollectExactlyOneRow(rows, scanFound)
	if errors.Is(err, pgx.ErrNoRows) {
		return f, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no discovered machine %q", id), Hint: "list them with `bareyard machine discovered`"}
	}
	if err != nil {
		return f, fmt.Errorf("read discovered machine: %w", err)
	}
	return f, nil
}

// Found implements provisioner.Inbox, by id or by the MAC address of a port.
func (db *DB) Found(ctx context.Context, id string) (machine.Found, error) {
	return getFound(ctx, db.pool, id, "")
}

// Inbox lists machines that nobody has enrolled, those that were seen last first; rejected ones too when asked for.
func (db *DB) Inbox(ctx context.Context, rejected bool) ([]machine.Found, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+foundColumns+` FROM discovery d WHERE d.state = 'discovered' OR $1 ORDER BY d.last_seen DESC, d.id`, rejected)
	if err != nil {
		return nil, fmt.Errorf("list discovered machines: %w", err)
	}
	return pgx.CollectRows(rows, scanFound)
}

// Meet implements provisioner.Inbox.
func (db *DB) Meet(ctx context.Context, seen provisioner.Identity, fn func(*provisioner.Meeting) error) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('discovery'))`); err != nil {
			return fmt.Errorf("lock inbox: %w", err)
		}
		w, err := newMeeting(ctx, tx)
		if err != nil {
			return err
		}
		if w.Others, err = others(ctx, tx, seen); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM discovery WHERE state = 'discovered'`).Scan(&w.Pending); err != nil {
			return fmt.Errorf("count discovered machines: %w", err)
		}
		w.Load = func(ctx context.Context, id string) (machine.Found, error) {
			return getFound(ctx, tx, id, "FOR UPDATE")
		}
		if err := fn(w); err != nil {
			return err
		}
		return db.writeMeeting(ctx, tx, w)
	})
}

// OnFound implements provisioner.Inbox.
func (db *DB) OnFound(ctx context.Context, id string, fn func(*provisioner.Meeting) error) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		w, err := newMeeting(ctx, tx)
		if err != nil {
			return err
		}
		f, err := getFound(ctx, tx, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		w.Found = &f
		if err := fn(w); err != nil {
			return err
		}
		return db.writeMeeting(ctx, tx, w)
	})
}

func newMeeting(ctx context.Context, tx pgx.Tx) (*provisioner.Meeting, error) {
	w := &provisioner.Meeting{}
	if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&w.Now); err != nil {
		return nil, fmt.Errorf("begin meeting: %w", err)
	}
	return w, nil
}

// others returns who shares a port with a sighting, and who may be it by name alone. UUIDs are compared by the engine: they
// come in several byte orders.
func others(ctx context.Context, tx pgx.Tx, seen provisioner.Identity) ([]provisioner.Identity, error) {
	serial := machine.SerialKey(seen.Serial)
	rows, err := tx.Query(ctx, `SELECT id, true, hardware->>'uuid', hardware->>'serial', ARRAY(SELECT mac::text FROM machine_mac x WHERE x.machine_id = m.id)
			FROM machine m WHERE id IN (SELECT machine_id FROM machine_mac WHERE mac = ANY ($1::macaddr[])) OR lower(hardware->>'serial') = NULLIF($2,'')
		UNION ALL SELECT id, false, inventory->'hardware'->>'uuid', inventory->'hardware'->>'serial', ARRAY(SELECT mac::text FROM sighted_mac x WHERE x.discovery_id = d.id)
			FROM discovery d WHERE id IN (SELECT discovery_id FROM sighted_mac WHERE mac = ANY ($1::macaddr[])) OR lower(inventory->'hardware'->>'serial') = NULLIF($2,'')
		ORDER BY 2 DESC, 1`, append([]string{}, seen.MACs...), serial)
	if err != nil {
		return nil, fmt.Errorf("find machines by port: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (provisioner.Identity, error) {
		var o provisioner.Identity
		var uuid, serial *string
		err := row.Scan(&o.ID, &o.Known, &uuid, &serial, &o.MACs)
		if uuid != nil {
			o.UUID = *uuid
		}
		if serial != nil {
			o.Serial = *serial
		}
		return o, err
	})
}

// writeMeeting puts back all that a Meeting holds.
func (db *DB) writeMeeting(ctx context.Context, tx pgx.Tx, w *provisioner.Meeting) error {
	for _, id := range w.Drop {
		if _, err := tx.Exec(ctx, `DELETE FROM discovery WHERE id = $1`, id); err != nil {
			return fmt.Errorf("drop discovered machine: %w", err)
		}
	}
	for mac, id := range w.Alias {
		if _, err := tx.Exec(ctx, `INSERT INTO sighted_mac (mac, machine_id) VALUES ($1::macaddr, $2)
			ON CONFLICT (mac) DO UPDATE SET machine_id = $2, discovery_id = NULL`, mac, id); err != nil {
			return fmt.Errorf("note stray port: %w", err)
		}
	}
	var err error
	switch {
	case w.Enrol != nil:
		err = db.writeEnrolment(ctx, tx, w)
	case w.Forget:
		_, err = tx.Exec(ctx, `DELETE FROM discovery WHERE id = $1`, w.Found.ID)
	case w.Found != nil:
		err = putFound(ctx, tx, *w.Found, w.Ports)
	}
	if err != nil {
		return err
	}
	if err := writeEvents(ctx, tx, w.Events); err != nil {
		return err
	}
	return db.enqueue(ctx, tx, w.Actions, w.Now)
}

// writeEnrolment makes a discovered machine one of ours.
func (db *DB) writeEnrolment(ctx context.Context, tx pgx.Tx, w *provisioner.Meeting) error {
	if _, err := tx.Exec(ctx, `DELETE FROM discovery WHERE id = $1`, w.Found.ID); err != nil {
		return fmt.Errorf("take out of inbox: %w", err)
	}
	if name := w.Enrol.Expected; name != "" {
		if _, err := tx.Exec(ctx, `DELETE FROM expected WHERE name = $1`, name); err != nil {
			return fmt.Errorf("take off enrolment list: %w", err)
		}
	}
	return db.insertMachine(ctx, tx, w.Enrol.Machine, w.Enrol.Password)
}

func putFound(ctx context.Context, tx pgx.Tx, f machine.Found, ports []string) error {
	_, err := tx.Exec(ctx, `INSERT INTO discovery (id, state, mac, addr, inventory, reason, first_seen, last_seen, times) VALUES ($1,$2,$3::macaddr,NULLIF($4,'')::inet,$5,$6,$7,$8,$9)
		ON CONFLICT (id) DO UPDATE SET state=$2, mac=$3::macaddr, addr=NULLIF($4,'')::inet, inventory=$5, reason=$6, last_seen=$8, times=$9`,
		f.ID, f.State, f.MAC, f.From, f.Inventory, f.Reason, f.FirstSeen, f.LastSeen, f.Times)
	if err != nil {
		return fmt.Errorf("write discovered machine: %w", err)
	}
	if ports == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM sighted_mac WHERE discovery_id = $1 AND NOT mac = ANY ($2::macaddr[])`, f.ID, ports); err != nil {
		return fmt.Errorf("write ports of discovered machine: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO sighted_mac (mac, discovery_id) SELECT m, $1 FROM unnest($2::macaddr[]) m
		ON CONFLICT (mac) DO UPDATE SET discovery_id = $1, machine_id = NULL`, f.ID, ports); err != nil {
		return fmt.Errorf("write ports of discovered machine: %w", err)
	}
	return nil
}

// Note writes an event that is about no transition.
func (db *DB) Note(ctx context.Context, ev provisioner.Event) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return writeEvents(ctx, tx, []provisioner.Event{ev}) })
}

func writeEvents(ctx context.Context, tx pgx.Tx, events []provisioner.Event) error {
	for _, ev := range events {
		if _, err := tx.Exec(ctx, `INSERT INTO event (at, kind, machine_id, order_id, job_id, attempt, step, text) VALUES ($1,$2,$3,$4,$5,$6,$7,$8)`,
			ev.At, ev.Kind, ev.MachineID, ev.OrderID, ev.JobID, ev.Attempt, ev.Step, ev.Text); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
	}
	return nil
}
