package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// bmcPurpose binds a sealed password to its machine.
func bmcPurpose(machineID string) string { return "bmc/" + machineID }

// Secrets implements provisioner.Vault.
func (db *DB) Secrets(ctx context.Context, machineID string) (provisioner.Secrets, error) {
	return db.secrets(ctx, db.pool, machineID, "")
}

func (db *DB) secrets(ctx context.Context, q querier, machineID, lock string) (provisioner.Secrets, error) {
	var s provisioner.Secrets
	var current, next []byte
	var rotated *time.Time
	err := q.QueryRow(ctx, `SELECT m.bmc->>'username', m.bmc_secret, b.next_secret, b.rotated FROM machine m JOIN bmc b ON b.machine_id = m.id WHERE m.id = $1 `+lock, machineID).
		Scan(&s.Username, &current, &next, &rotated)
	if isNoRows(err) {
		return s, notFound("machine", machineID)
	}
	if err != nil {
		return s, fmt.Errorf("read sealed secret: %w", err)
	}
	s.Rotated = orZero(rotated)
	plain, err := db.seal.Open(current, bmcPurpose(machineID))
	if err != nil {
		return s, err
	}
	s.Current = string(plain)
	if next != nil {
		if plain, err = db.seal.Open(next, bmcPurpose(machineID)); err != nil {
			return s, err
		}
		s.Next = string(plain)
	}
	return s, nil
}

// onSecrets runs fn on a machine's passwords under a lock, and then counts as a transition for crash tests.
func (db *DB) onSecrets(ctx context.Context, machineID string, fn func(pgx.Tx, provisioner.Secrets) error) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		s, err := db.secrets(ctx, tx, machineID, "FOR UPDATE OF b")
		if err != nil {
			return err
		}
		return fn(tx, s)
	})
	if err == nil && db.tuned.AfterCommit != nil {
		db.tuned.AfterCommit()
	}
	return err
}

