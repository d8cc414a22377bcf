package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
	"github.com/bareyard/bareyard/lab/fakecard"
	"github.com/bareyard/bareyard/machine"
)

func needQEMU(t *testing.T) {
	t.Helper()
	if os.Getenv("BAREYARD_QEMU") != "1" {
		t.Skip("runs QEMU machines: set BAREYARD_QEMU=1")
	}
	needRoot(t)
}

// firmwareTime is how long a machine's firmware may take on a busy box without KVM: four times what was seen, and more.
const firmwareTime = 3 * time.Minute

func startLab(t *testing.T, cfg Config) *Lab {
	t.Helper()
	cfg.Dir = t.TempDir()
	l, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, cfg.Name, cfg.Dir)
	})
	return l
}

// client drives a BMC with something that is neither the BMC's library nor ours.
type client interface {
	power(t *testing.T, op string) // on, off
	on(t *testing.T) bool
	bootOnce(t *testing.T)
}

type ipmitool struct {
	n   Network
	rec Record
}

func (c ipmitool) run(t *testing.T, args ...string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(c.rec.Machine.BMC.Address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all := append([]string{"-I", "lanplus", "-H", host, "-p", port, "-U", c.rec.Machine.BMC.Username, "-E", "-C", "3", "-N", "5", "-R", "5"}, args...)
	cmd := c.n.Command(ctx, Mgmt, "ipmitool", all...)
	cmd.Env = append(os.Environ(), "IPMITOOL_PASSWORD="+c.rec.Password)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ipmitool %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (c ipmitool) power(t *testing.T, op string) { c.run(t, "chassis", "power", op) }
func (c ipmitool) bootOnce(t *testing.T)         { c.run(t, "chassis", "bootdev", "pxe") }
func (c ipmitool) on(t *testing.T) bool {
	return strings.Contains(c.run(t, "chassis", "power", "status"), "is on")
}

type redfish struct {
	n   Network
	rec Record
}

func (c redfish) call(t *testing.T, method, path string, body any) map[string]any {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return c.n.Dial(ctx, Mgmt, network, addr)
		},
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, // the pin decides
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				if sum := sha256.Sum256(raw[0]); hex.EncodeToString(sum[:]) != c.rec.Machine.BMC.CertPin {
					return errors.New("not the pinned certificate")
				}
				return nil
			},
		},
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(c.rec.Machine.BMC.Address, "/")+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(c.rec.Machine.BMC.Username, c.rec.Password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, text)
	}
	answer := make(map[string]any)
	if len(text) > 0 {
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
	}
	return answer
}

const redfishSystem = "/redfish/v1/Systems/1"

func (c redfish) power(t *testing.T, op string) {
	reset := map[string]string{"on": "On", "off": "ForceOff"}[op]
	c.call(t, "POST", redfishSystem+"/Actions/ComputerSystem.Reset", map[string]any{"ResetType": reset})
}

func (c redfish) on(t *testing.T) bool {
	return c.call(t, "GET", redfishSystem, nil)["PowerState"] == "On"
}

func (c redfish) bootOnce(t *testing.T) {
	c.call(t, "PATCH", redfishSystem, map[string]any{"Boot": map[string]any{
		"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once", "BootSourceOverrideMode": "UEFI"}})
}

// console follows a machine's serial log.
type console struct {
	m    *Machine
	from int
}

// since returns what was written after the last mark.
func (c *console) since() string {
	b, err := os.ReadFile(c.m.SerialLog())
	if err != nil {
		return ""
	}
	return string(b[min(c.from, len(b)):])
}

func (c *console) mark() { c.from += len(c.since()) }

// bootMarker is what sayAndHalt says.
const bootMarker = "LAB-DISK-BOOTED"

