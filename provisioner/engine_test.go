package provisioner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres/postgrestest"
	"github.com/bareyard/bareyard/provisioner"
)

var cluster postgrestest.Cluster

func TestMain(m *testing.M) { postgrestest.Main(m, &cluster) }

const testKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl test"

// yard is a data centre whose hardware always obeys unless told otherwise, around a real database.
type yard struct {
	t  *testing.T
	db *postgrestest.DB
	*provisioner.Engine

	mu    sync.Mutex
	power map[string]ipmi.Power // by BMC address
	boot  map[string]ipmi.Device
	edge  map[string]network.Port
	ports map[string]bool
	fail  map[string]error // by BMC address: what the BMC says
	stuck string           // machine whose public port the edge refuses to withdraw
	deaf  error            // what the edge answers to everything
}

func newYard(t *testing.T) *yard {
	y := &yard{t: t, db: cluster.DB(t), power: map[string]ipmi.Power{}, boot: map[string]ipmi.Device{}, edge: map[string]network.Port{},
		ports: map[string]bool{}, fail: map[string]error{}}
	y.Engine = &provisioner.Engine{Store: y.db, Shelf: y.db, Tickets: y.db, Vault: y.db, BMCs: y.db, Pins: y.db, Power: y, Edge: (*yardEdge)(y), Ports: (*yardPorts)(y),
		Agents: "https://10.77.0.1:8443", Images: "http://10.77.0.1:8080/images", CA: "-----BEGIN CERTIFICATE-----\n", BootNets: []provisioner.BootNet{{Prefix: netip.MustParsePrefix("10.77.0.0/24")}}}
	y.Calendar, y.Reports = y.db, y.db
	ctx := t.Context()
	y.must(y.db.PutClass(ctx, machine.Class{Name: "rtx5090x2", Accelerator: "10de:2b85", Count: 2, MonthlyPrice: 1_000_000, Currency: "CNY"}))
	y.must(y.db.PutImage(ctx, machine.Image{Name: "debian-12", Digest: strings.Repeat("ab", 32), Size: 800 << 20, DefaultUser: "debian", BIOS: true, UEFI: true}))
	y.must(y.db.PutLine(ctx, network.Line{Name: "bgp", Site: "lab", MinBandwidth: 1, MaxBandwidth: 1000}, time.Hour))
	if _, err := y.db.AddAddresses(ctx, "bgp", netip.MustParsePrefix("203.0.113.0/29")); err != nil {
		t.Fatal(err)
	}
	return y
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

// addMachine enrols machine number n as available.
func (y *yard) addMachine(n int) machine.Machine {
	y.t.Helper()
	m, err := y.db.Enroll(y.t.Context(), machine.Machine{
		Name: fmt.Sprintf("n%d", n), Site: "lab", Class: "rtx5090x2", Firmware: machine.BIOS, BootAddr: netip.AddrFrom4([4]byte{10, 77, 0, byte(10 + n)}),
		BMC: machine.BMC{Protocol: "ipmi", Address: fmt.Sprintf("10.78.0.%d:623", 10+n), Username: "admin"},
		Hardware: machine.Hardware{
			UUID: fmt.Sprintf("00112233-4455-6677-8899-0000000000%02x", n), Serial: fmt.Sprintf("SN%d", n),
			NICs: []machine.NIC{{MAC: fmt.Sprintf("02:00:5e:10:00:%02x", n), Role: machine.ProvisionNIC, Port: fmt.Sprintf("p%d", n)},
				{MAC: fmt.Sprintf("02:00:5e:20:00:%02x", n), Role: machine.PublicNIC}},
			Disks: []machine.Disk{{Serial: fmt.Sprintf("SYS%d", n), Size: 4 << 30, Role: machine.SystemDisk},
				{Serial: fmt.Sprintf("DAT%d", n), Size: 1 << 30, Role: machine.DataDisk}},
			Accelerators: []machine.Accelerator{{Slot: "0000:01:00.0", Vendor: "10de", Device: "2b85"}, {Slot: "0000:02:00.0", Vendor: "10de", Device: "2b85"}},
		},
	}, "secret", true)
	y.must(err)
	return m
}

func (y *yard) Power(_ context.Context, t ipmi.Target) (ipmi.Power, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.power[t.Address], y.fail[t.Address]
}

func (y *yard) SetPower(_ context.Context, t ipmi.Target, op ipmi.Op) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if err := y.fail[t.Address]; err != nil {
		return err
	}
	if t.Password != "secret" {
		return ipmi.ErrCredentials
	}
	y.power[t.Address] = ipmi.On
	if op == ipmi.OpOff {
		y.power[t.Address] = ipmi.Off
	}
	return nil
}

