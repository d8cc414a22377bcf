package frr_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/frr"
	"github.com/bareyard/bareyard/network/linuxedge"
)

const prefix = "byfrr-"

var serial atomic.Int64

func TestMain(m *testing.M) {
	left, _ := filepath.Glob("/run/netns/" + prefix + "*") // of a killed run: namespaces carry the process that made them
	for _, path := range left {
		name := filepath.Base(path)
		pid, err := strconv.Atoi(strings.Split(strings.TrimPrefix(name, prefix), "-")[0])
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	}
	os.Exit(m.Run())
}

// world is an edge with FRR, and two carriers' routers that are FRR as well, each in a namespace:
//
//	upstream 192.0.2.1  ── up0 edge 192.0.2.2, AS 65001
//	carrier 198.18.0.1  ── up1 edge 198.18.0.2
type world struct {
	t                       *testing.T
	id                      string
	edge, upstream, carrier *router
	linux                   *linuxedge.Edge
}

// router is zebra and bgpd in a namespace, with a folder of their own.
type router struct {
	t   *testing.T
	ns  string
	dir string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests make network namespaces: run them as root")
	}
	w := &world{t: t, id: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), serial.Add(1))}
	w.edge, w.upstream, w.carrier = w.router("edge"), w.router("up"), w.router("carrier")
	w.link(w.upstream, "up0", "192.0.2", "2001:db8:ffff:")
	w.link(w.carrier, "up1", "198.18.0", "2001:db8:fffe:")
	w.ip(w.edge.ns, "link add down0 type bridge")
	w.edge.start("")
	var err error
	if w.linux, err = linuxedge.New(linuxedge.Config{Netns: w.edge.ns, Uplink: "up0", Downlink: "down0"}); err != nil {
		t.Fatal(err)
	}
	return w
}

// peers starts the carriers' routers.
func (w *world) peers() {
	w.t.Helper()
	const peer = "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n neighbor %s remote-as 65001\n neighbor %s timers connect 1\n neighbor %s remote-as 65001\n neighbor %s timers connect 1\n address-family ipv6 unicast\n  neighbor %s activate\n"
	w.upstream.start(fmt.Sprintf(peer, 65000, "192.0.2.1", "192.0.2.2", "192.0.2.2", "2001:db8:ffff::2", "2001:db8:ffff::2", "2001:db8:ffff::2"))
	w.carrier.start(fmt.Sprintf(peer, 65002, "198.18.0.1", "198.18.0.2", "198.18.0.2", "2001:db8:fffe::2", "2001:db8:fffe::2", "2001:db8:fffe::2"))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s(install iproute2 and frr, if missing)", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) ip(ns string, lines ...string) {
	w.t.Helper()
	for _, l := range lines {
		run(w.t, "ip", append([]string{"-n", ns}, strings.Fields(l)...)...)
	}
}

// router makes a namespace and a folder that FRR's account may enter.
func (w *world) router(role string) *router {
	w.t.Helper()
	r := &router{t: w.t, ns: w.id + "-" + role}
	run(w.t, "ip", "netns", "add", r.ns)
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", r.ns).Run() })
	w.ip(r.ns, "link set lo up")
	account, err := user.Lookup("frr")
	if err != nil {
		w.t.Fatalf("%v: install frr", err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	if r.dir, err = os.MkdirTemp("/tmp", prefix); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = os.RemoveAll(r.dir) })
	if err := errors.Join(os.Chmod(r.dir, 0o755), os.Chown(r.dir, uid, gid)); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) link(to *router, dev, net4, net6 string) {
	w.t.Helper()
	run(w.t, "ip", "link", "add", "eth0", "netns", to.ns, "type", "veth", "peer", "name", dev, "netns", w.edge.ns)
	w.ip(to.ns, "addr add "+net4+".1/24 dev eth0", "addr add "+net6+":1/64 dev eth0 nodad", "link set eth0 up")
	w.ip(w.edge.ns, "addr add "+net4+".2/24 dev "+dev, "addr add "+net6+":2/64 dev "+dev+" nodad", "link set "+dev+" up")
}

