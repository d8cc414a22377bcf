package snmp_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosnmp/gosnmp"
	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/snmp"
)

const prefix = "bysnmp-"

func TestMain(m *testing.M) {
	left, _ := filepath.Glob("/run/netns/" + prefix + "*") // of a killed run: namespaces carry the process that made them
	for _, path := range left {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), prefix))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = exec.Command("ip", "netns", "del", filepath.Base(path)).Run()
		}
	}
	os.Exit(m.Run())
}

func run(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s(install iproute2 and snmpd, if missing)", line, err, out)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// insideEnv tells the test that it is in its namespace, with all of its goroutines.
const insideEnv = "BAREYARD_SNMP_INSIDE"

// TestRealAgent counts by net-snmp's agent, which serves the ports of a namespace as a switch does its own, over version 2c and 3.
func TestRealAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes a network namespace: run it as root")
	}
	if os.Getenv(insideEnv) == "" {
		ns := prefix + strconv.Itoa(os.Getpid())
		run(t, "ip netns add "+ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
		cmd := exec.Command("ip", "netns", "exec", ns, os.Args[0], "-test.run=^TestRealAgent$", "-test.v")
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestRealAgent") {
			t.Errorf("in namespace %s: %v\n%s", ns, err, out)
		}
		return
	}
	run(t, "ip link set lo up; ip link add swp1 type veth peer name machine1; ip link set swp1 up; ip link set machine1 up")
	agent := startAgent(t)

	meters := map[string]*snmp.Meter{
		"v2c": {Switches: map[string]snmp.Switch{"sw1": {Address: "127.0.0.1:1161", CommunityFile: write(t, "canary")}}},
		"v3":  {Switches: map[string]snmp.Switch{"sw1": {Address: "127.0.0.1:1161", User: "bareyard", AuthFile: write(t, "authauthauth"), PrivFile: write(t, "privprivpriv")}}},
	}
	read := func(version string) (up, down network.Counter) {
		t.Helper()
		cs := meters[version].Counters(t.Context(), map[string]string{"m1": "sw1:swp1"})
		if len(cs) != 2 || cs[0].Direction != network.Down || cs[1].Direction != network.Up {
			t.Fatalf("%s: got %+v", version, cs)
		}
		for _, c := range cs {
			if c.Doubt != "" {
				t.Fatalf("%s: %s is in doubt: %s", version, c.Direction, c.Doubt)
			}
		}
		return cs[1], cs[0]
	}
	up0, down0 := read("v2c")
	sent := send(t, "machine1", 2000) // the machine sends: in at the switch
	var up1, down1 network.Counter
	for end := time.Now().Add(20 * time.Second); ; { // the agent caches for a second
		up1, down1 = read("v3")
		if n, doubt := up1.Since(up0); doubt == "" && n >= uint64(sent) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after %d bytes the port counts %d, %q", sent, n, doubt)
		}
	}
	if n, doubt := up1.Since(up0); doubt != "" || n > uint64(sent)+5000 {
		t.Errorf("up counts %d, want %d (%s)", n, sent, doubt)
	}
	if n, doubt := down1.Since(down0); doubt != "" || n > 5000 {
		t.Errorf("down counts %d, want about nothing (%s)", n, doubt)
	}

	// The agent starts anew: the kernel's counters go on, its uptime does not. Nothing may be billed twice.
	agent.stop()
	quick := *meters["v2c"]
	quick.Timeout, quick.Retries = 100*time.Millisecond, -1
	if cs := quick.Counters(t.Context(), map[string]string{"m1": "sw1:swp1"}); len(cs) != 2 || !strings.Contains(cs[0].Doubt, "switch sw1") {
		t.Errorf("without an agent: %+v", cs)
	}
	up1.Epoch -= int64(time.Hour) // it had been up for longer than this test takes
	startAgent(t)
	up2, _ := read("v2c")
	if n, doubt := up2.Since(up1); n != 0 || doubt == "" {
		t.Errorf("after a restart that reset no counter %d bytes are billed, %q", n, doubt)
	}

	for name, c := range map[string]struct {
		m    snmp.Switch
		port string
		want string
	}{
		"NoPort":        {meters["v2c"].Switches["sw1"], "swp9", "has no port swp9"},
		"Community":     {snmp.Switch{Address: "127.0.0.1:1161", CommunityFile: write(t, "Zq9!wrong")}, "swp1", "no answer"},
		"Password":      {snmp.Switch{Address: "127.0.0.1:1161", User: "bareyard", AuthFile: write(t, "Zq9!wrong"), PrivFile: write(t, "privprivpriv")}, "swp1", ""},
		"NoFile":        {snmp.Switch{Address: "127.0.0.1:1161", CommunityFile: "/nonexistent"}, "swp1", "read secret"},
		"EmptySecret":   {snmp.Switch{Address: "127.0.0.1:1161", CommunityFile: write(t, "")}, "swp1", "empty line"},
		"NotAnAddress":  {snmp.Switch{Address: "127.0.0.1:http", CommunityFile: write(t, "x")}, "swp1", "not host:port"},
		"NoEncryption":  {snmp.Switch{Address: "127.0.0.1:1161", User: "bareyard", AuthFile: write(t, "authauthauth")}, "swp1", ""},
		"NobodyListens": {snmp.Switch{Address: "127.0.0.1:1162", CommunityFile: write(t, "canary")}, "swp1", ""},
	} {
		m := &snmp.Meter{Switches: map[string]snmp.Switch{"sw1": c.m}, Timeout: 300 * time.Millisecond, Retries: -1}
		cs := m.Counters(t.Context(), map[string]string{"m1": "sw1:" + c.port})
		if len(cs) != 2 || cs[0].Doubt == "" || !strings.Contains(cs[1].Doubt, c.want) || strings.Contains(fmt.Sprint(cs), "Zq9") {
			t.Errorf("%s: got %+v, want doubt about %q", name, cs, c.want)
		}
	}
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// startAgent starts snmpd with a folder of its own and has it look at the ports anew every second, not every fifteen.
func startAgent(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	conf := "rwcommunity canary 127.0.0.1\nagentaddress udp:127.0.0.1:1161\ncreateUser bareyard SHA-256 \"authauthauth\" AES \"privprivpriv\"\nrouser bareyard priv\n"
	file := filepath.Join(dir, "snmpd.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("snmpd", "-f", "-Lf", filepath.Join(dir, "log"), "-C", "-c", file, "-I", "-smux")
	cmd.Env = append(os.Environ(), "SNMP_PERSISTENT_DIR="+dir, "MIBS=")
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install snmpd", err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.stop)
	g := &gosnmp.GoSNMP{Target: "127.0.0.1", Port: 1161, Version: gosnmp.Version2c, Community: "canary", Timeout: 200 * time.Millisecond}
	if err := g.Connect(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	const nsCacheTimeout, ifTable = ".1.3.6.1.4.1.8072.1.5.3.1.2", ".1.3.6.1.2.1.2.2"
	for end := time.Now().Add(30 * time.Second); ; {
		_, err := g.Set([]gosnmp.SnmpPDU{{Name: nsCacheTimeout + ifTable, Type: gosnmp.Integer, Value: 1}})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the agent does not answer: %v", err)
		}
	}
	return p
}

// send sends frames of 1,000 bytes and returns how many bytes there were.
func send(t *testing.T, dev string, frames int) int {
	t.Helper()
	ifi, err := net.InterfaceByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 986)...)
	for range frames {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Halen: 6}); err != nil {
			t.Fatal(err)
		}
	}
	return 1000 * frames
}
