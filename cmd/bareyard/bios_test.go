package main

import (
	"context"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bareyard/bareyard/ipmi/bmctest"
)

// simulateRedfish runs a Redfish BMC until the script ends and puts its address into a variable: "redfish VARIABLE". Its user is admin, its
// password secret-1.
func simulateRedfish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: redfish VARIABLE")
	}
	b := &bmctest.Redfish{Addr: "127.0.0.1:0", User: "admin", Password: "secret-1", Chassis: bmctest.NewMemory(bmctest.Identity{Serial: "S1"}), Board: bmctest.NewBoard(), Faults: &bmctest.Faults{}}
	ctx, cancel := context.WithCancel(context.Background())
	ts.Setenv(args[0], b.Target().Address)
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	ts.Defer(func() {
		cancel()
		if err := <-done; err != nil {
			ts.Logf("the simulated BMC: %v", err)
		}
	})
}
