package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// querier is a transaction or the pool.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const machineColumns = `m.id, m.name, m.site, m.rack, m.class, m.state, m.reason, m.firmware, m.boot, m.hardware, m.bmc, m.boot_addr,
	m.order_id, m.job_id, m.public, m.port_open, m.parked, m.created, m.updated`

func machineFields(m *machine.Machine) []any {
	return []any{&m.ID, &m.Name, &m.Site, &m.Rack, &m.Class, &m.State, &m.Reason, &m.Firmware, &m.Boot, &m.Hardware, &m.BMC, &m.BootAddr,
		&m.OrderID, &m.JobID, &m.Public, &m.PortOpen, &m.Parked, &m.Created, &m.Updated}
}

func getMachine(ctx context.Context, q querier, where string, arg any) (machine.Machine, error) {
	var m machine.Machine
	err := q.QueryRow(ctx, `SELECT `+machineColumns+` FROM machine m `+where, arg).Scan(machineFields(&m)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return m, notFound("machine", arg)
	}
	if err != nil {
		return m, fmt.Errorf("read machine: %w", err)
	}
	return m, nil
}

func notFound(noun string, name any) error {
	return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no %s %q", noun, name), Hint: fmt.Sprintf("list what there is with `bareyard %s list`", noun)}
}

func putMachine(ctx context.Context, tx pgx.Tx, m machine.Machine, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE machine SET state=$2, reason=$3, order_id=$4, job_id=$5, public=$6, port_open=$7, updated=$8, boot=$9, parked=$10 WHERE id=$1`,
		m.ID, m.State, m.Reason, m.OrderID, m.JobID, m.Public, m.PortOpen, now, m.Boot, m.Parked)
	if err != nil {
		return fmt.Errorf("write machine: %w", err)
	}
	return nil
}

const orderColumns = `o.id, o.project, o.class, o.image, o.image_digest, o.line, o.bandwidth, o.ssh_keys, o.hostname, o.months, o.price, o.currency,
	o.state, o.reason, o.machine_id, o.job_id, o.address, o.tried, o.placed, o.started, o.until, o.updated,
	o.bandwidth_down, o.model, o.committed, o.extra_up, o.extra_down, o.limit_mbit, o.limit_reason, o.blackhole_until, o.blackhole_reason, o.change_due,
	ARRAY(SELECT a.addr FROM address a WHERE a.order_id = o.id AND NOT a.leaving ORDER BY a.addr = o.address DESC NULLS LAST, a.since, a.addr),
	ARRAY(SELECT a.addr FROM address a WHERE a.order_id = o.id AND NOT a.leaving AND NOT a.proven ORDER BY a.addr)`

// orderRow is an order as its columns are scanned.
type orderRow struct {
	machine.Order
	address              *netip.Addr
	started, until       *time.Time
	blackhole, changeDue *time.Time
}

func (r *orderRow) fields() []any {
	o := &r.Order
	return []any{&o.ID, &o.Project, &o.Class, &o.Image, &o.ImageDigest, &o.Line, &o.Bandwidth, &o.SSHKeys, &o.Hostname, &o.Months, &o.Price, &o.Currency,
		&o.State, &o.Reason, &o.MachineID, &o.JobID, &r.address, &o.Tried, &o.Placed, &r.started, &r.until, &o.Updated,
		&o.BandwidthDown, &o.Model, &o.Committed, &o.Network.ExtraUp, &o.Network.ExtraDown, &o.Network.Limit, &o.Network.LimitReason, &r.blackhole, &o.Network.BlackholeReason, &r.changeDue,
		&o.Addresses, &o.Unproven}
}

func (r *orderRow) order() machine.Order {
	if r.address != nil {
		r.Address = *r.address
	}
	r.Started, r.Until = orZero(r.started), orZero(r.until)
	r.Network.BlackholeUntil, r.Network.ChangeDue = orZero(r.blackhole), orZero(r.changeDue)
	return r.Order
}

func scanOrder(row pgx.CollectableRow) (machine.Order, error) {
	var r orderRow
	err := row.Scan(r.fields()...)
	return r.order(), err
}

