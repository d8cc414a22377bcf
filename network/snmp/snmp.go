// Package snmp reads what switch ports have carried, for edges that do not count by themselves. It only reads.
//
// Counted are ifHCInOctets and ifHCOutOctets alone: the 32-bit counters wrap in 34 seconds at 1 Gbit/s, and nobody could tell. A port
// is found by its ifName at every reading, as ifIndex may change when a switch starts anew. The epoch of a count is when the switch
// started, or when it says that the counter was interrupted (ifCounterDiscontinuityTime). Nothing is kept between readings, so any
// server may take the next one.
//
// A switch counts frames with their checksum, 4 bytes more than a Linux edge does, and whatever passes the port, whoever it is for.
package snmp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gosnmp/gosnmp"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Switch is how to ask a switch. It is asked by SNMPv3 when it has a user, else by version 2c, whose community anybody on the way can
// read.
type Switch struct {
	Address       string // host:port; the port may be left out
	CommunityFile string // its first line is the community
	User          string
	AuthFile      string // password for SHA-256; the switch must be asked with authentication
	PrivFile      string // password for AES-128; "" to ask without encryption
}

// Objects of SNMPv2-MIB, IF-MIB (RFC 2863) and SNMP-FRAMEWORK-MIB (RFC 3411).
const (
	sysUpTime     = ".1.3.6.1.2.1.1.3.0"
	engineTime    = ".1.3.6.1.6.3.10.2.1.3.0"
	ifName        = ".1.3.6.1.2.1.31.1.1.1.1"
	ifHCInOctets  = ".1.3.6.1.2.1.31.1.1.1.6"
	ifHCOutOctets = ".1.3.6.1.2.1.31.1.1.1.10"
	ifDiscontinue = ".1.3.6.1.2.1.31.1.1.1.19"
)

// slack is how far the start of a switch, reckoned from its uptime, may be off between two readings: the clocks of switches are poor.
const slack = 30 * time.Second

// Meter reads the ports of switches.
type Meter struct {
	Switches map[string]Switch // by the name that stands before the colon in a port: sw1:Ethernet1/7
	Timeout  time.Duration     // of one question; zero means 2 s
	Retries  int               // of one question; zero means 2, less than zero none
}

