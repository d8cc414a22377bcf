package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// fakeQEMU answers each command by what answer returns: lines to send, with %s for the id of the command.
func fakeQEMU(t *testing.T, conn net.Conn, answer func(execute string, args json.RawMessage) []string) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		defer conn.Close()
		fmt.Fprintln(conn, `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}`)
		in := bufio.NewScanner(conn)
		for in.Scan() {
			var req struct {
				Execute   string
				Arguments json.RawMessage
				ID        string
			}
			if err := json.Unmarshal(in.Bytes(), &req); err != nil {
				return
			}
			if req.Execute == "qmp_capabilities" {
				fmt.Fprintf(conn, `{"return": {}, "id": %q}`+"\n", req.ID)
				continue
			}
			lines := answer(req.Execute, req.Arguments)
			if lines == nil {
				return
			}
			for _, l := range lines {
				fmt.Fprintln(conn, strings.ReplaceAll(l, "%s", req.ID))
			}
		}
	}()
}

func dialFake(t *testing.T, event func(string), answer func(string, json.RawMessage) []string) *qmp {
	t.Helper()
	ours, theirs := net.Pipe()
	fakeQEMU(t, theirs, answer)
	q, err := newQMP(t.Context(), ours, event)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.close)
	return q
}

func TestQMPCommand(t *testing.T) {
	var events []string
	q := dialFake(t, func(e string) { events = append(events, e) }, func(cmd string, args json.RawMessage) []string {
		switch cmd {
		case "query-status":
			return []string{
				`{"event": "RESET", "data": {"guest": true}, "timestamp": {"seconds": 1, "microseconds": 2}}`,
				`{"return": {"status": "stale"}, "id": "unknown"}`,
				`{"return": {"status": "running"}, "id": "%s"}`,
			}
		case "qom-set":
			if string(args) != `{"path":"/machine/peripheral/disk0","property":"bootindex","value":1}` {
				return []string{`{"error": {"class": "GenericError", "desc": "arguments ` + strings.ReplaceAll(string(args), `"`, `'`) + `"}, "id": "%s"}`}
			}
			return []string{`{"return": {}, "id": "%s"}`}
		}
		return []string{`{"error": {"class": "CommandNotFound", "desc": "The command ` + cmd + ` has not been found"}, "id": "%s"}`}
	})
	var status struct{ Status string }
	if err := q.do(t.Context(), "query-status", nil, &status); err != nil || status.Status != "running" {
		t.Errorf("query-status = %q, %v", status.Status, err)
	}
	if len(events) != 1 || events[0] != "RESET" { // the reader handed it over before the answer
		t.Errorf("events = %q", events)
	}
	if err := q.do(t.Context(), "qom-set", bootIndex("disk0", 1), nil); err != nil {
		t.Error(err)
	}
	err := q.do(t.Context(), "frobnicate", nil, nil)
	var refused *QMPError
	if !errors.As(err, &refused) || refused.Class != "CommandNotFound" {
		t.Errorf("unknown command: %v", err)
	}
}

func TestQMPPeerGone(t *testing.T) {
	q := dialFake(t, func(string) {}, func(string, json.RawMessage) []string { return nil })
	for range 2 { // once while the command waits, once after
		if err := q.do(t.Context(), "query-status", nil, nil); err == nil {
			t.Error("no error from an emulator that has gone")
		}
	}
}

func TestQMPDeadline(t *testing.T) {
	q := dialFake(t, func(string) {}, func(string, json.RawMessage) []string { return []string{} })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := q.do(ctx, "query-status", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if len(q.waiting) != 0 {
		t.Errorf("%d commands still waited for", len(q.waiting))
	}
}

func TestQMPNotQMP(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() { defer theirs.Close(); fmt.Fprintln(theirs, `{"hello": "world"}`) }()
	if _, err := newQMP(t.Context(), ours, func(string) {}); err == nil {
		t.Error("took any JSON for QMP")
	}
}

func TestQMPSilentPeer(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := newQMP(ctx, ours, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
}
