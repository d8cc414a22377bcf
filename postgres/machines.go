package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Enroll records a machine with its BMC password, as enrolled, or as available when admit says that an operator vouches
// for it. All of it, or nothing.
func (db *DB) Enroll(ctx context.Context, m machine.Machine, bmcPassword string, admit bool) (machine.Machine, error) {
	m.ID, m.State = provisioner.NewID("m"), machine.Enrolled
	text := "enrolled"
	if admit {
		next, err := machine.Next(m.State, machine.Admit)
		if err != nil {
			return m, err
		}
		m.State, text = next, "enrolled and admitted on an operator's word"
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := db.insertMachine(ctx, tx, m, bmcPassword); err != nil {
			return err
		}
		return tell(ctx, tx, m.ID, "machine.enroll", text)
	})
	return m, err
}

// insertMachine writes a new machine with its ports. What was discovered of it is in its record now, or does not count.
func (db *DB) insertMachine(ctx context.Context, tx pgx.Tx, m machine.Machine, bmcPassword string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO machine (id, name, site, rack, class, state, firmware, hardware, bmc, bmc_secret, boot_addr, boot)
		VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)`, m.ID, m.Name, m.Site, m.Rack, m.Class, m.State, m.Firmware, m.Hardware, m.BMC,
		db.seal.Close([]byte(bmcPassword), bmcPurpose(m.ID)), m.BootAddr, m.Boot); err != nil {
		return explain("enroll machine "+m.Name, err)
	}
	var macs []string
	for _, n := range m.Hardware.NICs {
		macs = append(macs, n.MAC)
		if _, err := tx.Exec(ctx, `INSERT INTO machine_mac (mac, machine_id) VALUES ($1::macaddr, $2)`, n.MAC, m.ID); err != nil {
			return explain("enroll port "+n.MAC, err)
		}
	}
	if _, err := tx.Exec(ctx, `DELETE FROM discovery WHERE id IN (SELECT discovery_id FROM sighted_mac WHERE mac = ANY ($1::macaddr[]))`, macs); err != nil {
		return fmt.Errorf("clear inbox: %w", err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM sighted_mac WHERE mac = ANY ($1::macaddr[])`, macs); err != nil {
		return fmt.Errorf("clear inbox: %w", err)
	}
	if m.BMC.PinHow == provisioner.FirstUse {
		return tell(ctx, tx, m.ID, "bmc.trust", "the BMC's certificate is trusted as it was shown at enrolment: SHA-256 "+m.BMC.CertPin)
	}
	return nil
}

// Machine returns a machine by id or by name.
func (db *DB) Machine(ctx context.Context, id string) (machine.Machine, error) {
	return getMachine(ctx, db.pool, `WHERE $1 IN (id, name)`, id)
}

// Machines lists machines, all or those in a state.
func (db *DB) Machines(ctx context.Context, state machine.State) ([]machine.Machine, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+machineColumns+` FROM machine m WHERE $1 = '' OR state = $1 ORDER BY name`, state)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (machine.Machine, error) {
		var m machine.Machine
		err := row.Scan(machineFields(&m)...)
		return m, err
	})
}

// Order returns an order.
func (db *DB) Order(ctx context.Context, id string) (machine.Order, error) {
	return getOrder(ctx, db.pool, id, "")
}

// Orders lists the orders of a project, newest first; "" means all projects.
func (db *DB) Orders(ctx context.Context, project string) ([]machine.Order, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+orderColumns+` FROM orders o WHERE $1 = '' OR project = $1 ORDER BY placed DESC, id`, project)
	if err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	return pgx.CollectRows(rows, scanOrder)
}

// Job returns a job.
func (db *DB) Job(ctx context.Context, id string) (machine.Job, error) {
	return getJob(ctx, db.pool, id, "")
}

// Jobs lists jobs, newest first, of a machine or an order when one is given. Of a report they hold what came of it; Job has it whole.
func (db *DB) Jobs(ctx context.Context, machineID, orderID string) ([]machine.Job, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+jobSummary+` FROM job j WHERE ($1 = '' OR machine_id = $1) AND ($2 = '' OR order_id = $2)
		ORDER BY started DESC, id LIMIT 500`, machineID, orderID)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return pgx.CollectRows(rows, scanJob)
}

// eventHold is how long an event waits, at most, for earlier transactions: ours are far shorter, and others share the database with us.
const eventHold = "30 seconds"

// Events lists events in the order of their ids. Where f.Settled is set, an event waits until no transaction is under way that may have drawn a
// smaller id, so that whoever goes on after the last one that he saw misses none.
func (db *DB) Events(ctx context.Context, f provisioner.EventFilter) ([]provisioner.Event, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 1000
	}
	rows, err := db.pool.Query(ctx, `SELECT id, at, kind, machine_id, order_id, job_id, attempt, step, text FROM event
		WHERE id > $1 AND ($2 = '' OR machine_id = $2) AND ($3 = '' OR order_id = $3) AND ($4 = '' OR job_id = $4)
		AND (NOT $6 OR txid < pg_snapshot_xmin(pg_current_snapshot()) OR at < clock_timestamp() - interval '`+eventHold+`') ORDER BY id LIMIT $5`,
		f.After, f.MachineID, f.OrderID, f.JobID, limit, f.Settled)
	return collect[provisioner.Event](rows, err, "list events")
}

// Listen calls fn whenever events have been written, until ctx ends. Calls are hints: what happened is in Events.
func (db *DB) Listen(ctx context.Context, fn func()) error {
	conn, err := db.pool.Acquire(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen for events: %w", err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `LISTEN bareyard_event`); err != nil && ctx.Err() == nil {
		return fmt.Errorf("listen for events: %w", err)
	}
	for {
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			// a connection that was cut off in the middle of waiting cannot go back to the pool
			conn.Conn().Close(context.WithoutCancel(ctx))
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listen for events: %w", err)
		}
		fn()
	}
}
