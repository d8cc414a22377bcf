package machine

import (
	"fmt"
	"strings"
)

// Diagrams writes the transition functions as a document: docs/states.md is this text, and a test compares them.
func Diagrams() string {
	var b strings.Builder
	b.WriteString("# States\n\nGenerated from the transition functions in `machine/`; change those, then run `go test ./machine -update`.\n")
	write(&b, "Machine", States(), Events(), Next)
	write(&b, "Order", OrderStates(), OrderEvents(), NextOrder)
	write(&b, "Job", JobStates(), JobEvents(), NextJob)
	write(&b, "Acceptance run", RunStates(), RunEvents(), NextRun)
	write(&b, "Trial: a machine's part in an acceptance run", TrialStates(), TrialEvents(), NextTrial)
	for _, kind := range JobKinds() {
		fmt.Fprintf(&b, "\n## Steps of a %s job\n\n| step | by | deadline | longest silence | tries | writes to disks |\n|---|---|---|---|---|---|\n", kind)
		for _, s := range Plan(kind) {
			quiet, tries, destructive := "", "", ""
			if s.Quiet > 0 {
				quiet = s.Quiet.String()
			}
			if s.Tries > 0 {
				tries = fmt.Sprint(s.Tries)
			}
			if s.Destructive {
				destructive = "yes"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", s.Name, s.Actor, s.Deadline, quiet, tries, destructive)
		}
	}
	fmt.Fprintf(&b, "\nA step that fails or stays silent ends the attempt; after %d attempts the job fails. What fails for good (the wrong machine, a disk too small, "+
		"a failed validation, a BMC that refuses the password) is not tried again.\n", MaxAttempts)
	fmt.Fprintf(&b, "\nA machine that sends no packet within %s of its power on is started again, back at %s, by another of its BMC's ways to set the next boot; "+
		"after %d starts in vain the job fails. The way by which it came is remembered.\n", SeenWithin, StepPowerOff, MaxBoots)
	return b.String()
}

func write[S, E ~string](b *strings.Builder, noun string, states []S, events []E, next func(S, E) (S, error)) {
	fmt.Fprintf(b, "\n## %s\n\n```mermaid\nstateDiagram-v2\n", noun)
	for _, s := range states {
		for _, e := range events {
			if n, err := next(s, e); err == nil {
				fmt.Fprintf(b, "    %s --> %s: %s\n", s, n, e)
			}
		}
	}
	b.WriteString("```\n")
}
