package snmp_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosnmp/gosnmp"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/snmp"
)

// agent is a switch that fails in ways that a real one cannot be made to.
type agent struct {
	t    *testing.T
	conn net.PacketConn
	wg   sync.WaitGroup

	mu      sync.Mutex
	objects map[string]gosnmp.SnmpPDU
	drop    int                                  // so many questions are not answered
	tamper  func(q *gosnmp.SnmpPacket) []byte    // a whole answer, or nil
	after   func(a *agent, q *gosnmp.SnmpPacket) // runs after each answer
}

const (
	upTime     = ".1.3.6.1.2.1.1.3.0"
	engine     = ".1.3.6.1.6.3.10.2.1.3.0"
	nameCol    = ".1.3.6.1.2.1.31.1.1.1.1."
	inCol      = ".1.3.6.1.2.1.31.1.1.1.6."
	outCol     = ".1.3.6.1.2.1.31.1.1.1.10."
	discontCol = ".1.3.6.1.2.1.31.1.1.1.19."
)

func newAgent(t *testing.T) *agent {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, conn: conn, objects: map[string]gosnmp.SnmpPDU{}}
	a.set(upTime, gosnmp.TimeTicks, uint32(8640000)) // a day
	a.port("1", "Ethernet1/1", 1000, 2000)
	a.wg.Go(a.serve)
	t.Cleanup(func() {
		_ = conn.Close()
		a.wg.Wait()
	})
	return a
}

func (a *agent) set(oid string, kind gosnmp.Asn1BER, value any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects[oid] = gosnmp.SnmpPDU{Name: oid, Type: kind, Value: value}
}

// rig changes how the agent behaves.
func (a *agent) rig(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *agent) unset(oids ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, oid := range oids {
		delete(a.objects, oid)
	}
}

func (a *agent) port(index, name string, in, out uint64) {
	a.set(nameCol+index, gosnmp.OctetString, name)
	a.set(inCol+index, gosnmp.Counter64, in)
	a.set(outCol+index, gosnmp.Counter64, out)
	a.set(discontCol+index, gosnmp.TimeTicks, uint32(0))
}

func (a *agent) serve() {
	buf := make([]byte, 64<<10)
	decoder := &gosnmp.GoSNMP{Version: gosnmp.Version2c}
	for {
		n, from, err := a.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		q, err := decoder.SnmpDecodePacket(buf[:n])
		if err != nil {
			continue
		}
		if text := a.answer(q); text != nil {
			_, _ = a.conn.WriteTo(text, from)
		}
		a.mu.Lock()
		after := a.after
		a.mu.Unlock()
		if after != nil {
			after(a, q)
		}
	}
}

func (a *agent) answer(q *gosnmp.SnmpPacket) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.drop > 0 {
		a.drop--
		return nil
	}
	if a.tamper != nil {
		if text := a.tamper(q); text != nil {
			return text
		}
	}
	r := &gosnmp.SnmpPacket{Version: q.Version, Community: q.Community, PDUType: gosnmp.GetResponse, RequestID: q.RequestID}
	for _, v := range q.Variables {
		if q.PDUType == gosnmp.GetRequest {
			o, ok := a.objects[v.Name]
			if !ok {
				o = gosnmp.SnmpPDU{Name: v.Name, Type: gosnmp.NoSuchInstance}
			}
			r.Variables = append(r.Variables, o)
			continue
		}
		next := slices.SortedFunc(maps.Keys(a.objects), byOID)
		i, found := slices.BinarySearchFunc(next, v.Name, byOID)
		if found {
			i++
		}
		for _, oid := range next[i:min(len(next), i+int(q.MaxRepetitions))] {
			r.Variables = append(r.Variables, a.objects[oid])
		}
		if len(r.Variables) == 0 {
			r.Variables = append(r.Variables, gosnmp.SnmpPDU{Name: v.Name, Type: gosnmp.EndOfMibView})
		}
	}
	text, err := r.MarshalMsg()
	if err != nil {
		a.t.Errorf("answer: %v", err)
	}
	return text
}

