package main

// The board of an acceptance run. Rules: on a terminal one line a machine, drawn anew in its place; elsewhere a line when a machine comes to
// another stage or to its verdict; it goes to standard error, the summary to standard output.

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/bareyard/bareyard/machine"
)

// board is the picture of a run.
type board struct {
	out   io.Writer
	live  bool
	drawn int               // lines on the terminal
	said  map[string]string // by machine, without a terminal: what the last line said
}

// draw shows a run.
func (b *board) draw(r machine.AcceptanceRun, now time.Time) {
	if !b.live {
		b.tell(r)
		return
	}
	width := 120
	if f, ok := b.out.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 40 {
			width = w - 1
		}
	}
	b.end()
	for _, line := range boardLines(r, now, width) {
		fmt.Fprintf(b.out, "%s\n", line)
		b.drawn++
	}
}

// end takes the board off the terminal.
func (b *board) end() {
	if b.drawn > 0 {
		fmt.Fprintf(b.out, "\x1b[%dA\r\x1b[J", b.drawn)
	}
	b.drawn = 0
}

// tell writes a line for each machine that has gone on.
func (b *board) tell(r machine.AcceptanceRun) {
	if b.said == nil {
		b.said = map[string]string{}
	}
	for _, t := range r.Trials {
		stage := stageOf(t)
		if t.State == machine.TrialWaiting && t.Reason == "" {
			stage = ""
		}
		if b.said[t.MachineID] == stage {
			continue
		}
		b.said[t.MachineID] = stage
		if stage == "" {
			continue
		}
		mark := "…"
		switch t.State {
		case machine.TrialPassed:
			mark = "✓"
		case machine.TrialFailed, machine.TrialIncomplete, machine.TrialCancelled:
			mark = "✗"
		}
		line := fmt.Sprintf("%s %s %s %s", time.Now().Local().Format("15:04:05"), mark, t.Name, stage)
		if t.Reason != "" {
			line += ": " + oneLine(t.Reason, 300)
		}
		fmt.Fprintln(b.out, line)
	}
}

// boardLines are the lines of a board.
func boardLines(r machine.AcceptanceRun, now time.Time, width int) []string {
	n := tally(r)
	head := fmt.Sprintf("acceptance %s, %s, stress %s: %d running, %d waiting, %d passed, %d failed, %d incomplete", r.ID, span(now.Sub(r.Created)), span(time.Duration(r.Plan.Stress.Load)),
		n[machine.TrialRunning], n[machine.TrialWaiting], n[machine.TrialPassed], n[machine.TrialFailed], n[machine.TrialIncomplete]+n[machine.TrialCancelled])
	lines := []string{oneLine(head, width), oneLine(fmt.Sprintf("%-8s %-12s %-13s %-20s %6s %8s %8s  %s", "RACK", "MACHINE", "STAGE", "PROGRESS", "HOT", "POWER", "ETA", "WORST"), width)}
	for _, t := range r.Trials {
		progress, hot, power, eta, worst := "", "", "", "", t.Reason
		switch {
		case t.Now != nil && t.Now.Step == machine.StepAccept:
			p := t.Now.Progress.Burn
			progress = span(time.Duration(p.Done) * time.Second)
			if p.Total > 0 {
				progress += " of " + span(time.Duration(p.Total)*time.Second)
			}
			if p.Hottest > 0 {
				hot = fmt.Sprintf("%d °C", p.Hottest)
			}
			if p.Watts > 0 {
				power = fmt.Sprintf("%.1f kW", float64(p.Watts)/1000)
			}
			worst = p.Worst
			if silent := now.Sub(t.Now.SeenAt); silent > 45*time.Second {
				worst = strings.TrimSuffix(fmt.Sprintf("silent for %s; %s", span(silent), worst), "; ")
			}
			eta = etaOf(r.Plan, p)
		case t.Now != nil:
			progress, eta = percent(t.Now.Progress), "~"+span(r.Plan.Load())
			if t.Now.Attempt > 1 {
				worst = fmt.Sprintf("attempt %d", t.Now.Attempt)
			}
		case !t.State.Open():
			progress = "after " + span(t.Finished.Sub(t.Started))
			if t.Started.IsZero() {
				progress = ""
			}
			if worst = worstOf(t); worst == "" {
				worst = t.Reason
			}
		}
		lines = append(lines, oneLine(fmt.Sprintf("%-8s %-12s %-13s %-20s %6s %8s %8s  %s", oneLine(t.Rack, 8), oneLine(t.Name, 12), stageOf(t), progress, hot, power, eta, worst), width))
	}
	return lines
}

