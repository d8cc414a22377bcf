package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner/console"
)

// serialWire is a host that echoes what is typed, in capitals. Real serial ports are in lab.
type serialWire struct {
	out    chan ipmi.Output
	closed chan struct{}
	once   sync.Once
}

func (w *serialWire) Next(ctx context.Context) (ipmi.Output, error) {
	select {
	case out := <-w.out:
		return out, nil
	case <-ctx.Done():
		return ipmi.Output{}, ctx.Err()
	case <-w.closed:
		return ipmi.Output{}, io.EOF
	}
}

func (w *serialWire) Write(p []byte) (int, error) {
	select {
	case w.out <- ipmi.Output{Data: []byte(strings.ToUpper(string(p)))}:
	case <-w.closed:
	}
	return len(p), nil
}

func (w *serialWire) Break(context.Context) error { _, err := w.Write([]byte("break")); return err }
func (w *serialWire) Close() error                { w.once.Do(func() { close(w.closed) }); return nil }

// withConsole gives the office's machine a serial console that echoes in capitals.
func (o *office) withConsole() {
	o.t.Helper()
	hub := &console.Hub{Node: "here", Claims: o.db, Open: func(_ context.Context, _ string, takeOver bool) (console.Line, error) {
		return &serialWire{out: make(chan ipmi.Output, 16), closed: make(chan struct{})}, nil
	}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = hub.Run(ctx) }()
	o.t.Cleanup(func() { stop(); <-done })
	o.api.Desk.Consoles = hub
}

// dial opens a console, or returns the status and the text with which it was refused.
func (o *office) dial(path, token string) (*websocket.Conn, int, string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 10*time.Second)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, o.server.URL+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err == nil {
		o.t.Cleanup(func() { conn.CloseNow() })
		return conn, 0, ""
	}
	if res == nil {
		o.t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	return nil, res.StatusCode, string(text)
}

// hear reads messages until one of the kind comes ("" is bytes), and returns its text.
func (o *office) hear(conn *websocket.Conn, kind string) string {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	for {
		typ, data, err := conn.Read(ctx)
		if err != nil {
			o.t.Fatalf("waiting for %q: %v", kind, err)
		}
		var m api.ConsoleMessage
		if typ == websocket.MessageText {
			o.must(json.Unmarshal(data, &m))
			data = []byte(m.Text)
		}
		if m.Kind == kind {
			return string(data)
		}
	}
}

func (o *office) say(conn *websocket.Conn, keys string) {
	o.t.Helper()
	o.must(conn.Write(o.t.Context(), websocket.MessageBinary, []byte(keys)))
}

// activate makes the office's order active without an installation.
func (o *office) activate(active bool) {
	o.t.Helper()
	sql := []string{`UPDATE job SET state = 'succeeded', finished = now()`, `UPDATE machine SET state = 'active', job_id = ''`,
		`UPDATE orders SET state = 'active', started = now(), until = now() + interval '1 month'`}
	if !active {
		sql = []string{`UPDATE machine SET job_id = 'j-next'`}
	}
	for _, text := range sql {
		_, err := o.db.Conn.Exec(o.t.Context(), text)
		o.must(err)
	}
}

// TestConsoleAccess: operators see any machine at any time; a customer sees the one that he holds, while no job works on it; nobody
// else sees or learns anything.
func TestConsoleAccess(t *testing.T) {
	o := newOffice(t)
	o.withConsole()
	paths := []string{"/v1/machines/n1/console", "/v1/orders/" + o.order.ID + "/console"}
	refused := func(when, path, token string, status int) {
		t.Helper()
		if conn, got, text := o.dial(path, token); conn != nil || got != status {
			t.Errorf("%s: %s: %d %s, want %d", when, path, got, text, status)
		}
	}
	for _, path := range paths {
		refused("no token", path, "", http.StatusUnauthorized)
		refused("another project", path, o.other, http.StatusNotFound)
		refused("its customer, under a job", path, o.acme, http.StatusConflict)
		refused("a customer takes over", path+"?take_over=true", o.acme, http.StatusConflict)
	}
	refused("no such machine", "/v1/machines/n9/console", o.acme, http.StatusNotFound)
	boss, _, _ := o.dial(paths[0]+"?write=true&take_over=true", o.boss)
	if mode := o.hear(boss, "open"); mode != "read-write" {
		t.Errorf("the operator's is %s", mode)
	}

	o.activate(true)
	refused("another project", paths[0], o.other, http.StatusNotFound)
	refused("a customer takes over", paths[0]+"?take_over=true", o.acme, http.StatusForbidden)
	for _, path := range paths {
		looks, _, _ := o.dial(path, o.acme)
		if mode := o.hear(looks, "open"); mode != "read-only" {
			t.Errorf("without write it is %s", mode)
		}
		types, _, _ := o.dial(path+"?write=true", o.acme)
		o.hear(types, "open")
		o.say(looks, "not sent")
		if text := o.hear(looks, "notice"); !strings.Contains(text, "looking only") {
			t.Errorf("told: %s", text)
		}
		o.say(types, "hello")
		for _, conn := range []*websocket.Conn{looks, types, boss} {
			if text := o.hear(conn, ""); text != "HELLO" {
				t.Errorf("%s: sees %q", path, text)
			}
		}
	}
	o.must(boss.Write(t.Context(), websocket.MessageText, []byte(`{"kind":"break"}`)))
	o.must(boss.Write(t.Context(), websocket.MessageText, []byte(`{"kind":"of a newer client"}`)))
	if text := o.hear(boss, ""); text != "BREAK" {
		t.Errorf("a break shows %q", text)
	}
	_, events := o.call("GET", "/v1/events?order="+o.order.ID, o.acme, "")
	for _, want := range []string{"an operator opened the serial console of n1 to type on it", "the customer opened the serial console of n1 to look at it"} {
		if !strings.Contains(events, want) {
			t.Errorf("the events do not say: %s", want)
		}
	}

	// A job begins: the customer is cut off, the operator is not.
	mine, _, _ := o.dial(paths[1]+"?write=true", o.acme)
	o.hear(mine, "open")
	o.activate(false)
	if text := o.hear(mine, "end"); !strings.Contains(text, "not in your hands now") {
		t.Errorf("the customer is told: %s", text)
	}
	if _, _, err := mine.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after the end: %v", err)
	}
	o.say(boss, "still here")
	if text := o.hear(boss, ""); text != "STILL HERE" {
		t.Errorf("the operator sees %q", text)
	}
	refused("its customer, under a job", paths[1], o.acme, http.StatusConflict)
}