func (y *yard) SetNextBoot(_ context.Context, t ipmi.Target, d ipmi.Device, _ bool) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.boot[t.Address] = d
	return y.fail[t.Address]
}

func (y *yard) BootFrom(ctx context.Context, t ipmi.Target, d ipmi.Device, uefi bool) error {
	return errors.Join(y.SetNextBoot(ctx, t, d, uefi), y.SetPower(ctx, t, ipmi.OpOn))
}

type yardEdge yard

func (e *yardEdge) Read(context.Context) ([]network.Port, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ports []network.Port
	for _, p := range e.edge {
		ports = append(ports, p)
	}
	return ports, nil
}

func (e *yardEdge) Apply(_ context.Context, set []network.Port, remove []string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deaf != nil {
		return e.deaf
	}
	for _, id := range remove {
		if e.stuck == id {
			return errors.New("the edge refuses")
		}
	}
	for _, p := range set {
		e.edge[p.Machine] = p
	}
	for _, id := range remove {
		delete(e.edge, id)
	}
	return nil
}

type yardPorts yard

func (p *yardPorts) Pin(context.Context, string, string) error { return nil }

func (p *yardPorts) Set(_ context.Context, port string, open bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports[port] = open
	return nil
}

func (y *yard) request() provisioner.Request {
	return provisioner.Request{Project: "acme", Class: "rtx5090x2", Image: "debian-12", Line: "bgp", Bandwidth: 100, SSHKeys: []string{testKey}, Hostname: "gpu1"}
}

func (y *yard) job(id string) machine.Job {
	y.t.Helper()
	j, err := y.db.Job(y.t.Context(), id)
	y.must(err)
	return j
}

func (y *yard) order(id string) machine.Order {
	y.t.Helper()
	o, err := y.db.Order(y.t.Context(), id)
	y.must(err)
	return o
}

func (y *yard) machine(id string) machine.Machine {
	y.t.Helper()
	m, err := y.db.Machine(y.t.Context(), id)
	y.must(err)
	return m
}

// turn carries out the controller steps that the machine's job is at, until it waits for somebody else or is over.
func (y *yard) turn(machineID string) {
	y.t.Helper()
	for range 50 {
		m := y.machine(machineID)
		if m.JobID == "" {
			return
		}
		j := y.job(m.JobID)
		step, _, _ := machine.StepOf(j.Kind, j.Step)
		if step.Actor != machine.Controller {
			return
		}
		y.must(y.Act(y.t.Context(), provisioner.Action{Kind: provisioner.ActStep, MachineID: machineID, JobID: j.ID, Turn: j.Turn}))
	}
	y.t.Fatal("the controller does not come to rest")
}

// ram is a machine's RAM disk or validator in the middle of its conversation.
type ram struct {
	y     *yard
	m     machine.Machine
	token string
	last  machine.Instruction
	nonce string
}

// boot loads the agent as the firmware would and says hello.
func (y *yard) bootAgent(machineID string) *ram {
	y.t.Helper()
	m := y.machine(machineID)
	nic, _ := m.Hardware.NICByRole(machine.ProvisionNIC)
	raw, err := y.MintBoot(y.t.Context(), nic.MAC, m.BootAddr)
	y.must(err)
	var file provisioner.BootFile
	y.must(json.Unmarshal(raw, &file))
	r := &ram{y: y, m: m, nonce: file.Nonce}
	welcome, err := y.Hello(y.t.Context(), machine.Hello{Nonce: file.Nonce, UUID: m.Hardware.UUID, MACs: []string{nic.MAC}}, m.BootAddr)
	y.must(err)
	r.token, r.last = welcome.Token, welcome.Instruction
	return r
}

