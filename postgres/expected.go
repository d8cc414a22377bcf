package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

func expectedPurpose(name string) string { return "expected/" + name }

// Expect implements provisioner.EnrolmentList.
func (db *DB) Expect(ctx context.Context, list []provisioner.Expectation) (provisioner.ExpectResult, error) {
	var done provisioner.ExpectResult
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		done = provisioner.ExpectResult{} // should the transaction begin anew
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('discovery'))`); err != nil {
			return fmt.Errorf("lock enrolment list: %w", err)
		}
		var wrong provisioner.LineErrors
		for _, x := range list {
			if err := db.expect(ctx, tx, x, &done, &wrong); err != nil {
				return err
			}
		}
		if err := wrong.Err(); err != nil {
			return err
		}
		return db.callFound(ctx, tx, &done)
	})
	if err != nil {
		return provisioner.ExpectResult{}, err
	}
	return done, nil
}

// expect writes one entry, or says what is in its way.
func (db *DB) expect(ctx context.Context, tx pgx.Tx, x provisioner.Expectation, done *provisioner.ExpectResult, wrong *provisioner.LineErrors) error {
	serial := machine.SerialKey(x.Serial)
	var name string
	var mine bool
	err := tx.QueryRow(ctx, `SELECT m.name, (NULLIF($2,'') IS NULL OR EXISTS (SELECT 1 FROM machine_mac c WHERE c.machine_id = m.id AND c.mac = NULLIF($2,'')::macaddr))
			AND ($2 <> '' OR lower(m.hardware->>'serial') = $3)
		FROM machine m WHERE m.name = $1 OR m.boot_addr = NULLIF($4,'')::inet OR m.id IN (SELECT machine_id FROM machine_mac WHERE mac = NULLIF($2,'')::macaddr)
		ORDER BY m.name <> $1 LIMIT 1`, x.Name, x.MAC, serial, x.BootAddr).Scan(&name, &mine)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return fmt.Errorf("look for machine %s: %w", x.Name, err)
	case name == x.Name && mine:
		done.Enrolled++
		return nil
	case name == x.Name:
		wrong.Add(x.Line, "name", fmt.Errorf("machine %s is there already, with other ports or another serial number", name))
		return nil
	default:
		wrong.Add(x.Line, "mac", fmt.Errorf("its port or its boot_addr is that of machine %s", name))
		return nil
	}
	var other string
	err = tx.QueryRow(ctx, `SELECT name FROM expected WHERE name <> $1 AND (mac = NULLIF($2,'')::macaddr OR serial = NULLIF($3,'') OR entry->>'boot_addr' = NULLIF($4,'')) LIMIT 1`,
		x.Name, x.MAC, serial, x.BootAddr).Scan(&other)
	if err == nil {
		wrong.Add(x.Line, "mac", fmt.Errorf("its MAC address, serial number or boot_addr is that of %s, which is on the list already", other))
		return nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("look for entry %s: %w", x.Name, err)
	}
	return db.putExpected(ctx, tx, x, serial, done)
}

func (db *DB) putExpected(ctx context.Context, tx pgx.Tx, x provisioner.Expectation, serial string, done *provisioner.ExpectResult) error {
	x.Created = time.Time{}
	var was machine.Expected
	var sealed []byte
	err := tx.QueryRow(ctx, `SELECT entry, secret FROM expected WHERE name = $1`, x.Name).Scan(&was, &sealed)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read entry %s: %w", x.Name, err)
	}
	if err == nil {
		if plain, err := db.seal.Open(sealed, expectedPurpose(x.Name)); err == nil && was == x.Expected && string(plain) == x.Password {
			done.Same++
			return nil
		}
		done.Changed++
	} else {
		done.Added++
	}
	_, err = tx.Exec(ctx, `INSERT INTO expected (name, mac, serial, entry, secret) VALUES ($1, NULLIF($2,'')::macaddr, NULLIF($3,''), $4, $5)
		ON CONFLICT (name) DO UPDATE SET mac = NULLIF($2,'')::macaddr, serial = NULLIF($3,''), entry = $4, secret = $5`,
		x.Name, x.MAC, serial, x.Expected, db.seal.Close([]byte(x.Password), expectedPurpose(x.Name)))
	if err != nil {
		return explain(fmt.Sprintf("write line %d", x.Line), err)
	}
	return nil
}

// callFound has those enrolled that wait in the inbox and are named now.
func (db *DB) callFound(ctx context.Context, tx pgx.Tx, done *provisioner.ExpectResult) error {
	rows, err := tx.Query(ctx, `SELECT d.id FROM discovery d WHERE d.state = 'discovered' AND EXISTS (SELECT 1 FROM expected x
		WHERE x.mac IN (SELECT s.mac FROM sighted_mac s WHERE s.discovery_id = d.id) OR x.serial = lower(d.inventory->'hardware'->>'serial'))`)
	if err != nil {
		return fmt.Errorf("look into inbox: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look into inbox: %w", err)
	}
	done.Found = len(ids)
	var actions []provisioner.Action
	for _, id := range ids {
		actions = append(actions, provisioner.Action{Kind: provisioner.ActEnrol, MachineID: id, Turn: 1})
	}
	return db.enqueue(ctx, tx, actions, time.Now())
}

// Expected implements provisioner.EnrolmentList.
func (db *DB) Expected(ctx context.Context) ([]machine.Expected, error) {
	rows, err := db.pool.Query(ctx, `SELECT entry, created FROM expected ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("list enrolment list: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (machine.Expected, error) {
		var x machine.Expected
		var created time.Time
		err := row.Scan(&x, &created)
		x.Created = created
		return x, err
	})
}

