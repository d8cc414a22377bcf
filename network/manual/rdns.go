// Package manual hands work that no program can do to people, as tasks.
package manual

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/bareyard/bareyard/network"
)

// Names sets reverse DNS by hand: each name is a task for whoever runs the name server.
type Names struct{ Tasks network.Tasks }

const rdnsKind = "rdns"

// SetPTR asks for a name of an address; "" asks for its removal. It answers with ErrPending until somebody has done it.
func (n Names) SetPTR(ctx context.Context, addr netip.Addr, name string) error {
	t := network.Task{Kind: rdnsKind, Subject: addr.String(), Wanted: name, ID: network.TaskID(rdnsKind, addr.String(), name)}
	if name == "" {
		t.Title = fmt.Sprintf("remove the reverse DNS of %s", addr)
		t.Steps = []string{"on the name server, delete the PTR record of " + network.ReverseName(addr)}
		t.Check = fmt.Sprintf("dig -x %s +short prints nothing", addr)
	} else {
		t.Title = fmt.Sprintf("set the reverse DNS of %s to %s", addr, name)
		t.Steps = []string{fmt.Sprintf("on the name server, set the record: %s PTR %s.", network.ReverseName(addr), name)}
		t.Check = fmt.Sprintf("dig -x %s +short prints %s.", addr, name)
	}
	return ask(ctx, n.Tasks, t)
}
