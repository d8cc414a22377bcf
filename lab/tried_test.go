package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/machine"
)

// TestTried: what simulated machines show when they are tried is judged as such machines would be.
func TestTried(t *testing.T) {
	bmc := accelerator.BMC{Supplies: []accelerator.Supply{{Name: "PSU1", Present: true, Healthy: known(true)}}, Fans: []accelerator.Fan{{Name: "FAN1", Present: true, Healthy: known(true), RPM: number(9000, "1/min")}}}
	for name, c := range map[string]struct {
		trouble Trouble
		stages  []accelerator.Stage
		fails   string
	}{
		"good":         {Trouble{}, accelerator.Stages(), ""},
		"wrong memory": {Trouble{WrongMemory: 2}, accelerator.Stages()[:2], "load.memory"},
		"a lost card":  {Trouble{LoseCard: 1}, accelerator.Stages(), "card.count"},
	} {
		s := &Simulated{plan: planMachines(Config{Name: "x", Machines: []MachineConfig{{Name: "a", Cards: 2}}})[0], trouble: c.trouble}
		x := machine.Expect{Count: 2, CardID: "10de:2b85", Accelerators: s.record().Hardware.Accelerators, Disks: s.record().Hardware.Disks, MACs: []string{s.provMAC}}
		r := accelerator.Judge(s.tried(c.stages, machine.HourlyPlan(1), x), x, accelerator.Rules{})
		r = r.WithBMC(&bmc, time.Now().Add(-time.Hour))
		if c.fails == "" && (r.Blocks() || r.Outcome != accelerator.Pass) || c.fails != "" && !strings.Contains(failedChecks(r), c.fails) {
			t.Errorf("%s: %s, fails %q, %s", name, r.Outcome, failedChecks(r), r.Reason())
			for _, k := range r.Checks {
				if k.Outcome != accelerator.Pass {
					t.Logf("%s %s %s %v", k.ID, k.Outcome, k.Summary, k.Evidence)
				}
			}
		}
	}
}

func failedChecks(r accelerator.Report) string {
	var ids []string
	for _, c := range r.Checks {
		if c.Outcome == accelerator.Fail {
			ids = append(ids, c.ID)
		}
	}
	return strings.Join(ids, " ")
}
