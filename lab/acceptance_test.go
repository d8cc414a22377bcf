package lab

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/api"
	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// trialPlan is an acceptance of seconds.
const trialPlan = `
sanity: {limit: 1m}
validation: {load: 1s, limit: 1m}
performance: {limit: 1m}
stress: {load: 6s, limit: 2m}
silence: 5s
`

// TestAcceptanceOfARack tries eight machines by a command that shows a board: five are good, one has a card whose memory is wrong, one loses a card
// under load, one hangs. In the middle of it the server is killed. What is good is in stock in the end, the rest is quarantined with what was found,
// and the report is signed.
func TestAcceptanceOfARack(t *testing.T) {
	t.Parallel()
	var list []MachineConfig
	for i := range 8 {
		c := MachineConfig{Name: fmt.Sprintf("a%d", i+1), Cards: 2}
		if i%2 == 1 {
			c.BMC = Redfish
		}
		list = append(list, c)
	}
	c := newCrasher(t, "ac", list...)
	_, err := c.client.ImportImage(t.Context(), apiclient.Upload{Name: "trial", DefaultUser: "root", Driver: true}, bytes.NewReader(tinyImage()))
	c.must(err)
	c.Simulated("a3").Trouble(func(x *Trouble) { x.WrongMemory = 2 })
	c.Simulated("a5").Trouble(func(x *Trouble) { x.LoseCard = 1 })
	c.Simulated("a7").Trouble(func(x *Trouble) { x.HangAt = accelerator.StageStress })

	plan := filepath.Join(t.TempDir(), "plan.yaml")
	c.must(os.WriteFile(plan, []byte(trialPlan), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, realServer(t), "acceptance", "run", "--site", "lab", "--image", "trial", "--plan", plan, "--accept", "--stagger", "0s", "--note", "delivery 1")
	cmd.Env = append(os.Environ(), "BAREYARD_SERVER=unix://"+filepath.Join(c.cfg.Dir, serverSocket))
	var board, summary bytes.Buffer
	cmd.Stderr, cmd.Stdout = &board, &summary
	began := time.Now()
	c.must(cmd.Start())
	killed := false
	defer func() {
		if t.Failed() {
			t.Logf("board:\n%s\nsummary:\n%s", board.String(), summary.String())
		}
	}()
	c.until("machines are under stress", yardPatience, func() bool {
		runs := insist(c.yard, func(ctx context.Context) ([]machine.AcceptanceRun, error) { return c.client.Runs(ctx) })
		for _, r := range runs {
			for _, tr := range r.Trials {
				if tr.Now != nil && tr.Now.Progress.Burn.Stage == string(accelerator.StageStress) {
					return true
				}
			}
		}
		return false
	})
	c.arm(1, 0) // the next transition that it commits is its last
	c.until("the server has died and is back", yardPatience, func() bool { killed = killed || c.crashed(); return killed })
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Fatalf("the command ends with %d, %v; want 1, because not all have passed", code, err)
	}
	t.Logf("took %s\n%s\n%s", time.Since(began).Round(time.Second), board.String(), summary.String())
	for _, want := range []string{"✗ a3 failed", "✗ a5 failed", "✗ a7 failed", "✓ a1 passed", "… a2 stress"} {
		if !strings.Contains(board.String(), want) {
			t.Errorf("the board does not say %q", want)
		}
	}
	for _, want := range []string{"5 of 8 passed, 3 failed, 0 incomplete", "replace", "load.memory", "power-cycle", "no sign of life"} {
		if !strings.Contains(summary.String(), want) {
			t.Errorf("the summary does not say %q", want)
		}
	}
	for _, name := range []string{"a1", "a2", "a4", "a6", "a8"} {
		c.until(name+" is in stock", yardPatience, func() bool { return c.machine(name).State == machine.Available })
		if s := c.Simulated(name); s.Dirty() {
			t.Errorf("%s is in stock and not wiped", name)
		}
	}
	for name, why := range map[string]string{"a3": "load.memory", "a5": "card.count", "a7": "no sign of life"} {
		if m := c.machine(name); m.State != machine.Quarantined || !strings.Contains(m.Reason, why) || m.Public || m.PortOpen {
			t.Errorf("%s is %s: %s", name, m.State, m.Reason)
		}
	}
	runs, err := c.client.Runs(t.Context())
	c.must(err)
	signed, err := c.client.RunReport(t.Context(), runs[0].ID, "")
	c.must(err)
	doc, err := document.VerifyRun(signed, c.reportKey())
	if err != nil || doc.Passed != 5 || doc.Failed != 3 || len(doc.Machines) != 8 {
		t.Errorf("report: %v, %d passed, %d failed", err, doc.Passed, doc.Failed)
	}
	cards := 0
	for _, m := range doc.Machines {
		cards += len(m.Cards)
	}
	if cards != 14 { // a7 sent no report
		t.Errorf("the report has %d cards, want 14", cards)
	}
}