func (r *ram) report(rep machine.Report) (machine.Instruction, error) {
	in, err := r.y.Report(r.y.t.Context(), r.token, rep)
	r.last = in
	return in, err
}

// do carries out the last instruction with the result that a good machine would have.
func (r *ram) do() {
	r.y.t.Helper()
	step := r.last.Step
	rep := machine.Report{Step: step, Phase: machine.Done}
	switch step {
	case machine.StepInventory:
		rep.Result = encode(machine.Inventory{Hardware: r.m.Hardware})
	case machine.StepExamine:
		rep.Result = encode(seenFrom(r.m.Hardware))
	case machine.StepEraseAll, machine.StepProve:
		var proofs []machine.Erasure
		for _, d := range r.last.Disks {
			proofs = append(proofs, machine.Erasure{Serial: d.Serial, Size: d.Size, Method: "zeroout", Sampled: d.Size, Clean: true})
		}
		rep.Result = encode(proofs)
	case machine.StepValidate:
		rep.Result = encode(accelerator.Report{Schema: accelerator.Schema, Outcome: accelerator.Pass, Checks: []accelerator.Check{{ID: "x", Outcome: accelerator.Pass}}})
	}
	_, err := r.report(rep)
	r.y.must(err)
	if step == machine.StepExamine {
		r.goOn()
	}
}

// goOn lets the server judge what the RAM disk saw, and asks what is next.
func (r *ram) goOn() {
	r.y.t.Helper()
	r.y.turn(r.m.ID)
	if _, err := r.report(machine.Report{Phase: machine.Idle}); err != nil && !errors.Is(err, provisioner.ErrStale) {
		r.y.must(err)
	}
}

// seenFrom is what the RAM disk of a machine with this hardware sees.
func seenFrom(h machine.Hardware) accelerator.Facts {
	f := accelerator.Facts{Taken: time.Now().UTC(), RAMDisk: true, Log: accelerator.KernelLog{Records: 1}}
	for _, a := range h.Accelerators {
		f.PCI.Cards = append(f.PCI.Cards, accelerator.PCICard{Slot: a.Slot, Vendor: a.Vendor, Device: a.Device, Class: "030000", Answers: accelerator.Measured(true, "", "sysfs")})
	}
	f.Host.Memory, f.Host.Nouveau = accelerator.Measured(int64(1<<34), "bytes", "proc"), accelerator.Measured(false, "", "proc")
	for _, d := range h.Disks {
		f.Host.Disks = append(f.Host.Disks, accelerator.HostDisk{Name: "sda", Serial: accelerator.Measured(d.Serial, "", "sysfs"), Size: accelerator.Measured(d.Size, "bytes", "sysfs")})
	}
	for _, n := range h.NICs {
		f.Host.NICs = append(f.Host.NICs, accelerator.HostNIC{Name: string(n.Role), MAC: accelerator.Measured(n.MAC, "", "sysfs"), Carrier: accelerator.Measured(true, "", "sysfs")})
	}
	return f
}

// until carries out instructions until the machine is told to wait, to finish or to power off.
func (r *ram) until() {
	r.y.t.Helper()
	for range 20 {
		if r.last.Do != machine.DoStep {
			return
		}
		r.do()
	}
	r.y.t.Fatal("the agent does not come to rest")
}

// becomeOS takes the validator's token from the seed that the agent was told to write.
func (r *ram) becomeOS(seed map[string]string) {
	_, rest, ok := strings.Cut(seed["vendor-data"], "content: 'Authorization: Bearer ")
	if !ok {
		_, rest, ok = strings.Cut(seed["vendor-data"], "Authorization: Bearer ")
	}
	if !ok {
		r.y.t.Fatalf("no token in the seed:\n%s", seed["vendor-data"])
	}
	r.token = rest[:26]
}

