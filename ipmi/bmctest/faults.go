package bmctest

import (
	"sync"
	"time"
)

// Fault is the ways in which a simulated BMC misbehaves. The zero value behaves. Fields that only one protocol can show
// say so.
type Fault struct {
	Unreachable   bool          // answers nothing
	IgnorePowerOn bool          // accepts a power on, does nothing
	StalePolls    int           // this many power reads after each power command still show the state before it
	PowerReads    []Read        // what the power reads after the next power command show, in turn; then the truth
	SlowOff       time.Duration // a power off takes effect this much later
	IgnoreSoft    bool          // accepts a soft off that the operating system ignores
	DropBoot      bool          // accepts a boot override and does not keep it
	IgnoreBoot    []string      // the firmware boots as if there were no override of these sorts, which the BMC shows: IgnoreOnce, …
	RefuseBootOff bool          // refuses a boot override while the host is off (Redfish: 500)
	SessionsFull  bool          // all session slots are taken (Redfish: 503 with RAC0218)
	LockAfter     int           // this many failed logins in a row lock the user out, until it is 0 again
	CutPassword   int           // a new password is kept no longer than this many bytes, when not 0
	DropPassword  bool          // accepts a new password and keeps the old one
	RefuseWeak    bool          // refuses a new password
	DropEnable    bool          // accepts that a user is enabled or disabled and does nothing
	KeepHost      bool          // Redfish: says that the host's way to it is shut, and it is open
	DropHost      bool          // Redfish: accepts that the host's way to it is shut, and shows it open
	DropHostAt    string        // Redfish: the same, of the one switch whose path ends so
	FullLog       bool          // the event log says that it overflowed

	RetryAfter      int    // Redfish: this many further requests with a session get 503 and Retry-After: 1
	RetryHint       string // Redfish: the Retry-After of those, and of a full session table, instead
	Redirect        bool   // Redfish: each resource is asked for twice: first it answers 308 to itself with a slash
	MediaRefused    bool   // Redfish: an image is refused
	MediaIgnored    bool   // Redfish: an image is accepted and never fetched
	MediaPatchOnly  bool   // Redfish: no InsertMedia action; Image is PATCHed
	BIOSNeedsJob    bool   // Redfish: settings wait until a job is made for them
	BIOSJobFails    bool   // Redfish: the job ends as Completed, 100 % and Critical
	BIOSRefuses     string // Redfish: a PATCH with this setting is refused
	BIOSDropped     bool   // Redfish: settings are accepted and forgotten at the next start
	TaskGone        bool   // Redfish: a task is not found once it is finished
	TaskPlace       string // Redfish: where the task of a settings PATCH is told: "" relative, "absolute", "none"
	Broken          string // Redfish: resources whose path holds this get 500
	EmptyCollection bool   // Redfish: members of collections are listed and not there

	RefuseSuites    []int // IPMI: cipher suites that are advertised and then refused with status 0x04
	OnlySuite       int   // IPMI: the one cipher suite that works, when not 0
	NoSuiteList     bool  // IPMI: Get Channel Cipher Suites fails with completion code C1h
	NoBootClearing  bool  // IPMI: boot option parameter 3 is not supported (80h), so the flags expire
	NoPersistReset  bool  // IPMI: the flags stay valid after they were used, as the firmware never clears them
	OperatorOnly    bool  // IPMI: the user may be at most an operator
	RequireETag     bool  // Redfish: a PATCH without the current ETag gets 428, a wrong one 412; the ETag changes with every GET
	StaleETags      int   // Redfish: with RequireETag, the resource changes before this many further PATCHes
	ETagInBody      bool  // Redfish: the ETag is only in @odata.etag
	Unauthorized    int   // Redfish: this many further requests with a token get 401, and the session is gone
	NoBasic         bool  // Redfish: Basic authentication is refused
	SettingsBoot    bool  // Redfish: boot overrides go to the @Redfish.Settings resource; a PATCH of the system is accepted and dropped
	OddTypes        bool  // Redfish: numbers for strings, strings for numbers, arrays for objects, a BOM
	LoginPage       bool  // Redfish: 200 and an HTML page instead of a resource
	ResetWhenOff500 bool  // Redfish: a restart of a host that is off gets 500
	Mode            string
	ResetTypes      []string // Redfish: the reset types that are allowed; nil is a full list
	ResetList       string   // Redfish: where the allowed reset types are told: "" inline, "actioninfo" or "none"
}

// Values of Fault.Mode: how a Redfish service treats BootSourceOverrideMode.
const (
	ModeReadOnly = "read-only" // in a PATCH it gets 400 PropertyNotWritable
	ModeRequired = "required"  // a PATCH without it gets 400 PropertyMissing
)

// Values of Fault.IgnoreBoot: what the firmware does not look at.
const (
	IgnoreOnce       = "once"        // an override for the next boot only
	IgnorePersistent = "persistent"  // one that stays
	IgnoreUEFI       = "uefi"        // one for UEFI
	IgnoreBIOS       = "bios"        // one for BIOS
	IgnoreTarget     = "uefi-target" // Redfish: one for a UEFI device path
	IgnoreHTTP       = "uefi-http"   // Redfish: one for UEFI HTTP boot
)

// ignores reports whether the firmware boots as if an override were not there. via is IgnoreTarget, IgnoreHTTP or "".
func (f Fault) ignores(b Boot, via string) bool {
	for _, sort := range f.IgnoreBoot {
		switch {
		case via != "" && sort == via, via == "" && sort == IgnoreOnce && b.Once, via == "" && sort == IgnorePersistent && !b.Once,
			via == "" && sort == IgnoreUEFI && b.UEFI, via == "" && sort == IgnoreBIOS && !b.UEFI:
			return true
		}
	}
	return false
}

// Read is one scripted answer to a power read.
type Read string

// Scripted answers.
const (
	ReadOn   Read = "on"
	ReadOff  Read = "off"
	ReadLost Read = "lost" // no answer; ipmi_sim cannot show it and tells the truth
)

// Faults holds a Fault that can be changed while BMCs run. A nil *Faults has no faults.
type Faults struct {
	mu sync.Mutex
	f  Fault
}

// Set changes the faults.
func (f *Faults) Set(change func(*Fault)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.f)
}

// Now is the faults at this moment.
func (f *Faults) Now() Fault {
	if f == nil {
		return Fault{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.f
}

// take runs fn on the live faults and returns what it returns: for faults that are counted down.
func (f *Faults) take(fn func(*Fault) bool) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return fn(&f.f)
}
