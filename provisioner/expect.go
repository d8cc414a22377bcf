package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/bareyard/bareyard/machine"
)

// LineError is what is wrong in one line of an enrolment list.
type LineError struct {
	Line    int
	Field   string
	Message string
	Hint    string
}

// LineErrors is all that is wrong in an enrolment list, of which nothing was taken.
type LineErrors []LineError

// maxListed is how many of a list's errors are told: who has more has sent the wrong file.
const maxListed = 20

// Err returns the errors as one Invalid error, nil when there are none.
func (l LineErrors) Err() error {
	if len(l) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was enrolled: %s in the list", plural(len(l), "error"))
	for i, e := range l {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(l)-i)
			break
		}
		fmt.Fprintf(&b, "\n  line %d: %s: %s", e.Line, e.Field, e.Message)
		if e.Hint != "" {
			fmt.Fprintf(&b, " (%s)", e.Hint)
		}
	}
	return &machine.Error{Code: machine.Invalid, Field: fmt.Sprintf("line %d: %s", l[0].Line, l[0].Field), Message: b.String(), Hint: "correct these lines and give the whole list again: what was taken before stays as it is"}
}

// Add notes an error of a line; one that names a field of its own keeps it.
func (l *LineErrors) Add(line int, field string, err error) {
	x := LineError{Line: line, Field: field, Message: err.Error()}
	var me *machine.Error
	if errors.As(err, &me) {
		x.Message, x.Hint, x.Field = me.Message, me.Hint, cmp.Or(me.Field, field)
	}
	*l = append(*l, x)
}

const maxExpected = 10_000 // entries in one list

// Expect takes in an enrolment list: machines that are named before they are seen. All of it is taken, or nothing; what is
// wrong is named by line and field. A machine that waits in the inbox already is enrolled at once.
func (e *Engine) Expect(ctx context.Context, list []Expectation) (ExpectResult, error) {
	if e.List == nil {
		return ExpectResult{}, noInbox()
	}
	if len(list) == 0 || len(list) > maxExpected {
		return ExpectResult{}, &machine.Error{Code: machine.Invalid, Field: "list", Message: fmt.Sprintf("the list has %d machines", len(list)), Hint: fmt.Sprintf("give 1 to %d", maxExpected)}
	}
	var wrong LineErrors
	classes := map[string]error{}
	taken := map[string]int{}
	for i := range list {
		x := &list[i]
		if x.Line == 0 {
			x.Line = i + 1
		}
		CheckExpected(x, &wrong)
		if _, asked := classes[x.Class]; !asked && x.Class != "" {
			_, err := e.Shelf.Class(ctx, x.Class)
			if err != nil && machine.CodeOf(err) != machine.NotFound {
				return ExpectResult{}, err
			}
			classes[x.Class] = err
		}
		if err := classes[x.Class]; err != nil {
			wrong.Add(x.Line, "class", err)
		}
		for _, k := range [][2]string{{"name", x.Name}, {"mac", x.MAC}, {"serial", machine.SerialKey(x.Serial)}, {"boot_addr", x.BootAddr}, {"bmc_address", x.BMC.Address}} {
			if k[1] == "" {
				continue
			}
			if first, twice := taken[k[0]+" "+k[1]]; twice {
				wrong.Add(x.Line, k[0], fmt.Errorf("%s is in line %d already", k[1], first))
				continue
			}
			taken[k[0]+" "+k[1]] = x.Line
		}
	}
	if err := wrong.Err(); err != nil {
		return ExpectResult{}, err
	}
	return e.List.Expect(ctx, list)
}

// CheckExpected puts an entry into one form, and adds what is wrong with it to the errors.
func CheckExpected(x *Expectation, wrong *LineErrors) {
	bad := func(field, hint, format string, a ...any) {
		wrong.Add(x.Line, field, &machine.Error{Message: fmt.Sprintf(format, a...), Hint: hint})
	}
	x.Serial, x.Site, x.Rack = strings.TrimSpace(x.Serial), strings.TrimSpace(x.Site), strings.TrimSpace(x.Rack)
	x.BMC.Protocol = cmp.Or(x.BMC.Protocol, "ipmi")
	x.BMC.Address = bmcAddress(x.BMC, nil)
	for _, m := range []struct {
		field string
		mac   *string
	}{{"mac", &x.MAC}, {"public_mac", &x.PublicMAC}} {
		if *m.mac == "" {
			continue
		}
		mac := machine.PortMAC(*m.mac)
		if mac == "" {
			bad(m.field, "write it as 3c:ec:ef:00:00:01", "%q is not the MAC address of a port", *m.mac)
			continue
		}
		*m.mac = mac
	}
	if x.MAC == "" && machine.SerialKey(x.Serial) == "" {
		hint := "give one of them"
		if x.Serial != "" {
			hint = fmt.Sprintf("%q is what vendors put on every board", x.Serial)
		}
		bad("mac", hint, "neither a MAC address nor a serial number says which machine it is")
	}
	if x.Class == "" {
		bad("class", "see `bareyard class list`", "no class is given")
	}
	if x.BootAddr != "" {
		if a, err := netip.ParseAddr(x.BootAddr); err != nil || !a.Is4() {
			bad("boot_addr", "give a free IPv4 address of the provisioning network, or leave it out", "%q is not an IPv4 address", x.BootAddr)
		}
	}
	if err := machine.CheckName(x.Name); err != nil {
		wrong.Add(x.Line, "name", err)
	}
	if err := machine.CheckBMC(x.BMC); err != nil {
		wrong.Add(x.Line, "bmc", err)
	}
	if x.BMC.Username == "" {
		bad("bmc_user", "the user that drives it", "the BMC has no user")
	}
}