func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// firstBoot takes a machine whose job is at its first step to where its installed system has said that it is up. It returns what that was told by its seed.
func (y *yard) firstBoot(machineID string) (*ram, map[string]string) {
	y.t.Helper()
	y.turn(machineID)
	r := y.bootAgent(machineID)
	var seed map[string]string
	for r.last.Do == machine.DoStep {
		if r.last.Configure != nil {
			seed = r.last.Configure.Seed
		}
		r.do()
	}
	y.turn(machineID)
	r.becomeOS(seed)
	_, err := r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Done})
	y.must(err)
	return r, seed
}

// install takes a machine whose job is at its first step to the end of the job.
func (y *yard) install(machineID string) {
	y.t.Helper()
	r, _ := y.firstBoot(machineID)
	y.turn(machineID)
	_, err := r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	if r.last.Step != machine.StepValidate {
		y.t.Fatalf("the validator is told %+v, want to validate", r.last)
	}
	r.do()
	y.turn(machineID)
}

func TestOrderToReleaseAndBack(t *testing.T) {
	y := newYard(t)
	m := y.addMachine(1)
	o, err := y.Place(t.Context(), y.request(), "")
	y.must(err)
	if o.State != machine.OrderPlaced || o.MachineID != m.ID {
		t.Fatalf("placed order is %+v", o)
	}
	y.install(m.ID)
	o = y.order(o.ID)
	if o.State != machine.OrderActive || y.machine(m.ID).State != machine.Active {
		t.Fatalf("order is %s, machine %s; want both active", o.State, y.machine(m.ID).State)
	}
	if p := y.edge[m.ID]; p.Up != network.Fixed(100_000) || p.Addrs[0].Addr() != o.Address {
		t.Errorf("edge carries %+v", p)
	}
	if y.ports["p1"] {
		t.Error("the provisioning port is still open after hand-over")
	}

	if _, err := y.Reinstall(t.Context(), o.ID, "debian-12", "wrong", false, ""); machine.CodeOf(err) != machine.Invalid {
		t.Fatalf("reinstall without consent: %v", err)
	}
	_, err = y.Reinstall(t.Context(), o.ID, "debian-12", "gpu1", false, "")
	y.must(err)
	y.turn(m.ID)
	if _, exposed := y.edge[m.ID]; exposed {
		t.Error("the public address is still carried while the machine is reinstalled")
	}
	r := y.bootAgent(m.ID)
	for r.last.Step == machine.StepInventory || r.last.Step == machine.StepInBand {
		r.do()
	}
	if len(r.last.Disks) != 1 || r.last.Disks[0].Role != machine.SystemDisk {
		t.Errorf("reinstall wipes %+v, want the system disk alone", r.last.Disks)
	}
	var seed map[string]string
	for r.last.Do == machine.DoStep {
		if r.last.Configure != nil {
			seed = r.last.Configure.Seed
		}
		r.do()
	}
	y.turn(m.ID)
	r.becomeOS(seed)
	_, err = r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Done})
	y.must(err)
	y.turn(m.ID)
	_, err = r.report(machine.Report{Step: machine.StepFirstBoot, Phase: machine.Idle})
	y.must(err)
	r.do()
	y.turn(m.ID)

	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(m.ID)
	r = y.bootAgent(m.ID)
	r.until()
	y.turn(m.ID)
	if got := y.machine(m.ID); got.State != machine.Available || got.OrderID != "" || got.Public {
		t.Fatalf("released machine is %+v", got)
	}
	if y.power[m.BMC.Address] != ipmi.Off || y.ports["p1"] {
		t.Error("a machine in stock is powered, or its port is open")
	}
	if y.order(o.ID).State != machine.OrderEnded {
		t.Errorf("order is %s", y.order(o.ID).State)
	}
	lines, err := y.db.Lines(t.Context())
	y.must(err)
	if lines[0].Cooling != 1 || lines[0].Free != 7 {
		t.Errorf("addresses: %d free, %d cooling; want 7 and 1", lines[0].Free, lines[0].Cooling)
	}
}
