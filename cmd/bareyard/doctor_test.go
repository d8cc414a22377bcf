package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestFindings(t *testing.T) {
	yes := func() (string, error) { return "here", nil }
	no := func() (string, error) { return "", errors.New("not here") }
	found := examine([]check{
		{name: "one", packages: "p1", look: yes},
		{name: "two", packages: "p2 p3", look: no},
		{name: "three", packages: "p3", optional: "slower", look: no},
		{name: "four", look: no},
	})
	var out strings.Builder
	if err := printFindings(&out, found); err != nil {
		t.Fatal(err)
	}
	want := `CHECK  STATE     DETAIL
one    ok        here
two    missing   not here
three  optional  not here: slower
four   missing   not here

to install what is missing:
  apt-get install --no-install-recommends p2 p3

2 required missing
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestPortHolder: the doctor names the process that holds a port.
func TestPortHolder(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	_, err = freeUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	me, _ := os.ReadFile("/proc/self/comm")
	if want := strings.TrimSpace(string(me)) + " (" + strconv.Itoa(os.Getpid()) + ")"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to name %s", err, want)
	}
	c.Close()
	if detail, err := freeUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), port)); err != nil || detail != "free" {
		t.Errorf("after closing: %q, %v", detail, err)
	}
	if _, err := freeTCP("192.0.2.77:80"); err == nil || !strings.Contains(err.Error(), "not on this machine") {
		t.Errorf("foreign address: %v", err)
	}
}

func TestInodes(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 102 1 0
   2: 0100007F:0043 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 103 1 0
short line
`
	if got := strings.Join(inodesAt(table, 8080), ","); got != "101" {
		t.Errorf("8080 is held by %q, want 101 alone: the other is a connection", got)
	}
	if got := strings.Join(inodesAt(table, 67), ","); got != "103" {
		t.Errorf("67 is held by %q", got)
	}
}

func TestChecks(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		look func() (string, error)
		want string // in the detail or the error
		ok   bool
	}{
		{"absent file", file(filepath.Join(dir, "no"), "make it"), "(make it)", false},
		{"empty file", file(empty, ""), "is empty", false},
		{"program", program("sh"), "/sh", true},
		{"no program", program("no-such-program"), "no no-such-program", false},
		{"folder to be made", func() (string, error) { return writable(filepath.Join(dir, "a", "b"), 1) }, "GiB free", true},
		{"file in the way", func() (string, error) { return writable(filepath.Join(empty, "b"), 1) }, "not a folder", false},
		{"no room", func() (string, error) { return writable(dir, 1<<62) }, "MiB left", false},
		{"own interface", func() (string, error) { return interfaceHas("lo", netip.MustParseAddr("127.0.0.1")) }, "lo has 127.0.0.1/8", true},
		{"other address", func() (string, error) { return interfaceHas("lo", netip.MustParseAddr("192.0.2.1")) }, "does not have", false},
		{"no interface", func() (string, error) { return interfaceHas("nope0", netip.Addr{}) }, "no interface nope0", false},
		{"no namespace", func() (string, error) { return namespace("bareyard-no-such") }, "ip netns add", false},
		{"device", func() (string, error) { return deviceIn("", "lo") }, "lo, ", true},
		{"no device", func() (string, error) { return deviceIn("", "nope0") }, "no device nope0", false},
		{"little memory", func() (string, error) { return memory(1 << 20) }, "GiB", true},
		{"much memory", func() (string, error) { return memory(1 << 60) }, "GiB", false},
		{"postgres", embedded, "/bin", true},
	} {
		detail, err := c.look()
		if err != nil {
			detail = err.Error()
		}
		if (err == nil) != c.ok || !strings.Contains(detail, c.want) {
			t.Errorf("%s: %q, ok %t; want %q, ok %t", c.name, detail, err == nil, c.want, c.ok)
		}
	}
}
