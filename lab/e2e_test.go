package lab_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/lab"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network/bridgeport"
	"github.com/bareyard/bareyard/provisioner"
)

// patience is how long an order, a reinstall or a release may take here: QEMU without KVM, two cores, several at once.
const patience = 12 * time.Minute

// site is a lab with a server, seen as an operator and a customer see it.
type site struct {
	t      *testing.T
	lab    *lab.Lab
	client *client.Client
	key    []byte // of the customer, PEM
	public string
}

// newSite builds a lab out of what `make build kernel lab-image mocknvml ramdisk` made. Each machine is sold as a class of its
// own unless it says otherwise, so that a test gets the machine that it means.
func newSite(t *testing.T, name string, machines ...lab.MachineConfig) *site {
	t.Helper()
	if os.Getenv("BAREYARD_QEMU") == "" {
		t.Skip("boots QEMU machines for minutes: set BAREYARD_QEMU=1, or run make e2e")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	at := func(path string) string {
		full := filepath.Join(root, path)
		if _, err := os.Stat(full); err != nil {
			t.Fatalf("%v: run make build kernel lab-image mocknvml ramdisk first", err)
		}
		return full
	}
	dir, err := os.MkdirTemp("", "by-e2e-") // t.TempDir's parents keep the database's user out
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := lab.Start(t.Context(), lab.Config{
		Name: name, Dir: dir, Machines: machines, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Server: &lab.ServerConfig{Binary: at("bin/bareyard"), Kernel: at("build/kernel/vmlinuz"), RAMDisk: at("build/ramdisk/ramdisk.cpio.zst"), Validator: at("bin/bareyard-validate")},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, lab: l}
	t.Cleanup(func() {
		if t.Failed() {
			s.keepLogs(dir)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := l.WaitServer(ctx); err != nil {
		t.Fatal(err)
	}
	if s.client, err = client.New("unix://"+l.Status().Server.Socket, "", ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		class := machine.Class{Name: m.Class, MonthlyPrice: 10_000, Currency: "CNY"}
		if m.Cards > 0 {
			class.Accelerator, class.Count = "10de:2b85", m.Cards
		}
		if err := s.client.PutClass(ctx, class); err != nil {
			t.Fatal(err)
		}
	}
	if err := lab.Stock(ctx, s.client, l.Inventory(), at("build/lab-image/debian-12.raw.zst")); err != nil {
		t.Fatal(err)
	}
	s.key, s.public = keyPair(t)
	return s
}

// keepLogs prints the ends of the logs of a failed test.
func (s *site) keepLogs(dir string) {
	logs, _ := filepath.Glob(dir + "/machines/*/serial.log") // the pattern is right
	for _, f := range append(logs, dir+"/serve.log") {
		text, err := os.ReadFile(f)
		if err == nil {
			s.t.Logf("%s:\n%s", f, text[max(0, len(text)-4000):])
		}
	}
}

func keyPair(t *testing.T) (private []byte, public string) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	authorized, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(authorized)))
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// order places an order.
func (s *site) order(ctx context.Context, class string) machine.Order {
	s.t.Helper()
	o, err := s.client.Place(ctx, api.NewOrder{Class: class, Image: "debian-12", Line: "bgp", Bandwidth: 20, SSHKeys: []string{s.public}, Hostname: "e2e-" + class}, "key-"+class)
	s.must(err)
	return o
}

// settle follows an order until no job works on it. onJob sees each change of the job; a server that is killed is waited for.
func (s *site) settle(ctx context.Context, id string, onJob func(machine.Job)) machine.Order {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last int64
	for {
		o, err := s.client.Order(ctx, id)
		if err == nil && o.State != machine.OrderPlaced && o.State != machine.OrderProvisioning {
			jobs, err := s.client.Jobs(ctx, id, "")
			if err == nil && jobs[0].State != machine.JobRunning {
				return o
			}
		}
		if err == nil || machine.CodeOf(err) == machine.Unavailable {
			var seen int64
			seen, err = s.client.Watch(ctx, id, last, func(ev provisioner.Event) bool {
				s.t.Logf("%s %s %-18s %s", ev.At.Format("15:04:05"), id, ev.Kind, ev.Text)
				return ev.Kind != "job.succeed" && ev.Kind != "job.fail" && ev.Kind != "order.fail"
			}, func(j machine.Job) bool {
				if onJob != nil {
					onJob(j)
				}
				return true
			})
			last = max(last, seen)
		}
		if ctx.Err() != nil {
			s.t.Fatalf("order %s did not settle within %s", id, patience)
		}
		if err != nil && machine.CodeOf(err) != machine.Unavailable {
			s.t.Fatal(err)
		}
		if err != nil {
			wait := time.NewTimer(500 * time.Millisecond)
			select {
			case <-ctx.Done():
			case <-wait.C:
			}
		}
	}
}

// active is settle for an order that must end up active.
func (s *site) active(ctx context.Context, id string, onJob func(machine.Job)) machine.Order {
	s.t.Helper()
	o := s.settle(ctx, id, onJob)
	if o.State != machine.OrderActive {
		s.t.Fatalf("order is %s: %s", o.State, o.Reason)
	}
	return o
}

// ssh runs a command on the machine of an order, as its customer on the internet.
func (s *site) ssh(ctx context.Context, o machine.Order, command string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		try, stop := context.WithTimeout(ctx, 20*time.Second) // TCP asks a host that is down less and less often
		out, sshErr := s.lab.SSH(try, lab.Internet, o.Address, "root", s.key, command)
		stop()
		if sshErr == nil {
			return strings.TrimSpace(out)
		}
		err = sshErr
		wait := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	s.t.Fatalf("ssh %q: %v", command, err)
	return ""
}

// machineOf returns the record of the machine of that name.
func (s *site) machineOf(ctx context.Context, name string) machine.Machine {
	s.t.Helper()
	m, err := s.client.Machine(ctx, name)
	s.must(err)
	return m
}

// TestWholeLife: order, use, reinstall, release, for each firmware and BMC protocol, at the same time.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	s := newSite(t, "e2e",
		lab.MachineConfig{Name: "broken", Class: "cards", Cards: 8, Absent: 1},
		lab.MachineConfig{Name: "n1", Class: "cards", BMC: lab.OpenIPMI, Cards: 8},
		lab.MachineConfig{Name: "n2", Class: "uefi", Firmware: machine.UEFI, BMC: lab.Redfish, Bus: lab.NVMe},
	)
	for _, tt := range []struct{ class, machine string }{{"cards", "n1"}, {"uefi", "n2"}} {
		t.Run(tt.class, func(t *testing.T) {
			t.Parallel()
			c := *s
			c.t = t
			c.life(t.Context(), tt.class, tt.machine)
		})
	}
	t.Run("quarantine", func(t *testing.T) {
		t.Parallel()
		c := *s
		c.t = t
		c.lostCard(t.Context())
	})
}

// measure compares what the customer gets with what he ordered. More is never right; less can be the doing of a busy box, on which the
// machine's only processor is emulated, so it is measured again.
func (s *site) measure(ctx context.Context, o machine.Order) {
	want := float64(o.Bandwidth)
	for try := 1; ; try++ {
		rate, err := s.lab.Bandwidth(ctx, o.Address, "root", s.key, 5*time.Second)
		s.must(err)
		s.t.Logf("bandwidth ordered %d, down %.1f, up %.1f Mbit/s", o.Bandwidth, rate.Down, rate.Up)
		if max(rate.Down, rate.Up) > 1.1*want {
			s.t.Errorf("measured %.1f down and %.1f up, ordered %.0f Mbit/s", rate.Down, rate.Up, want)
			return
		}
		if min(rate.Down, rate.Up) >= 0.9*want {
			return
		}
		if try == 3 {
			s.t.Errorf("measured %.1f down and %.1f up, three times too little, ordered %.0f Mbit/s", rate.Down, rate.Up, want)
			return
		}
	}
}

// life is what a customer does.
func (s *site) life(ctx context.Context, class, name string) {
	t := s.t
	o := s.active(ctx, s.order(ctx, class).ID, nil)
	m := s.machineOf(ctx, name)
	if m.State != machine.Active || m.OrderID != o.ID || m.PortOpen {
		t.Fatalf("machine %s is %s, held by %q, provisioning port open: %t", name, m.State, m.OrderID, m.PortOpen)
	}
	if got := s.ssh(ctx, o, "hostname"); got != o.Hostname {
		t.Errorf("hostname is %q, ordered %q", got, o.Hostname)
	}
	s.measure(ctx, o)
	s.checkReport(ctx, o, m)
	// What a tenant must not reach: the controller, the provisioning network, BMCs.
	for _, target := range []string{"10.77.0.1:8443", "10.77.0.1:8080", "10.78.0.12:623"} {
		host, port, _ := strings.Cut(target, ":")
		if got := s.ssh(ctx, o, fmt.Sprintf("timeout 5 bash -c 'exec 3<>/dev/tcp/%s/%s' 2>/dev/null && echo open || echo shut", host, port)); got != "shut" {
			t.Errorf("the tenant reaches %s", target)
		}
	}
	disks := s.ssh(ctx, o, "lsblk -dno NAME,SERIAL")
	data := ""
	for line := range strings.Lines(disks) {
		if f := strings.Fields(line); len(f) == 2 && strings.HasSuffix(f[1], "-data") {
			data = f[0]
		}
	}
	if data == "" {
		t.Fatalf("no data disk in:\n%s", disks)
	}
	s.ssh(ctx, o, "echo 'customer data' | dd of=/dev/"+data+" conv=notrunc,fsync status=none; touch /etc/marker; sync")

	if _, err := s.client.Reinstall(ctx, o.ID, "debian-12", "not-the-hostname", false); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("reinstall without consent: %v", err)
	}
	_, err := s.client.Reinstall(ctx, o.ID, "debian-12", o.Hostname, false)
	s.must(err)
	o = s.active(ctx, o.ID, nil)
	if got := s.ssh(ctx, o, "test -e /etc/marker && echo old || echo new; for d in $(lsblk -dno NAME,SERIAL | awk '/-data$/ {print $1}'); do head -c 13 /dev/$d; done"); got != "new\ncustomer data" {
		t.Errorf("after the reinstall: %q; want a new system and the old data", got)
	}

	s.powerByCustomer(ctx, o, name)
	_, err = s.client.Act(ctx, o.ID, "release")
	s.must(err)
	o = s.settle(ctx, o.ID, nil)
	m = s.machineOf(ctx, name)
	if o.State != machine.OrderEnded || m.State != machine.Available || m.OrderID != "" {
		t.Fatalf("after release the order is %s, machine %s is %s: %s", o.State, name, m.State, m.Reason)
	}
	for _, disk := range []string{s.lab.Machine(name).SystemDisk(), s.lab.Machine(name).DataDisk()} {
		if off, err := firstByte(disk); err != nil || off >= 0 {
			t.Errorf("%s holds data at %d after the release (%v)", filepath.Base(disk), off, err)
		}
	}
	s.checkErasures(ctx, o, m)
	lines, err := s.client.Lines(ctx)
	s.must(err)
	if lines[0].Cooling == 0 {
		t.Error("the released address does not cool down")
	}
}

