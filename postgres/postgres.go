// Package postgres is the only store: all SQL, the migrations, and the queue in which transitions leave their actions.
package postgres

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/bareyard/bareyard/machine"
)

//go:embed migrations/*.sql
var migrations embed.FS

// DB is a connection pool to a migrated database. It answers the seams of provisioner, api and cmd.
type DB struct {
	pool  *pgxpool.Pool
	seal  *Seal
	queue *river.Client[pgx.Tx] // inserts actions; a worker client is made by Work
	log   *slog.Logger
	tuned Tuning
}

// Tuning holds what tests change; the zero value is right for production.
type Tuning struct {
	Conns       int32  // connections of the pool; zero means 24, or more if the URL says so
	AfterCommit func() // called after each committed transition: crash tests kill the process here
}

// Open connects, migrates under a lock that replicas share, and returns the store. Secrets are sealed with seal.
func Open(ctx context.Context, url string, seal *Seal, log *slog.Logger, tuned Tuning) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, &machine.Error{Code: machine.Invalid, Field: "database_url", Message: "database URL cannot be read", Hint: "use postgres://user@host/name?sslmode=…"}
	}
	cfg.MaxConns = cmp.Or(tuned.Conns, max(cfg.MaxConns, 24))
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}
	db := &DB{pool: pool, seal: seal, log: log, tuned: tuned}
	if err = db.migrate(ctx); err == nil {
		err = db.checkSeal(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	if db.queue, err = river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet(log)}); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open queue: %w", err)
	}
	return db, nil
}

// Close closes the pool.
func (db *DB) Close() { db.pool.Close() }

func (db *DB) migrate(ctx context.Context) error {
	sqlDB := stdlib.OpenDBFromPool(db.pool)
	defer sqlDB.Close()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, sqlDB, files, goose.WithSessionLocker(locker), goose.WithAllowOutofOrder(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	m, err := rivermigrate.New(riverpgxv5.New(db.pool), &rivermigrate.Config{Logger: quiet(db.log)})
	if err != nil {
		return fmt.Errorf("read queue migrations: %w", err)
	}
	return db.locked(ctx, "river-migrate", func() error {
		if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return fmt.Errorf("migrate queue: %w", err)
		}
		return nil
	})
}

// locked runs fn while it holds an advisory lock that all replicas share.
func (db *DB) locked(ctx context.Context, name string, fn func() error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("take lock %s: %w", name, err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext($1))`, name); err != nil {
		return fmt.Errorf("take lock %s: %w", name, err)
	}
	err = fn()
	if _, unlock := conn.Exec(ctx, `SELECT pg_advisory_unlock(hashtext($1))`, name); err == nil && unlock != nil {
		err = fmt.Errorf("release lock %s: %w", name, unlock)
	}
	return err
}

// quiet passes on only what River or goose have to complain about.
func quiet(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(levelAtLeast{log.Handler(), slog.LevelWarn})
}

type levelAtLeast struct {
	slog.Handler
	least slog.Level
}

func (l levelAtLeast) Enabled(ctx context.Context, at slog.Level) bool {
	return at >= l.least && l.Handler.Enabled(ctx, at)
}

// Setting returns a value that all replicas share; the first one to ask makes it.
func (db *DB) Setting(ctx context.Context, name string, make func() ([]byte, error)) ([]byte, error) {
	var value []byte
	err := db.locked(ctx, "setting-"+name, func() error {
		err := db.pool.QueryRow(ctx, `SELECT value FROM setting WHERE name = $1`, name).Scan(&value)
		if err == nil {
			value, err = db.seal.Open(value, "setting/"+name)
			return err
		}
		if err != pgx.ErrNoRows {
			return err
		}
		if value, err = make(); err != nil {
			return err
		}
		_, err = db.pool.Exec(ctx, `INSERT INTO setting (name, value) VALUES ($1, $2)`, name, db.seal.Close(value, "setting/"+name))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read setting %s: %w", name, err)
	}
	return value, nil
}
