package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/api"
	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

const yardKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl test"

// patience bounds what a simulated machine and the server need for anything, on a busy box, through a crash.
const yardPatience = time.Minute

// built is the bareyard program, built once for all tests that want the real one; TestMain removes it.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func realServer(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "by-bin-"); built.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-trimpath", "-o", built.dir, "github.com/bareyard/bareyard/cmd/bareyard").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build bareyard: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "bareyard")
}

// crashFile tells the server of a yard when to kill itself; see crasher.arm.
const crashFile = "crash"

// yard is a lab of simulated machines around a real server, seen as an operator and a customer see it.
type yard struct {
	*Lab
	t      *testing.T
	client *apiclient.Client
}

// newYard starts a lab with the real server and tells it of the machines, the line yard, and the image tiny. change may spoil
// a record before it is enrolled.
func newYard(t *testing.T, suffix string, change func([]Record), machines ...MachineConfig) *yard {
	t.Helper()
	return newYardWith(t, suffix, nil, change, machines...)
}

// newYardWith is newYard with a server that is configured otherwise.
func newYardWith(t *testing.T, suffix string, with func(*ServerConfig), change func([]Record), machines ...MachineConfig) *yard {
	t.Helper()
	needRoot(t)
	binary := realServer(t)
	dir, err := os.MkdirTemp("", "by-yard-") // the database's user must get through, which t.TempDir forbids
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's last words:\n%s", tail(filepath.Join(dir, "serve.log"), 6000))
		}
		os.RemoveAll(dir)
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	discovery := false
	for i := range machines {
		machines[i].Simulated = true
		discovery = discovery || machines[i].Unknown
	}
	nothing := os.Args[0] // a simulated machine loads no kernel
	server := &ServerConfig{Binary: binary, Kernel: nothing, RAMDisk: nothing, Validator: nothing, Discovery: discovery, Restart: 10 * time.Millisecond,
		Env: []string{"BAREYARD_CRASH_FILE=" + filepath.Join(dir, crashFile)}}
	if with != nil {
		with(server)
	}
	cfg := Config{Name: testName(t, suffix), Dir: dir, Machines: machines, Server: server}
	l, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, cfg.Name, cfg.Dir)
	})
	y := &yard{Lab: l, t: t}
	if y.client, err = apiclient.New("unix://"+filepath.Join(dir, serverSocket), "", ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*yardPatience)
	defer cancel()
	if err := y.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	y.unsynced(ctx)
	records := y.Inventory()
	if change != nil {
		change(records)
	}
	for _, r := range records {
		k := machine.Class{Name: r.Machine.Class, MonthlyPrice: 10_000, Currency: "CNY", Count: len(r.Machine.Hardware.Accelerators)}
		if k.Count > 0 {
			k.Accelerator = "10de:2b85"
		}
		y.must(y.client.PutClass(ctx, k))
	}
	y.must(Stock(ctx, y.client, records, ""))
	// The rest of the telecom line's network: enough addresses that none is given out again.
	y.must(y.client.PutLine(ctx, "yard", api.NewLine{Site: "lab", MinBandwidth: 1, MaxBandwidth: 1000, CoolDown: "1h",
		Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25")}}))
	_, err = y.client.ImportImage(ctx, apiclient.Upload{Name: "tiny", DefaultUser: "debian"}, bytes.NewReader(tinyImage()))
	y.must(err)
	return y
}

// tinyImage is a disk that boots nothing and whose partition table is in order.
func tinyImage() []byte {
	d := make([]byte, 1<<20)
	copy(d, "\xeb\x63\x90")
	copy(d[446:], []byte{0, 0, 0, 0, 0xef, 0, 0, 0, 1, 0, 0, 0, 0, 4, 0, 0}) // an EFI system partition of 1024 sectors
	d[510], d[511] = 0x55, 0xaa
	copy(d[512:], "the system")
	return d
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

// insist asks until the server answers: it may have been killed before or after it did what it was asked.
func insist[T any](y *yard, ask func(context.Context) (T, error)) T {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.t.Context(), yardPatience)
	defer cancel()
	for {
		v, err := ask(ctx)
		if err == nil {
			return v
		}
		if code := machine.CodeOf(err); code != "" && code != machine.Unavailable || !pause(ctx, 50*time.Millisecond) {
			y.t.Fatalf("ask server: %v", err)
		}
	}
}

// place orders a machine; a repetition with the same key is the same order.
func (y *yard) place(key string) machine.Order {
	y.t.Helper()
	return insist(y, func(ctx context.Context) (machine.Order, error) { return y.client.Place(ctx, request(), key) })
}

func request() api.NewOrder {
	return api.NewOrder{Project: "p", Class: "lab", Image: "tiny", Line: "yard", Bandwidth: 100, SSHKeys: []string{yardKey}, Hostname: "host", Months: 1}
}

func (y *yard) order(id string) machine.Order {
	y.t.Helper()
	return insist(y, func(ctx context.Context) (machine.Order, error) { return y.client.Order(ctx, id) })
}

func (y *yard) machine(id string) machine.Machine {
	y.t.Helper()
	return insist(y, func(ctx context.Context) (machine.Machine, error) { return y.client.Machine(ctx, id) })
}

func (y *yard) events(order, machineID string) []provisioner.Event {
	y.t.Helper()
	return insist(y, func(ctx context.Context) ([]provisioner.Event, error) { return y.client.Events(ctx, order, machineID) })
}

// until waits until something is true.
func (y *yard) until(what string, patience time.Duration, is func() bool) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.t.Context(), patience)
	defer cancel()
	for !is() {
		if !pause(ctx, 50*time.Millisecond) {
			y.t.Fatalf("after %s, not yet: %s", patience, what)
		}
	}
}

