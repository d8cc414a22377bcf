package postgres

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

const verdictColumns = `r.id, r.machine_id, r.order_id, r.job_id, r.run_id, r.class, r.plan, r.taken, r.kept, r.outcome, r.blocks, r.reason, r.cards, r.checks, r.key`

// KeepReport implements provisioner.Reports.
func (db *DB) KeepReport(ctx context.Context, k provisioner.Kept) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		now := time.Now()
		if err := tx.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
			return fmt.Errorf("keep report: %w", err)
		}
		return keepReport(ctx, tx, k, now)
	})
}

// keepReport writes a report with what is looked up in it: cards, rates, and where the cards are now.
func keepReport(ctx context.Context, tx pgx.Tx, k provisioner.Kept, now time.Time) error {
	tag, err := tx.Exec(ctx, `INSERT INTO report (id, machine_id, order_id, job_id, run_id, class, plan, taken, kept, outcome, blocks, reason, cards, checks, key, body)
		VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16) ON CONFLICT (id) DO NOTHING`,
		k.ID, k.MachineID, k.OrderID, k.JobID, k.RunID, k.Class, k.Plan, k.Taken, now, k.Outcome, k.Blocks, k.Reason, k.Cards, k.Checks, k.Key, k.Body)
	if err != nil {
		return fmt.Errorf("keep report: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	serials, models := map[string]string{}, map[string]string{}
	for _, c := range k.Report.Cards {
		if c.Slot == "" || c.PCI == nil {
			continue
		}
		serial := provisioner.CardSerial(c)
		serials[c.Slot], models[c.Slot] = serial, c.PCI.ID()
		var name, firmware string
		if c.Card != nil {
			name, firmware = c.Card.Name.Value, c.Card.VBIOS.Value
		}
		batch.Queue(`INSERT INTO report_card (report_id, slot, serial, model, name, firmware, outcome, problems) VALUES ($1,$2,$3,$4,$5,$6,$7,$8)`,
			k.ID, c.Slot, serial, c.PCI.ID(), name, firmware, c.Outcome, append([]string{}, c.Problems...))
	}
	for _, l := range k.Report.Loads {
		if l.Slot == "" || l.Peer != "" || l.Fault != nil || l.Errors > 0 || !l.Rate.Known() || l.Rate.Value <= 0 || models[l.Slot] == "" {
			continue
		}
		batch.Queue(`INSERT INTO report_rate (report_id, slot, serial, model, test, tool, version, unit, value) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9) ON CONFLICT DO NOTHING`,
			k.ID, l.Slot, serials[l.Slot], models[l.Slot], l.Test, l.Tool, l.Version, l.Rate.Unit, l.Rate.Value)
	}
	strays := map[string]bool{}
	for _, s := range k.Strays {
		strays[s] = true
	}
	for slot, serial := range serials {
		if serial == "" || strays[serial] {
			continue
		}
		batch.Queue(`INSERT INTO card AS c (serial, machine_id, slot, model, report_id, order_id, first_seen, last_seen) VALUES ($1,$2,$3,$4,$5,$6,$7,$7)
			ON CONFLICT (serial) DO UPDATE SET slot = $3, model = $4, report_id = $5, order_id = $6, last_seen = $7 WHERE c.machine_id = $2`,
			serial, k.MachineID, slot, models[slot], k.ID, k.OrderID, now)
	}
	batch.Queue(`UPDATE machine SET examined = $2 WHERE id = $1`, k.MachineID, now)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("keep what report %s holds: %w", k.ID, err)
	}
	return nil
}

// Reports implements provisioner.Reports.
func (db *DB) Reports(ctx context.Context, f provisioner.ReportFilter) ([]provisioner.Verdict, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := db.pool.Query(ctx, `SELECT `+verdictColumns+` FROM report r WHERE ($1 = '' OR machine_id = $1) AND ($2 = '' OR order_id = $2)
		AND ($3 = '' OR run_id = $3) AND ($4 = '' OR class = $4) AND ($5 = '' OR plan = $5) ORDER BY kept DESC, id LIMIT $6`,
		f.MachineID, f.OrderID, f.RunID, f.Class, string(f.Plan), limit)
	return collect[provisioner.Verdict](rows, err, "list reports")
}

// Report implements provisioner.Reports.
func (db *DB) Report(ctx context.Context, id string) (provisioner.Kept, error) {
	k, err := oneReport(ctx, db.pool, `WHERE r.id = $1`, id)
	if isNoRows(err) {
		return k, notFound("report", id)
	}
	if err != nil {
		return k, fmt.Errorf("read report: %w", err)
	}
	return k, nil
}

func oneReport(ctx context.Context, q querier, where string, args ...any) (k provisioner.Kept, err error) {
	v := &k.Verdict
	err = q.QueryRow(ctx, `SELECT `+verdictColumns+`, r.body FROM report r `+where, args...).Scan(&v.ID, &v.MachineID, &v.OrderID, &v.JobID, &v.RunID, &v.Class, &v.Plan, &v.Taken, &v.Kept,
		&v.Outcome, &v.Blocks, &v.Reason, &v.Cards, &v.Checks, &v.Key, &k.Body)
	if err == nil {
		k.Report, err = provisioner.OpenReport(k.Body)
	}
	return k, err
}

// HandOver implements provisioner.Reports.
func (db *DB) HandOver(ctx context.Context, orderID, machineID string) (provisioner.Kept, bool, error) {
	k, err := oneReport(ctx, db.pool, `WHERE r.order_id = $1 AND r.machine_id = $2 AND NOT r.blocks AND (r.plan IN ('postboot','acceptance','')
		OR r.plan = 'health' AND r.job_id IN (SELECT id FROM job WHERE kind IN ('provision','reinstall'))) ORDER BY r.kept DESC LIMIT 1`, orderID, machineID)
	if isNoRows(err) {
		return k, false, nil
	}
	if err != nil {
		return k, false, fmt.Errorf("read report of hand-over: %w", err)
	}
	return k, true, nil
}

const placeColumns = `c.serial, c.machine_id, m.name, c.slot, c.model, c.report_id, c.order_id, c.first_seen, c.last_seen`

// Background implements provisioner.Reports.
func (db *DB) Background(ctx context.Context, machineID string, serials []string) (b provisioner.Background, err error) {
	rows, err := db.pool.Query(ctx, `SELECT `+placeColumns+` FROM card c JOIN machine m ON m.id = c.machine_id WHERE c.machine_id = $1 ORDER BY c.slot, c.serial`, machineID)
	if b.Here, err = collect[provisioner.Place](rows, err, "list cards of machine"); err != nil {
		return b, err
	}
	rows, err = db.pool.Query(ctx, `SELECT `+placeColumns+` FROM card c JOIN machine m ON m.id = c.machine_id WHERE c.serial = ANY ($2) AND c.machine_id <> $1 ORDER BY c.serial`, machineID, append([]string{}, serials...))
	if b.Elsewhere, err = collect[provisioner.Place](rows, err, "list cards of other machines"); err != nil {
		return b, err
	}
	b.Waivers, err = db.Waivers(ctx, machineID, false)
	return b, err
}

// ExamineDue implements provisioner.Reports.
func (db *DB) ExamineDue(ctx context.Context, every time.Duration, atOnce int) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT m.id FROM machine m WHERE m.state = 'available' AND greatest(m.examined, m.updated) < now() - $1::interval
		ORDER BY m.examined NULLS FIRST, m.id LIMIT greatest(0, $2 - (SELECT count(*) FROM job WHERE state = 'running' AND kind = 'examine'))`, every, atOnce)
	if err != nil {
		return nil, fmt.Errorf("list machines to examine: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// ForgetReports implements provisioner.Reports.
func (db *DB) ForgetReports(ctx context.Context, before time.Time) (int64, error) {
	tag, err := db.pool.Exec(ctx, `DELETE FROM report WHERE id IN (SELECT r.id FROM report r WHERE r.kept < $1
		AND EXISTS (SELECT 1 FROM report n WHERE n.machine_id = r.machine_id AND n.plan = r.plan AND n.kept > r.kept)
		AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.id = r.order_id AND o.state NOT IN ('ended','cancelled','failed'))
		ORDER BY r.kept LIMIT 10000)`, before)
	if err != nil {
		return 0, fmt.Errorf("forget reports: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Card returns where a card is on record, and every report that saw it, newest first.
func (db *DB) Card(ctx context.Context, serial string) (provisioner.CardHistory, error) {
	c := provisioner.CardHistory{Serial: serial}
	rows, err := db.pool.Query(ctx, `SELECT `+placeColumns+` FROM card c JOIN machine m ON m.id = c.machine_id WHERE c.serial = $1`, serial)
	places, err := collect[provisioner.Place](rows, err, "read card")
	if err != nil {
		return c, err
	}
	if len(places) > 0 {
		c.Now = &places[0]
	}
	rows, err = db.pool.Query(ctx, `SELECT r.id, r.kept, r.plan, r.machine_id, m.name, r.order_id, x.slot, x.model, x.name, x.firmware, x.outcome, x.problems
		FROM report_card x JOIN report r ON r.id = x.report_id JOIN machine m ON m.id = r.machine_id WHERE x.serial = $1 ORDER BY r.kept DESC, r.id LIMIT 500`, serial)
	if c.Seen, err = collect[provisioner.CardSighting](rows, err, "list reports of card"); err != nil {
		return c, err
	}
	if c.Now == nil && len(c.Seen) == 0 {
		return c, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no report has seen card %q", serial), Hint: "serial numbers are in `bareyard report show`; a card that has none goes by its UUID"}
	}
	return c, nil
}

// ForgetCard takes a card off the machine that it is on record for: the next report that sees it records it anew.
func (db *DB) ForgetCard(ctx context.Context, serial, who, why string) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var machineID, slot string
		err := tx.QueryRow(ctx, `DELETE FROM card WHERE serial = $1 RETURNING machine_id, slot`, serial).Scan(&machineID, &slot)
		if isNoRows(err) {
			return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("card %q is on no machine's record", serial), Hint: "see `bareyard card show`"}
		}
		if err != nil {
			return fmt.Errorf("forget card: %w", err)
		}
		return tell(ctx, tx, machineID, "card.forget", fmt.Sprintf("card %s, slot %s, is off the record, by %s: %s", serial, slot, who, why))
	})
}

// PutWaiver records a waiver.
func (db *DB) PutWaiver(ctx context.Context, w provisioner.Waiver) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO waiver (id, machine_id, check_id, card, who, why, made, until) VALUES ($1,$2,$3,$4,$5,$6,now(),$7)`, w.ID, w.MachineID, w.Check, w.Card, w.Who, w.Why, w.Until)
		if err != nil {
			return fmt.Errorf("record waiver: %w", err)
		}
		of := ""
		if w.Card != "" {
			of = " of card " + w.Card
		}
		return tell(ctx, tx, w.MachineID, "waiver.make", fmt.Sprintf("%s%s blocks nothing until %s, by %s: %s (%s)", w.Check, of, w.Until.UTC().Format(time.RFC3339), w.Who, w.Why, w.ID))
	})
}

