package ipmi

// BootMethod is a way to make a host boot from a device. Firmware that ignores one may honour another.
type BootMethod string

// Boot methods. Those after the first are tried when the machine was not seen on the wire after the one before.
const (
	BootOnce       BootMethod = "once"        // IPMI: valid, not persistent; Redfish: Once, Pxe or Hdd
	BootPersistent BootMethod = "persistent"  // IPMI: valid and persistent; Redfish: Continuous
	BootTarget     BootMethod = "uefi-target" // Redfish: Once, UefiTarget, the boot option of the network card
	BootHTTP       BootMethod = "http"        // Redfish: Once, UefiHttp
	BootOtherMode  BootMethod = "other-mode"  // once, as BIOS for a UEFI machine and the other way round
)

// Knowledge is what was found out about a BMC: keep it with the machine, and give it back with Learn after a restart.
// encoding/json writes and reads it.
type Knowledge struct {
	CipherSuite int                `json:"cipher_suite,omitempty"` // IPMI: the one that works
	Boot        BootMethod         `json:"boot,omitempty"`         // the method by which the machine was last seen on the wire
	Ignored     map[BootMethod]int `json:"ignored,omitempty"`      // how often a method was set and the machine was not seen
	Set         BootMethod         `json:"set,omitempty"`          // by which an override was last set, until BootSeen says what came of it: another server may be the one to say
	Quirks      []string           `json:"quirks,omitempty"`       // what else it does otherwise than the standard, for operators
}

// BootSeen tells that the machine was seen on the wire, or was not, after SetNextBoot and a start; where another Controller called
// those, Learn has brought Knowledge.Set here. The next SetNextBoot of the same
// device takes the method that is known to work, or else the one that was ignored least often.
func (c *Controller) BootSeen(t Target, seen bool) {}

// Known is what was found out about a BMC so far.
func (c *Controller) Known(t Target) Knowledge { return Knowledge{} }

// Learn gives the Controller what was known about a BMC earlier. What it found out itself since goes before.
func (c *Controller) Learn(t Target, k Knowledge) {}
