package linuxedge_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
)

const (
	benchRounds  = 7
	benchPackets = 20_000 // of 64 bytes, per round
	benchShell   = 100    // machines up to which a shell does it: a thousand take minutes
)

// TestBenchEdge measures what the edge's packets and changes cost with 1 to 5,000 machines, beside a router that people make: a rule
// of nftables and a class of tc for each machine, one after the other in one chain. It judges nothing: a figure on a shared machine
// means little, a ratio from one run means something.
func TestBenchEdge(t *testing.T) {
	if os.Getenv("BAREYARD_BENCH") == "" {
		t.Skip("measures an edge: run make bench-edge")
	}
	plain, ours, peer := newBench(t), newBench(t), newBench(t)
	plain.route()
	peer.route()
	sizes := []int{1, 100, 1000, 5000}
	cost := map[string]map[int]float64{"ours": {}, "rules": {}, "plain": {}}
	change, whole := map[string]map[int]time.Duration{"ours": {}, "shell": {}}, map[string]map[int]time.Duration{"ours": {}, "shell": {}}
	before := 0
	for _, n := range sizes {
		whole["ours"][n] = timed(func() { ours.must(network.Reconcile(t.Context(), ours.edge, benchPorts(n))) })
		if n <= benchShell {
			whole["shell"][n] = timed(func() { peer.reset(); peer.shell(0, n) })
		} else {
			peer.batch(before, n)
		}
		before = n
		again := timed(func() { ours.must(network.Reconcile(t.Context(), ours.edge, benchPorts(n))) })
		var one, shellOne []time.Duration
		for i := range benchRounds {
			p := benchPorts(n)[n/2]
			p.Up, p.Down = network.Fixed(200_000+i*1000), network.Fixed(200_000+i*1000)
			one = append(one, timed(func() { ours.must(ours.edge.Apply(t.Context(), []network.Port{p}, nil)) }))
			shellOne = append(shellOne, timed(func() { peer.changeByShell(n/2, 200+i) }))
		}
		change["ours"][n], change["shell"][n] = middle(one), middle(shellOne)
		fmt.Printf("  apply      %5d machines: from the size before %8s, nothing to do %8s, one change %8s (%s to %s); by shell all %8s, one change %8s\n", n, short(whole["ours"][n]), short(again),
			short(change["ours"][n]), short(slices.Min(one)), short(slices.Max(one)), short(whole["shell"][n]), short(change["shell"][n]))
		rounds := map[string][]float64{}
		for range benchRounds {
			for name, b := range map[string]*bench{"ours": ours, "rules": peer, "plain": plain} {
				rounds[name] = append(rounds[name], b.forward(n))
			}
		}
		for name, r := range rounds {
			cost[name][n] = middle(r)
		}
		fmt.Printf("  forward    %5d machines: ours %6.0f ns/packet (%.0f to %.0f), one rule each %6.0f, a plain router %6.0f\n", n, cost["ours"][n],
			slices.Min(rounds["ours"]), slices.Max(rounds["ours"]), cost["rules"][n], cost["plain"][n])
	}
	most := sizes[len(sizes)-1]
	fmt.Printf("ratio edge-forward-%d rules %.2f\n", most, cost["rules"][most]/cost["ours"][most])
	fmt.Printf("ratio edge-forward-%d plain %.2f\n", most, cost["plain"][most]/cost["ours"][most])
	fmt.Printf("ratio edge-forward-%d-machines 1-machine %.2f\n", most, cost["ours"][1]/cost["ours"][most])
	fmt.Printf("ratio edge-apply-%d shell %.2f\n", benchShell, whole["shell"][benchShell].Seconds()/whole["ours"][benchShell].Seconds())
	fmt.Printf("ratio edge-change-%d shell %.2f\n", most, change["shell"][most].Seconds()/change["ours"][most].Seconds())
}

// bench is a router between two cables: the Internet, and all machines.
type bench struct {
	*world
	machines string
	edge     *linuxedge.Edge
}

func newBench(t *testing.T) *bench {
	t.Helper()
	w := &world{t: t, id: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), serial.Add(1))}
	w.inet, w.edge = w.namespace("inet"), w.namespace("edge")
	b := &bench{world: w, machines: w.namespace("all")}
	w.veth(w.inet, "eth0", w.edge, "up0")
	w.veth(w.edge, "down0", b.machines, "eth0")
	w.ip(w.inet, "addr add 192.0.2.1/24 dev eth0", "route add 198.18.0.0/15 via 192.0.2.2")
	w.ip(w.edge, "addr add 192.0.2.2/24 dev up0", "route add default via 192.0.2.1")
	edge, err := linuxedge.New(linuxedge.Config{Netns: w.edge, Uplink: "up0", Downlink: "down0"})
	b.must(err)
	b.edge = edge
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func benchAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

