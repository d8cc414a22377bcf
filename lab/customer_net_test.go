package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/linuxedge"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// Where the Internet is, in both families, and the networks of the line of this test.
var (
	internet4 = InternetEnd.Addr()
	internet6 = netip.MustParseAddr("2001:db8:ffff::2")
	netLine4  = netip.MustParsePrefix("203.0.113.64/29")
	squatted  = netip.MustParsePrefix("203.0.113.64/32") // by somebody in the edge's uplink
	netLine6  = netip.MustParsePrefix("2001:db8:100::/60")
)

// TestCustomerNetwork is the network of two customers' machines from order to cool-down, through the real server and its edge,
// with real connections between namespaces. A namespace stands for each machine's installed system, configured by its seed.
func TestCustomerNetwork(t *testing.T) {
	y := newYard(t, "net", nil, MachineConfig{}, MachineConfig{})
	y.ip(Edge, "addr add 2001:db8:ffff::1/64 dev up0 nodad")
	y.ip(Internet, "addr add "+internet6.String()+"/64 dev up0 nodad", "route add 2001:db8:100::/40 via 2001:db8:ffff::1")
	ctx := t.Context()
	y.must(y.client.PutLine(ctx, "net", api.NewLine{Site: "lab", MinBandwidth: 1, MaxBandwidth: 2000, CoolDown: "1h", MaxAddresses: 4, Ranges: []netip.Prefix{netLine4}}))
	_, err := y.client.PutPool(ctx, "net-v6", api.NewPool{Line: "net", CoolDown: "1h", Ranges: []netip.Prefix{netLine6}})
	y.must(err)
	for _, kept := range []string{"203.0.113.69", "203.0.113.70/31"} { // four are left, and the one that is squatted
		_, err := y.client.KeepAddresses(ctx, kept, provisioner.AddressReserved, "not for this test")
		y.must(err)
	}
	y.ip(Internet, "addr add "+squatted.String()+" dev up0")
	tenants := map[string]*tenant{"n1": y.plug("n1"), "n2": y.plug("n2")}

	r := request()
	r.Line, r.Bandwidth, r.Addresses, r.IPv6 = "net", 10, 2, 1
	first, err := y.client.Place(ctx, r, "one")
	y.must(err)
	r.Bandwidth, r.Addresses, r.IPv6 = 100, 1, 0
	second, err := y.client.Place(ctx, r, "two")
	y.must(err)
	c := &customers{y: y}
	for i, id := range []string{first.ID, second.ID} {
		o := y.settled(id, machine.OrderActive, machine.Active)
		c.order[i], c.os[i] = o, tenants[y.machine(o.MachineID).Name]
		c.os[i].configure()
	}
	if a := c.order[0].Addresses; len(a) != 3 || a[2].Bits() != 64 {
		t.Fatalf("order has %v, want two addresses and a /64", a)
	}
	conflicts, err := y.client.Addresses(ctx, provisioner.AddressFilter{State: provisioner.AddressConflict})
	if err != nil || len(conflicts) != 1 || conflicts[0].Prefix != squatted || !strings.Contains(conflicts[0].Note, "on up0") {
		t.Errorf("set aside, as somebody uses them: %+v, %v", conflicts, err)
	}
	y.ip(Internet, "addr del "+squatted.String()+" dev up0")
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Reaches", c.reaches}, {"Rates", c.rates}, {"Spoofed", c.spoofed}, {"Restricted", c.restricted}, {"Traffic", c.traffic},
		{"Moves", c.moves}, {"Drift", c.drift}, {"Killed", c.killed}, {"CoolsDown", c.coolsDown},
	} {
		began := time.Now()
		if !t.Run(step.name, func(t *testing.T) { defer c.in(t)(); step.run(t) }) {
			y.history(first.ID)
			return
		}
		t.Logf("%s took %s", step.name, time.Since(began).Round(100*time.Millisecond))
	}
}

// customers are two orders of one project on one line.
type customers struct {
	y     *yard
	order [2]machine.Order
	os    [2]*tenant
}

