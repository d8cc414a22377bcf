package lab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
)

// TestFleet orders every machine of a hall at once, kills the server in the middle, and gets every one of them. The number is
// BAREYARD_FLEET, or few enough for two cores.
func TestFleet(t *testing.T) {
	t.Parallel()
	n := 20
	if text := os.Getenv("BAREYARD_FLEET"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	machines := make([]MachineConfig, n)
	for i := range machines {
		machines[i].BMC = []BMCKind{IPMI, Redfish}[i%2]
	}
	began := time.Now()
	y := newYard(t, "h", nil, machines...)
	t.Logf("%d machines are enrolled after %s", n, time.Since(began).Round(100*time.Millisecond))
	began = time.Now()
	orders := make([]machine.Order, n)
	for i := range orders {
		orders[i] = y.place(fmt.Sprintf("fleet-%d", i))
	}
	y.until("a third of them are at work", yardPatience, func() bool {
		return y.sql(`SELECT count(*) FROM job WHERE step NOT IN ('isolate', 'power-off', 'next-boot', 'power-on')`) >= n/3
	})
	y.must(y.KillServer())
	held := map[string]string{}
	for _, o := range orders {
		o = y.settled(o.ID, machine.OrderActive, machine.Active)
		if other := held[o.MachineID]; other != "" {
			t.Errorf("orders %s and %s hold the same machine", o.ID, other)
		}
		held[o.MachineID] = o.ID
	}
	t.Logf("%d orders are active after %s", n, time.Since(began).Round(100*time.Millisecond))
	if got := len(y.edge()); got != n {
		t.Errorf("the edge carries %d addresses, want %d", got, n)
	}
	if got := y.sql(`SELECT count(*) FROM charge`); got != n {
		t.Errorf("%d charges, want %d", got, n)
	}
	for _, o := range orders {
		insist(y, func(ctx context.Context) (machine.Order, error) { return y.client.Act(ctx, o.ID, "release") })
	}
	for _, o := range orders {
		y.settled(o.ID, machine.OrderEnded, machine.Available)
	}
	t.Logf("all are back in stock after %s", time.Since(began).Round(100*time.Millisecond))
	if got := y.edge(); len(got) != 0 {
		t.Errorf("the edge still carries %v", got)
	}
}
