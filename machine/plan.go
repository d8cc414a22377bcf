package machine

import "time"

// StepName names a step of a job.
type StepName string

// Steps, in the order in which a provision job takes them.
const (
	StepIsolate   StepName = "isolate"    // close the public side, open the provisioning port
	StepPowerOff  StepName = "power-off"  // BMC: off, and seen off
	StepBIOS      StepName = "bios"       // BMC: the settings that the class wants are asked for; they hold after the next start
	StepNextBoot  StepName = "next-boot"  // BMC: network, once
	StepPowerOn   StepName = "power-on"   // BMC: on, and seen on
	StepHello     StepName = "hello"      // firmware, loader, kernel, RAM disk; the agent trades its nonce for a token
	StepExamine   StepName = "examine"    // the RAM disk reads what it can see of cards, disks, ports and the kernel's log
	StepBIOSCheck StepName = "bios-check" // BMC: the settings hold
	StepInventory StepName = "inventory"  // what is there is what was recorded
	StepInBand    StepName = "in-band"    // the RAM disk tries to change the BMC from inside, as a customer's root could
	StepWipe      StepName = "wipe"       // take down old signatures and data
	StepWrite     StepName = "write"      // stream the image to the system disk
	StepVerify    StepName = "verify"     // read it back
	StepConfigure StepName = "configure"  // backup GPT, root size, cloud-init seed, boot entry
	StepBootDisk  StepName = "boot-disk"  // BMC: next boot from disk, power cycle
	StepFirstBoot StepName = "first-boot" // the installed OS phones home
	StepNetwork   StepName = "network"    // edge: public address, bandwidth, anti-spoof
	StepValidate  StepName = "validate"   // the installed OS judges its cards
	StepBaseline  StepName = "baseline"   // BMC: record what a customer could change through it
	StepHandOver  StepName = "hand-over"  // close the provisioning port, give it to the customer
	StepCompare   StepName = "compare"    // BMC: is it as it was at hand-over?
	StepEraseAll  StepName = "erase"      // every byte of every disk
	StepProve     StepName = "prove"      // read back, nothing left
	StepShutDown  StepName = "shut-down"  // BMC: off before it goes back to stock
	StepRotate    StepName = "rotate"     // BMC: a new password, and the comparison again: no customer's system runs any more
	StepRelease   StepName = "release"    // address into cool-down, machine into stock

	StepAskBMC   StepName = "ask-bmc"    // BMC: where its log ends, firmware, power supplies, fans
	StepAccept   StepName = "acceptance" // the installed OS tries its machine, in stages
	StepVerdict  StepName = "verdict"    // the report and what the BMC has seen meanwhile
	StepJudge    StepName = "judge"      // the BMC is asked too; the report is judged by all that is known, signed and kept
	StepDiscover StepName = "discover"   // of no job: what a machine is made of that nobody has enrolled
)

// Actor is who does a step.
type Actor string

// Actors.
const (
	Controller  Actor = "controller" // this server, by an action
	Agent       Actor = "agent"      // the RAM disk; instructed by the answers to its reports
	InstalledOS Actor = "os"         // bareyard-validate in the installed OS; likewise
)

// Step is one step of a plan.
type Step struct {
	Name        StepName
	Actor       Actor
	Deadline    time.Duration // from the beginning of the step
	Quiet       time.Duration // longest silence of the actor; zero means until the deadline
	Tries       int           // how often the controller tries it within an attempt
	Reads       bool          // the controller reads all that a BMC tells, a request for each part: a try takes four times what others may
	Destructive bool          // writes to disks: checked against the owning job and attempt in the transaction that starts it
}

// SeenWithin is how long a machine may take from power on to its first packet before its BMC is suspected of having ignored the
// boot override. Large servers take minutes to count their memory.
const SeenWithin = 8 * time.Minute

// MaxBoots is how often an attempt starts a machine that is not seen on the wire, each time by another of the BMC's methods.
const MaxBoots = 4

// MaxAttempts is how often a job starts over before it fails.
const MaxAttempts = 3

// ValidateWithin is how long a validation after an installation may take, whatever hangs: the validator then reports what it has.
const ValidateWithin = 5 * time.Minute

