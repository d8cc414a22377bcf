package lab

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/lldp"
	"github.com/mdlayher/packet"

	apiclient "github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
)

// speakLLDP says on ports of the lab's switches, as a real switch does and a Linux bridge does not, which they are; until ctx ends.
func speakLLDP(ctx context.Context, t *testing.T, n Network, ports ...string) (stopped <-chan struct{}) {
	t.Helper()
	group := net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}
	type mouth struct {
		conn  *packet.Conn
		frame []byte
	}
	var mouths []mouth
	err := n.Enter(Fabric, func() error {
		for _, port := range ports {
			ifi, err := net.InterfaceByName(port)
			if err != nil {
				return err
			}
			conn, err := packet.Listen(ifi, packet.Raw, 0, nil)
			if err != nil {
				return err
			}
			f := lldp.Frame{ChassisID: &lldp.ChassisID{Subtype: lldp.ChassisIDSubtypeMACAddress, ID: []byte{0x44, 0x38, 0x39, 0, 0, 1}},
				PortID: &lldp.PortID{Subtype: lldp.PortIDSubtypeInterfaceName, ID: []byte(port)}, TTL: 2 * time.Minute,
				Optional: []*lldp.TLV{{Type: 5, Length: 5, Value: []byte("leaf1")}}}
			b, err := f.MarshalBinary()
			if err != nil {
				return err
			}
			head := append(append(slices.Clone(group), ifi.HardwareAddr...), 0x88, 0xcc)
			mouths = append(mouths, mouth{conn, append(head, b...)})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		for pause(ctx, 500*time.Millisecond) {
			for _, m := range mouths {
				_, _ = m.conn.WriteTo(m.frame, &packet.Addr{HardwareAddr: group}) // nobody listens while the machine is off
			}
		}
		for _, m := range mouths {
			m.conn.Close()
		}
	}()
	return done
}

// TestQEMUDiscovered: the real RAM disk on a machine that nobody has enrolled, with disks, ports, cards, neighbours and a BMC, and
// what an operator sees of it on the command line.
func TestQEMUDiscovered(t *testing.T) {
	needQEMU(t)
	at := func(path string) string {
		full, err := filepath.Abs(filepath.Join("..", path))
		if err == nil {
			_, err = os.Stat(full)
		}
		if err != nil {
			t.Fatalf("%v: run make build kernel ramdisk first", err)
		}
		return full
	}
	dir, err := os.MkdirTemp("", "by-qd-") // the database's user must get through, which t.TempDir forbids
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := at("bin/bareyard")
	cfg := Config{Name: testName(t, "qd"), Dir: dir, Machines: []MachineConfig{{Unknown: true, InBand: true, Cards: 8}},
		Server: &ServerConfig{Binary: bin, Kernel: at("build/kernel/vmlinuz"), RAMDisk: at("build/ramdisk/ramdisk.cpio.zst"), Validator: at("bin/bareyard-validate"), Discovery: true}}
	l, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console:\n%s\nserver:\n%s", tail(l.Machine("n1").SerialLog(), 5000), tail(filepath.Join(dir, "serve.log"), 3000))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := l.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + filepath.Join(dir, serverSocket)
	c, err := apiclient.New(socket, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PutClass(ctx, machine.Class{Name: "rtx5090x8", Accelerator: "10de:2b85", Count: 8, MonthlyPrice: 1, Currency: "CNY"}); err != nil {
		t.Fatal(err)
	}
	want := l.Inventory()[0].Machine
	silent, hush := context.WithCancel(ctx)
	spoken := speakLLDP(silent, t, l.Network, want.Hardware.NICs[0].Port, want.Hardware.NICs[1].Port)
	defer func() { hush(); <-spoken }()

	began := time.Now()
	if err := l.Machine("n1").SetPower(ctx, ipmi.OpOn); err != nil {
		t.Fatal(err)
	}
	var f machine.Found
	waitLong(t, 5*time.Minute, "the machine in the inbox, and off", func() bool {
		list, err := c.Discovered(ctx, false)
		if err != nil || len(list) == 0 {
			return false
		}
		f = list[0]
		on, err := l.Machine("n1").Power(ctx)
		return err == nil && !on
	})
	t.Logf("discovered and off after %s", time.Since(began).Round(100*time.Millisecond))
	inv := f.Inventory
	h := want.Hardware
	for i := range h.NICs {
		h.NICs[i].Role, h.NICs[i].Port = "", ""
	}
	for i := range h.Disks {
		h.Disks[i].Role = ""
	}
	byMAC := func(a, b machine.NIC) int { return strings.Compare(a.MAC, b.MAC) }
	slices.SortFunc(inv.Hardware.NICs, byMAC)
	slices.SortFunc(h.NICs, byMAC)
	if diff := cmp.Diff(h, inv.Hardware); diff != "" {
		t.Errorf("hardware (-lab +found):\n%s", diff)
	}
	if inv.Firmware != machine.BIOS || inv.Memory != 512<<20 || inv.Sockets != 1 || inv.System.Model != "Lab" || inv.System.BIOSVersion == "" || len(inv.Drives) != 2 || inv.Drives[0].Bus != "virtio" || len(inv.Cards) != 8 || inv.Cards[0].Class != "030200" {
		t.Errorf("inventory %+v", inv)
	}
	for _, p := range inv.Ports {
		if p.Neighbour == nil || p.Neighbour.System != "leaf1" || !strings.HasPrefix(p.Neighbour.Port, "n1-p") || !p.Link || p.Driver != "virtio_net" || p.Booted != (p.MAC == f.MAC) {
			t.Errorf("port %+v, neighbour %+v", p, p.Neighbour)
		}
	}
	host, _, err := net.SplitHostPort(want.BMC.Address)
	if err != nil || inv.BMC == nil || inv.BMC.Address != host || !strings.HasPrefix(inv.BMC.MAC, "52:54:00:bc:") || inv.BMC.Firmware != "1.11" || inv.BMC.IPMI != "2.0" || !machine.SameUUID(inv.BMC.UUID, h.UUID) {
		t.Errorf("BMC %+v, want %s", inv.BMC, host)
	}
	for _, disk := range []string{l.Machine("n1").SystemDisk(), l.Machine("n1").DataDisk()} {
		if info, err := os.Stat(disk); err != nil || info.Size() == 0 {
			t.Error(err)
		} else if used, err := exec.Command("du", "-k", disk).Output(); err != nil || !strings.HasPrefix(string(used), "0\t") {
			t.Errorf("something was written to %s: %s, %v", disk, used, err)
		}
	}
	show := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, bin, args...)
		cmd.Env = append(os.Environ(), "BAREYARD_SERVER="+socket)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("bareyard %v: %v\n%s", args, err, out)
		}
		t.Logf("== bareyard %s\n%s", strings.Join(args, " "), out)
		return string(out)
	}
	for _, s := range []struct {
		args []string
		want []string
	}{
		{[]string{"machine", "discovered"}, []string{f.ID, f.MAC, "8 × 10de:2b85", "leaf1 n1-prov", host, "rtx5090x8"}},
		{[]string{"machine", "show", f.MAC}, []string{"n1-system", "n1-data", "0000:08:00.0 10de:2b85", "→ leaf1 n1-pub", "class       rtx5090x8 fits"}},
		{[]string{"machine", "trace", f.MAC}, []string{"DISCOVER ipxe", "/boot/vmlinuz", "boot from the network: the agent", "agent inventory", "well: the agent has reported"}},
	} {
		out := show(s.args...)
		for _, w := range s.want {
			if !strings.Contains(out, w) {
				t.Errorf("bareyard %v does not show %q", s.args, w)
			}
		}
	}
	b, err := c.Boot(ctx, f.ID, "latest")
	if err != nil || b.Diagnosis.Verdict != trace.Well {
		t.Errorf("boot %+v, %v", b.Diagnosis, err)
	}
}
