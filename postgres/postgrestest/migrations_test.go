package postgrestest_test

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/postgres/postgrestest"
)

var cluster postgrestest.Cluster

func TestMain(m *testing.M) { postgrestest.Main(m, &cluster) }

// schema describes everything of the database that migrations make, one line each.
const schema = `SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE 'river%'
	UNION ALL SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text NOT LIKE 'river%'
	UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename NOT LIKE 'river%'
	UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text NOT LIKE 'river%'
	UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname NOT LIKE 'river%' AND prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c') ORDER BY 1`

func described(t *testing.T, db *sql.DB) (lines []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), schema)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

func provider(t *testing.T, files fstest.MapFS) (*goose.Provider, *sql.DB, string) {
	t.Helper()
	url := cluster.URL(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.ExecContext(t.Context(), `DROP SCHEMA public CASCADE; CREATE SCHEMA public; CREATE EXTENSION btree_gist`); err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithAllowOutofOrder(true))
	if err != nil {
		t.Fatal(err)
	}
	return p, db, url
}

func migrationFiles(t *testing.T) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	list, err := os.ReadDir("../migrations")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		text, err := os.ReadFile("../migrations/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = &fstest.MapFile{Data: text}
	}
	return files
}

// TestMigrationsDownAndUp takes a database back to nothing and up again, each migration down once more on the way: what a migration
// makes its way down takes away, and nothing else.
func TestMigrationsDownAndUp(t *testing.T) {
	p, db, _ := provider(t, migrationFiles(t))
	ctx := t.Context()
	if _, err := p.Up(ctx); err != nil {
		t.Fatal(err)
	}
	top := described(t, db)
	if _, err := p.DownTo(ctx, 0); err != nil {
		t.Fatal(err)
	}
	before := described(t, db)
	for range p.ListSources() {
		up, err := p.UpByOne(ctx)
		if err != nil {
			t.Fatal(err)
		}
		after := described(t, db)
		if _, err := p.Down(ctx); err != nil {
			t.Fatalf("%s down: %v", up.Source.Path, err)
		}
		if diff := cmp.Diff(before, described(t, db)); diff != "" {
			t.Errorf("%s, up and down, changes the schema (- before, + after):\n%s", up.Source.Path, diff)
		}
		if _, err := p.UpByOne(ctx); err != nil {
			t.Fatalf("%s up again: %v", up.Source.Path, err)
		}
		before = after
	}
	if diff := cmp.Diff(top, described(t, db)); diff != "" {
		t.Errorf("down and up makes another schema:\n%s", diff)
	}
}

// TestNetworkMigrationKeepsRows: addresses that were there before pools get one, held ones stay held, and all are still there after
// the way down.
func TestNetworkMigrationKeepsRows(t *testing.T) {
	p, db, _ := provider(t, migrationFiles(t))
	ctx := t.Context()
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(ctx, query); err != nil {
			t.Fatal(err)
		}
	}
	number := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := p.UpTo(ctx, 3); err != nil {
		t.Fatal(err)
	}
	exec(`INSERT INTO line (name, site, min_bandwidth, max_bandwidth, cool_down) VALUES ('bgp', 'sha1', 1, 1000, '1h')`)
	exec(`INSERT INTO class (name, description, accelerator, count, monthly_price, currency) VALUES ('c', '', '', 0, 1, 'CNY')`)
	exec(`INSERT INTO orders (id, project, digest, class, image, image_digest, line, bandwidth, ssh_keys, hostname, months, price, currency, state, placed, updated)
		VALUES ('o-1', 'p', 'd', 'c', 'i', 'd', 'bgp', 100, '{}', 'h', 1, 1, 'CNY', 'placed', now(), now())`)
	exec(`INSERT INTO address (addr, line, order_id) VALUES ('203.0.113.1', 'bgp', 'o-1'), ('203.0.113.2', 'bgp', NULL)`)
	exec(`INSERT INTO assignment (addr, order_id, during) VALUES ('203.0.113.1', 'o-1', tstzrange(now(), NULL))`)
	if _, err := p.Up(ctx); err != nil {
		t.Fatal(err)
	}
	if n := number(`SELECT count(*) FROM address WHERE pool = 'bgp-v4' AND proven AND state = 'stock'`); n != 2 {
		t.Errorf("%d of 2 addresses are in the pool", n)
	}
	if n := number(`SELECT count(*) FROM assignment WHERE project = 'p' AND upper_inf(during)`); n != 1 {
		t.Errorf("%d of 1 assignments know their project", n)
	}
	exec(`UPDATE address SET order_id = 'o-1' WHERE addr = '203.0.113.2'`)
	exec(`UPDATE orders SET address = '203.0.113.1'`)
	if n := number(`SELECT count(*) FROM netbox_address WHERE addr = '203.0.113.1' AND state = 'waiting'`); n != 1 {
		t.Error("NetBox is not told of what is held already")
	}
	if _, err := p.DownTo(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if n := number(`SELECT count(*) FROM address WHERE order_id = 'o-1' AND addr = '203.0.113.1'`) + number(`SELECT count(*) FROM address`); n != 3 {
		t.Error("after the way down the order does not hold its first address alone, or one is lost")
	}
}

// TestLowerMigrationComesLater: a version may bring a migration with a lower number than the newest that a database has.
func TestLowerMigrationComesLater(t *testing.T) {
	files := migrationFiles(t)
	delete(files, "00011_class_bios.sql")
	all, _, _ := provider(t, migrationFiles(t))
	if len(all.ListSources()) != len(files)+1 {
		t.Fatal("the migration that is left out has another name")
	}
	p, db, url := provider(t, files)
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	seal, err := postgres.NewSeal([]byte("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := postgres.Open(context.Background(), url, seal, nil, postgres.Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	opened.Close()
	if _, err := db.ExecContext(t.Context(), `SELECT updated FROM class_bios`); err != nil {
		t.Error(err)
	}
}