// sayAndHalt is a boot sector's program: it says bootMarker, and halts.
var sayAndHalt = append([]byte{
	0x31, 0xc0, 0x8e, 0xd8, // xor ax,ax; mov ds,ax
	0xbe, 0x17, 0x7c, // mov si,0x7c17: the text after the code
	0xac, 0x84, 0xc0, // lodsb; test al,al
	0x74, 0x08, // jz +8
	0xb4, 0x0e, 0x31, 0xdb, // mov ah,0x0e; xor bx,bx
	0xcd, 0x10, // int 0x10: teletype output
	0xeb, 0xf3, // jmp to lodsb
	0xf4, 0xeb, 0xfd, // hlt; jmp to hlt
}, bootMarker+"\r\n\x00"...)

// powerOff is a boot sector's program: it enters ACPI state S5 as an operating system does that shuts down.
var powerOff = []byte{
	0xba, 0x04, 0x06, // mov dx,0x604: PM1a control of QEMU's ICH9
	0xb8, 0x00, 0x20, // mov ax,0x2000: sleep, type 0
	0xef,             // out dx,ax
	0xf4, 0xeb, 0xfd, // hlt; jmp to hlt
}

// bootSector puts a boot sector with this program on the system disk.
func bootSector(t *testing.T, m *Machine, program []byte) {
	t.Helper()
	sector := make([]byte, 512)
	copy(sector, program)
	sector[510], sector[511] = 0x55, 0xaa
	f, err := os.OpenFile(m.SystemDisk(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(sector); err != nil {
		t.Fatal(err)
	}
}

// Signs of a boot device on the serial log.
const (
	signSeaPXE  = "Configuring (net0" // iPXE asks for an address
	signOVMFPXE = ">>Start PXE over IPv4"
)

// firstDiscover listens as the controller does, and tells the hardware address in the first DHCP packet.
func firstDiscover(t *testing.T, n Network) <-chan string {
	t.Helper()
	var conn net.PacketConn
	err := n.Enter(Mgmt, func() (err error) {
		conn, err = net.ListenPacket("udp4", ":67")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mac := make(chan string, 1)
	go func() {
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(firmwareTime))
		buf := make([]byte, 1500)
		size, _, err := conn.ReadFrom(buf)
		if err != nil || size < 34 {
			mac <- fmt.Sprintf("%d bytes, %v", size, err)
			return
		}
		mac <- net.HardwareAddr(buf[28:34]).String() // chaddr: RFC 2131, figure 1
	}()
	return mac
}

// TestBMCs switches a machine on from the network, once, through each kind of BMC; resets it, so that the persistent order
// is back; and switches it off. All of it is seen from outside: by process, and by serial log.
func TestBMCs(t *testing.T) {
	needQEMU(t)
	for _, c := range []struct {
		cfg      MachineConfig
		pxe, sys string // signs of the network, and of the system disk
	}{
		{MachineConfig{BMC: IPMI, Order: []Device{FromDisk, FromNetwork}}, signSeaPXE, bootMarker},
		{MachineConfig{BMC: OpenIPMI, Order: []Device{FromDisk, FromNetwork}, Bus: NVMe}, signSeaPXE, bootMarker},
		// The marker is no EFI program: OVMF tries the disk and says so.
		{MachineConfig{BMC: Redfish, Firmware: machine.UEFI, Order: []Device{FromDisk}}, signOVMFPXE, "UEFI Misc Device\" from PciRoot(0x0)/Pci(0x4"},
	} {
		t.Run(string(c.cfg.BMC), func(t *testing.T) {
			l := startLab(t, Config{Name: testName(t, "q"), Machines: []MachineConfig{c.cfg}})
			m := l.Machine("n1")
			bootSector(t, m, sayAndHalt)
			rec := l.Inventory()[0]
			var bmc client = ipmitool{l.Network, rec}
			if c.cfg.BMC == Redfish {
				bmc = redfish{l.Network, rec}
			}
			log := &console{m: m}

			waitFor(t, "BMC to say off", func() bool { return !bmc.on(t) })
			bmc.bootOnce(t)
			bmc.power(t, "on")
			waitFor(t, "a process", func() bool { return m.PID() != 0 })
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", m.PID())); err != nil {
				t.Error(err)
			}
			if !bmc.on(t) {
				t.Error("the BMC says off, and the process runs")
			}
			waitLong(t, firmwareTime, "an attempt to boot from the network", func() bool { return strings.Contains(log.since(), c.pxe) })
			if strings.Contains(log.since(), c.sys) {
				t.Errorf("the disk came before the network:\n%s", log.since())
			}

			log.mark()
			if err := m.SetPower(t.Context(), ipmi.OpReset); err != nil {
				t.Fatal(err)
			}
			waitLong(t, firmwareTime, "the boot after that to be from disk", func() bool { return strings.Contains(log.since(), c.sys) })
			if strings.Contains(log.since(), c.pxe) {
				t.Errorf("the network came before the disk:\n%s", log.since())
			}

			pid := m.PID()
			bmc.power(t, "off")
			waitFor(t, "the process to end", func() bool { return m.PID() == 0 })
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				t.Error("the BMC says off, and the process is there")
			}
			if bmc.on(t) {
				t.Error("the BMC says on after power off")
			}
		})
	}
}

// TestNextBootFromDisk: a machine whose order begins with the network boots from disk when told to, once.
func TestNextBootFromDisk(t *testing.T) {
	needQEMU(t)
	l := startLab(t, Config{Name: testName(t, "q"), Machines: []MachineConfig{{}}})
	m := l.Machine("n1")
	bootSector(t, m, sayAndHalt)
	log := &console{m: m}
	disk := bmctest.Boot{Device: ipmi.DeviceDisk, Once: true}

	if err := m.SetNextBoot(t.Context(), disk); err != nil {
		t.Fatal(err)
	}
	if err := m.SetPower(t.Context(), ipmi.OpOn); err != nil {
		t.Fatal(err)
	}
	waitLong(t, firmwareTime, "a boot from disk", func() bool { return strings.Contains(log.since(), bootMarker) })

	// Told while on: the reset that follows is the next boot, the cycle after it is not.
	log.mark()
	if err := m.SetNextBoot(t.Context(), disk); err != nil {
		t.Fatal(err)
	}
	if err := m.SetPower(t.Context(), ipmi.OpReset); err != nil {
		t.Fatal(err)
	}
	waitLong(t, firmwareTime, "a second boot from disk", func() bool { return strings.Contains(log.since(), bootMarker) })
	log.mark()
	discover := firstDiscover(t, l.Network)
	if err := m.SetPower(t.Context(), ipmi.OpCycle); err != nil {
		t.Fatal(err)
	}
	waitLong(t, firmwareTime, "a boot from the network", func() bool { return strings.Contains(log.since(), signSeaPXE) })
	nic, _ := l.Inventory()[0].Machine.Hardware.NICByRole(machine.ProvisionNIC)
	if mac := <-discover; mac != nic.MAC {
		t.Errorf("the controller hears DHCP from %q, want %s", mac, nic.MAC)
	}
	if m.Starts() != 2 {
		t.Errorf("%d starts, want 2: a reset is none", m.Starts())
	}
	m.PowerCut()
	if on, _ := m.Power(t.Context()); on {
		t.Error("on after a power cut")
	}
	for _, op := range []ipmi.Op{ipmi.OpCycle, ipmi.OpReset, ipmi.OpSoft, ipmi.OpOff} {
		if err := m.SetPower(t.Context(), op); err != nil {
			t.Errorf("%s of a machine that is off: %v", op, err)
		}
		if m.PID() != 0 {
			t.Fatalf("%s switched a machine on", op)
		}
	}
}

// A guest that shuts itself down is off, and can be switched on again.
func TestGuestPowersOff(t *testing.T) {
	needQEMU(t)
	l := startLab(t, Config{Name: testName(t, "q"), Machines: []MachineConfig{{Order: []Device{FromDisk}}}})
	m := l.Machine("n1")
	bootSector(t, m, powerOff)
	for range 2 {
		if err := m.SetPower(t.Context(), ipmi.OpOn); err != nil {
			t.Fatal(err)
		}
		waitLong(t, firmwareTime, "the guest to switch itself off", func() bool { return m.PID() == 0 })
	}
	if on, err := m.Power(t.Context()); on || err != nil || m.Starts() != 2 {
		t.Errorf("on = %v, %v, after %d starts", on, err, m.Starts())
	}
}

// The cards of a machine are on its bus where its record says, all but the absent one.
func TestCards(t *testing.T) {
	needQEMU(t)
	for _, c := range []struct {
		firmware machine.Firmware
		sign     string
	}{{machine.BIOS, bootMarker}, {machine.UEFI, signOVMFPXE}} {
		t.Run(string(c.firmware), func(t *testing.T) {
			l := startLab(t, Config{Name: testName(t, "q"), Machines: []MachineConfig{
				{Firmware: c.firmware, Cards: 8, Absent: 1, Order: []Device{FromDisk, FromNetwork}}}})
			m := l.Machine("n1")
			bootSector(t, m, sayAndHalt)
			if err := m.SetPower(t.Context(), ipmi.OpOn); err != nil {
				t.Fatal(err)
			}
			log := &console{m: m}
			waitLong(t, firmwareTime, "the firmware to be done", func() bool { return strings.Contains(log.since(), c.sign) })
			got := cardsOnBus(t, m)
			want := l.Inventory()[0].Machine.Hardware.Accelerators
			if len(want) != 8 {
				t.Errorf("%d cards in the record, want all 8 that were sold", len(want))
			}
			if diff := cmp.Diff(want[:7], got); diff != "" {
				t.Errorf("cards (-record +bus):\n%s", diff)
			}
		})
	}
}

// cardsOnBus asks QEMU what the firmware made of the bus.
func cardsOnBus(t *testing.T, m *Machine) []machine.Accelerator {
	t.Helper()
	type device struct {
		Bus, Slot, Function int
		ID                  struct{ Vendor, Device int }
		Bridge              struct{ Devices []device } `json:"pci_bridge"`
	}
	var buses []struct{ Devices []device }
	if err := m.current().qmp.do(t.Context(), "query-pci", nil, &buses); err != nil {
		t.Fatal(err)
	}
	var cards []machine.Accelerator
	var walk func([]device)
	walk = func(ds []device) {
		for _, d := range ds {
			if a := (machine.Accelerator{
				Slot:   fmt.Sprintf("0000:%02x:%02x.%d", d.Bus, d.Slot, d.Function),
				Vendor: fmt.Sprintf("%04x", d.ID.Vendor), Device: fmt.Sprintf("%04x", d.ID.Device),
			}); a.Vendor == fakecard.Vendor {
				cards = append(cards, a)
			}
			walk(d.Bridge.Devices)
		}
	}
	for _, b := range buses {
		walk(b.Devices)
	}
	slices.SortFunc(cards, func(a, b machine.Accelerator) int { return strings.Compare(a.Slot, b.Slot) })
	return cards
}

// TestAcceleration: a KVM that does not run firmware is left alone, and the reason told.
func TestAcceleration(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		script string
		works  bool
	}{
		"Runs":   {"echo 'warning: no such feature' >&2; exec sleep 60", true},
		"Aborts": {"echo 'failed to set MSR 0x10a'; exit 134", false},
		"Stops":  {"echo 'KVM internal error. Suberror: 1'; exec sleep 60", false},
		"Ends":   {"exit 1", false},
	} {
		qemu := filepath.Join(dir, name)
		if err := os.WriteFile(qemu, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if said := tryFirmware(t.Context(), qemu, nil); (said == "") != c.works {
			t.Errorf("%s: %q", name, said)
		}
	}
}
