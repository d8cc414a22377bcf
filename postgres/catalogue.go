package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// Class implements provisioner.Shelf.
func (db *DB) Class(ctx context.Context, name string) (machine.Class, error) {
	return one[machine.Class](ctx, db.pool, "class", name, `SELECT name, description, accelerator, count, monthly_price, currency FROM class WHERE name = $1`)
}

// sellable selects the machines that an order can have now: one that is being examined gives way to it.
const sellable = `(m.state = 'available' OR m.state = 'accepting' AND EXISTS (SELECT 1 FROM job j WHERE j.id = m.job_id AND j.kind = 'examine' AND j.comes_from = 'available' AND j.state = 'running'))`

// Classes lists what is sold, and how many of each are available.
func (db *DB) Classes(ctx context.Context) ([]provisioner.ClassStock, error) {
	rows, err := db.pool.Query(ctx, `SELECT c.name, c.description, c.accelerator, c.count, c.monthly_price, c.currency,
		coalesce(sum(s.n), 0)::int, coalesce(jsonb_object_agg(s.site, s.n) FILTER (WHERE s.n IS NOT NULL), '{}')
		FROM class c LEFT JOIN (SELECT class, site, count(*) AS n FROM machine m WHERE `+sellable+` GROUP BY class, site) s ON s.class = c.name
		GROUP BY c.name ORDER BY c.name`)
	return collect[provisioner.ClassStock](rows, err, "list classes")
}

// PutClass inserts or replaces a class.
func (db *DB) PutClass(ctx context.Context, c machine.Class) error {
	return db.exec(ctx, "write class", `INSERT INTO class (name, description, accelerator, count, monthly_price, currency) VALUES ($1,$2,$3,$4,$5,$6)
		ON CONFLICT (name) DO UPDATE SET description=$2, accelerator=$3, count=$4, monthly_price=$5, currency=$6`,
		c.Name, c.Description, c.Accelerator, c.Count, c.MonthlyPrice, c.Currency)
}

const imageColumns = `name, digest, size, default_user, bios, uefi, driver, created, family, version, architecture, min_disk, drivers, visibility, projects`

// Image implements provisioner.Shelf.
func (db *DB) Image(ctx context.Context, name string) (machine.Image, error) {
	return one[machine.Image](ctx, db.pool, "image", name, `SELECT `+imageColumns+` FROM image WHERE name = $1`)
}

// ImageVersion implements provisioner.Shelf.
func (db *DB) ImageVersion(ctx context.Context, name, digest string) (machine.Image, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+imageColumns+` FROM image_version WHERE name = $1 AND digest = $2`, name, digest)
	list, err := collect[machine.Image](rows, err, "read version of image")
	if err != nil {
		return machine.Image{}, err
	}
	if len(list) == 0 { // it was there before versions were kept
		return db.Image(ctx, name)
	}
	return list[0], nil
}

// Images lists the catalogue.
func (db *DB) Images(ctx context.Context) ([]machine.Image, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+imageColumns+` FROM image ORDER BY name`)
	return collect[machine.Image](rows, err, "list images")
}

// PutImage inserts an image or gives a name new content. Orders and jobs keep the digest that they were placed with, and what was known of it.
func (db *DB) PutImage(ctx context.Context, i machine.Image) error {
	if err := i.Check(); err != nil {
		return err
	}
	return db.exec(ctx, "write image", `WITH put AS (INSERT INTO image (name, digest, size, default_user, bios, uefi, driver, family, version, architecture, min_disk, drivers, visibility, projects)
			VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)
			ON CONFLICT (name) DO UPDATE SET digest=$2, size=$3, default_user=$4, bios=$5, uefi=$6, driver=$7, created=now(),
				family=$8, version=$9, architecture=$10, min_disk=$11, drivers=$12, visibility=$13, projects=$14
			RETURNING `+imageColumns+`)
		INSERT INTO image_version (`+imageColumns+`) SELECT `+imageColumns+` FROM put
		ON CONFLICT (name, digest) DO UPDATE SET default_user=$4, driver=$7, family=$8, version=$9, architecture=$10, min_disk=$11, drivers=$12, visibility=$13, projects=$14`,
		i.Name, i.Digest, i.Size, i.DefaultUser, i.BIOS, i.UEFI, i.Driver,
		i.Family, i.Version, i.Architecture, i.MinDisk, append([]string{}, i.Drivers...), i.Visibility, append([]string{}, i.Projects...))
}

// DigestsInUse lists the digests of all images that the catalogue names or a running job writes.
func (db *DB) DigestsInUse(ctx context.Context) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT digest FROM image UNION SELECT image_digest FROM job WHERE state = 'running' AND image_digest <> ''
		UNION SELECT image_digest FROM orders WHERE state IN ('placed','provisioning')`)
	if err != nil {
		return nil, fmt.Errorf("list digests in use: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (db *DB) exec(ctx context.Context, what, sql string, args ...any) error {
	if _, err := db.pool.Exec(ctx, sql, args...); err != nil {
		return explain(what, err)
	}
	return nil
}

// explain turns a violated constraint into an error that a user can act on.
func explain(what string, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "23505", "23P01":
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("%s: already there (%s)", what, pg.ConstraintName), Hint: "choose another name or address"}
		case "23503":
			return &machine.Error{Code: machine.Invalid, Message: fmt.Sprintf("%s: refers to something that does not exist (%s)", what, pg.ConstraintName), Hint: "create that first"}
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

func one[T any](ctx context.Context, q querier, noun, name, sql string) (T, error) {
	rows, err := q.Query(ctx, sql, name)
	if err != nil {
		var zero T
		return zero, fmt.Errorf("read %s: %w", noun, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, byPosition[T])
	if errors.Is(err, pgx.ErrNoRows) {
		return v, notFound(noun, name)
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", noun, err)
	}
	return v, nil
}

func collect[T any](rows pgx.Rows, err error, what string) ([]T, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, byPosition[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

func byPosition[T any](row pgx.CollectableRow) (T, error) { return pgx.RowToStructByPos[T](row) }