func byOID(a, b string) int {
	numbers := func(s string) (out []int) {
		for part := range strings.SplitSeq(strings.Trim(s, "."), ".") {
			n, _ := strconv.Atoi(part)
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(a), numbers(b))
}

func (a *agent) meter() *snmp.Meter {
	a.t.Helper()
	return &snmp.Meter{Timeout: 200 * time.Millisecond, Retries: -1, Switches: map[string]snmp.Switch{"sw1": {Address: a.conn.LocalAddr().String(), CommunityFile: write(a.t, "public")}}}
}

// up reads one port and returns what the machine there has sent.
func (a *agent) up() network.Counter {
	a.t.Helper()
	cs := a.meter().Counters(a.t.Context(), map[string]string{"m1": "sw1:Ethernet1/1"})
	if len(cs) != 2 || cs[1].Direction != network.Up {
		a.t.Fatalf("got %+v", cs)
	}
	return cs[1]
}

func TestReading(t *testing.T) {
	a := newAgent(t)
	a.port("501", "Ethernet1/11", 1<<63, 1<<62) // a name that begins like another
	cs := a.meter().Counters(t.Context(), map[string]string{"m1": "sw1:Ethernet1/1", "m11": "sw1:Ethernet1/11"})
	for i, want := range []uint64{2000, 1000, 1 << 62, 1 << 63} {
		if len(cs) != 4 || cs[i].Bytes != want || cs[i].Doubt != "" {
			t.Fatalf("got %+v", cs)
		}
	}
	if began := time.Unix(0, cs[0].Epoch); time.Since(began)-24*time.Hour > time.Minute || cs[0].Slack == 0 {
		t.Errorf("it began at %s, want a day ago", began)
	}
}

// TestAgainLater reads twice and asks what was delivered in between.
func TestAgainLater(t *testing.T) {
	const day = 8640000
	for name, c := range map[string]struct {
		later func(a *agent)
		want  uint64
		doubt string
	}{
		"Grows":    {func(a *agent) { a.port("1", "Ethernet1/1", 1500, 0); a.set(upTime, gosnmp.TimeTicks, uint32(day+10)) }, 500, ""},
		"Jitter":   {func(a *agent) { a.port("1", "Ethernet1/1", 1500, 0); a.set(upTime, gosnmp.TimeTicks, uint32(day+1500)) }, 500, ""},
		"Rebooted": {func(a *agent) { a.port("1", "Ethernet1/1", 70, 0); a.set(upTime, gosnmp.TimeTicks, uint32(0)) }, 70, ""},
		"Interrupted": {func(a *agent) {
			a.port("1", "Ethernet1/1", 70, 0)
			a.set(discontCol+"1", gosnmp.TimeTicks, uint32(day-360000)) // an hour ago
		}, 0, "another count"},
		"Renumbered": {func(a *agent) {
			a.unset(nameCol+"1", inCol+"1", outCol+"1", discontCol+"1")
			a.port("77", "Ethernet1/1", 1600, 0)
		}, 600, ""},
		"Fell": {func(a *agent) { a.port("1", "Ethernet1/1", 999, 0) }, 0, "fell"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			first := a.up()
			c.later(a)
			got, doubt := a.up().Since(first)
			if got != c.want || (doubt == "") != (c.doubt == "") || !strings.Contains(doubt, c.doubt) {
				t.Errorf("got %d, %q; want %d, %q", got, doubt, c.want, c.doubt)
			}
		})
	}
	t.Run("RebootedSinceLong", func(t *testing.T) {
		a := newAgent(t)
		first := a.up()
		first.At = first.At.Add(-5 * time.Minute)
		a.port("1", "Ethernet1/1", 70, 0)
		a.set(upTime, gosnmp.TimeTicks, uint32(6000)) // a minute
		if got, doubt := a.up().Since(first); got != 70 || doubt != "" {
			t.Errorf("got %d, %q; want the 70 since it started", got, doubt)
		}
	})
}

