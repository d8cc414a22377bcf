package network_test

import (
	"fmt"
	"net/netip"

	"github.com/bareyard/bareyard/network"
)

func ExampleDiff() {
	sold := network.Port{
		Machine: "m-1", MAC: "52:54:00:12:34:01", Addrs: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")},
		Up: network.Fixed(100_000), Down: network.Fixed(100_000), Mode: network.On,
	}
	old := sold
	old.Up = network.Fixed(50_000)
	set, remove := network.Diff([]network.Port{sold}, []network.Port{old, {Machine: "m-2"}})
	fmt.Println("set", set[0].Machine, set[0].Up.Kbit, "kbit/s")
	fmt.Println("remove", remove)
	// Output:
	// set m-1 100000 kbit/s
	// remove [m-2]
}