// TestConsoleCustomersMay: what the operator does not allow is not there.
func TestConsoleCustomersMay(t *testing.T) {
	o := newOffice(t)
	o.withConsole()
	o.activate(true)
	path := "/v1/orders/" + o.order.ID + "/console"
	for may, want := range map[api.CustomersMay][2]int{api.MayType: {0, 0}, api.MayLook: {0, 403}, api.MayNot: {403, 403}} {
		o.api.Desk.CustomersMay = may
		for i, query := range []string{"", "?write=true"} {
			if _, status, text := o.dial(path+query, o.acme); status != want[i] {
				t.Errorf("%s%s: %d %s, want %d", may, query, status, text, want[i])
			}
		}
	}
}

// TestConsoleOrigin: a page of another site cannot open a console in an operator's browser.
func TestConsoleOrigin(t *testing.T) {
	o := newOffice(t)
	o.withConsole()
	conn, res, err := websocket.Dial(t.Context(), o.server.URL+"/v1/machines/n1/console", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + o.boss}, "Origin": {"https://evil.example"}}})
	if err == nil {
		conn.CloseNow()
	}
	if err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("%v, %v", res, err)
	}
}

// TestConsoleRecord: what was recorded is for operators, bounded, and gone after its time.
func TestConsoleRecord(t *testing.T) {
	o := newOffice(t)
	ctx, job := t.Context(), o.order.JobID
	path := "/v1/jobs/" + job + "/console"
	if status, text := o.call("GET", path, o.boss, ""); status != http.StatusNotFound || !strings.Contains(text, "nothing was recorded") {
		t.Errorf("nothing there: %d %s", status, text)
	}
	if status, _ := o.call("GET", path, o.acme, ""); status != http.StatusForbidden {
		t.Errorf("a customer reads a record: %d", status)
	}
	const limit = 4096
	var all strings.Builder
	for i := range 40 {
		text := strings.Repeat(string(rune('a'+i%26)), 200)
		all.WriteString(text)
		o.must(o.db.AppendRecord(ctx, job, []console.Piece{{At: time.Now(), Data: []byte(text)}}, limit))
	}
	o.must(o.db.AppendRecord(ctx, job, []console.Piece{{At: time.Now(), Gap: "link lost"}, {At: time.Now(), Data: []byte("\x00\xff end")}}, limit))
	rec, err := o.db.ConsoleRecord(ctx, job)
	o.must(err)
	var kept string
	for _, p := range rec.Pieces {
		kept += string(p.Data)
		if p.Gap != "" {
			kept += "[" + p.Gap + "]"
		}
	}
	if len(kept) > limit || len(kept) < limit/2 || !rec.Cut || !strings.HasSuffix(all.String()+"[link lost]\x00\xff end", kept) {
		t.Errorf("kept %d bytes, cut: %v: %q", len(kept), rec.Cut, kept)
	}
	if n, err := o.db.PruneRecords(ctx, 0); n != 0 || err != nil {
		t.Errorf("the record of a running job is dropped: %d, %v", n, err)
	}
	o.activate(true)
	if n, err := o.db.PruneRecords(ctx, time.Hour); n != 0 || err != nil {
		t.Errorf("a young record is dropped: %d, %v", n, err)
	}
	if n, err := o.db.PruneRecords(ctx, 0); n != 1 || err != nil {
		t.Errorf("an old record is kept: %d, %v", n, err)
	}
}

// TestConsoleClaims: one server has a console, until it gives it back or falls silent.
func TestConsoleClaims(t *testing.T) {
	o := newOffice(t)
	id := o.order.MachineID
	claim := func(node string, life time.Duration) string {
		t.Helper()
		holder, err := o.db.ClaimConsole(t.Context(), id, node, life)
		o.must(err)
		return holder
	}
	if a, b, again := claim("a", time.Hour), claim("b", time.Hour), claim("a", time.Hour); a != "a" || b != "a" || again != "a" {
		t.Errorf("%s %s %s", a, b, again)
	}
	o.must(o.db.ReleaseConsole(t.Context(), id, "b")) // not his
	if got := claim("b", time.Hour); got != "a" {
		t.Errorf("b gave back what was a's: %s", got)
	}
	o.must(o.db.ReleaseConsole(t.Context(), id, "a"))
	if got := claim("b", -time.Second); got != "b" { // falls silent at once
		t.Errorf("%s", got)
	}
	if got := claim("a", time.Hour); got != "a" {
		t.Errorf("a dead server keeps the console: %s", got)
	}
	var me *machine.Error
	if _, err := o.db.ConsoleRecord(t.Context(), "j-none"); !errors.As(err, &me) || me.Code != machine.NotFound {
		t.Errorf("no such job: %v", err)
	}
}