// checkErasures looks at the certificates of what became of an order's data: of each disk one, signed. Virtio disks cannot erase themselves,
// QEMU's NVMe drives format.
func (s *site) checkErasures(ctx context.Context, o machine.Order, m machine.Machine) {
	s.t.Helper()
	list, err := s.client.OrderErasures(ctx, o.ID)
	s.must(err)
	known, err := s.client.ReportKeys(ctx)
	s.must(err)
	for _, d := range m.Hardware.Disks {
		i := slices.IndexFunc(list, func(c machine.ErasureCertificate) bool { return c.Serial == d.Serial })
		if i < 0 || len(list) != len(m.Hardware.Disks) {
			s.t.Errorf("no certificate of disk %s among %+v", d.Serial, list)
			continue
		}
		text, err := s.client.ErasureForm(ctx, list[i].ID, ".json")
		s.must(err)
		c, err := document.VerifyErasure(text, slices.Collect(maps.Values(known))...)
		if err != nil || !c.Clean || c.Sampled <= 0 || c.Order != o.ID || c.Machine != m.ID {
			s.t.Errorf("certificate %s: %+v, %v", list[i].ID, c, err)
		}
		if itself := strings.HasPrefix(c.Method, "nvme-format"); itself != (m.Firmware == machine.UEFI) || itself != (c.Level == machine.Purge) {
			s.t.Errorf("disk %s was erased by %s (%s)", c.Serial, c.Method, c.Level)
		}
	}
}

