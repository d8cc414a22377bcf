package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite the expected output in the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"bareyard": main})
}

// TestScripts runs the sessions of testdata/script, each in an empty folder.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup:               setupScript,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": expectCode,
			"hold": holdPort,
			"host": hostFiles,
			"sql":  runSQL,

			"redfish": simulateRedfish,

			"documented": documented,
		},
	})
}

// setupScript lets the account postgres through to the script's folder.
func setupScript(e *testscript.Env) error {
	for at := e.WorkDir; strings.HasPrefix(at, os.TempDir()+"/"); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o711); err != nil {
			return err
		}
	}
	e.Setenv("TMPDIR", os.TempDir())
	netns := fmt.Sprintf("%s-%d", filepath.Base(e.WorkDir), os.Getpid())
	e.Setenv("NETNS", netns) // for who makes it
	e.Defer(func() { _ = exec.Command("ip", "netns", "del", netns).Run() })
	return nil
}

// expectCode runs "code N command args...": the command must exit with just that code.
func expectCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command args...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (interface{ ExitCode() int })(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// holdPort takes a free TCP port until the script ends and puts its address into a variable: "hold ADDR".
func holdPort(ts *testscript.TestScript, neg bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

// hostFiles serves a folder by HTTP until the script ends and puts its address into a variable: "host DIR URL". It stands in for servers
// that are only read.
func hostFiles(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: host DIR VARIABLE")
	}
	server := httptest.NewServer(http.FileServer(http.Dir(ts.MkAbs(args[0]))))
	ts.Defer(server.Close)
	ts.Setenv(args[1], server.URL)
}

// runSQL runs "sql FILE" in the database of the server whose data folder is data: what no command can bring about, because a machine
// would have to boot.
func runSQL(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql FILE")
	}
	lines := strings.Split(ts.ReadFile("data/postgres/data/postmaster.pid"), "\n")
	if len(lines) < 5 {
		ts.Fatalf("no socket in postmaster.pid")
	}
	u := url.URL{Scheme: "postgres", Path: "/bareyard", RawQuery: url.Values{"host": {lines[4]}, "user": {"bareyard"}, "sslmode": {"disable"}}.Encode()}
	conn, err := pgx.Connect(context.Background(), u.String())
	ts.Check(err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), ts.ReadFile(args[0]))
	ts.Check(err)
}

// documented runs "documented PAGE command args...": what the command says must be what the page of docs shows below "$ command args...".
func documented(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: documented PAGE command args...")
	}
	page := filepath.Join("..", "..", "docs", args[0])
	ts.Check(ts.Exec(args[1], args[2:]...))
	said := ts.ReadFile("stdout")
	text, err := os.ReadFile(page)
	ts.Check(err)
	begin := "```\n$ " + strings.Join(args[1:], " ") + "\n"
	before, rest, found := strings.Cut(string(text), begin)
	shown, after, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		ts.Fatalf("%s shows no output of %q", page, args[1:])
	}
	if shown == said {
		return
	}
	if !*update {
		ts.Fatalf("%s shows\n%s\nand not (go test ./cmd/bareyard -update)\n%s", page, shown, said)
	}
	ts.Check(os.WriteFile(page, []byte(before+begin+said+"```\n"+after), 0o644))
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{errors.New("boom"), 1, "error: boom\n"},
		{&machine.Error{Code: machine.Invalid, Message: "bad", Hint: "mend it"}, 2, "error: bad\nhint: mend it\n"},
		{fmt.Errorf("get order: %w", &machine.Error{Code: machine.NotFound, Message: "no order o1"}), 3, "error: get order: no order o1\n"},
		{&machine.Error{Code: machine.Conflict, Message: "busy"}, 4, "error: busy\n"},
		{&machine.Error{Code: machine.Exhausted, Message: "sold out"}, 5, "error: sold out\n"},
		{&machine.Error{Code: machine.Unavailable, Message: "gone"}, 6, "error: gone\n"},
		{exitError(1), 1, ""},
		{fmt.Errorf("wait: %w", context.Canceled), 130, "error: wait: context canceled\n"},
	} {
		var stderr strings.Builder
		if code := report(&stderr, c.err); code != c.code || stderr.String() != c.text {
			t.Errorf("%v: code %d, text %q; want %d, %q", c.err, code, stderr.String(), c.code, c.text)
		}
	}
}

// TestInterrupted: the first signal asks the server to end, and it ends well.
func TestInterrupted(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "bareyard-serve-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bareyard.yaml")
	if err := os.WriteFile(file, []byte("data_dir: data\napi_listen: 127.0.0.1:58446\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGUSR1)
	defer stop()
	watch := &onText{text: "msg=ready", then: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGUSR1) }}
	if code := run(ctx, []string{"serve", "--config", file}, watch, watch, os.Getenv); code != 0 {
		t.Errorf("exit code %d\n%s", code, watch.seen)
	}
}

// onText calls then once when text has been written to it.
type onText struct {
	seen, text string
	then       func()
}

func (o *onText) Write(p []byte) (int, error) {
	had := strings.Contains(o.seen, o.text)
	o.seen += string(p)
	if !had && strings.Contains(o.seen, o.text) {
		o.then()
	}
	return len(p), nil
}