func benchPorts(n int) []network.Port {
	ports := make([]network.Port, n)
	for i := range ports {
		ports[i] = network.Port{Machine: fmt.Sprintf("m%05d", i), MAC: fmt.Sprintf("02:00:00:10:%02x:%02x", i>>8, i&255), Mode: network.On,
			Up: network.Fixed(1_000_000), Down: network.Fixed(1_000_000), Addrs: []netip.Prefix{netip.PrefixFrom(benchAddr(i), 32)}}
	}
	return ports
}

// route makes the box a router for all machines, without any rule.
func (b *bench) route() {
	b.ip(b.world.edge, "neigh add 169.254.0.9 lladdr 02:00:00:10:00:00 dev down0 nud permanent", "route add 169.254.0.9 dev down0 scope link", "route add 198.18.0.0/15 via 169.254.0.9 dev down0")
	b.sysctl(b.world.edge, "net.ipv4.ip_forward=1")
}

// reset makes the chain and the trees that people begin with.
func (b *bench) reset() {
	for _, dev := range []string{"up0", "down0"} {
		_ = exec.Command("ip", "netns", "exec", b.world.edge, "tc", "qdisc", "del", "dev", dev, "root").Run() // there is none at first
		b.exec(b.world.edge, "tc qdisc add dev "+dev+" root handle 1: htb")
	}
	b.script("nft", "-f", "-", "table inet people\ndelete table inet people\ntable inet people {\nchain forward {\ntype filter hook forward priority 0; policy accept;\n}\n}\n")
}

// script runs a program in the router with a text on its standard input.
func (b *bench) script(args ...string) {
	b.t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", b.world.edge}, args[:len(args)-1]...)...)
	cmd.Stdin = strings.NewReader(args[len(args)-1])
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v\n%s", args[:len(args)-1], err, out)
	}
}

func peerClass(i int) string { return fmt.Sprintf("1:%x", i+16) }

func peerRules(i int) [2]string {
	return [2]string{fmt.Sprintf("add rule inet people forward ip daddr %s meta priority set %s accept", benchAddr(i), peerClass(i)),
		fmt.Sprintf("add rule inet people forward ip saddr %s meta priority set %s accept", benchAddr(i), peerClass(i))}
}

func peerClasses(i int, verb string, mbit int) (lines [2]string) {
	for n, dev := range []string{"up0", "down0"} {
		lines[n] = fmt.Sprintf("class %s dev %s parent 1: classid %s htb rate %dmbit quantum 1514", verb, dev, peerClass(i), mbit)
	}
	return lines
}

// shell does for each machine what a script of people does: one program after the other, inside the router.
func (b *bench) shell(from, to int) {
	var text strings.Builder
	for i := from; i < to; i++ {
		for _, l := range peerClasses(i, "add", 1000) {
			fmt.Fprintln(&text, "tc", l)
		}
		for _, l := range peerRules(i) {
			fmt.Fprintf(&text, "nft '%s'\n", l)
		}
	}
	b.script("sh", "-e", text.String())
}

// batch does the same with one call of each program.
func (b *bench) batch(from, to int) {
	var tc, nft strings.Builder
	for i := from; i < to; i++ {
		for _, l := range peerClasses(i, "add", 1000) {
			fmt.Fprintln(&tc, l)
		}
		for _, l := range peerRules(i) {
			fmt.Fprintln(&nft, l)
		}
	}
	b.script("tc", "-batch", "-", tc.String())
	b.script("nft", "-f", "-", nft.String())
}

// changeByShell changes a bandwidth; the rules stay.
func (b *bench) changeByShell(i, mbit int) {
	lines := peerClasses(i, "change", mbit)
	b.script("sh", "-e", "tc "+lines[0]+"\ntc "+lines[1]+"\n")
}

// forward sends packets from the Internet to all machines in turn, and returns the processor time that one takes: over a cable of
// veth the sender's own thread carries it through the router.
func (b *bench) forward(machines int) (nanoseconds float64) {
	b.t.Helper()
	inside(b.t, b.inet, func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		batch := make([]ipv4.Message, 100)
		p, payload, next := ipv4.NewPacketConn(conn), make([]byte, 22), 0
		send := func(n int) error {
			for range n / len(batch) {
				for i := range batch {
					batch[i] = ipv4.Message{Buffers: [][]byte{payload}, Addr: &net.UDPAddr{IP: benchAddr(next * 7919 % machines).AsSlice(), Port: 4001}}
					next++
				}
				for left := batch; len(left) > 0; {
					sent, err := p.WriteBatch(left, 0)
					if err != nil {
						return err
					}
					left = left[sent:]
				}
			}
			return nil
		}
		if err := send(1000); err != nil { // routes and neighbours are known
			return err
		}
		runtime.LockOSThread()
		begin := threadTime()
		err = send(benchPackets)
		nanoseconds = float64(threadTime()-begin) / benchPackets
		return err
	})
	return nanoseconds
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func middle[T time.Duration | float64](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func short(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(100 * time.Microsecond).String()
}