// checkReport looks at the validation report of an order's machine.
func (s *site) checkReport(ctx context.Context, o machine.Order, m machine.Machine) {
	raw, err := s.client.Report(ctx, o.ID)
	s.must(err)
	rep, err := accelerator.DecodeReport(raw)
	s.must(err)
	if rep.Blocks() || len(rep.Cards) != len(m.Hardware.Accelerators) {
		s.t.Errorf("report is %s with %d cards, the machine has %d: %s", rep.Outcome, len(rep.Cards), len(m.Hardware.Accelerators), rep.Reason())
	}
	for _, card := range rep.Cards {
		if card.PCI == nil || card.Card == nil {
			s.t.Errorf("card %s is not known to both bus and driver", card.Slot)
		}
	}
}

// lostCard: the machine that was offered first has lost a card; it must be out, with the evidence, and off.
func (s *site) lostCard(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		m := s.machineOf(ctx, "broken")
		if m.State == machine.Quarantined {
			if !strings.Contains(m.Reason, "7 of 8 cards") {
				s.t.Errorf("the reason is %q", m.Reason)
			}
			if on, err := s.lab.Machine("broken").Power(ctx); err == nil && !on && m.OrderID == "" {
				return
			}
		}
		wait := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			s.t.Fatalf("machine broken is %s: %s", m.State, m.Reason)
		case <-wait.C:
		}
	}
}

