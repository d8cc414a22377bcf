package main

// What people see while they wait. Rules: one line per finished step, in the order in which they finish; the last line
// is the step under way and is rewritten in place on a terminal; without a terminal it is left out; nothing scrolls
// faster than a person reads; progress goes to standard error, the result to standard output.

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// watchOrder follows an order until no job works on it, through restarts of the server, and returns what became of it.
func watchOrder(ctx context.Context, t *terminal, c *client.Client, id string) (machine.Order, error) {
	v := &view{out: t.err, live: isTerminal(t.err)}
	var last int64
	for broken := 0; ; {
		o, err := c.Order(ctx, id)
		if err == nil && settled(ctx, c, o) {
			v.end()
			return o, nil
		}
		if err == nil {
			var seen int64
			seen, err = c.Watch(ctx, id, last, func(ev provisioner.Event) bool { v.event(ev); return !final(ev) }, func(j machine.Job) bool { v.job(j); return true })
			if seen > last {
				last, broken = seen, 0
			}
		}
		if err == nil {
			continue
		}
		if machine.CodeOf(err) != machine.Unavailable || broken > 120 {
			return o, err
		}
		broken++
		select { // the server is being restarted
		case <-ctx.Done():
			return o, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// final reports whether an event may be the last one of an order's job.
func final(ev provisioner.Event) bool {
	switch ev.Kind {
	case "job.succeed", "job.fail", "job.cancel", "order.fail", "order.cancel", "machine.reclaimed":
		return true
	}
	return false
}

// settled reports whether nothing is under way for an order.
func settled(ctx context.Context, c *client.Client, o machine.Order) bool {
	if o.State == machine.OrderPlaced || o.State == machine.OrderProvisioning {
		return false
	}
	jobs, err := c.Jobs(ctx, o.ID, "")
	return err == nil && (len(jobs) == 0 || jobs[0].State != machine.JobRunning)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// view is the picture of a job.
type view struct {
	out  io.Writer
	live bool
	step string // the step on the last line
}

func (v *view) event(ev provisioner.Event) {
	switch ev.Kind {
	case "job.advance", "job.succeed", "job.retry", "job.fail", "job.cancel", "job.try", "job.resume", "job.reboot", "job.wait", "machine.quarantine", "machine.park", "order.move", "order.fail", "order.hand-over", "validation":
		v.clear()
		mark := "✓"
		switch ev.Kind {
		case "job.retry", "job.fail", "job.cancel", "order.fail", "machine.quarantine", "machine.park", "order.move":
			mark = "✗"
		case "job.try", "job.resume", "job.reboot", "job.wait":
			mark = "…"
		}
		fmt.Fprintf(v.out, "%s %s %s\n", ev.At.Local().Format("15:04:05"), mark, ev.Text)
	}
}

func (v *view) job(j machine.Job) {
	if j.State != machine.JobRunning {
		return
	}
	if !v.live {
		return
	}
	v.clear()
	v.step = describe(j)
	fmt.Fprintf(v.out, "         … %s", v.step)
}

// describe is the step under way in plain words, with a bar where there is something to measure.
func describe(j machine.Job) string {
	words := map[machine.StepName]string{
		machine.StepIsolate: "isolating the network", machine.StepPowerOff: "powering off", machine.StepNextBoot: "setting the next boot to network",
		machine.StepPowerOn: "powering on", machine.StepHello: "firmware and loader, waiting for the agent", machine.StepInventory: "comparing the hardware with the record",
		machine.StepWipe: "clearing the disks", machine.StepWrite: "writing the image", machine.StepVerify: "reading the image back", machine.StepConfigure: "configuring the system",
		machine.StepBootDisk: "booting from disk", machine.StepFirstBoot: "first boot of the system", machine.StepNetwork: "programming address and bandwidth",
		machine.StepValidate: "validating the accelerators", machine.StepJudge: "judging the validation", machine.StepExamine: "looking at cards and disks", machine.StepHandOver: "handing over", machine.StepEraseAll: "erasing every disk", machine.StepProve: "proving the erasure",
		machine.StepAskBMC: "asking the BMC", machine.StepAccept: "trying the machine", machine.StepVerdict: "judging the machine",
		machine.StepShutDown: "powering off", machine.StepRelease: "returning to stock",
		machine.StepInBand: "trying the machine's own way to its BMC", machine.StepBaseline: "recording the BMC's settings",
		machine.StepBIOS: "setting the firmware as the class wants it", machine.StepBIOSCheck: "reading the firmware's settings back",
		machine.StepCompare: "comparing the BMC with what it was at hand-over", machine.StepRotate: "changing the BMC's password",
	}
	text := words[j.Step]
	if j.Attempt > 1 {
		text += fmt.Sprintf(" (attempt %d)", j.Attempt)
	}
	p := j.Progress
	if p.Total <= 0 {
		return text
	}
	const width = 24
	full := int(int64(width) * min(p.Done, p.Total) / p.Total)
	text += fmt.Sprintf(" [%s%s] %3d%%", strings.Repeat("█", full), strings.Repeat("░", width-full), 100*min(p.Done, p.Total)/p.Total)
	if p.Rate > 0 {
		left := time.Duration(float64(p.Total-p.Done) / float64(p.Rate) * float64(time.Second)).Round(time.Second)
		text += fmt.Sprintf(" %d MB/s, %s left", p.Rate/1_000_000, left)
	}
	return text
}

func (v *view) clear() {
	if v.live && v.step != "" {
		fmt.Fprint(v.out, "\r\x1b[2K")
		v.step = ""
	}
}

func (v *view) end() { v.clear() }