// Propose implements provisioner.Vault.
func (db *DB) Propose(ctx context.Context, machineID, password string) (string, error) {
	err := db.onSecrets(ctx, machineID, func(tx pgx.Tx, s provisioner.Secrets) error {
		if s.Next != "" {
			password = s.Next
			return nil
		}
		_, err := tx.Exec(ctx, `UPDATE bmc SET next_secret = $2 WHERE machine_id = $1`, machineID, db.seal.Close([]byte(password), bmcPurpose(machineID)))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("keep proposed password: %w", err)
	}
	return password, nil
}

// Promote implements provisioner.Vault.
func (db *DB) Promote(ctx context.Context, machineID, password string) error {
	err := db.onSecrets(ctx, machineID, func(tx pgx.Tx, s provisioner.Secrets) error {
		if s.Current == password && s.Next == "" {
			return nil // another server was quicker
		}
		if s.Next != password {
			return &machine.Error{Code: machine.Conflict, Message: "the BMC's password was changed by somebody else meanwhile", Hint: "look at `bareyard machine show`, then try again"}
		}
		if _, err := tx.Exec(ctx, `UPDATE machine m SET bmc_secret = b.next_secret FROM bmc b WHERE b.machine_id = m.id AND m.id = $1`, machineID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE bmc SET next_secret = NULL, rotated = now() WHERE machine_id = $1`, machineID); err != nil {
			return err
		}
		return tell(ctx, tx, machineID, "bmc.rotate", "the BMC has a new password, which was seen to work")
	})
	if err != nil {
		return fmt.Errorf("keep new password: %w", err)
	}
	return nil
}

// Withdraw implements provisioner.Vault.
func (db *DB) Withdraw(ctx context.Context, machineID, password string) error {
	err := db.onSecrets(ctx, machineID, func(tx pgx.Tx, s provisioner.Secrets) error {
		if s.Next != password {
			return nil
		}
		_, err := tx.Exec(ctx, `UPDATE bmc SET next_secret = NULL WHERE machine_id = $1`, machineID)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget proposed password: %w", err)
	}
	return nil
}

// Replace implements provisioner.Vault.
func (db *DB) Replace(ctx context.Context, machineID, username, password string) error {
	err := db.onSecrets(ctx, machineID, func(tx pgx.Tx, s provisioner.Secrets) error {
		_, err := tx.Exec(ctx, `UPDATE machine SET bmc_secret = $2, bmc = bmc || jsonb_build_object('username', $3::text), updated = now() WHERE id = $1`,
			machineID, db.seal.Close([]byte(password), bmcPurpose(machineID)), username)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE bmc SET next_secret = NULL WHERE machine_id = $1`, machineID); err != nil {
			return err
		}
		text := "an operator recorded another password of the BMC"
		if username != s.Username {
			text = "an operator recorded another user and password of the BMC"
		}
		return tell(ctx, tx, machineID, "bmc.credentials", text)
	})
	if err != nil {
		return fmt.Errorf("record BMC credentials: %w", err)
	}
	return nil
}

// Pin implements provisioner.Pins.
func (db *DB) Pin(ctx context.Context, machineID, pin, how, text string) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE machine SET bmc = bmc || jsonb_build_object('cert_pin', $2::text, 'pin_how', $3::text), updated = now() WHERE id = $1`, machineID, pin, how)
		if err != nil {
			return err
		}
		return tell(ctx, tx, machineID, "bmc.trust", text)
	})
	if err != nil {
		return fmt.Errorf("pin certificate: %w", err)
	}
	return nil
}

// tell appends an event about a machine alone.
func tell(ctx context.Context, tx pgx.Tx, machineID, kind, text string) error {
	_, err := tx.Exec(ctx, `INSERT INTO event (at, kind, machine_id, text) VALUES (now(), $2, $1, $3)`, machineID, kind, text)
	return err
}

const bmcColumns = `rotated, next_secret IS NOT NULL, knowledge, in_band, in_band_why, in_band_at, baseline, found, inventory, inventory_at, bios_until, compared, shut`

func scanBMC(row pgx.Row) (b provisioner.BMC, err error) {
	var rotated, inBand, inventory, bios, compared *time.Time
	err = row.Scan(&rotated, &b.Rotating, &b.Knowledge, &b.InBand.State, &b.InBand.Why, &inBand, &b.Baseline, &b.Found, &b.Inventory, &inventory, &bios, &compared, &b.Shut)
	b.Rotated, b.InBand.At, b.InventoryAt, b.BIOSUntil, b.Compared = orZero(rotated), orZero(inBand), orZero(inventory), orZero(bios), orZero(compared)
	return b, err
}

// BMC implements provisioner.BMCs.
func (db *DB) BMC(ctx context.Context, machineID string) (provisioner.BMC, error) {
	b, err := scanBMC(db.pool.QueryRow(ctx, `SELECT `+bmcColumns+` FROM bmc WHERE machine_id = $1`, machineID))
	if isNoRows(err) {
		return b, notFound("machine", machineID)
	}
	if err != nil {
		return b, fmt.Errorf("read BMC: %w", err)
	}
	return b, nil
}

// PutBMC implements provisioner.BMCs.
func (db *DB) PutBMC(ctx context.Context, machineID string, fn func(*provisioner.BMC) ([]provisioner.Event, error)) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		b, err := scanBMC(tx.QueryRow(ctx, `SELECT `+bmcColumns+` FROM bmc WHERE machine_id = $1 FOR UPDATE`, machineID))
		if isNoRows(err) {
			return notFound("machine", machineID)
		}
		if err != nil {
			return fmt.Errorf("read BMC: %w", err)
		}
		events, err := fn(&b)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE bmc SET in_band=$2, in_band_why=$3, in_band_at=$4, baseline=$5, found=$6, inventory=$7, inventory_at=$8, bios_until=$9, compared=$10, shut=$11 WHERE machine_id=$1`,
			machineID, b.InBand.State, b.InBand.Why, nilTime(b.InBand.At), b.Baseline, b.Found, b.Inventory, nilTime(b.InventoryAt), nilTime(b.BIOSUntil), nilTime(b.Compared), b.Shut)
		if err != nil {
			return fmt.Errorf("write BMC: %w", err)
		}
		for _, ev := range events {
			if err := tell(ctx, tx, machineID, ev.Kind, ev.Text); err != nil {
				return fmt.Errorf("write event: %w", err)
			}
		}
		return nil
	})
}

// Knowledge implements provisioner.BMCs.
func (db *DB) Knowledge(ctx context.Context, machineID string) (k ipmi.Knowledge, err error) {
	err = db.pool.QueryRow(ctx, `SELECT knowledge FROM bmc WHERE machine_id = $1`, machineID).Scan(&k)
	if isNoRows(err) {
		return k, notFound("machine", machineID)
	}
	if err != nil {
		return k, fmt.Errorf("read what is known of a BMC: %w", err)
	}
	return k, nil
}

// PutKnowledge implements provisioner.BMCs.
func (db *DB) PutKnowledge(ctx context.Context, machineID string, k ipmi.Knowledge, events ...provisioner.Event) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE bmc SET knowledge = $2 WHERE machine_id = $1`, machineID, k); err != nil {
			return fmt.Errorf("keep what is known of a BMC: %w", err)
		}
		for _, ev := range events {
			if err := tell(ctx, tx, machineID, ev.Kind, ev.Text); err != nil {
				return fmt.Errorf("write event: %w", err)
			}
		}
		return nil
	})
}