// stageOf is where a machine is, in a word or two.
func stageOf(t machine.Trial) string {
	if t.Now == nil || t.State != machine.TrialRunning {
		return string(t.State)
	}
	switch t.Now.Step {
	case machine.StepAccept:
		if t.Now.Progress.Burn.Stage != "" {
			return t.Now.Progress.Burn.Stage
		}
		return "starting"
	case machine.StepWipe, machine.StepWrite, machine.StepVerify, machine.StepConfigure:
		return "installing"
	case machine.StepVerdict, machine.StepShutDown, machine.StepRelease:
		return "judging"
	}
	return "booting"
}

func percent(p machine.Progress) string {
	if p.Total <= 0 {
		return ""
	}
	return fmt.Sprintf("%d %%", 100*min(p.Done, p.Total)/p.Total)
}

// etaOf is how long the loads still take that have a given time; the stages without one come on top.
func etaOf(p machine.AcceptancePlan, b machine.Burn) string {
	left := time.Duration(0)
	switch b.Stage {
	case "stress":
		left = time.Duration(max(0, b.Total-b.Done)) * time.Second
		return span(left)
	case "performance":
		left = time.Duration(p.Stress.Load)
	default:
		left = p.Load()
	}
	return "~" + span(left)
}

// worstOf is the finding that a person must act on first.
func worstOf(t machine.Trial) string {
	if len(t.Findings) == 0 {
		return ""
	}
	worst := t.Findings[0]
	for _, f := range t.Findings {
		if rankOf(f.Level) > rankOf(worst.Level) {
			worst = f
		}
	}
	return describeFinding(worst)
}

func rankOf(level string) int {
	return map[string]int{"warn": 1, "skip": 2, "error": 3, "fail": 4}[level]
}

func describeFinding(f machine.Finding) string {
	text := f.Check + ": " + f.Text
	if f.Part != "" {
		text = f.Part + " " + text
	}
	if f.Action != "" {
		text += " → " + f.Action
	}
	return text
}

// summary is what a person takes away from a run: the verdicts, and what to do where.
func summary(w io.Writer, r machine.AcceptanceRun) {
	n := tally(r)
	fmt.Fprintf(w, "acceptance %s is %s: %d of %d passed, %d failed, %d incomplete\n", r.ID, r.State, n[machine.TrialPassed], len(r.Trials), n[machine.TrialFailed], n[machine.TrialIncomplete]+n[machine.TrialCancelled])
	fmt.Fprintln(w, "RACK\tMACHINE\tVERDICT\tTOOK\tWHY")
	for _, t := range r.Trials {
		took := "-"
		if !t.Started.IsZero() && !t.Finished.IsZero() {
			took = span(t.Finished.Sub(t.Started))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", dash(t.Rack), t.Name, t.State, took, dash(oneLine(t.Reason, 200)))
	}
	head := false
	for _, t := range r.Trials {
		for _, f := range t.Findings {
			if !head {
				fmt.Fprintln(w, "\nWHAT TO DO\tMACHINE\tPART\tSERIAL\tWHAT WAS FOUND")
				head = true
			}
			do := f.Action
			if do == "" {
				do = map[string]string{"warn": "know it"}[f.Level]
			}
			if do == "" {
				do = "look at it"
			}
			part := f.Part
			if part == "" {
				part = "machine"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s: %s: %s\n", do, t.Name, part, dash(f.Serial), f.Level, f.Check, oneLine(f.Text, 200))
		}
	}
	held := 0
	for _, t := range r.Trials {
		if t.State == machine.TrialPassed && !r.Accept {
			held++
		}
	}
	if held > 0 && r.State != machine.RunUnderWay {
		fmt.Fprintf(w, "\nWhat has passed is held until it is admitted: bareyard acceptance admit %s\n", r.ID)
	}
}

func tally(r machine.AcceptanceRun) map[machine.TrialState]int {
	n := map[machine.TrialState]int{}
	for _, t := range r.Trials {
		n[t.State]++
	}
	return n
}

func allPassed(r machine.AcceptanceRun) bool {
	return len(r.Trials) > 0 && tally(r)[machine.TrialPassed] == len(r.Trials)
}

func tookOf(r machine.AcceptanceRun, now time.Time) time.Duration {
	if r.Finished.IsZero() {
		return now.Sub(r.Created)
	}
	return r.Finished.Sub(r.Created)
}

// span is a length of time as people say it: 45s, 12 min, 3h05.
func span(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh%02d", int(d.Hours()), int(d.Minutes())%60)
}

// oneLine makes a text fit into a line; it comes from machines and steers no terminal.
func oneLine(s string, most int) string {
	r := []rune(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s))
	if len(r) > most && most > 1 {
		r = append(r[:most-1], '…')
	}
	return strings.TrimRight(string(r), " ")
}
