package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// clusterRole owns everything in a cluster and is its only role that may log in; clusterDB is the one database.
const (
	clusterRole = "bareyard"
	clusterDB   = "bareyard"
)

// Cluster is a private PostgreSQL: the distribution's binaries, run as an unprivileged child over a folder of our own. It listens on a
// unix socket only, in a folder that nobody but root and that unprivileged user can enter, and asks the kernel who is at the other end.
type Cluster struct {
	dir    string // ours: holds lock, hba.conf, ident.conf and the folder data, which alone belongs to the unprivileged user
	socket string // folder of the socket
	user   osUser
	bin    Binaries
	log    *slog.Logger

	lock *os.File      // flock for as long as we live: whoever has it owns the folder
	post *child        // the postmaster
	gone chan struct{} // closed once the postmaster has exited and the lock is free
	stop sync.Once
}

// StartCluster starts the cluster in dir and makes it first where there is none. It waits until the cluster answers, which after a power
// cut includes replaying the log; ctx bounds only that wait. A postmaster that an earlier, killed parent left in this folder is stopped
// first. Errors: Conflict when another living process runs this cluster, Unavailable when binaries or the unprivileged user are missing
// or PostgreSQL does not come up, Invalid when the unprivileged user cannot reach dir.
func StartCluster(ctx context.Context, dir string, log *slog.Logger) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", dir, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{dir: dir, log: log.With("part", "postgres"), gone: make(chan struct{})}
	if c.user, err = clusterUser(); err != nil {
		return nil, err
	}
	if c.lock, err = lockFolder(dir, c.user); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		if c.socket != "" {
			os.RemoveAll(c.socket)
		}
		c.lock.Close()
		return nil, err
	}
	go c.release()
	return c, nil
}

// start brings the postmaster up; the caller holds the lock.
func (c *Cluster) start(ctx context.Context) error {
	var err error
	if err := c.user.reaches(c.dir); err != nil {
		return err
	}
	if c.bin, err = binariesFor(c.data()); err != nil {
		return err
	}
	if err := c.stopOrphan(ctx); err != nil {
		return err
	}
	if err := c.initialise(ctx); err != nil {
		return err
	}
	if c.socket, err = socketFolder(c.dir, c.user); err != nil {
		return err
	}
	if err := c.writeAccess(); err != nil {
		return err
	}
	began := time.Now()
	// SIGINT is PostgreSQL's fast shutdown: should we be killed, the next start finds a cluster that needs no recovery.
	if c.post, err = startChild(c.postmaster(), syscall.SIGINT, c.log); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	if err := c.awaitReady(ctx); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, c.post.stop(ctx))
	}
	c.log.Info("postgres is up", "socket", c.socket, "version", c.bin.Major, "pid", c.post.pid(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// release lets go of the folder once the postmaster is gone.
func (c *Cluster) release() {
	<-c.post.done
	os.RemoveAll(c.socket)
	c.lock.Close()
	close(c.gone)
}

// URL returns the connection string of the database, good for this process's user until Stop.
func (c *Cluster) URL() string { return socketURL(c.socket, clusterDB) }

// Done is closed when the postmaster has exited, asked or not: nothing is served without it, so the server should then end too.
func (c *Cluster) Done() <-chan struct{} { return c.gone }

// Stop ends the cluster and waits until it is gone. Open connections are cut and the data is left in a state that needs no recovery;
// when ctx ends before that is done, the cluster is stopped at once and recovers at its next start. Stop may be called again.
func (c *Cluster) Stop(ctx context.Context) error {
	var err error
	c.stop.Do(func() { err = c.post.stop(ctx) })
	<-c.gone
	return err
}

// data is PostgreSQL's own folder.
func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// postmaster is the command line of the server. What an operator may tune stays in postgresql.conf; what must hold is said here.
func (c *Cluster) postmaster() *exec.Cmd {
	settings := []string{
		"listen_addresses=",
		"unix_socket_directories=" + c.socket,
		"unix_socket_permissions=0700",
		"hba_file=" + filepath.Join(c.dir, "hba.conf"),
		"ident_file=" + filepath.Join(c.dir, "ident.conf"),
		"timezone=UTC",
		"logging_collector=off",
		"log_destination=stderr",
		"log_line_prefix=",
		"log_timezone=UTC",
		"log_error_verbosity=terse",                 // a DETAIL shows whole rows
		"log_min_error_statement=panic",             // a statement may hold what no log should
		"log_parameter_max_length=0",                // likewise its parameters
		"log_min_duration_statement=-1",             // likewise
		"cluster_name=bareyard",                     // in ps
		"max_connections=200",                       // several pools and LISTEN connections of one server
		"idle_in_transaction_session_timeout=10min", // a stuck client must not hold row locks for ever
	}
	args := []string{"-D", c.data()}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	cmd := exec.Command(filepath.Join(c.bin.Folder, "postgres"), args...)
	cmd.SysProcAttr = c.user.attr()
	return cmd
}

// writeAccess says who may log in: we and the unprivileged user, as the kernel names them, as the one role.
func (c *Cluster) writeAccess() error {
	me, err := user.Current()
	if err != nil {
		return fmt.Errorf("look up our own user: %w", err)
	}
	files := map[string]string{
		"hba.conf":   "local all " + clusterRole + " peer map=bareyard\n",
		"ident.conf": fmt.Sprintf("bareyard %q %s\nbareyard %q %s\n", me.Username, clusterRole, c.user.name, clusterRole),
	}
	for name, text := range files {
		path := filepath.Join(c.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			return fmt.Errorf("write access rules: %w", err)
		}
		if err := os.Chown(path, -1, c.user.gid); err != nil {
			return fmt.Errorf("write access rules: %w", err)
		}
	}
	return nil
}

// awaitReady returns once the database answers, and makes it when it is not there yet.
func (c *Cluster) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.ensureDatabase(ctx)
		if err == nil {
			return nil
		}
		if !startingUp(err) {
			return fmt.Errorf("open database: %w", err)
		}
		select {
		case <-c.post.done:
			return &machine.Error{
				Code:    machine.Unavailable,
				Message: fmt.Sprintf("postgres gave up: %s", c.post.lastWords()),
				Hint:    fmt.Sprintf("the cluster is in %s; start with log_level debug to see all that postgres says", c.dir),
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for postgres: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// ensureDatabase connects and creates the database unless it is there.
func (c *Cluster) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, socketURL(c.socket, "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", clusterDB).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, "create database "+clusterDB)
	return err
}

// startingUp tells a server that is not ready yet from one that refuses us: no socket yet, or "the database system is starting up".
func startingUp(err error) bool {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return strings.HasPrefix(pg.Code, "57P")
	}
	var op *net.OpError
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &op)
}

// socketURL is a connection string for a database behind the socket in folder.
func socketURL(folder, db string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + db, RawQuery: url.Values{"host": {folder}, "user": {clusterRole}, "sslmode": {"disable"}}.Encode()}
	return u.String()
}