// in lends the yard to a subtest: its helpers then fail and clean up there.
func (c *customers) in(t *testing.T) (back func()) {
	before := c.y.t
	c.y.t = t
	return func() { c.y.t = before }
}

// home is an address of an order as its system has it.
func (c *customers) home(order, address int) netip.Addr {
	return network.FirstOf(c.order[order].Addresses[address]).Addr()
}

// reaches: every address that was ordered, of both families, both ways.
func (c *customers) reaches(t *testing.T) {
	for i, p := range c.order[0].Addresses {
		world := internet4
		if p.Addr().Is6() {
			world = internet6
		}
		here, there := c.y.datagrams(c.os[0].name, c.home(0, i), 0), c.y.datagrams(Internet, world, 0)
		if !c.y.answers(here, there, 5*time.Second) || !c.y.answers(there, here, 5*time.Second) {
			t.Errorf("%s does not reach the Internet and back", p)
		}
	}
}

// rates: 10, 100 and 1000 Mbit/s both ways, upgraded and downgraded by the command line while two connections stay open.
func (c *customers) rates(t *testing.T) {
	y, home := c.y, c.home(0, 0)
	down, up := c.os[0].connect(false), c.os[0].connect(true)
	for _, mbit := range []int{10, 100, 1000} {
		if mbit > c.order[0].Bandwidth {
			c.bandwidth(mbit)
		}
		y.flows("TCP down", mbit, func() float64 { return down.rate(t) })
		y.flows("TCP up", mbit, func() float64 { return up.rate(t) })
		y.flows("UDP down", mbit, func() float64 { return y.udpRate(Internet, internet4, c.os[0].name, home, mbit) })
		y.flows("UDP up", mbit, func() float64 { return y.udpRate(c.os[0].name, home, Internet, internet4, mbit) })
	}
	c.bandwidth(50) // acts when the paid term is over, which is now
	if got := y.order(c.order[0].ID).Bandwidth; got != 1000 {
		t.Errorf("a downgrade acted before its time: %d Mbit/s", got)
	}
	c.due(`UPDATE bandwidth_change SET begins = now() WHERE state = 'waiting' AND order_id = $1`, `UPDATE orders SET change_due = now() WHERE id = $1`)
	c.carried("the downgrade acts", func(p network.Port) bool { return p.Up.Kbit == 50_000 && p.Down.Kbit == 50_000 })
	y.flows("the same connection down", 50, func() float64 { return down.rate(t) })
	y.flows("the same connection up", 50, func() float64 { return up.rate(t) })
}

// bandwidth changes the first order by the command line.
func (c *customers) bandwidth(mbit int) {
	c.y.t.Helper()
	cmd := c.y.Command(c.y.t.Context(), Mgmt, c.y.cfg.Server.Binary, "order", "bandwidth", c.order[0].ID, "--bandwidth", fmt.Sprint(mbit),
		"--server", "unix://"+filepath.Join(c.y.cfg.Dir, serverSocket))
	if out, err := cmd.CombinedOutput(); err != nil {
		c.y.t.Fatalf("%v: %s", err, out)
	}
	if mbit > c.order[0].Bandwidth {
		c.carried(fmt.Sprintf("%d Mbit/s", mbit), func(p network.Port) bool { return p.Up.Kbit == mbit*1000 })
	}
	c.order[0] = c.y.order(c.order[0].ID)
}

// due makes what waits for a time happen now.
func (c *customers) due(statements ...string) {
	c.y.t.Helper()
	conn, err := c.y.database(c.y.t.Context())
	c.y.must(err)
	defer conn.Close(context.WithoutCancel(c.y.t.Context()))
	for _, sql := range statements {
		tag, err := conn.Exec(c.y.t.Context(), sql, c.order[0].ID)
		c.y.must(err)
		if tag.RowsAffected() == 0 {
			c.y.t.Fatalf("nothing to do: %s", sql)
		}
	}
}

