package provisioner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/provisioner"
)

// passed lets the running job have begun its step earlier.
func (y *yard) passed(d time.Duration) {
	y.t.Helper()
	_, err := y.db.Conn.Exec(y.t.Context(), `UPDATE job SET due = now() - interval '1 second', step_at = step_at - $1::interval, seen_at = seen_at - $1::interval WHERE state = 'running'`, d)
	y.must(err)
}

// TestHelloTimeoutSaysWhy: a machine that never says hello fails with where its boot stopped, in the job and in the order.
func TestHelloTimeoutSaysWhy(t *testing.T) {
	y := newInboxYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	if len(y.lines) != 1 || y.lines[0].Proto != trace.BMC || y.lines[0].MAC != m.Hardware.NICs[0].MAC || !strings.Contains(y.lines[0].Asked, "provision job, attempt 1") {
		t.Errorf("traced %+v", y.lines)
	}
	// Nothing at all.
	y.passed(20 * time.Minute)
	y.must(y.Expire(t.Context(), m.ID))
	if j := y.job(y.order(o.ID).JobID); j.Attempt != 2 || !strings.Contains(j.Reason, "not done within 15m0s: switched on, and no DHCP request of its port has arrived in 20m") {
		t.Errorf("job: attempt %d, %q", j.Attempt, j.Reason)
	}
	// Its firmware asks and never requests.
	y.turn(m.ID)
	y.passed(20 * time.Minute)
	at := time.Now().Add(-19 * time.Minute)
	y.must(y.db.WriteTrace(t.Context(), []trace.Line{
		{At: at, MAC: m.Hardware.NICs[0].MAC, Proto: trace.BMC, Asked: "power on", Times: 1},
		{At: at.Add(time.Minute), Last: at.Add(90 * time.Second), MAC: m.Hardware.NICs[0].MAC, Proto: trace.DHCP, Asked: "DISCOVER pxe", Outcome: trace.Answered, Times: 4,
			File: "snponly.efi", DHCP: &trace.DHCPFacts{Message: "DISCOVER", Answer: "OFFER", Stage: trace.StagePXE, Arch: 7}},
	}))
	y.must(y.Expire(t.Context(), m.ID))
	want := "its firmware asked 4 times in 30s, was offered an address each time, and never requested"
	if j := y.job(y.order(o.ID).JobID); j.Attempt != 3 || !strings.Contains(j.Reason, want) {
		t.Errorf("job: attempt %d, %q", j.Attempt, j.Reason)
	}
	// A boot of an attempt before says nothing.
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE boot SET ended = ended - interval '1 hour'`)
	y.must(err)
	y.turn(m.ID)
	y.passed(20 * time.Minute)
	y.must(y.Expire(t.Context(), m.ID))
	if got := y.order(o.ID).Reason; !strings.Contains(got, "failed at hello: not done within 15m0s: switched on, and no DHCP request") {
		t.Errorf("order: %q", got)
	}
}

// TestWaitingSaysWhy: a job that waits for its agent says where the boot stands, once for each situation, and stops saying so
// when the agent comes.
func TestWaitingSaysWhy(t *testing.T) {
	y := newInboxYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	y.passed(10 * time.Minute)
	for range 3 {
		y.must(y.Explain(t.Context()))
	}
	j := y.job(y.order(o.ID).JobID)
	if !strings.HasPrefix(j.Reason, "waiting for the agent (never-asked): switched on, and no DHCP request") || j.Attempt != 1 {
		t.Errorf("attempt %d, reason %q", j.Attempt, j.Reason)
	}
	waits := func() (n int) {
		events, err := y.db.Events(t.Context(), provisioner.EventFilter{OrderID: o.ID})
		y.must(err)
		for _, ev := range events {
			if ev.Kind == "job.wait" {
				n++
			}
		}
		return n
	}
	if waits() != 1 {
		t.Errorf("%d events, want 1", waits())
	}
	at := time.Now().Add(-5 * time.Minute)
	var lines []trace.Line
	for i := range 4 {
		lines = append(lines, trace.Line{At: at.Add(time.Duration(i) * time.Second), MAC: m.Hardware.NICs[0].MAC, Proto: trace.TFTP, Asked: "undionly.kpxe", File: "undionly.kpxe", Outcome: trace.Answered, Times: 1})
	}
	y.must(y.db.WriteTrace(t.Context(), lines))
	y.must(y.Explain(t.Context()))
	if j = y.job(j.ID); !strings.HasPrefix(j.Reason, "waiting for the agent (loop)") || waits() != 2 {
		t.Errorf("%d events, reason %q", waits(), j.Reason)
	}
	_, err = y.db.Conn.Exec(t.Context(), `UPDATE job SET due = now() + interval '1 hour', step_at = now() WHERE state = 'running'`)
	y.must(err)
	y.bootAgent(m.ID)
	if j = y.job(j.ID); j.Step != machine.StepInventory || j.Reason != "" {
		t.Errorf("after hello: step %s, reason %q", j.Step, j.Reason)
	}
}

// TestHelloIsTraced: what became of a hello is a line of the boot.
func TestHelloIsTraced(t *testing.T) {
	y := newInboxYard(t)
	m := y.addMachine(1)
	_, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	y.lines = nil
	r := y.bootAgent(m.ID)
	if l := y.lines; len(l) != 1 || l[0].Outcome != trace.Answered || l[0].MAC != m.Hardware.NICs[0].MAC {
		t.Errorf("traced %+v", l)
	}
	y.lines = nil
	r.do()
	for _, h := range []struct {
		hello machine.Hello
		why   string
	}{{machine.Hello{Nonce: "guess"}, "none of ours"}, {machine.Hello{Nonce: r.nonce}, "none of ours, or was used already"}} {
		if _, err := y.Hello(t.Context(), h.hello, m.BootAddr); err == nil {
			t.Error("taken")
		}
		if l := y.lines[len(y.lines)-1]; l.Outcome != trace.Refused || !strings.Contains(l.Why, h.why) || l.From != m.BootAddr {
			t.Errorf("traced %+v", l)
		}
	}
	if strings.Contains(y.lines[0].Why+y.lines[0].Got, "guess") {
		t.Error("the nonce is in the trace")
	}
}
