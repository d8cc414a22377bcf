package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// clusterDir is a folder for a cluster that the account postgres can reach: t.TempDir is closed to it when we are root.
func clusterDir(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "bareyard-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(base)
		os.RemoveAll(socketPath(filepath.Join(base, "postgres")))
	})
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "postgres")
}

func startCluster(t *testing.T, dir string) *Cluster {
	t.Helper()
	c, err := StartCluster(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopCluster(t, c) })
	return c
}

func stopCluster(t *testing.T, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var got string
	if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// within polls until ok, and fails the test when that takes longer than limit.
func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func wantCode(t *testing.T, err error, code machine.Code, hint string) {
	t.Helper()
	var e *machine.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Hint, hint) {
		t.Fatalf("got %#v, want code %q and a hint with %q", err, code, hint)
	}
}

func TestClusterLife(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := clusterDir(t)
	began := time.Now()
	c, err := StartCluster(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first start %s", time.Since(began).Round(time.Millisecond))

	exec1(t, c.URL(), "create table kept (v text); insert into kept values ('still here')")
	for sql, want := range map[string]string{
		"show listen_addresses":           "",
		"show data_checksums":             "on",
		"show timezone":                   "UTC",
		"show fsync":                      "on",
		"select current_database()::text": "bareyard",
		"select pg_encoding_to_char(encoding) from pg_database where datname = current_database()": "UTF8",
	} {
		if got := query(t, c.URL(), sql); got != want {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}
	if os.Geteuid() == 0 {
		var st syscall.Stat_t
		if err := syscall.Stat(fmt.Sprintf("/proc/%d", c.post.pid()), &st); err != nil || st.Uid == 0 {
			t.Errorf("postgres runs as uid %d (%v)", st.Uid, err)
		}
	}

	_, err = StartCluster(t.Context(), dir, nil)
	wantCode(t, err, machine.Conflict, "data_dir")
	if !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the error does not say who holds it: %v", err)
	}

	stopCluster(t, c)
	stopCluster(t, c) // again is harmless
	if left, _ := livingIn(c.data()); len(left) > 0 {
		t.Errorf("processes left after Stop: %v", left)
	}
	if _, err := os.Stat(c.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of the socket left after Stop: %v", err)
	}

	began = time.Now()
	c, err = StartCluster(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("second start %s", time.Since(began).Round(time.Millisecond))
	if got := query(t, c.URL(), "select v from kept"); got != "still here" {
		t.Errorf("got %q", got)
	}
	stopCluster(t, c)
}

// TestClusterParent is not a test: it is the server that TestClusterParentKilled kills.
func TestClusterParent(t *testing.T) {
	dir := os.Getenv("BAREYARD_TEST_CLUSTER_PARENT")
	if dir == "" {
		return
	}
	c, err := StartCluster(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, c.URL(), "create table if not exists kept (v text); insert into kept values ('from the killed')")
	fmt.Println("READY")
	<-c.Done()
}

// TestClusterParentKilled kills the server with SIGKILL while a transaction is open and starts another at once.
func TestClusterParentKilled(t *testing.T) {
	dir := clusterDir(t)
	parent := exec.Command(os.Args[0], "-test.run=^TestClusterParent$")
	parent.Env = append(os.Environ(), "BAREYARD_TEST_CLUSTER_PARENT="+dir)
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = lines.Text() == "READY"
	}
	if !ready {
		t.Fatal("the parent did not get ready")
	}
	data := filepath.Join(dir, "data")
	if pids, err := livingIn(data); err != nil || len(pids) < 2 {
		t.Fatalf("expected a postmaster and its children, got %v, %v", pids, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()

	c := startCluster(t, dir)
	if got := query(t, c.URL(), "select string_agg(v, ',') from kept"); got != "from the killed" {
		t.Errorf("got %q", got)
	}
}

// TestClusterDiesWithParent proves that nobody has to come back to clean up.
func TestClusterDiesWithParent(t *testing.T) {
	dir := clusterDir(t)
	parent := exec.Command(os.Args[0], "-test.run=^TestClusterParent$")
	parent.Env = append(os.Environ(), "BAREYARD_TEST_CLUSTER_PARENT="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "READY"; {
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	within(t, 30*time.Second, "postgres follows its parent", func() bool {
		pids, err := livingIn(filepath.Join(dir, "data"))
		return err == nil && len(pids) == 0
	})
}

// TestClusterOrphan finds a whole postmaster alive in its folder, with nobody holding the lock.
func TestClusterOrphan(t *testing.T) {
	dir := clusterDir(t)
	u, err := clusterUser()
	if err != nil {
		t.Fatal(err)
	}
	orphan := &Cluster{dir: dir, user: u, log: slog.New(slog.DiscardHandler)}
	if orphan.lock, err = lockFolder(dir, u); err != nil {
		t.Fatal(err)
	}
	if err := orphan.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec1(t, orphan.URL(), "create table kept (v text); insert into kept values ('orphan')")
	orphan.lock.Close()

	c := startCluster(t, dir)
	select {
	case <-orphan.post.done:
	default:
		t.Error("the orphan still runs")
	}
	if got := query(t, c.URL(), "select v from kept"); got != "orphan" {
		t.Errorf("got %q", got)
	}
}

// TestClusterStalePid: after a reboot the number in postmaster.pid belongs to another process of the same user. PostgreSQL alone would
// refuse to start; that process is none of our business.
func TestClusterStalePid(t *testing.T) {
	dir := clusterDir(t)
	first, err := StartCluster(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	stopCluster(t, first)

	other := exec.Command("sleep", "600")
	other.SysProcAttr = first.user.attr()
	other.Dir = "/"
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	pidFile := filepath.Join(first.data(), "postmaster.pid")
	text := fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n  5432001    163840\nready   \n", other.Process.Pid, first.data(), first.socket)
	if err := os.WriteFile(pidFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(pidFile, first.user.uid, first.user.gid); err != nil {
		t.Fatal(err)
	}

	startCluster(t, dir)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that was not ours was ended: %v", err)
	}
}

// TestClusterPostmasterKilled: the kernel's OOM killer takes the postmaster. The server hears of it, and the next start recovers.
func TestClusterPostmasterKilled(t *testing.T) {
	dir := clusterDir(t)
	c, err := StartCluster(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, c.URL(), "create table kept (v text); insert into kept values ('recovered')")
	if err := syscall.Kill(c.post.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("Done is not closed")
	}
	again := startCluster(t, dir)
	if got := query(t, again.URL(), "select v from kept"); got != "recovered" {
		t.Errorf("got %q", got)
	}
}

// TestClusterRefusesOthers opens the socket's folder by mistake: the kernel still tells postgres who is calling.
func TestClusterRefusesOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run this test as root: it becomes nobody")
	}
	bin, err := FindBinaries()
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, clusterDir(t))
	asNobody := func() string {
		psql := exec.Command(filepath.Join(bin.Folder, "psql"), "-w", c.URL(), "-c", "select 1")
		psql.Dir = "/"
		psql.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := psql.CombinedOutput()
		if err == nil {
			t.Errorf("nobody got in: %s", out)
		}
		return string(out)
	}
	if got := asNobody(); !strings.Contains(got, "Permission denied") {
		t.Errorf("got %q, want the folder to be closed", got)
	}
	if err := errors.Join(os.Chmod(c.socket, 0o755), os.Chmod(filepath.Join(c.socket, ".s.PGSQL.5432"), 0o777)); err != nil {
		t.Fatal(err)
	}
	if got := asNobody(); !strings.Contains(got, "eer authentication failed") {
		t.Errorf("got %q, want peer authentication to fail", got)
	}
}

func TestClusterHalfMade(t *testing.T) {
	dir := clusterDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o755); err != nil {
		t.Fatal(err)
	}
	startCluster(t, dir) // an initdb that was killed
}

func TestClusterRefusals(t *testing.T) {
	t.Run("foreign folder", func(t *testing.T) {
		dir := clusterDir(t)
		precious := filepath.Join(dir, "data", "precious")
		if err := os.MkdirAll(precious, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := StartCluster(t.Context(), dir, nil)
		wantCode(t, err, machine.Conflict, "nothing was touched")
		if _, err := os.Stat(precious); err != nil {
			t.Error(err)
		}
	})
	t.Run("newer data", func(t *testing.T) {
		dir := clusterDir(t)
		if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("99\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := StartCluster(t.Context(), dir, nil)
		wantCode(t, err, machine.Unavailable, "apt-get install postgresql-99")
	})
	t.Run("closed parent", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Fatal("run this test as root: only root changes the account")
		}
		dir := clusterDir(t)
		if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := StartCluster(t.Context(), dir, nil)
		wantCode(t, err, machine.Invalid, "chmod o+x "+filepath.Dir(dir))
	})
	t.Run("broken settings", func(t *testing.T) {
		dir := clusterDir(t)
		c, err := StartCluster(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		stopCluster(t, c)
		conf := filepath.Join(c.data(), "postgresql.conf")
		if err := os.WriteFile(conf, []byte("shared_buffers = plenty\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = StartCluster(t.Context(), dir, nil)
		wantCode(t, err, machine.Unavailable, dir)
		if !strings.Contains(err.Error(), "shared_buffers") {
			t.Errorf("the error does not say what postgres said: %v", err)
		}
		if _, err := os.Stat(c.socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder of the socket left after a failed start: %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		dir := clusterDir(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := StartCluster(ctx, dir, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if left, _ := livingIn(filepath.Join(dir, "data")); len(left) > 0 {
			t.Errorf("processes left: %v", left)
		}
		startCluster(t, dir) // nothing stands in the way of the next
	})
}

func TestLogLines(t *testing.T) {
	var buf strings.Builder
	l := &logLines{log: slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))}
	for _, piece := range []string{"LOG:  database sys", "tem is ready\nFATAL:  no disk\nLOG:  ", "bye\n", "no newline yet"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	want := `level=DEBUG msg="database system is ready" severity=LOG
level=INFO msg="no disk" severity=FATAL
level=DEBUG msg=bye severity=LOG
`
	if buf.String() != want {
		t.Errorf("got\n%swant\n%s", buf.String(), want)
	}
	if got := l.last(); got != "LOG:  database system is ready; FATAL:  no disk" {
		t.Errorf("last words %q", got)
	}
}