// driver is the edge as the server has it.
func (c *customers) driver() *linuxedge.Edge {
	c.y.t.Helper()
	e, err := linuxedge.New(linuxedge.Config{Netns: c.y.Netns(Edge), Uplink: "up0", Downlink: "down0", Deny: []netip.Prefix{ProvisionNet, BMCNet}})
	c.y.must(err)
	return e
}

// carried waits until the edge carries the first order's machine as wanted.
func (c *customers) carried(what string, is func(network.Port) bool) {
	c.y.t.Helper()
	c.y.until("the edge: "+what, yardPatience, func() bool {
		ports, err := c.driver().Read(c.y.t.Context())
		c.y.must(err)
		return slices.ContainsFunc(ports, func(p network.Port) bool { return p.Machine == c.order[0].MachineID && is(p) })
	})
}

// spoofed: neither the address of the other customer, nor one of nobody, nor another MAC address gets anything out.
func (c *customers) spoofed(t *testing.T) {
	y, os := c.y, c.os[0]
	there4, there6 := y.datagrams(Internet, internet4, 4001), y.datagrams(Internet, internet6, 4001)
	for _, false4 := range []netip.Addr{c.home(1, 0), netip.MustParseAddr("198.51.100.77")} {
		os.add(netip.PrefixFrom(false4, 32))
		if y.answers(y.datagrams(os.name, false4, 0), there4, 500*time.Millisecond) {
			t.Errorf("%s is not the machine's, and passes", false4)
		}
		y.ip(os.name, "addr del "+false4.String()+"/32 dev eth0")
	}
	false6 := netip.MustParseAddr("2001:db8:100:f::1")
	os.add(netip.PrefixFrom(false6, 128))
	if y.answers(y.datagrams(os.name, false6, 0), there6, 500*time.Millisecond) {
		t.Errorf("%s is not the machine's, and passes", false6)
	}
	y.ip(os.name, "addr del "+false6.String()+"/128 dev eth0")
	here := y.datagrams(os.name, c.home(0, 0), 0)
	y.ip(os.name, "link set eth0 address 02:00:00:00:00:99")
	if y.answers(here, there4, 500*time.Millisecond) {
		t.Error("another MAC address passes")
	}
	y.ip(os.name, "link set eth0 address "+os.host.pubMAC)
	if !y.answers(here, there4, 5*time.Second) {
		t.Error("its own address does not pass any more: the test proves nothing")
	}
}

// restricted: limited, null-routed until a timer, null-routed until somebody ends it, and back each time.
func (c *customers) restricted(t *testing.T) {
	y, id, home := c.y, c.order[0].ID, c.home(0, 0)
	_, err := y.client.Limit(t.Context(), id, 2, "unpaid")
	y.must(err)
	c.carried("limited", func(p network.Port) bool { return p.Mode == network.Limited })
	y.flows("limited", 2, func() float64 { return y.udpRate(c.os[0].name, home, Internet, internet4, 4) })
	_, err = y.client.Act(t.Context(), id, "unlimit")
	y.must(err)
	c.carried("no longer limited", func(p network.Port) bool { return p.Mode == network.On })
	y.flows("no longer limited", 50, func() float64 { return y.udpRate(c.os[0].name, home, Internet, internet4, 50) })

	here, there := y.datagrams(c.os[0].name, home, 0), y.datagrams(Internet, internet4, 0)
	for _, end := range []func(){
		func() { c.due(`UPDATE orders SET blackhole_until = now(), change_due = now() WHERE id = $1`) }, // the timer
		func() { _, err := y.client.Act(t.Context(), id, "unblackhole"); y.must(err) },
	} {
		o, err := y.client.Blackhole(t.Context(), id, 2*time.Hour, "attack")
		y.must(err)
		if left := time.Until(o.Network.BlackholeUntil); left < 119*time.Minute || left > 121*time.Minute {
			t.Errorf("the null-route ends in %s", left)
		}
		c.carried("null-routed", func(p network.Port) bool { return p.Mode == network.Blackhole })
		if y.answers(here, there, 300*time.Millisecond) || y.answers(there, here, 300*time.Millisecond) {
			t.Error("something passes through a null-route")
		}
		end()
		c.carried("restored", func(p network.Port) bool { return p.Mode == network.On })
		if !y.answers(here, there, 5*time.Second) || !y.answers(there, here, 5*time.Second) {
			t.Error("nothing passes after a null-route")
		}
	}
}

