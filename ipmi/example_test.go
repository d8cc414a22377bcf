package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
)

func Example() {
	host := bmctest.NewMemory(bmctest.Identity{})
	bmc := &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "secret", Chassis: host}
	if _, err := bmc.Listen(); err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	served := make(chan error)
	go func() { served <- bmc.Run(ctx) }()

	var c ipmi.Controller
	target := bmc.Target()
	fmt.Println(c.SetNextBoot(ctx, target, ipmi.DevicePXE, true))
	fmt.Println(c.SetPower(ctx, target, ipmi.OpOn))
	fmt.Println(c.Power(ctx, target))
	fmt.Printf("%+v\n", host.Starts())
	target.Password = "wrong"
	fmt.Println(errors.Is(c.Check(ctx, target), ipmi.ErrCredentials))

	cancel()
	fmt.Println(<-served)
	// Output:
	// <nil>
	// <nil>
	// on <nil>
	// [{Device:pxe Once:true UEFI:true}]
	// true
	// <nil>
}