// firstByte returns where a file has its first byte that is not zero; -1 when it has none.
func firstByte(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := f.Read(buf)
		for i, b := range buf[:n] {
			if b != 0 {
				return off + int64(i), nil
			}
		}
		off += int64(n)
		if n == 0 || err != nil {
			return -1, nil
		}
	}
}

// TestBadLuck: the server is killed while the image is written and again at the first boot, the machine loses its power
// while the image is written; then the installed machine network-boots by itself.
func TestBadLuck(t *testing.T) {
	t.Parallel()
	s := newSite(t, "luck", lab.MachineConfig{Name: "n1", Class: "bios"})
	ctx := t.Context()
	killed := map[machine.StepName]bool{}
	cut := false
	o := s.active(ctx, s.order(ctx, "bios").ID, func(j machine.Job) {
		switch {
		case j.Step == machine.StepWrite && j.Progress.Done > 0 && !killed[j.Step], j.Step == machine.StepFirstBoot && !killed[j.Step]:
			killed[j.Step] = true
			t.Logf("kill -9 of the server at %s, %d bytes written", j.Step, j.Progress.Done)
			s.must(s.lab.KillServer())
		case j.Step == machine.StepWrite && killed[machine.StepWrite] && !cut && j.Progress.Done > j.Progress.Total/2:
			cut = true
			t.Logf("power cut at %d of %d bytes", j.Progress.Done, j.Progress.Total)
			s.lab.Machine("n1").PowerCut()
		}
	})
	if !killed[machine.StepWrite] || !killed[machine.StepFirstBoot] || !cut {
		t.Errorf("server killed at %v, power cut: %t: the bad luck did not happen", killed, cut)
	}
	again, err := s.client.Place(ctx, api.NewOrder{Class: "bios", Image: "debian-12", Line: "bgp", Bandwidth: 20, SSHKeys: []string{s.public}, Hostname: "e2e-bios"}, "key-bios")
	if err != nil || again.ID != o.ID {
		t.Errorf("the same request again gives order %q, %v; want %q", again.ID, err, o.ID)
	}
	if _, err := s.client.Place(ctx, api.NewOrder{Class: "bios", Image: "debian-12", Line: "bgp", Bandwidth: 20, SSHKeys: []string{s.public}}, ""); machine.CodeOf(err) != machine.Exhausted {
		t.Errorf("another order for the only machine: %v", err)
	}

	s.ssh(ctx, o, "touch /etc/marker; sync")
	// Its firmware boots from the network first, and somebody has left the port open: it must get its disk.
	port := &bridgeport.Driver{Netns: s.lab.Netns(lab.Fabric)}
	nic, _ := s.machineOf(ctx, "n1").Hardware.NICByRole(machine.ProvisionNIC)
	s.must(port.Set(ctx, nic.Port, true))
	s.must(s.lab.Machine("n1").SetPower(ctx, ipmi.OpReset))
	if got := s.ssh(ctx, o, "cat /proc/uptime | cut -d. -f1; test -e /etc/marker && echo kept"); !strings.HasSuffix(got, "kept") {
		t.Errorf("after a stray network boot: %q", got)
	}
	if now := s.machineOf(ctx, "n1"); now.State != machine.Active {
		t.Errorf("after a stray network boot the machine is %s", now.State)
	}
	log, err := os.ReadFile(filepath.Join(s.lab.Status().Dir, "serve.log"))
	s.must(err)
	if !strings.Contains(string(log), "boots=disk") {
		t.Error("the machine did not ask the server what to boot")
	}
}

// powerByCustomer: power off does not free the machine.
func (s *site) powerByCustomer(ctx context.Context, o machine.Order, name string) {
	for _, op := range []string{"off", "on"} {
		s.must(s.client.Power(ctx, o.ID, op))
		on, err := s.lab.Machine(name).Power(ctx)
		if err != nil || on != (op == "on") {
			s.t.Errorf("after power %s the machine is on: %t, %v", op, on, err)
		}
	}
	if got := s.machineOf(ctx, name).State; got != machine.Active {
		s.t.Errorf("after power off and on the machine is %s", got)
	}
}