// late is an edge whose clock is an hour behind, and five minutes ahead each round: a test has no five minutes.
type late struct {
	edge *linuxedge.Edge
	at   time.Time
}

func (l late) CountersAt(ctx context.Context, _ string) ([]network.Counter, error) {
	return l.Counters(ctx)
}

func (l late) Counters(ctx context.Context) ([]network.Counter, error) {
	cs, err := l.edge.Counters(ctx)
	for i := range cs {
		cs[i].At = l.at
	}
	return cs, err
}

// traffic: what a round measures is what was delivered, and the API shows it.
func (c *customers) traffic(t *testing.T) {
	y := c.y
	conn, err := y.database(t.Context())
	y.must(err)
	url := conn.Config().ConnString()
	y.must(conn.Close(t.Context()))
	seal, err := postgres.LoadSeal(filepath.Join(y.cfg.Dir, "server", "secret.key"))
	y.must(err)
	db, err := postgres.Open(t.Context(), url, seal, nil, postgres.Tuning{})
	y.must(err)
	defer db.Close()
	at := time.Now().UTC().Truncate(5 * time.Minute).Add(-time.Hour)
	delivered := 0.0
	for n := range 3 {
		e := &provisioner.Engine{Meter: late{c.driver(), at}, Books: db}
		if done, err := e.TakeRound(t.Context(), at); err != nil || !done {
			t.Fatalf("round %d: %v, %v", n, done, err)
		}
		at = at.Add(5 * time.Minute)
		if n < 2 {
			delivered += c.deliver(400)
		}
	}
	got, err := y.client.Traffic(t.Context(), c.order[0].ID, apiclient.TrafficQuery{From: at.Add(-20 * time.Minute).Format(time.RFC3339), Step: "5m"})
	y.must(err)
	sum := int64(0)
	for _, p := range got.Points {
		if p.Doubt != "" {
			t.Errorf("point at %s: %s", p.At, p.Doubt)
		}
		sum += p.Down
	}
	if len(got.Points) != 2 || float64(sum) < delivered || float64(sum) > 1.02*delivered+2000 {
		t.Errorf("%d points come to %d bytes, want 2 with the %.0f that were delivered", len(got.Points), sum, delivered)
	}
}

// deliver sends datagrams slowly enough that each arrives, and returns their bytes on Ethernet.
func (c *customers) deliver(n int) float64 {
	c.y.t.Helper()
	src, dst := c.y.datagrams(Internet, internet4, 0), c.y.datagrams(c.os[0].name, c.home(0, 0), 0)
	buf := make([]byte, 2000)
	got := 0
	for range n {
		_, err := src.WriteTo(buf[:udpPayload], dst.LocalAddr())
		c.y.must(err)
		c.y.must(dst.SetReadDeadline(time.Now().Add(5 * time.Second)))
		if _, _, err := dst.ReadFrom(buf); err == nil {
			got++
		}
	}
	return float64(got * frameSize)
}

// moves: the second address goes to the other machine, and with it its traffic.
func (c *customers) moves(t *testing.T) {
	y, p := c.y, c.order[0].Addresses[1]
	_, err := y.client.MoveAddress(t.Context(), c.order[0].ID, p.Addr().String(), c.order[1].ID)
	y.must(err)
	y.until("the address is the other order's", yardPatience, func() bool {
		return slices.Contains(y.order(c.order[1].ID).Addresses, p)
	})
	c.carried("without the address", func(q network.Port) bool { return !slices.Contains(q.Addrs, p) })
	c.os[1].add(p)
	there, here := y.datagrams(Internet, internet4, 0), y.datagrams(c.os[1].name, p.Addr(), 0)
	if !y.answers(there, here, 10*time.Second) || !y.answers(here, there, 5*time.Second) {
		t.Error("the address does not work at the machine that it was moved to")
	}
	if y.answers(y.datagrams(c.os[0].name, p.Addr(), 0), there, 300*time.Millisecond) {
		t.Error("the address still works at the machine that it was taken from")
	}
	c.order[0], c.order[1] = y.order(c.order[0].ID), y.order(c.order[1].ID)
}

