package ipmi

import (
	"context"
	"time"
)

// ConsoleOptions says how to open a serial console. The zero value is polite.
type ConsoleOptions struct {
	// TakeOver ends the console session of somebody else. Without it that session is respected: ErrTaken.
	TakeOver bool
	// Give up after this long without the BMC; 0 is 5 minutes. Until then a lost link is opened again.
	GiveUp time.Duration
}

// Output is the next piece of a console: bytes of the host, or a place where bytes may be missing.
type Output struct {
	At   time.Time
	Data []byte // nil for a gap
	Gap  *Gap   // nil for data
}

// Gap is a place where bytes of the host may be missing.
type Gap struct {
	From, To time.Time // between these the console was not, or not wholly, received
	Reason   GapReason
}

// GapReason is why bytes may be missing.
type GapReason string

// Reasons of a gap.
const (
	GapLink    GapReason = "link lost"       // the BMC fell silent and the console was opened again
	GapOverrun GapReason = "BMC overrun"     // the BMC says that it dropped bytes
	GapPackets GapReason = "packets missing" // the BMC went on to later bytes
	GapTaken   GapReason = "taken over"      // somebody else had the console meanwhile
)

// OpenConsole opens the host's serial console. It holds a session of its own, beside the one that the other methods share,
// and there is one console for each BMC: a second one of this Controller is ErrTaken too. Close it.
//
// A console session that an earlier life of this program left behind is ended. ErrTaken means that somebody else holds it.
// A Redfish target needs an IPMIAddress: ErrUnsupported without.
func (c *Controller) OpenConsole(ctx context.Context, t Target, o ConsoleOptions) (*Console, error) {
	return nil, t.on("open console", failf(ErrUnsupported, "not yet"))
}

// Console is a serial console. It is an io.ReadWriteCloser; reading and writing may go on at the same time.
type Console struct{}

// Next returns the next piece of output, and io.EOF after Close. Any other error is the end of the console.
func (c *Console) Next(ctx context.Context) (Output, error) { return Output{}, nil }

// Read reads what Next would return, with each gap as a line of its own in brackets. Use Next where it matters whether the host
// wrote that line.
func (c *Console) Read(p []byte) (int, error) { return 0, nil }

// Write sends keys to the host. It returns when the BMC took them.
func (c *Console) Write(p []byte) (int, error) { return 0, nil }

// Break sends a serial break, which Linux reads as the start of a SysRq.
func (c *Console) Break(ctx context.Context) error { return nil }

// Close ends the console and its session.
func (c *Console) Close() error { return nil }