// Plan returns the steps of a kind of job, in order.
func Plan(kind JobKind) []Step {
	boot := []Step{
		{Name: StepPowerOff, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5},
		{Name: StepNextBoot, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5},
		{Name: StepPowerOn, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5},
		{Name: StepHello, Actor: Agent, Deadline: 15 * time.Minute},
	}
	look := Step{Name: StepInventory, Actor: Agent, Deadline: 3 * time.Minute, Quiet: time.Minute}
	examine := Step{Name: StepExamine, Actor: Agent, Deadline: 5 * time.Minute, Quiet: time.Minute}
	judge := Step{Name: StepJudge, Actor: Controller, Deadline: 12 * time.Minute, Tries: 5, Reads: true}
	shutDown := Step{Name: StepShutDown, Actor: Controller, Deadline: 6 * time.Minute, Tries: 5} // all its tries: another attempt would erase the disks once more
	release := Step{Name: StepRelease, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5}
	isolate := Step{Name: StepIsolate, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5}
	bios := Step{Name: StepBIOS, Actor: Controller, Deadline: 5 * time.Minute, Tries: 3}
	biosCheck := Step{Name: StepBIOSCheck, Actor: Controller, Deadline: 12 * time.Minute, Tries: 8} // some BMCs learn late what their firmware did
	install := []Step{
		{Name: StepInBand, Actor: Agent, Deadline: 3 * time.Minute, Quiet: time.Minute},
		{Name: StepWipe, Actor: Agent, Deadline: 30 * time.Minute, Quiet: time.Minute, Destructive: true},
		{Name: StepWrite, Actor: Agent, Deadline: 2 * time.Hour, Quiet: time.Minute, Destructive: true},
		{Name: StepVerify, Actor: Agent, Deadline: 2 * time.Hour, Quiet: time.Minute},
		{Name: StepConfigure, Actor: Agent, Deadline: 10 * time.Minute, Quiet: 2 * time.Minute, Destructive: true},
		{Name: StepBootDisk, Actor: Controller, Deadline: 5 * time.Minute, Tries: 5},
		{Name: StepFirstBoot, Actor: InstalledOS, Deadline: 20 * time.Minute},
		{Name: StepNetwork, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5},
		{Name: StepValidate, Actor: InstalledOS, Deadline: ValidateWithin + 3*time.Minute, Quiet: 2 * time.Minute},
		judge,
		{Name: StepBaseline, Actor: Controller, Deadline: 12 * time.Minute, Tries: 5, Reads: true},
		{Name: StepHandOver, Actor: Controller, Deadline: 3 * time.Minute, Tries: 5},
	}
	switch kind {
	case ProvisionJob, ReinstallJob:
		return append(append(append([]Step{isolate}, boot...), look), install...)
	case AcceptanceJob:
		plan := append([]Step{isolate, {Name: StepAskBMC, Actor: Controller, Deadline: 12 * time.Minute, Tries: 3, Reads: true}}, boot...)
		plan = append(append(plan, look), install[1:7]...) // from the wipe up to the first boot
		return append(plan,
			Step{Name: StepAccept, Actor: InstalledOS, Deadline: 96 * time.Hour, Quiet: 2 * time.Minute}, // the run's own plan shortens it
			Step{Name: StepVerdict, Actor: Controller, Deadline: 12 * time.Minute, Tries: 3, Reads: true},
			shutDown, release)
	case ExamineJob:
		return append(append([]Step{isolate, boot[0], bios}, boot[1:]...), examine, biosCheck, judge, shutDown, release)
	case ReclaimJob:
		// Nothing is done to the BMC before it is compared, but that the power is cut.
		compare := Step{Name: StepCompare, Actor: Controller, Deadline: 12 * time.Minute, Tries: 5, Reads: true}
		return append(append([]Step{isolate, boot[0], compare, bios}, boot[1:]...), examine, biosCheck, judge, look,
			Step{Name: StepEraseAll, Actor: Agent, Deadline: 48 * time.Hour, Quiet: 2 * time.Minute, Destructive: true},
			Step{Name: StepProve, Actor: Agent, Deadline: 2 * time.Hour, Quiet: 2 * time.Minute},
			shutDown,
			Step{Name: StepRotate, Actor: Controller, Deadline: 12 * time.Minute, Tries: 5, Reads: true},
			release)
	}
	return nil
}

// StepOf returns a step of a kind of job and the one after it; next is "" at the end of the plan.
func StepOf(kind JobKind, name StepName) (step Step, next StepName, ok bool) {
	plan := Plan(kind)
	for i, s := range plan {
		if s.Name != name {
			continue
		}
		if i+1 < len(plan) {
			next = plan[i+1].Name
		}
		return s, next, true
	}
	return Step{}, "", false
}