// drift: somebody flushes the tables and takes a class away, and nobody tells the server.
func (c *customers) drift(t *testing.T) {
	y := c.y
	for _, line := range []string{"nft flush ruleset", "tc qdisc del dev up0 root"} {
		args := strings.Fields(line)
		if out, err := y.Command(t.Context(), Edge, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	c.carried("repaired", func(p network.Port) bool { return p.Mode == network.On })
	y.flows("after the repair", 50, func() float64 { return y.udpRate(c.os[0].name, c.home(0, 0), Internet, internet4, 50) })
}

// killed: the server is killed in the middle of changes of the edge; what it had promised comes about.
func (c *customers) killed(t *testing.T) {
	y := c.y
	for i := range 3 {
		mbit := 100 + 50*i
		_, err := y.client.SetBandwidth(t.Context(), c.order[0].ID, network.Rates{Up: mbit, Down: mbit}, false)
		y.must(err)
		pause(t.Context(), time.Duration(i)*10*time.Millisecond) // at, before, in and after the change
		y.must(y.KillServer())
		if got := y.order(c.order[0].ID).Bandwidth; got != mbit {
			t.Fatalf("the order has %d Mbit/s after a crash, was promised %d", got, mbit)
		}
		c.carried("as promised", func(p network.Port) bool { return p.Up.Kbit == mbit*1000 && p.Mode == network.On })
	}
	y.flows("after the crashes", 200, func() float64 { return y.udpRate(c.os[0].name, c.home(0, 0), Internet, internet4, 200) })
}

// coolsDown: a released address goes to nobody before its time, and then at once.
func (c *customers) coolsDown(t *testing.T) {
	y, p := c.y, c.order[1].Addresses[0]
	_, err := y.client.AddAddresses(t.Context(), c.order[0].ID, 4, 1) // the last of four
	y.must(err)
	_, err = y.client.RemoveAddress(t.Context(), c.order[1].ID, p.Addr().String())
	y.must(err)
	y.until("the address cools down", yardPatience, func() bool {
		return y.sql(`SELECT count(*) FROM address WHERE addr = $1 AND order_id IS NULL AND free_at > now()`, p) == 1
	})
	if _, err := y.client.AddAddresses(t.Context(), c.order[0].ID, 4, 1); machine.CodeOf(err) != machine.Exhausted {
		t.Errorf("while the only address cools down: %v", err)
	}
	if y.answers(y.datagrams(c.os[1].name, p.Addr(), 0), y.datagrams(Internet, internet4, 0), 300*time.Millisecond) {
		t.Error("an address that cools down still works at its old machine")
	}
	over := func() {
		t.Helper()
		y.must(y.ask(t.Context(), new(int), `UPDATE address SET free_at = now() WHERE addr = $1 RETURNING 1`, p))
	}
	over()
	// The old machine's system was not told, and still has it.
	if _, err := y.client.AddAddresses(t.Context(), c.order[0].ID, 4, 1); machine.CodeOf(err) != machine.Exhausted {
		t.Errorf("while its old machine answers: %v", err)
	}
	y.ip(c.os[1].name, "addr del "+p.String()+" dev eth0")
	_, err = y.client.KeepAddresses(t.Context(), p.Addr().String(), provisioner.AddressFree, "")
	y.must(err)
	over()
	added, err := y.client.AddAddresses(t.Context(), c.order[0].ID, 4, 1)
	if err != nil || !slices.Equal(added, []netip.Prefix{p}) {
		t.Errorf("after its cool-down: %v, %v", added, err)
	}
}
