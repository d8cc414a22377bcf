package main

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/remoteedge"
)

// edgeBox is `bareyard edge` as a process of its own, in a network namespace that is its box.
type edgeBox struct {
	t       *testing.T
	ns      string
	file    string
	address string
	client  *remoteedge.Client
	cmd     *exec.Cmd
	log     *strings.Builder
}

func newEdgeBox(t *testing.T) *edgeBox {
	t.Helper()
	dir := t.TempDir()
	b := &edgeBox{t: t, ns: fmt.Sprintf("byedgebox-%d", os.Getpid()), file: filepath.Join(dir, "edge.yaml")}
	b.shell("ip netns add " + b.ns)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", b.ns).Run() })
	b.shell("ip -n " + b.ns + " link add up0 type veth peer name far0; ip -n " + b.ns + " link set up0 up; ip -n " + b.ns + " link add down0 type bridge")

	bundle, err := newAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseAuthority(bundle)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := a.issueEdge("e1")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = l.Addr().String()
	_ = l.Close()
	text := fmt.Sprintf("listen: %s\ncredentials: edge.pem\nmemory: edge.json\nrepair: 1s\nedge: {netns: %s, uplink: up0, downlink: down0}\n", b.address, b.ns)
	for name, text := range map[string]string{"edge.yaml": text, "edge.pem": pem} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := a.issueDialler(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	if b.client, err = remoteedge.Dial("e1", b.address, cert, roots); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
	return b
}

func (b *edgeBox) shell(script string) {
	b.t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		b.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// start starts the process and waits until it answers.
func (b *edgeBox) start() {
	b.t.Helper()
	b.log = &strings.Builder{}
	b.cmd = exec.Command("bareyard", "edge", "--config", b.file)
	b.cmd.Stderr = b.log
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.kill)
	b.until("it answers", func() bool {
		_, err := b.client.Caps(b.t.Context())
		return err == nil
	})
}

func (b *edgeBox) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

func (b *edgeBox) until(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(end) {
			b.t.Fatalf("waited 30 s until %s; the edge says:\n%s", what, b.log)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// carries reports whether the edge carries just these ports.
func (b *edgeBox) carries(want []network.Port) bool {
	have, err := b.client.Read(b.t.Context())
	set, remove := network.Diff(want, have)
	return err == nil && len(set)+len(remove) == 0
}

func edgePorts(r *rand.Rand) []network.Port {
	var out []network.Port
	for i, n := range r.Perm(10) {
		if r.IntN(3) > 0 {
			out = append(out, network.Port{
				Machine: fmt.Sprintf("m%d", i), MAC: fmt.Sprintf("02:00:00:00:07:%02x", i), Mode: network.Modes()[r.IntN(4)],
				Up: network.Fixed(1000 * (1 + r.IntN(100))), Down: network.Fixed(1000 * (1 + r.IntN(100))),
				Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", n))},
			})
		}
	}
	return out
}

// TestEdgeBox kills an edge at random moments while a server is changing it, and reboots its box. What it confirmed last, or
// was told last, is what it comes back with, without a server; and the next server brings about what it wants.
func TestEdgeBox(t *testing.T) {
	b := newEdgeBox(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 3))
	var confirmed []network.Port
	b.start()
	for range 6 {
		var asked []network.Port
		process := b.cmd.Process
		kill := time.AfterFunc(time.Duration(20+r.IntN(250))*time.Millisecond, func() { _ = process.Kill() })
		for {
			asked = edgePorts(r)
			have, err := b.client.Read(t.Context())
			if err == nil {
				set, remove := network.Diff(asked, have)
				err = b.client.Apply(t.Context(), set, remove)
			}
			if err != nil {
				break
			}
			confirmed = asked
		}
		kill.Stop()
		b.kill()
		b.start()
		b.until("it carries what it was told last", func() bool { return b.carries(confirmed) || b.carries(asked) })
		confirmed = edgePorts(r)
		if err := network.Reconcile(t.Context(), b.client, confirmed); err != nil || !b.carries(confirmed) {
			t.Fatalf("the next server: %v", err)
		}
	}

	b.kill()
	b.shell("ip netns exec " + b.ns + ` sh -ec 'nft flush ruleset; tc qdisc del dev up0 root; tc qdisc del dev down0 root; ip route flush proto 98; ip -6 route flush proto 98
		ip neigh flush nud permanent; sysctl -qw net.ipv4.ip_forward=1'`)
	b.start()
	b.until("it is back after a reboot", func() bool { return b.carries(confirmed) })
}
