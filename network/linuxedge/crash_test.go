package linuxedge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
)

// applyEnv makes the test binary an applier that reconciles one random state after another until it is killed.
const applyEnv = "LINUXEDGE_APPLY"

type applyJob struct {
	Config linuxedge.Config
	Seed   uint64
}

func apply(arg string) {
	var job applyJob
	if err := json.Unmarshal([]byte(arg), &job); err != nil {
		panic(err)
	}
	e, err := linuxedge.New(job.Config)
	if err != nil {
		panic(err)
	}
	r := rand.New(rand.NewPCG(job.Seed, 1))
	fmt.Println("applying")
	for {
		if err := network.Reconcile(context.Background(), e, randomPorts(r)); err != nil {
			panic(err)
		}
	}
}

// randomPorts returns up to 12 ports whose addresses move between machines.
func randomPorts(r *rand.Rand) []network.Port {
	const n = 12
	address, mac := r.Perm(n), r.Perm(n)
	var out []network.Port
	for i := range n {
		if r.IntN(3) == 0 {
			continue
		}
		p := network.Port{
			Machine: fmt.Sprintf("c%d", i), MAC: fmt.Sprintf("02:00:00:00:03:%02x", mac[i]),
			Mode: network.Modes()[r.IntN(4)], Limit: 1000 * r.IntN(3), Up: network.Fixed(1000 * (1 + r.IntN(100))), Down: network.Fixed(1000 * (1 + r.IntN(100))),
			Addrs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", 100+address[i]))},
		}
		if r.IntN(2) == 0 {
			p.Down.Burst = 2 * p.Down.Kbit
		}
		if r.IntN(2) == 0 {
			six := fmt.Sprintf("2001:db8:%x::/%d", 0x100+address[i], 56+8*r.IntN(2))
			p.Addrs = append(p.Addrs, netip.MustParsePrefix(six))
		}
		out = append(out, p)
	}
	return out
}

// TestKilledApplyConverges kills an applier with SIGKILL at random moments. After each kill nobody may pass unshaped or
// unguarded, and the next reconcile, by another process, must bring about exactly what is wanted.
func TestKilledApplyConverges(t *testing.T) {
	for _, shard := range []int{0, 3} {
		t.Run(fmt.Sprintf("Shard%d", shard), func(t *testing.T) { killedApplyConverges(t, shard) })
	}
}

func killedApplyConverges(t *testing.T, shard int) {
	w := newWorld(t, 1)
	w.shard = shard
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	for round := range 20 {
		killDuringApply(t, w.config(), r.Uint64(), time.Duration(1+r.IntN(80_000))*time.Microsecond)
		w.nobodyUnshaped()
		if round%5 == 4 {
			want := append(w.ports(), randomPorts(r)...)
			w.reconcile(want...)
			w.nothingLeft(want)
			w.exec(w.tenants[0].ns, "ping -c 1 -W 2 "+inet4)
		}
	}
}

func killDuringApply(t *testing.T, cfg linuxedge.Config, seed uint64, after time.Duration) {
	t.Helper()
	job, err := json.Marshal(applyJob{cfg, seed})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), applyEnv+"="+string(job))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	<-time.After(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || line != "applying\n" || stderr.Len() > 0 {
		t.Fatalf("applier said %q, %v:\n%s", line, err, stderr.String())
	}
}

var (
	classRE   = regexp.MustCompile(`class htb ([0-9a-f]+):([0-9a-f]{2,}) `) // of machines: the others have one digit
	elementRE = regexp.MustCompile(` : ([0-9a-f]{4}):([0-9a-f])00\b`)       // bytes reversed, see definitions
)

// kernel is what the system's own tools say: the rules, the classes of either device, whether the box forwards.
func (w *world) kernel() (rules string, classes [2]map[uint32]bool, forwards bool) {
	w.t.Helper()
	out := strings.Split(w.shell("nft list ruleset; echo %%; tc class show dev up0; echo %%; tc class show dev down0; echo %%; sysctl -n net.ipv4.ip_forward"), "%%\n")
	for i := range classes {
		classes[i] = map[uint32]bool{}
		for _, m := range classRE.FindAllStringSubmatch(out[1+i], -1) {
			classes[i][uint32(parseHex(w.t, m[1]))<<16|uint32(parseHex(w.t, m[2]))] = true
		}
	}
	return out[0], classes, out[3] == "1\n"
}

func parseHex(t *testing.T, hex string) uint16 {
	t.Helper()
	n, err := strconv.ParseUint(hex, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

// nobodyUnshaped checks that each address in the maps has a class on either device, and that the box forwards only with its
// guard up. It returns how many addresses it has seen.
func (w *world) nobodyUnshaped() int {
	w.t.Helper()
	rules, classes, forwards := w.kernel()
	elements := elementRE.FindAllStringSubmatch(rules, -1)
	for _, m := range elements {
		n := parseHex(w.t, m[1])
		id := uint32(parseHex(w.t, m[2]))<<16 | uint32(n<<8|n>>8)
		if !classes[0][id] || !classes[1][id] {
			w.t.Fatalf("class %x is mapped to but is not on both devices: %v\n%s", id, classes, rules)
		}
	}
	if forwards && !strings.Contains(rules, "hook forward priority filter; policy drop;") {
		w.t.Fatalf("forwards without a guard:\n%s", rules)
	}
	return len(elements)
}

// nothingLeft checks, with the system's own tools, that the kernel holds nothing beyond the wanted ports.
func (w *world) nothingLeft(want []network.Port) {
	w.t.Helper()
	var routes, passing, blackholes, hops int
	for _, p := range want {
		families := map[bool]bool{}
		for _, a := range p.Addrs {
			families[a.Addr().Is4()] = true
			switch p.Mode {
			case network.On, network.Limited:
				passing++
				routes++
			case network.Blackhole:
				blackholes++
				routes++
			}
		}
		hops += len(families)
	}
	if _, c, _ := w.kernel(); len(c[0]) != len(want) || len(c[1]) != len(want) {
		w.t.Errorf("%d and %d classes, want %d", len(c[0]), len(c[1]), len(want))
	}
	lines := func(cmd, containing string) (n int) {
		for _, l := range strings.Split(w.exec(w.edge, cmd), "\n") {
			if strings.Contains(l, containing) {
				n++
			}
		}
		return n
	}
	count := func(what string, got, want int) {
		w.t.Helper()
		if got != want {
			w.t.Errorf("%d %s, want %d", got, what, want)
		}
	}
	count("queues", lines("tc qdisc show", "bfifo"), 2*len(want))
	count("routes", lines("ip -4 route show proto 98", "203.0.113.")+lines("ip -6 route show proto 98", "2001:db8:"), routes)
	count("blackholes", lines("ip -4 route show proto 98", "blackhole")+lines("ip -6 route show proto 98", "blackhole"), blackholes)
	count("neighbours", lines("ip neigh show dev down0", "PERMANENT"), hops)
	count("senders", lines("nft list map inet bareyard up4", "02:00:")+lines("nft list map inet bareyard up6", "02:00:"), passing)
	count("records", lines("nft list set inet bareyard ports", "comment"), len(want))
}