func getOrder(ctx context.Context, q querier, id, lock string) (machine.Order, error) {
	rows, err := q.Query(ctx, `SELECT `+orderColumns+` FROM orders o WHERE id = $1 `+lock, id)
	if err != nil {
		return machine.Order{}, fmt.Errorf("read order: %w", err)
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOrder)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, notFound("order", id)
	}
	if err != nil {
		return o, fmt.Errorf("read order: %w", err)
	}
	return o, nil
}

func insertOrder(ctx context.Context, tx pgx.Tx, o machine.Order, key, digest string) (int64, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO orders (id, project, idem_key, digest, class, image, image_digest, line, bandwidth, ssh_keys, hostname,
			months, price, currency, state, placed, updated, bandwidth_down, model, committed)
		VALUES ($1,$2,NULLIF($3,''),$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$16,$17,$18,$19) ON CONFLICT (project, idem_key) DO NOTHING`,
		o.ID, o.Project, key, digest, o.Class, o.Image, o.ImageDigest, o.Line, o.Bandwidth, o.SSHKeys, o.Hostname,
		o.Months, o.Price, o.Currency, o.State, o.Placed, o.BandwidthDown, o.Model, o.Committed)
	if err != nil {
		return 0, fmt.Errorf("insert order: %w", err)
	}
	return tag.RowsAffected(), nil
}

// sameRequest returns the order that a key was first used for.
func sameRequest(ctx context.Context, tx pgx.Tx, project, key, digest string) (machine.Order, error) {
	var id, first string
	if err := tx.QueryRow(ctx, `SELECT id, digest FROM orders WHERE project = $1 AND idem_key = $2`, project, key).Scan(&id, &first); err != nil {
		return machine.Order{}, fmt.Errorf("read order by key: %w", err)
	}
	if first != digest {
		return machine.Order{}, &machine.Error{Code: machine.Conflict, Field: "Idempotency-Key",
			Message: "this key was used for another order", Hint: "use a new key for a new order, the same request for a repetition"}
	}
	return getOrder(ctx, tx, id, "")
}

func putOrder(ctx context.Context, tx pgx.Tx, o machine.Order, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE orders SET image=$2, image_digest=$3, bandwidth=$4, state=$5, reason=$6, machine_id=$7, job_id=$8, address=$9, tried=$10,
		started=$11, until=$12, updated=$13, bandwidth_down=$14, extra_up=$15, extra_down=$16, limit_mbit=$17, limit_reason=$18,
		blackhole_until=$19, blackhole_reason=$20, change_due=$21 WHERE id=$1`,
		o.ID, o.Image, o.ImageDigest, o.Bandwidth, o.State, o.Reason, o.MachineID, o.JobID, nilAddr(o.Address), append([]string{}, o.Tried...), nilTime(o.Started), nilTime(o.Until), now,
		o.BandwidthDown, o.Network.ExtraUp, o.Network.ExtraDown, o.Network.Limit, o.Network.LimitReason,
		nilTime(o.Network.BlackholeUntil), o.Network.BlackholeReason, nilTime(o.Network.ChangeDue))
	if err != nil {
		return fmt.Errorf("write order: %w", err)
	}
	return nil
}

func nilAddr(a netip.Addr) *netip.Addr {
	if !a.IsValid() {
		return nil
	}
	return &a
}

func nilTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// jobColumns is a job whole, and jobSummary one with no more of its report than what came of it.
const (
	jobColumns = jobHead + `j.result` + jobTail
	jobSummary = jobHead + `CASE WHEN j.result IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object('schema', j.result->'schema', 'outcome', j.result->'outcome')) END` + jobTail
)

const jobHead = `j.id, j.kind, j.machine_id, j.order_id, j.state, j.attempt, j.step, j.turn, j.try, j.boots, j.media, j.reason, j.image, j.image_digest, j.driver, j.wipe_data,
	j.progress, `

const jobTail = `, j.started, j.step_at, j.seen_at, j.due, j.finished, j.finding, j.comes_from, j.acceptance`

