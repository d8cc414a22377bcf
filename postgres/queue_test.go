package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/provisioner"
)

// TestQueue holds what must be true of actions when servers die, stop and find nobody at home.
func TestQueue(t *testing.T) {
	db := openDB(t)
	for name, test := range map[string]func(*testing.T, *DB){
		"a killed server takes up its own": killedServerTakesUpItsOwn,
		"a stopped server hands over":      stoppedServerHandsOver,
		"a fence is never given up":        fenceIsNeverGivenUp,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := db.pool.Exec(t.Context(), `TRUNCATE river_job, river_leader`); err != nil {
				t.Fatal(err)
			}
			test(t, db)
		})
	}
}

// acts records which actions were begun.
type acts struct {
	mu   sync.Mutex
	list []string
	came chan struct{}
}

func (a *acts) begin(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, name)
	a.came <- struct{}{}
}

func (a *acts) await(t *testing.T, n int) {
	t.Helper()
	late := time.After(20 * time.Second)
	for range n {
		select {
		case <-a.came:
		case <-late:
			t.Fatalf("only %v were begun", a.list)
		}
	}
}

// killedServerTakesUpItsOwn: what a server was at when it was killed is begun anew at its next start, not when a timeout
// is over, and what another server is at is left alone. The same for the queue's leadership, on which scheduled tries wait.
func killedServerTakesUpItsOwn(t *testing.T, db *DB) {
	for machine, by := range map[string][]string{"m-mine": {"other", "me"}, "m-theirs": {"me", "other"}} {
		_, err := db.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, state, attempt, max_attempts, attempted_at, attempted_by)
			VALUES (jsonb_build_object('action', jsonb_build_object('kind', 'fence', 'machine_id', $1::text)), 'action', 'running', 2, 20, now(), $2)`, machine, by)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.pool.Exec(t.Context(), `INSERT INTO river_leader (elected_at, expires_at, leader_id) VALUES (now(), now() + interval '1 hour', 'me')`); err != nil {
		t.Fatal(err)
	}
	a := &acts{came: make(chan struct{}, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- db.Work(ctx, "me", 4, func(_ context.Context, act provisioner.Action) error { a.begin(act.MachineID); return nil })
	}()
	a.await(t, 1)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.list, []string{"m-mine"}) {
		t.Errorf("begun: %v", a.list)
	}
	var theirs string
	if err := db.pool.QueryRow(t.Context(), `SELECT state FROM river_job WHERE args->'action'->>'machine_id' = 'm-theirs'`).Scan(&theirs); err != nil || theirs != "running" {
		t.Errorf("what another server is at is %s, %v", theirs, err)
	}
	var stale int
	if err := db.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_leader WHERE expires_at > now() + interval '30 minutes'`).Scan(&stale); err != nil || stale != 0 {
		t.Errorf("the leadership of the killed server is still held: %d, %v", stale, err)
	}
}

func enqueueFence(t *testing.T, db *DB) {
	t.Helper()
	tx, err := db.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.enqueue(t.Context(), tx, []provisioner.Action{{Kind: provisioner.ActFence, MachineID: "m"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// stoppedServerHandsOver: an action that a stopping server cuts short waits for nobody's timeout.
func stoppedServerHandsOver(t *testing.T, db *DB) {
	enqueueFence(t, db)
	a := &acts{came: make(chan struct{}, 10)}
	run := func(node string, act func(context.Context, provisioner.Action) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- db.Work(ctx, node, 4, act) }()
		a.await(t, 1)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	run("first", func(ctx context.Context, _ provisioner.Action) error {
		a.begin("first")
		<-ctx.Done()
		return ctx.Err()
	})
	began := time.Now()
	run("second", func(context.Context, provisioner.Action) error { a.begin("second"); return nil })
	if took := time.Since(began); took > 4*time.Second { // River's own retry would come after 5 s
		t.Errorf("taken up after %s", took)
	}
	var state string
	if err := db.pool.QueryRow(t.Context(), `SELECT state FROM river_job`).Scan(&state); err != nil || state != "completed" {
		t.Errorf("the action is %s, %v", state, err)
	}
}

// fenceIsNeverGivenUp: a BMC may be out of reach for longer than any number of tries that somebody would think of.
func fenceIsNeverGivenUp(t *testing.T, db *DB) {
	enqueueFence(t, db)
	if _, err := db.pool.Exec(t.Context(), `UPDATE river_job SET attempt = 1000`); err != nil {
		t.Fatal(err)
	}
	a := &acts{came: make(chan struct{}, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- db.Work(ctx, "me", 4, func(_ context.Context, act provisioner.Action) error {
			a.begin(act.MachineID)
			return errors.New("no answer")
		})
	}()
	a.await(t, 1)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var state string
	if err := db.pool.QueryRow(t.Context(), `SELECT state FROM river_job`).Scan(&state); err != nil || state == "discarded" {
		t.Errorf("the fence is %s, %v", state, err)
	}
}

// openDB opens a database of its own, in a cluster of its own.
func openDB(t *testing.T) *DB {
	t.Helper()
	seal, err := NewSeal([]byte(strings.Repeat("00", 32)))
	if err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), startCluster(t, clusterDir(t)).URL(), seal, nil, Tuning{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
