// Package postgrestest gives each test an empty database of its own in one real PostgreSQL cluster per test binary.
package postgrestest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bareyard/bareyard/postgres"
)

// Cluster is the cluster of a test binary.
type Cluster struct {
	url      string
	next     atomic.Int64
	one      sync.Mutex
	template sync.Once
	failure  error // of making the template
}

// Main starts a cluster, runs the tests of a package with it and exits; call it from TestMain.
func Main(m *testing.M, use *Cluster) {
	os.Exit(run(m, use))
}

func run(m *testing.M, use *Cluster) int {
	stop, err := use.start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

// Start starts a cluster that ends with the test, for packages whose tests cannot all have one.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{}
	stop, err := c.start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return c
}

func (c *Cluster) start() (stop func(), err error) {
	dir, err := os.MkdirTemp("", "by-pg-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	server, err := postgres.StartCluster(ctx, dir+"/pg", nil)
	if err != nil {
		return nil, err
	}
	c.url = server.URL()
	stop = func() {
		_ = server.Stop(context.Background()) // it dies with this process at the latest
		os.RemoveAll(dir)
	}
	// a test's database need not survive the box
	for _, sql := range []string{"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()"} {
		if err := c.exec(ctx, sql); err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// DB is a store of a test's own, with a connection for what only tests ask.
type DB struct {
	*postgres.DB
	URL  string
	Conn *pgxpool.Pool
}

// DB makes a migrated database with no rows and opens it; it is closed with the test.
func (c *Cluster) DB(t testing.TB) *DB {
	t.Helper()
	seal, err := postgres.NewSeal([]byte("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))
	if err != nil {
		t.Fatal(err)
	}
	url := c.URL(t)
	db, err := postgres.Open(context.Background(), url, seal, nil, postgres.Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return &DB{DB: db, URL: url, Conn: conn}
}

// URL makes a migrated database with no rows and returns its URL. The first call migrates a template; the others copy it.
func (c *Cluster) URL(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	c.template.Do(func() { c.failure = c.migrate(ctx) })
	if c.failure != nil {
		t.Fatal(c.failure)
	}
	name := fmt.Sprintf("t%d", c.next.Add(1))
	if err := c.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE blank STRATEGY wal_log"); err != nil {
		t.Fatal(err)
	}
	return c.named(name)
}

func (c *Cluster) migrate(ctx context.Context) error {
	if err := c.exec(ctx, "CREATE DATABASE blank"); err != nil {
		return err
	}
	seal, err := postgres.NewSeal([]byte(strings.Repeat("00", 32)))
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, c.named("blank"), seal, nil, postgres.Tuning{})
	if err != nil {
		return err
	}
	db.Close()
	return nil
}

func (c *Cluster) exec(ctx context.Context, sql string) error {
	c.one.Lock() // PostgreSQL copies a template for one client at a time
	defer c.one.Unlock()
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func (c *Cluster) named(database string) string {
	u, err := url.Parse(c.url)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + database
	return u.String()
}
