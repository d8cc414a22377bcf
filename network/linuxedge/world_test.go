package linuxedge_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
)

const prefix = "byedge-"

func TestMain(m *testing.M) {
	if job := os.Getenv(applyEnv); job != "" {
		apply(job)
		return
	}
	sweepNamespaces()
	os.Exit(m.Run())
}

// sweepNamespaces removes what a killed run of these tests has left: namespaces carry the process that made them.
func sweepNamespaces() {
	left, _ := filepath.Glob("/run/netns/" + prefix + "*")
	for _, path := range left {
		name := filepath.Base(path)
		pid, err := strconv.Atoi(strings.Split(strings.TrimPrefix(name, prefix), "-")[0])
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	}
}

var serial atomic.Int64

// world is three kinds of namespace: the Internet, the edge and the tenants, who hang on a bridge that is the edge's
// downlink, with isolated ports, as in the lab. A fourth, management, is attached to the edge as well.
//
//	inet 192.0.2.1 ── up0 edge 192.0.2.2 … down0 ── tenant 203.0.113.1
//	mgmt 10.99.0.2 ── mgmt0 edge 10.99.0.1      └── tenant 203.0.113.2
type world struct {
	t       *testing.T
	id      string
	inet    string
	edge    string
	mgmt    string
	tenants []tenant

	shard, capacity int // of the driver's configuration
}

type tenant struct {
	ns   string
	port network.Port
}

const (
	uplinkMAC = "02:00:00:00:01:02" // up0 of the edge
	inet4     = "192.0.2.1"
	inet6     = "2001:db8:ffff::1"
)

func newWorld(t *testing.T, tenants int) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests make network namespaces: run them as root")
	}
	w := &world{t: t, id: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), serial.Add(1))}
	w.inet, w.edge, w.mgmt = w.namespace("inet"), w.namespace("edge"), w.namespace("mgmt")

	w.veth(w.inet, "eth0", w.edge, "up0")
	w.ip(w.inet, "addr add "+inet4+"/24 dev eth0", "addr add "+inet6+"/64 dev eth0 nodad", "route add 203.0.113.0/24 via 192.0.2.2", "route add 10.98.0.0/16 dev lo",
		"route add 2001:db8::/40 via 2001:db8:ffff::2")
	w.ip(w.edge, "link set up0 address "+uplinkMAC, "addr add 192.0.2.2/24 dev up0", "addr add 2001:db8:ffff::2/64 dev up0 nodad", "route add default via "+inet4, "route add default via "+inet6)
	w.veth(w.mgmt, "eth0", w.edge, "mgmt0")
	w.ip(w.mgmt, "addr add 10.99.0.2/24 dev eth0", "addr add fd00:99::2/64 dev eth0 nodad", "route add default via 10.99.0.1", "route add default via fd00:99::1")
	w.ip(w.edge, "addr add 10.99.0.1/24 dev mgmt0", "addr add fd00:99::1/64 dev mgmt0 nodad", "link add down0 address 02:00:00:00:01:03 type bridge")
	w.sysctl(w.edge, "net.ipv6.conf.down0.accept_dad=0")
	w.listenUDP(w.inet, ":4001") // where the tests' frames go, or each would be answered with an ICMP error
	for i := 1; i <= tenants; i++ {
		w.tenant(i)
		w.listenUDP(w.tenants[i-1].ns, ":4001")
	}
	return w
}

// newPlainWorld is a world whose edge is a plain router: what the box can do without us.
func newPlainWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.ip(w.edge, "link set down0 up", "addr add 169.254.0.1/32 dev down0", "route add 203.0.113.1/32 dev down0")
	w.sysctl(w.edge, "net.ipv4.ip_forward=1")
	return w
}