// start starts the daemons with a configuration for bgpd; they end with the test.
func (r *router) start(config string) {
	r.t.Helper()
	for _, daemon := range []string{"zebra", "bgpd"} {
		file := filepath.Join(r.dir, daemon+".conf")
		text := "hostname " + filepath.Base(r.dir) + "\n"
		if daemon == "bgpd" {
			text += config
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
		run(r.t, "ip", "netns", "exec", r.ns, "/usr/lib/frr/"+daemon, "-d", "-u", "frr", "-g", "frr", "-i", filepath.Join(r.dir, daemon+".pid"), "-z", filepath.Join(r.dir, "zserv.api"),
			"--vty_socket", r.dir, "-f", file, "-A", "127.0.0.1", "--log", "file:"+filepath.Join(r.dir, daemon+".log"))
	}
	r.t.Cleanup(r.stop)
}

// stop ends the daemons by the numbers that they have written down, and waits until they are gone.
func (r *router) stop() {
	for _, daemon := range []string{"bgpd", "zebra"} {
		file := filepath.Join(r.dir, daemon+".pid")
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid < 2 {
			continue
		}
		_ = unix.Kill(pid, unix.SIGTERM)
		for end := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil && time.Now().Before(end); {
			<-time.After(10 * time.Millisecond)
		}
		_ = os.Remove(file)
	}
}

func (r *router) vtysh(lines ...string) string {
	r.t.Helper()
	args := []string{"--vty_socket", r.dir}
	for _, l := range lines {
		args = append(args, "-c", l)
	}
	return run(r.t, "vtysh", args...)
}

// knows returns the communities of each prefix that the router has been told.
func (r *router) knows() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for _, afi := range []string{"ipv4", "ipv6"} {
		var table struct {
			Routes map[string]json.RawMessage `json:"routes"`
		}
		if err := json.Unmarshal([]byte(r.vtysh("show bgp "+afi+" unicast json")), &table); err != nil {
			r.t.Fatal(err)
		}
		for p := range table.Routes {
			var route struct {
				Paths []struct {
					Community struct {
						String string `json:"string"`
					} `json:"community"`
				} `json:"paths"`
			}
			if err := json.Unmarshal([]byte(r.vtysh("show bgp "+afi+" unicast "+p+" json")), &route); err != nil {
				r.t.Fatal(err)
			}
			for _, path := range route.Paths {
				out[p] = path.Community.String
			}
		}
	}
	return out
}

// learns waits until the router knows just these prefixes, with these communities.
func (r *router) learns(want map[string]string) {
	r.t.Helper()
	text := fmt.Sprint(want)
	got := ""
	for end := time.Now().Add(30 * time.Second); got != text; {
		if time.Now().After(end) {
			r.t.Fatalf("%s knows\n%s\nwant\n%s", r.ns, got, text)
		}
		<-time.After(100 * time.Millisecond)
		got = fmt.Sprint(r.knows())
	}
}

func (w *world) config() frr.Config {
	return frr.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("192.0.2.2"), Downlink: "down0", Sockets: w.edge.dir,
		Ranges:    []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/40")},
		Blackhole: []string{"65535:666", "65000:666"},
		Neighbors: []frr.Neighbor{
			{Address: netip.MustParseAddr("192.0.2.1"), ASN: 65000, Hosts: true}, {Address: netip.MustParseAddr("2001:db8:ffff::1"), ASN: 65000, Hosts: true},
			{Address: netip.MustParseAddr("198.18.0.1"), ASN: 65002}, {Address: netip.MustParseAddr("2001:db8:fffe::1"), ASN: 65002},
		},
	}
}

func speaker(t *testing.T, c frr.Config) *frr.Speaker {
	t.Helper()
	s, err := frr.NewSpeaker(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// apply configures FRR and checks that it then is as it should be.
func (w *world) apply(c frr.Config) {
	w.t.Helper()
	s := speaker(w.t, c)
	if _, err := s.Apply(w.t.Context()); err != nil {
		w.t.Fatalf("%v\n%s", err, w.edge.vtysh("show running-config"))
	}
	if changed, err := s.Apply(w.t.Context()); err != nil || changed {
		w.t.Fatalf("a second time it changed something: %v, %v", changed, err)
	}
}

func (w *world) carry(ports ...network.Port) {
	w.t.Helper()
	if err := network.Reconcile(w.t.Context(), w.linux, ports); err != nil {
		w.t.Fatal(err)
	}
}

func port(n int, mode network.Mode) network.Port {
	return network.Port{
		Machine: fmt.Sprintf("m%d", n), MAC: fmt.Sprintf("02:00:00:00:02:%02x", n), Mode: mode, Up: network.Fixed(100_000), Down: network.Fixed(100_000),
		Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", n))},
	}
}