// settled waits until an order is in a state and no job works on its machine.
func (y *yard) settled(id string, want machine.OrderState, state machine.State) machine.Order {
	y.t.Helper()
	var o machine.Order
	var m machine.Machine
	defer func() {
		if y.t.Failed() {
			y.t.Logf("order is %s (%s), machine %s is %s, job %q (%s)", o.State, o.Reason, m.Name, m.State, m.JobID, m.Reason)
			y.history(id)
		}
	}()
	y.until(fmt.Sprintf("order %s %s, its machine %s", id, want, state), yardPatience, func() bool {
		o = y.order(id)
		if o.MachineID == "" {
			return false
		}
		m = y.machine(o.MachineID)
		return o.State == want && m.State == state && m.JobID == ""
	})
	return o
}

// history shows what happened to an order.
func (y *yard) history(id string) {
	y.t.Helper()
	for _, e := range y.events(id, "") {
		y.t.Logf("%s %-18s %d %-10s %s", e.At.Format("05.000"), e.Kind, e.Attempt, e.Step, e.Text)
	}
}

// sql asks the server's own database for one number.
func (y *yard) sql(query string, args ...any) (n int) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.t.Context(), yardPatience)
	defer cancel()
	for {
		err := y.ask(ctx, &n, query, args...)
		if err == nil {
			return n
		}
		if !pause(ctx, 100*time.Millisecond) {
			y.t.Fatalf("ask database: %v", err)
		}
	}
}

func (y *yard) ask(ctx context.Context, n *int, query string, args ...any) error {
	conn, err := y.database(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, query, args...).Scan(n)
}

// database connects to the server's own PostgreSQL.
func (y *yard) database(ctx context.Context) (*pgx.Conn, error) {
	u, err := y.databaseAt()
	if err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, u)
}

// databaseURL is where the server's own PostgreSQL is.
func (y *yard) databaseURL() string {
	y.t.Helper()
	u, err := y.databaseAt()
	y.must(err)
	return u
}

// databaseAt reads its socket, which is in the fifth line of its pid file.
func (y *yard) databaseAt() (string, error) {
	pid, err := os.ReadFile(filepath.Join(y.cfg.Dir, "server", "postgres", "data", "postmaster.pid"))
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(pid), "\n")
	if len(lines) < 5 {
		return "", errors.New("no socket in postmaster.pid yet")
	}
	u := url.URL{Scheme: "postgres", Path: "/bareyard", RawQuery: url.Values{"host": {lines[4]}, "user": {"bareyard"}, "sslmode": {"disable"}}.Encode()}
	return u.String(), nil
}

// unsynced makes the database quick: it must survive its server here, not the box.
func (y *yard) unsynced(ctx context.Context) {
	y.t.Helper()
	conn, err := y.database(ctx)
	y.must(err)
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()"} {
		_, err := conn.Exec(ctx, sql)
		y.must(err)
	}
}
