package bridgeport_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/bridgeport"
)

// ip runs iproute2.
func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s (needs root and iproute2)", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// fabric is a bridge with the controller and two machines on it, each in a namespace of its own.
func fabric(t *testing.T) (ns string, reaches func(from, to string) bool) {
	t.Helper()
	id := fmt.Sprintf("bp%d", os.Getpid())
	ns = id + "-fabric"
	add := func(name string) {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { ip(t, "netns", "del", name) })
		ip(t, "-n", name, "link", "set", "lo", "up")
	}
	add(ns)
	ip(t, "-n", ns, "link", "add", "br0", "type", "bridge")
	ip(t, "-n", ns, "link", "set", "br0", "up")
	addrs := map[string]string{}
	for i, who := range []string{"ctl", "m1", "m2"} {
		host := id + "-" + who
		add(host)
		ip(t, "-n", ns, "link", "add", who, "type", "veth", "peer", "name", "eth0", "netns", host)
		ip(t, "-n", ns, "link", "set", who, "master", "br0")
		addrs[who] = fmt.Sprintf("10.99.7.%d", i+1)
		ip(t, "-n", host, "addr", "add", addrs[who]+"/24", "dev", "eth0")
		ip(t, "-n", host, "link", "set", "eth0", "up")
	}
	ip(t, "-n", ns, "link", "set", "ctl", "up")
	return ns, func(from, to string) bool {
		return exec.Command("ip", "netns", "exec", id+"-"+from, "ping", "-c1", "-W1", addrs[to]).Run() == nil
	}
}

func TestSet(t *testing.T) {
	ns, reaches := fabric(t)
	d := &bridgeport.Driver{Netns: ns}
	set := func(port string, open bool) {
		t.Helper()
		for range 2 { // twice is as good as once
			if err := d.Set(t.Context(), port, open); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := d.Open(t.Context(), port); err != nil || got != open {
			t.Fatalf("port %s reads open=%t, %v; want %t", port, got, err, open)
		}
	}
	set("m1", false)
	set("m2", false)
	if reaches("m1", "ctl") || reaches("ctl", "m1") {
		t.Error("frames pass a closed port")
	}
	set("m1", true)
	set("m2", true)
	if !reaches("m1", "ctl") || !reaches("ctl", "m2") {
		t.Error("an open port does not reach the controller")
	}
	if reaches("m1", "m2") {
		t.Error("machines reach each other on the provisioning network")
	}
	set("m1", false)
	if reaches("m1", "ctl") {
		t.Error("frames pass a port that was closed again")
	}
	if !reaches("m2", "ctl") {
		t.Error("closing one port closed another")
	}
}

func TestErrors(t *testing.T) {
	ns, _ := fabric(t)
	d := &bridgeport.Driver{Netns: ns}
	if err := d.Set(t.Context(), "nothing", true); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("a port that is not there: %v", err)
	}
	if err := d.Set(t.Context(), "lo", true); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("a device that is no bridge port: %v", err)
	}
	if err := (&bridgeport.Driver{Netns: ns + "x"}).Set(t.Context(), "m1", true); machine.CodeOf(err) != machine.Unavailable {
		t.Errorf("a namespace that is not there: %v", err)
	}
}