// TestUptimeWraps: sysUpTime begins again after 497 days; snmpEngineTime tells that nothing was reset.
func TestUptimeWraps(t *testing.T) {
	const before, after = 4294960000, 22704 // 300 s apart
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprintf("EngineTime=%v", told), func(t *testing.T) {
			a := newAgent(t)
			a.set(upTime, gosnmp.TimeTicks, uint32(before))
			if told {
				a.set(engine, gosnmp.Integer, 42949600)
			}
			first := a.up()
			first.At, first.Epoch = first.At.Add(-5*time.Minute), first.Epoch-int64(5*time.Minute)
			a.port("1", "Ethernet1/1", 1500, 0)
			a.set(upTime, gosnmp.TimeTicks, uint32(after))
			if told {
				a.set(engine, gosnmp.Integer, 42949900)
			}
			got, doubt := a.up().Since(first)
			if told && (got != 500 || doubt != "") || !told && (got != 0 || !strings.Contains(doubt, "did not fall")) {
				t.Errorf("got %d, %q", got, doubt)
			}
		})
	}
	t.Run("EngineTimeIsNoUptime", func(t *testing.T) {
		a := newAgent(t)
		a.set(engine, gosnmp.Integer, 7) // counts since its own engine was made
		if began := time.Unix(0, a.up().Epoch); time.Since(began) < 23*time.Hour {
			t.Errorf("it began at %s, want a day ago", began)
		}
	})
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(a *agent)
		doubt string
	}{
		"Only32Bit": {func(a *agent) {
			a.unset(inCol+"1", outCol+"1")
			a.set(".1.3.6.1.2.1.2.2.1.10.1", gosnmp.Counter32, uint(7))
		}, "no 64-bit counters"},
		"HalfOf64Bit": {func(a *agent) { a.unset(outCol + "1") }, "no 64-bit counters"},
		"32BitInside": {func(a *agent) { a.set(inCol+"1", gosnmp.Counter32, uint32(7)) }, "no 64-bit counters"},
		"NoSuchPort":  {func(a *agent) { a.unset(nameCol + "1"); a.set(nameCol+"2", gosnmp.OctetString, "Ethernet1/2") }, "has no port Ethernet1/1"},
		"NoPorts":     {func(a *agent) { a.unset(nameCol + "1") }, "lists no ports"},
		"TwoOfAName":  {func(a *agent) { a.port("2", "Ethernet1/1", 1, 1) }, "2 ports are called"},
		"NoUptime":    {func(a *agent) { a.unset(upTime) }, "how long it has been up"},
		"Silent":      {func(a *agent) { a.rig(func() { a.drop = 1000 }) }, "no answer"},
		"SilentThen": {func(a *agent) {
			a.rig(func() { a.after = func(a *agent, _ *gosnmp.SnmpPacket) { a.rig(func() { a.drop = 1000 }) } })
		}, "no answer"},
		"TooBig": {func(a *agent) {
			tamper := func(q *gosnmp.SnmpPacket) []byte {
				if q.PDUType != gosnmp.GetRequest {
					return nil
				}
				r := &gosnmp.SnmpPacket{Version: q.Version, Community: q.Community, PDUType: gosnmp.GetResponse, RequestID: q.RequestID, Error: gosnmp.TooBig, Variables: q.Variables}
				text, _ := r.MarshalMsg()
				return text
			}
			a.rig(func() { a.tamper = tamper })
		}, "TooBig"},
		"Garbage": {func(a *agent) {
			a.rig(func() { a.tamper = func(*gosnmp.SnmpPacket) []byte { return []byte("\x30\x82\xff\xffnonsense") } })
		}, ""},
		"RenumberedMeanwhile": {func(a *agent) {
			a.rig(func() {
				a.after = func(a *agent, _ *gosnmp.SnmpPacket) { a.set(nameCol+"1", gosnmp.OctetString, "Ethernet1/48") }
			})
		}, "renumbered"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			c.fault(a)
			got := a.up()
			if got.Doubt == "" || !strings.Contains(got.Doubt, c.doubt) || !strings.Contains(got.Doubt, "sw1") || got.Bytes != 0 {
				t.Errorf("got %+v, want doubt about %q of sw1", got, c.doubt)
			}
		})
	}
}

// TestReadInParts has more ports than fit into one question.
func TestReadInParts(t *testing.T) {
	a := newAgent(t)
	ports := map[string]string{}
	for i := 1; i <= 30; i++ {
		name := fmt.Sprintf("Ethernet1/%02d", i)
		a.port(strconv.Itoa(i), name, uint64(i), uint64(2*i))
		ports[fmt.Sprintf("m%02d", i)] = "sw1:" + name
	}
	cs := a.meter().Counters(t.Context(), ports)
	if len(cs) != 60 {
		t.Fatalf("got %d counters, want 60", len(cs))
	}
	for i, c := range cs {
		if want := uint64(i/2+1) * uint64(2-i%2); c.Doubt != "" || c.Bytes != want {
			t.Errorf("%d: got %+v, want %d", i, c, want)
		}
	}
	// It starts anew between two questions: what was read before is of a count that is no more.
	asked := 0
	after := func(a *agent, q *gosnmp.SnmpPacket) {
		if asked++; q.PDUType == gosnmp.GetRequest && asked > 3 {
			a.set(upTime, gosnmp.TimeTicks, uint32(asked))
		}
	}
	a.rig(func() { a.after = after })
	doubts := 0
	for _, c := range a.meter().Counters(t.Context(), ports) {
		if c.Doubt != "" {
			doubts++
		}
	}
	if doubts == 0 || doubts == 60 {
		t.Errorf("%d of 60 counters are in doubt after a start in the middle", doubts)
	}
}

// TestOneSwitchIsDown has two switches: the one that answers after a retry is read, though the other is silent.
func TestOneSwitchIsDown(t *testing.T) {
	good, bad := newAgent(t), newAgent(t)
	good.rig(func() { good.drop = 1 })
	bad.rig(func() { bad.drop = 1000 })
	m := good.meter()
	m.Retries = 2
	m.Switches["sw2"] = snmp.Switch{Address: bad.conn.LocalAddr().String(), CommunityFile: write(t, "public")}
	start := time.Now()
	cs := m.Counters(t.Context(), map[string]string{"a": "sw1:Ethernet1/1", "b": "sw2:Ethernet1/1", "c": "sw3:Ethernet1/1", "d": "Ethernet1/1", "e": "sw1:Ethernet1/1"})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	for i, want := range map[int]string{0: "", 2: "sw2", 4: "switch sw3", 6: "SWITCH:PORT", 8: "machine a as well"} {
		if len(cs) != 10 || (cs[i].Doubt == "") != (want == "") || !strings.Contains(cs[i].Doubt, want) {
			t.Errorf("got %+v, want doubt about %q", cs[i], want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if cs := m.Counters(ctx, map[string]string{"a": "sw1:Ethernet1/1"}); len(cs) != 2 || cs[0].Doubt == "" {
		t.Errorf("cancelled: %+v", cs)
	}
}
