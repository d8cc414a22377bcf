package accelerator

import (
	"fmt"
	"slices"
	"strings"
)

// Plan names a set of checks and what each of them is worth.
type Plan string

// Plans. The zero value reads what cards and host say of themselves and puts no load on them.
const (
	PlanRead       Plan = ""
	PlanPostboot   Plan = "postboot"   // after each install, five minutes at most
	PlanAcceptance Plan = "acceptance" // of new hardware, 1 to 24 hours, in stages
	PlanHealth     Plan = "health"     // light, of machines in stock, now and then
	PlanReturn     Plan = "return"     // when a customer gives a machine back; compared with the report at hand-over
)

// Stage is a part of an acceptance. Each goes further than the one before it and is not begun when that one blocks.
type Stage string

// Stages in their order.
const (
	StageSanity      Stage = "sanity"      // what cards and host say of themselves
	StageValidation  Stage = "validation"  // every card computes, and right
	StagePerformance Stage = "performance" // rates, copies, pairs
	StageStress      Stage = "stress"      // for as long as was asked
)

// Stages returns the stages in their order.
func Stages() []Stage { return []Stage{StageSanity, StageValidation, StagePerformance, StageStress} }

// ParsePlan reads a plan's name.
func ParsePlan(s string) (Plan, error) {
	all := []Plan{PlanPostboot, PlanAcceptance, PlanHealth, PlanReturn}
	if slices.Contains(all, Plan(s)) {
		return Plan(s), nil
	}
	return "", fmt.Errorf("read plan: %q is none; there are %s", printable(s), joined(all))
}

func joined[S ~string](list []S) string {
	var words []string
	for _, s := range list {
		words = append(words, string(s))
	}
	return strings.Join(words, ", ")
}

// need is what a check is worth in a plan.
type need int

const (
	left    need = iota // the plan does not make this check
	wanted              // made where it can be; a skip or an error blocks nothing
	ordered             // a skip or an error blocks hand-over
)

// needs is the table of the checks that need more than reading: what each is worth in each plan. A check that is not in it is in every plan.
func needs(check string, p Plan) need {
	table := map[string]map[Plan]need{
		"load.burn":    {PlanPostboot: ordered, PlanAcceptance: ordered, PlanReturn: ordered},
		"load.memory":  {PlanPostboot: ordered, PlanAcceptance: ordered, PlanReturn: ordered},
		"load.link":    {PlanPostboot: ordered, PlanAcceptance: ordered, PlanReturn: ordered},
		"load.thermal": {PlanPostboot: ordered, PlanAcceptance: ordered, PlanReturn: ordered},
		"load.events":  {PlanPostboot: ordered, PlanAcceptance: ordered, PlanReturn: ordered},

		"perf.compute":   {PlanPostboot: wanted, PlanAcceptance: ordered, PlanReturn: wanted},
		"perf.memory":    {PlanPostboot: wanted, PlanAcceptance: ordered, PlanReturn: wanted},
		"perf.copy":      {PlanPostboot: wanted, PlanAcceptance: ordered, PlanReturn: wanted},
		"perf.peer":      {PlanPostboot: wanted, PlanAcceptance: ordered, PlanReturn: wanted},
		"perf.allreduce": {PlanAcceptance: wanted},
		"tool.diagnosis": {PlanPostboot: wanted, PlanAcceptance: wanted, PlanReturn: wanted},

		"host.power": {PlanPostboot: wanted, PlanHealth: wanted, PlanReturn: wanted, PlanAcceptance: ordered},
		"host.fans":  {PlanPostboot: wanted, PlanHealth: wanted, PlanReturn: wanted, PlanAcceptance: ordered},
		"host.sel":   {PlanPostboot: wanted, PlanHealth: wanted, PlanReturn: wanted, PlanAcceptance: ordered},
	}
	row, ok := table[check]
	if !ok {
		return ordered
	}
	return row[p]
}