// WithdrawWaiver ends a waiver before its time. One that is over already is left as it is.
func (db *DB) WithdrawWaiver(ctx context.Context, id, who string) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		var machineID, check string
		err := tx.QueryRow(ctx, `UPDATE waiver SET withdrawn = now() WHERE id = $1 AND withdrawn IS NULL RETURNING machine_id, check_id`, id).Scan(&machineID, &check)
		if isNoRows(err) {
			return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no waiver %q that holds", id), Hint: "list them with `bareyard waiver list`"}
		}
		if err != nil {
			return fmt.Errorf("withdraw waiver: %w", err)
		}
		return tell(ctx, tx, machineID, "waiver.withdraw", fmt.Sprintf("%s blocks again, by %s (%s)", check, who, id))
	})
}

// KeepKey remembers the public half of a key that this server signs reports with.
func (db *DB) KeepKey(ctx context.Context, key ed25519.PublicKey) error {
	return db.exec(ctx, "keep public key", `INSERT INTO report_key (id, public) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`, document.KeyID(key), []byte(key))
}

// ReportKeys lists the public halves of all keys that reports were signed with.
func (db *DB) ReportKeys(ctx context.Context) ([]ed25519.PublicKey, error) {
	rows, err := db.pool.Query(ctx, `SELECT public FROM report_key ORDER BY first, id`)
	if err != nil {
		return nil, fmt.Errorf("list public keys: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ed25519.PublicKey, error) {
		var raw []byte
		err := row.Scan(&raw)
		return raw, err
	})
	if err != nil {
		return nil, fmt.Errorf("list public keys: %w", err)
	}
	return list, nil
}

// Waivers lists a machine's waivers: those that hold now, or all that there ever were. Without a machine, of all machines.
func (db *DB) Waivers(ctx context.Context, machineID string, all bool) ([]provisioner.Waiver, error) {
	rows, err := db.pool.Query(ctx, `SELECT id, machine_id, check_id, card, who, why, made, until, withdrawn FROM waiver
		WHERE ($1 = '' OR machine_id = $1) AND ($2 OR withdrawn IS NULL AND until > now()) ORDER BY made, id`, machineID, all)
	if err != nil {
		return nil, fmt.Errorf("list waivers: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w provisioner.Waiver, err error) {
		var withdrawn *time.Time
		err = row.Scan(&w.ID, &w.MachineID, &w.Check, &w.Card, &w.Who, &w.Why, &w.Made, &w.Until, &withdrawn)
		w.Withdrawn = orZero(withdrawn)
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("list waivers: %w", err)
	}
	return list, nil
}
