package machine

import (
	"encoding/json"
	"time"
)

// Hello is the agent's first word: it trades the one-time nonce of its boot for the token of its job and attempt.
type Hello struct {
	Nonce  string   `json:"nonce"`
	UUID   string   `json:"uuid"`
	Serial string   `json:"serial"`
	MACs   []string `json:"macs"` // physical ports only
}

// Welcome answers a Hello.
type Welcome struct {
	Token       string      `json:"token"` // bearer token of this job and attempt
	Instruction Instruction `json:"instruction"`
}

// Phase says how a step stands in the eyes of who does it.
type Phase string

// Phases.
const (
	Idle    Phase = "idle"    // waiting for something to do
	Working Phase = "working" // still at it
	Done    Phase = "done"
	Failed  Phase = "failed"
)

// Report is what the agent or the validator says; the answer is an Instruction.
type Report struct {
	Step     StepName        `json:"step"`
	Phase    Phase           `json:"phase"`
	Progress Progress        `json:"progress,omitzero"`
	Error    string          `json:"error,omitempty"`  // why it failed
	Fatal    bool            `json:"fatal,omitempty"`  // another attempt cannot help: wrong disk, image larger than the disk
	Result   json.RawMessage `json:"result,omitempty"` // Inventory, []Erasure or an accelerator report, by step
}

// Verb is what an instruction asks for.
type Verb string

// Verbs.
const (
	DoWait     Verb = "wait"      // report Idle again in a second
	DoStep     Verb = "step"      // carry out Step
	DoContinue Verb = "continue"  // go on with what you report to be doing
	DoPowerOff Verb = "power-off" // you are not wanted any more: stop writing, power off
	DoFinish   Verb = "finish"    // all done: remove yourself
	DoReboot   Verb = "reboot"    // this machine has an owner and should not be here: start it over, from its disk
)

// Instruction is the answer to a report: the only way in which the agent is told anything.
type Instruction struct {
	Do        Verb       `json:"do"`
	Step      StepName   `json:"step,omitempty"`
	Disks     []Disk     `json:"disks,omitempty"`     // wipe, erase, prove: exactly these
	Target    *Disk      `json:"target,omitempty"`    // write, verify, configure: the system disk
	Image     *ImageRef  `json:"image,omitempty"`     // write, verify
	Configure *Configure `json:"configure,omitempty"` // configure
	Expect    *Expect    `json:"expect,omitempty"`    // validate, acceptance
	Validate  *Validate  `json:"validate,omitempty"`  // validate

	Acceptance *AcceptancePlan `json:"acceptance,omitempty"` // acceptance
}

// Validate says how to validate.
type Validate struct {
	Plan     string            `json:"plan"`               // of package accelerator
	Load     time.Duration     `json:"load,omitempty"`     // under the burn; zero: as the plan has it
	Within   time.Duration     `json:"within,omitempty"`   // the report is due then, whatever hangs; zero: as the plan has it
	Profiles map[string]string `json:"profiles,omitempty"` // the operator's profiles of cards: file name and YAML
}

// ImageRef says where the chunks of an image are. They come over plain HTTP: the digest vouches for them.
type ImageRef struct {
	URL    string `json:"url"`    // base: URL/manifest/DIGEST and URL/chunk/DIGEST
	Digest string `json:"digest"` // sha256 of the manifest, hex
	Size   int64  `json:"size"`   // bytes when written
}

// Configure is what makes a written image this customer's machine.
type Configure struct {
	Seed     map[string]string `json:"seed"`     // files of the NoCloud seed partition by name
	Firmware Firmware          `json:"firmware"` // whether to set UEFI boot entries
	Label    string            `json:"label"`    // of the UEFI boot entry
}

// Expect is what validation holds the machine to.
type Expect struct {
	Accelerators []Accelerator `json:"accelerators"` // as recorded
	CardID       string        `json:"card_id"`      // PCI vendor:device of the class
	Count        int           `json:"count"`        // cards of the class
	NoDriver     bool          `json:"no_driver"`    // the image brings no driver: the bus alone is judged
	MACs         []string      `json:"macs"`
	Disks        []Disk        `json:"disks"`
}

// Inventory is what the agent finds.
type Inventory struct {
	Hardware Hardware `json:"hardware"`
	CPU      string   `json:"cpu"`
	Cores    int      `json:"cores"`
	Memory   int64    `json:"memory"` // bytes
	Firmware Firmware `json:"firmware"`
	Kernel   string   `json:"kernel"`

	// What an operator wants to know of a machine that he has not enrolled; step discover alone finds it.
	Sockets int         `json:"sockets,omitempty"` // processors
	System  System      `json:"system,omitzero"`
	Ports   []PortFacts `json:"ports,omitempty"`
	Drives  []Drive     `json:"drives,omitempty"`
	Cards   []Card      `json:"cards,omitempty"`
	BMC     *BMCFacts   `json:"bmc,omitempty"` // nil: there is none, or no driver reaches it
}

// InBandState is whether a machine's own system can change its BMC.
type InBandState string

// States of in-band access. "" is not known.
const (
	InBandOpen   InBandState = "open"   // the BMC takes commands that change it
	InBandClosed InBandState = "closed" // it is there and refuses them
	InBandAbsent InBandState = "absent" // no way to it was found
)

// InBand is what the RAM disk saw when it tried to change the BMC from inside.
type InBand struct {
	State InBandState `json:"state"`
	Why   string      `json:"why,omitempty"` // e.g. "/dev/ipmi0: Set User Access refused with D4h"
}
