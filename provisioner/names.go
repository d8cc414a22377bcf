package provisioner

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Name is a name in the reverse DNS.
type Name struct {
	Addr    netip.Addr `json:"address"`
	Name    string     `json:"name"`              // "" while it is being cleared
	State   string     `json:"state"`             // waiting, or set: the name server was told
	Problem string     `json:"problem,omitempty"` // why it still waits
}

// Directory keeps what the reverse DNS is to say.
type Directory interface {
	// SetName asks for a name of an address that an order holds; "" clears it.
	SetName(ctx context.Context, orderID string, addr netip.Addr, name string) error
	// NamesDue takes up to n names that the name server is to be told; for a minute nobody else gets them.
	NamesDue(ctx context.Context, n int) ([]Name, error)
	// NameTold says that the name server was told, unless something else is wanted since.
	NameTold(ctx context.Context, n Name) error
	// NameFailed says why not; it is due again after a time that grows with the tries.
	NameFailed(ctx context.Context, n Name, again time.Duration, problem string) error
}

// Names tells the name server; answered by powerdns, or by a task for somebody. Clearing what is not there is no error.
type Names interface {
	SetPTR(ctx context.Context, addr netip.Addr, name string) error // "" clears
}

var label = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// CheckName returns a host name as it is kept, lower case and without a dot at the end, or an Invalid error.
func CheckName(name string) (string, error) {
	clean := strings.ToLower(strings.TrimSuffix(strings.TrimSpace(name), "."))
	bad := func(what string) error {
		return &machine.Error{Code: machine.Invalid, Field: "name", Message: fmt.Sprintf("%.80q is no host name: %s", name, what), Hint: "write a full name, e.g. gpu1.example.com"}
	}
	if len(clean) > 253 {
		return "", bad("it is longer than 253 letters")
	}
	labels := strings.Split(clean, ".")
	if len(labels) < 2 {
		return "", bad("it has no domain")
	}
	for _, l := range labels {
		if !label.MatchString(l) {
			return "", bad(fmt.Sprintf("%.70q is no part of one", l))
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || last == "arpa" {
		return "", bad("its last part is no domain of hosts")
	}
	return clean, nil
}

// SetName gives an address of an order a name in the reverse DNS; "" takes it away. It is cleared when the address is released.
func (e *Engine) SetName(ctx context.Context, orderID string, addr netip.Addr, name string) error {
	o, err := e.Shelf.Order(ctx, orderID)
	if err != nil {
		return err
	}
	if o.State != machine.OrderActive {
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order is %s", o.State), Hint: "only addresses of an active order have names"}
	}
	if name != "" {
		if name, err = CheckName(name); err != nil {
			return err
		}
	}
	return e.Directory.SetName(ctx, orderID, addr, name)
}

// TellNames tells the name server what is wanted of it, until ctx ends. Every replica may run it.
func (e *Engine) TellNames(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := e.tellNames(ctx); err != nil && ctx.Err() == nil {
			e.log().Error("reverse DNS failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// nameTime bounds one call to the name server; it is less than for how long NamesDue keeps a name from others.
const nameTime = 30 * time.Second

// tellNames works off what is due now.
func (e *Engine) tellNames(ctx context.Context) error {
	for {
		// One at a time: what takes long must not be due again before its turn.
		due, err := e.Directory.NamesDue(ctx, 1)
		if err != nil || len(due) == 0 {
			return err
		}
		n := due[0]
		call, cancel := context.WithTimeout(ctx, nameTime)
		failure := e.Names.SetPTR(call, n.Addr, n.Name)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case failure == nil:
			err = e.Directory.NameTold(ctx, n)
		case errors.Is(failure, network.ErrPending):
			err = e.Directory.NameFailed(ctx, n, time.Second, failure.Error())
		default:
			e.log().Warn("reverse DNS is not set yet", "address", n.Addr, "err", failure)
			err = e.Directory.NameFailed(ctx, n, 10*time.Second, failure.Error())
		}
		if err != nil {
			return err
		}
	}
}