func scanJob(row pgx.CollectableRow) (machine.Job, error) {
	var j machine.Job
	var finished *time.Time
	err := row.Scan(&j.ID, &j.Kind, &j.MachineID, &j.OrderID, &j.State, &j.Attempt, &j.Step, &j.Turn, &j.Try, &j.Boots, &j.Media, &j.Reason, &j.Image, &j.ImageDigest, &j.Driver, &j.WipeData,
		&j.Progress, &j.Result, &j.Started, &j.StepAt, &j.SeenAt, &j.Due, &finished, &j.Finding, &j.From, &j.Acceptance)
	j.Finished = orZero(finished)
	return j, err
}

func getJob(ctx context.Context, q querier, id, lock string) (machine.Job, error) {
	rows, err := q.Query(ctx, `SELECT `+jobColumns+` FROM job j WHERE id = $1 `+lock, id)
	if err != nil {
		return machine.Job{}, fmt.Errorf("read job: %w", err)
	}
	j, err := pgx.CollectExactlyOneRow(rows, scanJob)
	if errors.Is(err, pgx.ErrNoRows) {
		return j, notFound("job", id)
	}
	if err != nil {
		return j, fmt.Errorf("read job: %w", err)
	}
	return j, nil
}

func putJob(ctx context.Context, tx pgx.Tx, j machine.Job, fresh bool) error {
	sql := `UPDATE job SET kind=$2, machine_id=$3, order_id=$4, state=$5, attempt=$6, step=$7, turn=$8, try=$9, reason=$10, image=$11, image_digest=$12,
		driver=$13, wipe_data=$14, progress=$15, result=$16, started=$17, step_at=$18, seen_at=$19, due=$20, finished=$21, boots=$22, finding=$23, comes_from=$24, acceptance=$25, media=$26 WHERE id=$1`
	if fresh {
		sql = `INSERT INTO job (id, kind, machine_id, order_id, state, attempt, step, turn, try, reason, image, image_digest, driver, wipe_data, progress, result,
			started, step_at, seen_at, due, finished, boots, finding, comes_from, acceptance, media) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,$25,$26)`
	}
	var result *[]byte
	if len(j.Result) > 0 {
		raw := []byte(j.Result)
		result = &raw
	}
	_, err := tx.Exec(ctx, sql, j.ID, j.Kind, j.MachineID, j.OrderID, j.State, j.Attempt, j.Step, j.Turn, j.Try, j.Reason, j.Image, j.ImageDigest, j.Driver, j.WipeData,
		j.Progress, result, j.Started, j.StepAt, j.SeenAt, j.Due, nilTime(j.Finished), j.Boots, j.Finding, j.From, j.Acceptance, j.Media)
	if err != nil {
		return fmt.Errorf("write job: %w", err)
	}
	return nil
}

// putTicket writes a new ticket, or, for a token that was used for the first time, spends the nonce it was traded for.
// A second token for the same nonce replaces the first.
func putTicket(ctx context.Context, tx pgx.Tx, t provisioner.Ticket) error {
	if t.Used {
		if _, err := tx.Exec(ctx, `UPDATE ticket SET used = true WHERE hash = $1`, t.Hash); err != nil {
			return fmt.Errorf("spend token: %w", err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM ticket WHERE hash = $1 AND role = 'nonce'`, t.Parent); err != nil {
			return fmt.Errorf("spend nonce: %w", err)
		}
		return nil
	}
	// of each role only the newest of an attempt is good
	if _, err := tx.Exec(ctx, `DELETE FROM ticket WHERE machine_id = $1 AND role = $2`, t.MachineID, t.Role); err != nil {
		return fmt.Errorf("withdraw older ticket: %w", err)
	}
	_, err := tx.Exec(ctx, `INSERT INTO ticket (hash, role, machine_id, job_id, attempt, addr, parent) VALUES ($1,$2,$3,$4,$5,$6,$7)`,
		t.Hash, t.Role, t.MachineID, t.JobID, t.Attempt, nilAddr(t.Addr), t.Parent)
	if err != nil {
		return fmt.Errorf("write ticket: %w", err)
	}
	return nil
}
