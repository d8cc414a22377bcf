// Package postgrestest gives each test an empty database of its own in one real PostgreSQL cluster per test binary.
package postgrestest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/postgres"
)

// Cluster is the cluster of a test binary.
type Cluster struct {
	url  string
	next atomic.Int64
}

// Main starts a cluster, runs the tests of a package with it and exits; call it from TestMain.
func Main(m *testing.M, use *Cluster) {
	os.Exit(run(m, use))
}

func run(m *testing.M, use *Cluster) int {
	dir, err := os.MkdirTemp("", "by-pg-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c, err := postgres.StartCluster(ctx, dir+"/pg", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Stop(context.Background())
	use.url = c.URL()
	return m.Run()
}

// URL makes an empty database and returns its URL.
func (c *Cluster) URL(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	name := fmt.Sprintf("t%d", c.next.Add(1))
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// DB makes an empty database, migrates it and opens it; it is closed with the test.
func (c *Cluster) DB(t testing.TB) *postgres.DB {
	t.Helper()
	seal, err := postgres.NewSeal([]byte("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(context.Background(), c.URL(t), seal, nil, postgres.Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
