package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// ClassBIOS implements provisioner.BIOSProfiles.
func (db *DB) ClassBIOS(ctx context.Context, class string) (machine.BIOSProfile, error) {
	return readProfile(ctx, db.pool, class)
}

func readProfile(ctx context.Context, q querier, class string) (machine.BIOSProfile, error) {
	var p machine.BIOSProfile
	err := q.QueryRow(ctx, `SELECT attributes, policy, updated FROM class_bios WHERE class = $1`, class).Scan(&p.Attributes, &p.Policy, &p.Updated)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return p, fmt.Errorf("read BIOS profile of class: %w", err)
	}
	return p.Clean() // numbers come as floats
}

// PutClassBIOS implements provisioner.BIOSProfiles.
func (db *DB) PutClassBIOS(ctx context.Context, class string, p machine.BIOSProfile) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('class_bios/' || $1, 0))`, class); err != nil {
			return fmt.Errorf("lock BIOS profile of class: %w", err)
		}
		was, err := readProfile(ctx, tx, class)
		if err != nil {
			return err
		}
		changes := profileChanges(was, p)
		if len(changes) == 0 {
			return nil
		}
		if len(p.Attributes) == 0 {
			_, err = tx.Exec(ctx, `DELETE FROM class_bios WHERE class = $1`, class)
		} else {
			_, err = tx.Exec(ctx, `INSERT INTO class_bios (class, attributes, policy) VALUES ($1, $2, $3)
				ON CONFLICT (class) DO UPDATE SET attributes = $2, policy = $3, updated = now()`, class, p.Attributes, p.Policy)
		}
		if err != nil {
			return explain("write BIOS profile of class", err)
		}
		return tell(ctx, tx, "", "class.bios", fmt.Sprintf("class %s: BIOS profile changed: %s", class, strings.Join(changes, "; ")))
	})
}

// profileChanges lists in words what differs between two profiles.
func profileChanges(was, is machine.BIOSProfile) []string {
	var out []string
	names := slices.AppendSeq(slices.Collect(maps.Keys(was.Attributes)), maps.Keys(is.Attributes))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		a, before := was.Attributes[name]
		b, after := is.Attributes[name]
		switch {
		case !after:
			out = append(out, fmt.Sprintf("%s %s taken off", name, ipmi.BIOSText(a)))
		case !before:
			out = append(out, fmt.Sprintf("%s %s", name, ipmi.BIOSText(b)))
		case a != b:
			out = append(out, fmt.Sprintf("%s %s → %s", name, ipmi.BIOSText(a), ipmi.BIOSText(b)))
		}
	}
	if was.Policy != is.Policy && len(is.Attributes) > 0 {
		out = append(out, fmt.Sprintf("policy %s", is.Policy))
	}
	return out
}