func (w *world) tenant(i int) {
	p := network.Port{
		Machine: fmt.Sprintf("m%d", i), MAC: fmt.Sprintf("02:00:00:00:02:%02x", i), Mode: network.On, Up: network.Fixed(100_000), Down: network.Fixed(100_000),
		Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", i)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", i))},
	}
	tn := tenant{ns: w.namespace("t" + strconv.Itoa(i)), port: p}
	port := "p" + strconv.Itoa(i)
	w.veth(tn.ns, "eth0", w.edge, port)
	w.ip(w.edge, "link set "+port+" master down0", "link set "+port+" type bridge_slave isolated on")
	// What Seed.NetworkConfig writes into the OS.
	w.ip(tn.ns, "link set eth0 address "+p.MAC, "addr add "+p.Addrs[0].String()+" dev eth0", "route add 169.254.0.1 dev eth0 scope link", "route add default via 169.254.0.1 onlink dev eth0",
		fmt.Sprintf("addr add 2001:db8:%x::1/64 dev eth0 nodad", i), "route add 2000::/3 via fe80::1 dev eth0", "route add fc00::/7 via fe80::1 dev eth0")
	w.tenants = append(w.tenants, tn)
}

func (w *world) namespace(role string) string {
	name := w.id + "-" + role
	w.run("ip", "netns", "add", name)
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	w.ip(name, "link set lo up")
	return name
}

// veth joins two namespaces. Link-local addresses come without waiting for duplicates: no test has to sleep.
func (w *world) veth(ns1, dev1, ns2, dev2 string) {
	w.run("ip", "link", "add", dev1, "netns", ns1, "type", "veth", "peer", "name", dev2, "netns", ns2)
	for _, e := range [][2]string{{ns1, dev1}, {ns2, dev2}} {
		w.sysctl(e[0], "net.ipv6.conf."+e[1]+".accept_dad=0")
		w.ip(e[0], "link set "+e[1]+" up")
	}
}

func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %s: %v\n%s(install iproute2 and iputils-ping, if missing)", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) ip(ns string, lines ...string) {
	w.t.Helper()
	cmd := exec.Command("ip", "-n", ns, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("ip -n %s: %v (install iproute2 if missing)\n%s\n%s", ns, err, strings.Join(lines, "\n"), out)
	}
}

// exec runs a command in a namespace.
func (w *world) exec(ns, line string) string {
	w.t.Helper()
	return w.run("ip", append([]string{"netns", "exec", ns}, strings.Fields(line)...)...)
}

func (w *world) sysctl(ns, setting string) { w.exec(ns, "sysctl -qw "+setting) }

func (w *world) config() linuxedge.Config {
	return linuxedge.Config{Netns: w.edge, Shard: w.shard, Capacity: w.capacity, Uplink: "up0", Downlink: "down0", Deny: []netip.Prefix{netip.MustParsePrefix("10.98.0.0/16"), netip.MustParsePrefix("10.99.0.0/24"), netip.MustParsePrefix("fd00:98::/32")}}
}

func (w *world) driver() *linuxedge.Edge {
	w.t.Helper()
	e, err := linuxedge.New(w.config())
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) ports() []network.Port {
	var out []network.Port
	for _, tn := range w.tenants {
		out = append(out, tn.port)
	}
	return out
}

// reconcile brings the edge to the wanted ports and checks that it says so.
func (w *world) reconcile(want ...network.Port) {
	w.t.Helper()
	if err := network.Reconcile(w.t.Context(), w.driver(), want); err != nil {
		w.t.Fatal(err)
	}
	w.settled(want...)
}

func (w *world) settled(want ...network.Port) {
	w.t.Helper()
	have, err := w.driver().Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if set, remove := network.Diff(want, have); len(set)+len(remove) > 0 {
		w.t.Fatalf("edge is not as wanted: to set %v, to remove %v, have %v", set, remove, have)
	}
}

// inside runs f on a thread in a namespace. Sockets keep the namespace in which they were made.
func inside(t testing.TB, ns string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromName(ns)
		if err == nil {
			err = netns.Set(h)
			_ = h.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("in namespace %s: %v", ns, err)
	}
}

func (w *world) listen(ns, addr string) *net.TCPListener {
	w.t.Helper()
	var l net.Listener
	inside(w.t, ns, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	w.t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func (w *world) listenUDP(ns, addr string) *net.UDPConn {
	w.t.Helper()
	var c net.PacketConn
	inside(w.t, ns, func() (err error) {
		c, err = net.ListenPacket("udp", addr)
		return err
	})
	w.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UDPConn)
}