// Counters returns the counters of the given ports, by machine. What cannot be read is in doubt, with the reason: one switch that does
// not answer is no error, and holds up no other.
func (m *Meter) Counters(ctx context.Context, ports map[string]string) []network.Counter {
	wanted := map[string]map[string]string{} // switch → ifName → machine
	var out []network.Counter
	doubt := func(id, why string) {
		now := time.Now()
		for _, d := range []network.Direction{network.Down, network.Up} {
			out = append(out, network.Counter{Machine: id, Direction: d, At: now, Slack: slack, Doubt: why})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ports)) {
		name, port, ok := strings.Cut(ports[id], ":")
		_, known := m.Switches[name]
		switch {
		case !ok || port == "":
			doubt(id, fmt.Sprintf("its port %q is not written as SWITCH:PORT", ports[id]))
		case !known:
			doubt(id, fmt.Sprintf("nobody has said how to ask switch %s", name))
		case wanted[name][port] != "":
			doubt(id, fmt.Sprintf("port %s is that of machine %s as well", ports[id], wanted[name][port]))
		default:
			if wanted[name] == nil {
				wanted[name] = map[string]string{}
			}
			wanted[name][port] = id
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for name, ports := range wanted {
		wg.Go(func() {
			readings, err := m.read(ctx, m.Switches[name], slices.Sorted(maps.Keys(ports)))
			mu.Lock()
			defer mu.Unlock()
			for port, id := range ports {
				r, ok := readings[port]
				switch {
				case r.doubt != "":
					doubt(id, fmt.Sprintf("switch %s: %s", name, r.doubt))
				case ok:
					out = append(out, r.counter(id, network.Down, r.out), r.counter(id, network.Up, r.in))
				case err != nil:
					doubt(id, fmt.Sprintf("switch %s: %v", name, err))
				default:
					doubt(id, fmt.Sprintf("switch %s has no port %s", name, port))
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b network.Counter) int {
		return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Direction, b.Direction))
	})
	return out
}

// reading is what a switch says of one port.
type reading struct {
	in, out uint64 // from the machine, and to it
	began   time.Time
	at      time.Time
	doubt   string
}

func (r reading) counter(id string, d network.Direction, bytes uint64) network.Counter {
	return network.Counter{Machine: id, Direction: d, Bytes: bytes, Epoch: r.began.UnixNano(), Slack: slack, At: r.at}
}

// perQuestion is how many ports are asked about at once: an answer must fit into a datagram that no switch refuses.
const perQuestion = 8

// read asks a switch. With an error, what was read before it is good.
func (m *Meter) read(ctx context.Context, s Switch, ports []string) (map[string]reading, error) {
	client, err := m.dial(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	index, err := names(client)
	if err != nil {
		return nil, err
	}
	out := map[string]reading{}
	var known []string
	for _, p := range ports {
		switch len(index[p]) {
		case 0:
		case 1:
			known = append(known, p)
		default:
			out[p] = reading{doubt: fmt.Sprintf("%d ports are called %s", len(index[p]), p)}
		}
	}
	var last time.Duration
	for part := range slices.Chunk(known, perQuestion) {
		oids := []string{sysUpTime, engineTime}
		for _, p := range part {
			i := index[p][0]
			oids = append(oids, ifName+i, ifHCInOctets+i, ifHCOutOctets+i, ifDiscontinue+i)
		}
		answer, at, err := get(client, oids)
		if err != nil {
			return out, err
		}
		up, err := uptime(answer)
		if err != nil {
			return out, err
		}
		if up < last {
			for p := range out {
				out[p] = reading{doubt: "it started anew while it was read"}
			}
		}
		last = up
		for _, p := range part {
			out[p] = interpret(answer, p, index[p][0], at, up)
		}
	}
	return out, nil
}

// interpret reads the answer about one port.
func interpret(answer map[string]gosnmp.SnmpPDU, port, i string, at time.Time, up time.Duration) reading {
	r := reading{at: at, began: at.Add(-up)}
	if name, _ := answer[ifName+i].Value.([]byte); string(name) != port {
		r.doubt = fmt.Sprintf("its ports were renumbered while it was read: %s is %q now", port, name)
		return r
	}
	for _, c := range []struct {
		oid  string
		into *uint64
	}{{ifHCInOctets, &r.in}, {ifHCOutOctets, &r.out}} {
		v, ok := answer[c.oid+i].Value.(uint64)
		if answer[c.oid+i].Type != gosnmp.Counter64 || !ok {
			r.doubt = fmt.Sprintf("port %s has no 64-bit counters, and those of 32 bits wrap unseen", port)
			return r
		}
		*c.into = v
	}
	if ticks, ok := answer[ifDiscontinue+i].Value.(uint32); ok && ticks > 0 {
		if d := time.Duration(ticks) * 10 * time.Millisecond; d <= up {
			r.began = r.began.Add(d)
		}
	}
	return r
}

// wrap is when sysUpTime begins again at zero: 2³² hundredths of a second, 497 days.
const wrap = (1 << 32) * 10 * time.Millisecond

// uptime returns how long a switch has been up. snmpEngineTime, where there is one, counts seconds and does not wrap in a lifetime; it
// is believed when both say the same but for whole wraps.
func uptime(answer map[string]gosnmp.SnmpPDU) (time.Duration, error) {
	ticks, ok := answer[sysUpTime].Value.(uint32)
	if !ok {
		return 0, errors.New("it does not say how long it has been up (sysUpTime)")
	}
	up := time.Duration(ticks) * 10 * time.Millisecond
	if seconds, ok := number(answer[engineTime]); ok {
		engine := time.Duration(seconds) * time.Second
		if wraps := (engine - up + wrap/2) / wrap; wraps > 0 && (engine-up-wraps*wrap).Abs() < slack {
			up += wraps * wrap
		}
	}
	return up, nil
}

func number(v gosnmp.SnmpPDU) (int64, bool) {
	switch v.Type {
	case gosnmp.Integer, gosnmp.Counter32, gosnmp.Gauge32, gosnmp.TimeTicks:
		n := gosnmp.ToBigInt(v.Value)
		return n.Int64(), n.IsInt64() && n.Sign() >= 0
	}
	return 0, false
}

// names returns the suffixes of ifIndex, ".7", by ifName.
func names(client *gosnmp.GoSNMP) (map[string][]string, error) {
	rows, err := client.BulkWalkAll(ifName)
	if err != nil {
		return nil, refused("list its ports", err)
	}
	out := make(map[string][]string, len(rows))
	for _, row := range rows {
		if name, ok := row.Value.([]byte); ok {
			out[string(name)] = append(out[string(name)], strings.TrimPrefix(row.Name, ifName))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it lists no ports (ifName): let the user or community read the interface tables, ifTable and ifXTable")
	}
	return out, nil
}

// get asks for objects and returns when they were read: in the middle of question and answer.
func get(client *gosnmp.GoSNMP, oids []string) (map[string]gosnmp.SnmpPDU, time.Time, error) {
	asked := time.Now()
	packet, err := client.Get(oids)
	if err != nil {
		return nil, time.Time{}, refused("read its counters", err)
	}
	if packet.Error != gosnmp.NoError {
		return nil, time.Time{}, fmt.Errorf("read its counters: it answers %s", packet.Error)
	}
	out := make(map[string]gosnmp.SnmpPDU, len(packet.Variables))
	for _, v := range packet.Variables {
		out[v.Name] = v
	}
	now := time.Now()
	return out, asked.Add(now.Sub(asked) / 2), nil
}

func refused(what string, err error) error {
	if strings.Contains(err.Error(), "timeout") {
		return fmt.Errorf("%s: no answer; see its address, its access list, and the user or community", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (m *Meter) dial(ctx context.Context, s Switch) (*gosnmp.GoSNMP, error) {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		host, port = s.Address, "161"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("dial: %q is not host:port", s.Address)
	}
	client := &gosnmp.GoSNMP{
		Target: host, Port: uint16(n), Transport: "udp", Context: ctx, Version: gosnmp.Version2c, MaxOids: 2 + 4*perQuestion, MaxRepetitions: 20,
		Timeout: cmp.Or(m.Timeout, 2*time.Second), Retries: max(0, cmp.Or(m.Retries, 2)),
	}
	if err := s.secure(client); err != nil {
		return nil, err
	}
	if err := client.Connect(); err != nil {
		return nil, refused("dial", err)
	}
	return client, nil
}

// secure sets who asks.
func (s Switch) secure(client *gosnmp.GoSNMP) (err error) {
	if s.User == "" {
		client.Community, err = secret(s.CommunityFile)
		return err
	}
	usm := &gosnmp.UsmSecurityParameters{UserName: s.User, AuthenticationProtocol: gosnmp.SHA256}
	if usm.AuthenticationPassphrase, err = secret(s.AuthFile); err != nil {
		return err
	}
	client.Version, client.SecurityModel, client.MsgFlags, client.SecurityParameters = gosnmp.Version3, gosnmp.UserSecurityModel, gosnmp.AuthNoPriv, usm
	if s.PrivFile != "" {
		client.MsgFlags, usm.PrivacyProtocol = gosnmp.AuthPriv, gosnmp.AES
		usm.PrivacyPassphrase, err = secret(s.PrivFile)
	}
	return err
}

// secret reads the first line of a file.
func secret(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", &machine.Error{Code: machine.Invalid, Field: "file", Message: file + " begins with an empty line", Hint: "write the secret into its first line"}
	}
	return line, nil
}

// Edge is an edge whose ports are counted by switches.
type Edge struct {
	network.Edge
	Meter *Meter
	Ports func(ctx context.Context) (map[string]string, error) // of the machines that are to be counted: SWITCH:PORT by machine
}

// Counters implements network.Edge.
func (e *Edge) Counters(ctx context.Context) ([]network.Counter, error) {
	ports, err := e.Ports(ctx)
	if err != nil {
		return nil, fmt.Errorf("list ports to count: %w", err)
	}
	return e.Meter.Counters(ctx, ports), nil
}

// Caps implements network.Edge.
func (e *Edge) Caps(ctx context.Context) (network.Caps, error) {
	caps, err := e.Edge.Caps(ctx)
	caps.Counts = "delivered"
	return caps, err
}
