package lab

import (
	"context"
	"strings"
	"testing"
	"time"

	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// watching is a console that a test looks at.
type watching struct {
	y    *yard
	conn *apiclient.Console
	seen strings.Builder // bytes of the host
	said strings.Builder // messages of the server
}

// console opens a machine's console, until the server and the BMC let it.
func (y *yard) console(name string, o apiclient.ConsoleOptions) *watching {
	y.t.Helper()
	conn := insist(y, func(ctx context.Context) (*apiclient.Console, error) { return y.client.MachineConsole(ctx, name, o) })
	y.t.Cleanup(conn.Close)
	return &watching{y: y, conn: conn}
}

// until reads until the host has said text.
func (w *watching) until(text string) {
	w.y.t.Helper()
	ctx, cancel := context.WithTimeout(w.y.t.Context(), yardPatience)
	defer cancel()
	for !strings.Contains(w.seen.String(), text) {
		data, m, err := w.conn.Next(ctx)
		if err != nil {
			w.y.t.Fatalf("waiting for %q: %v\nseen: %q\nsaid: %q", text, err, w.seen.String(), w.said.String())
		}
		w.seen.Write(data)
		if m != nil {
			w.said.WriteString(m.Kind + ": " + m.Text + "\n")
		}
	}
}

// transcript is what is kept of a job's console so far.
func (y *yard) transcript(j machine.Job) string {
	y.t.Helper()
	return insist(y, func(ctx context.Context) (text string, err error) {
		rec, err := y.client.JobConsole(ctx, j.ID)
		for _, p := range rec.Pieces {
			text += string(p.Data) + p.Gap
		}
		if machine.CodeOf(err) == machine.NotFound {
			err = nil
		}
		return text, err
	})
}

// recorded waits until a job's record holds text.
func (y *yard) recorded(j machine.Job, text string) {
	y.t.Helper()
	y.until("on record: "+text, yardPatience, func() bool { return strings.Contains(y.transcript(j), text) })
}

// TestConsole: a machine's console is seen live while it boots, over IPMI and beside Redfish, shared, typed on, and recorded for
// its job; a server that is killed in the middle takes it up again, and the record says where bytes are missing.
func TestConsole(t *testing.T) {
	t.Parallel()
	y := newYard(t, "k", nil,
		// Real firmware takes longer, and the recorder looks every two seconds.
		MachineConfig{Name: "plain", Class: "plain", BootTime: 3 * time.Second}, MachineConfig{Name: "web", Class: "web", BootTime: 3 * time.Second, BMC: Redfish},
		MachineConfig{Name: "hit", Class: "hit", BootTime: 3 * time.Second, WriteTime: 20 * time.Second})
	for _, name := range []string{"plain", "web"} {
		first, second := y.console(name, apiclient.ConsoleOptions{}), y.console(name, apiclient.ConsoleOptions{Write: true})
		o := y.placeClass(name)
		for _, line := range []string{name + ": firmware starts", name + ": boots from network", name + ": agent: inventory", name + ": agent: write", name + ": boots from disk", name + " login:"} {
			first.until(line)
			second.until(line)
		}
		y.settled(o.ID, machine.OrderActive, machine.Active)
		y.must(second.conn.Write(t.Context(), []byte("root\r")))
		first.until("root\r")
		if said := second.said.String(); !strings.Contains(said, "open: read-write") || strings.Contains(said, "gap") {
			t.Errorf("%s: the server said %s", name, said)
		}
		job := y.job(o)
		for _, line := range []string{name + ": firmware starts", name + ": agent: write", name + " login:"} {
			y.recorded(job, line) // what came last is written down a moment later
		}
	}

	o := y.placeClass("hit")
	y.at(o, machine.StepWrite)
	w := y.console("hit", apiclient.ConsoleOptions{})
	job := y.job(o)
	y.recorded(job, "hit: agent: write")
	y.must(y.KillServer())
	y.until("the new server records", yardPatience, func() bool {
		y.Simulated("hit").print("said after the crash")
		before, after, cut := strings.Cut(y.transcript(job), "not recorded between")
		return cut && strings.Contains(before, "hit: agent: write") && strings.Contains(after, "said after the crash")
	})
	if _, _, err := w.conn.Next(t.Context()); err == nil {
		for err == nil {
			_, _, err = w.conn.Next(t.Context())
		}
	}
	y.console("hit", apiclient.ConsoleOptions{}).until("boots from disk")
	y.settled(o.ID, machine.OrderActive, machine.Active)
}
