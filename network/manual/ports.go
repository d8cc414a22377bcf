package manual

import (
	"context"
	"fmt"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Ports opens and closes switch ports by hand. They are named SWITCH:PORT.
type Ports struct{ Tasks network.Tasks }

const portKind = "port"

// Set asks for a port to be opened or closed. A port that nobody has touched yet is not known to be either.
func (p Ports) Set(ctx context.Context, port string, open bool) error {
	name, local, ok := strings.Cut(port, ":")
	if !ok || name == "" || local == "" {
		return &machine.Error{Code: machine.Invalid, Field: "port", Message: fmt.Sprintf("%q is not a port that somebody could find", port), Hint: "write it as SWITCH:PORT, e.g. sw9:12"}
	}
	t := network.Task{Kind: portKind, Subject: port, Wanted: "closed", Title: fmt.Sprintf("close port %s of switch %s", local, name),
		Steps: []string{
			"log in to switch " + name,
			fmt.Sprintf("shut port %s down, and save the configuration, so that it stays shut when the switch starts anew", local),
		},
		Check: fmt.Sprintf("switch %s shows port %s as administratively down, and its lamp is dark", name, local),
	}
	if open {
		t.Wanted, t.Title = "open", fmt.Sprintf("open port %s of switch %s", local, name)
		t.Steps[1] = fmt.Sprintf("enable port %s; do not save this, so that it is shut when the switch starts anew", local)
		t.Check = fmt.Sprintf("switch %s shows port %s as not shut down; it has a link once the machine is on", name, local)
	}
	t.ID = network.TaskID(t.Kind, t.Subject, t.Wanted)
	return ask(ctx, p.Tasks, t)
}

// Pin asks nobody: a port is in the hands of people who know what hangs on it.
func (Ports) Pin(context.Context, string, string) error { return nil }