// TestCrashesInAcceptance lets the server live for a few transitions only while machines are tried, one of them is tried again, and a run is called off.
// Every run comes to its end and is signed, no machine is held, none is in stock unwiped, and nothing is done twice.
func TestCrashesInAcceptance(t *testing.T) {
	t.Parallel()
	const each = 12 // of some 450, which come in another order each time
	names := []string{"a1", "a2"}
	c := newCrasher(t, "ad", MachineConfig{Name: "a1", Cards: 2}, MachineConfig{Name: "a2", Cards: 2, BMC: Redfish})
	_, err := c.client.ImportImage(t.Context(), apiclient.Upload{Name: "trial", DefaultUser: "root", Driver: true}, bytes.NewReader(tinyImage()))
	c.must(err)
	second, half, accept := machine.Span(time.Second), machine.Span(30*time.Second), true
	asked := api.NewAcceptanceRun{Machines: names, Image: "trial", Accept: &accept, Stagger: new(machine.Span), Plan: &machine.AcceptancePlan{
		Validation: machine.StagePlan{Load: second}, Stress: machine.StagePlan{Load: second, Limit: half}, Silence: half}}
	c.Simulated("a2").Trouble(func(x *Trouble) { x.WrongMemory = 2 })
	c.arm(each, each)

	run := c.beginRun(0, asked)
	c.runEnds(run.ID, machine.RunFinished, machine.Available, machine.Quarantined)
	c.Simulated("a2").Trouble(func(x *Trouble) { x.WrongMemory = 0 })
	insist(c.yard, func(ctx context.Context) (r machine.AcceptanceRun, err error) {
		if r, err = c.client.Run(ctx, run.ID); err != nil || r.Trials[1].Try == 2 {
			return r, err
		}
		return c.client.DecideRun(ctx, run.ID, "retry", "a2", "")
	})
	c.runEnds(run.ID, machine.RunFinished, machine.Available, machine.Available)
	if n := c.sql(`SELECT count(*) FROM job WHERE kind = 'acceptance' AND state = 'succeeded'`); n != 2 {
		t.Errorf("%d machines have passed, want 2", n)
	}
	for i, name := range names {
		if n := c.Simulated(name).Writes(); n != i+1 {
			t.Errorf("%d images were written to %s", n, name)
		}
	}

	off := c.beginRun(1, asked)
	c.until("a machine is being tried", yardPatience, func() bool {
		now := insist(c.yard, func(ctx context.Context) (machine.AcceptanceRun, error) { return c.client.Run(ctx, off.ID) }).Trials[0].Now
		return now != nil && now.Step == machine.StepAccept
	})
	insist(c.yard, func(ctx context.Context) (machine.AcceptanceRun, error) {
		return c.client.DecideRun(ctx, off.ID, "cancel", "", "the power is off tonight")
	})
	c.runEnds(off.ID, machine.RunCancelled, machine.Available, machine.Available)
	c.crashed()
	c.arm(0, 0)
	for _, name := range names {
		m := c.machine(name)
		if s := c.Simulated(name); s.Dirty() {
			t.Errorf("%s is in stock and not wiped", name)
		}
		c.replayMachine(m)
		events := c.events("", m.ID)
		for _, j := range insist(c.yard, func(ctx context.Context) ([]machine.Job, error) { return c.client.Jobs(ctx, "", m.ID) }) {
			c.replayJob(j, events)
			if j.Attempt != 1 {
				t.Errorf("%s: the %s job took %d attempts: %s", name, j.Kind, j.Attempt, j.Reason)
			}
		}
	}
	t.Logf("%d crashes in %s", c.crashes, time.Since(c.began).Round(time.Second))
	if c.crashes < 20 {
		t.Errorf("%d crashes only", c.crashes)
	}
}

// beginRun begins a run where there are so many. Like a reinstall it cannot be repeated blindly.
func (c *crasher) beginRun(before int, asked api.NewAcceptanceRun) machine.AcceptanceRun {
	c.t.Helper()
	return insist(c.yard, func(ctx context.Context) (machine.AcceptanceRun, error) {
		runs, err := c.client.Runs(ctx)
		if err != nil || len(runs) > before {
			return append(runs, machine.AcceptanceRun{})[0], err
		}
		begun, err := c.client.BeginRun(ctx, asked)
		return begun.Run, err
	})
}

// runEnds waits until a run is over and signed, and its machines are in these states with nothing under way.
func (c *crasher) runEnds(id string, state machine.RunState, want ...machine.State) {
	c.t.Helper()
	var r machine.AcceptanceRun
	var is []string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("run is %s, its machines %q: %+v", r.State, is, r.Trials)
		}
	}()
	c.until("run "+id+" is "+string(state), 2*yardPatience, func() bool {
		r = insist(c.yard, func(ctx context.Context) (machine.AcceptanceRun, error) { return c.client.Run(ctx, id) })
		is = nil
		done := r.State == state
		for i, t := range r.Trials {
			m := c.machine(t.MachineID)
			is = append(is, fmt.Sprintf("%s %s %s", m.Name, m.State, m.JobID))
			done = done && m.State == want[i] && m.JobID == ""
		}
		return done && c.sql(`SELECT count(*) FROM acceptance_run WHERE id = $1 AND report IS NOT NULL`, id) == 1
	})
	signed := insist(c.yard, func(ctx context.Context) ([]byte, error) { return c.client.RunReport(ctx, id, "") })
	if doc, err := document.VerifyRun(signed, c.reportKey()); err != nil || doc.State != state || doc.Open != 0 {
		c.t.Errorf("report of run %s: %v, %s, %d open", id, err, doc.State, doc.Open)
	}
}

// reportKey is the public half of the key that the yard's server signs with.
func (y *yard) reportKey() ed25519.PublicKey {
	y.t.Helper()
	text, err := os.ReadFile(filepath.Join(y.cfg.Dir, "server", "report.key.pub"))
	y.must(err)
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	y.must(err)
	return key.(ed25519.PublicKey)
}