// Unexpect implements provisioner.EnrolmentList.
func (db *DB) Unexpect(ctx context.Context, name string) error {
	tag, err := db.pool.Exec(ctx, `DELETE FROM expected WHERE name = $1`, name)
	if err != nil {
		return fmt.Errorf("take off enrolment list: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("the enrolment list has no %q", name), Hint: "see it with `bareyard machine expected`"}
	}
	return nil
}

// Matching implements provisioner.EnrolmentList.
func (db *DB) Matching(ctx context.Context, macs []string, serial string) ([]provisioner.Expectation, error) {
	rows, err := db.pool.Query(ctx, `SELECT entry, secret FROM expected WHERE mac = ANY ($1::macaddr[]) OR serial = NULLIF($2,'') ORDER BY name`, append([]string{}, macs...), serial)
	if err != nil {
		return nil, fmt.Errorf("look into enrolment list: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (provisioner.Expectation, error) {
		var x provisioner.Expectation
		var sealed []byte
		if err := row.Scan(&x.Expected, &sealed); err != nil {
			return x, err
		}
		plain, err := db.seal.Open(sealed, expectedPurpose(x.Name))
		x.Password = string(plain)
		return x, err
	})
}

// ClassFacts returns what the machines of each class have beside their cards.
func (db *DB) ClassFacts(ctx context.Context) (map[string]machine.ClassFacts, error) {
	rows, err := db.pool.Query(ctx, `SELECT class, memory, disks, disk_size FROM class_facts`)
	list, err := collect[machine.ClassFacts](rows, err, "list facts of classes")
	facts := map[string]machine.ClassFacts{}
	for _, f := range list {
		facts[f.Class] = f
	}
	return facts, err
}

// PutClassFacts replaces them.
func (db *DB) PutClassFacts(ctx context.Context, f machine.ClassFacts) error {
	return db.exec(ctx, "write facts of class", `INSERT INTO class_facts (class, memory, disks, disk_size) VALUES ($1,$2,$3,$4)
		ON CONFLICT (class) DO UPDATE SET memory=$2, disks=$3, disk_size=$4`, f.Class, f.Memory, f.Disks, f.DiskSize)
}

// AtHello implements provisioner.Boots.
func (db *DB) AtHello(ctx context.Context, longer time.Duration) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT machine_id FROM job WHERE state = 'running' AND step = 'hello' AND step_at < now() - $1::interval ORDER BY step_at LIMIT 200`, longer)
	if err != nil {
		return nil, fmt.Errorf("list waiting jobs: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
