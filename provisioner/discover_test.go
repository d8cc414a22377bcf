package provisioner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/provisioner"
)

// inboxYard is a yard whose server discovers machines. BMCs say who they are as bmcs has it.
type inboxYard struct {
	*yard
	bmcs  map[string]ipmi.Inventory // by address
	bmcNo map[string]error
	lines []trace.Line
}

func newInboxYard(t *testing.T) *inboxYard {
	y := &inboxYard{yard: newYard(t), bmcs: map[string]ipmi.Inventory{}, bmcNo: map[string]error{}}
	y.Discovery, y.Inbox, y.Visits, y.List, y.Identify, y.Boots = true, y.db, y.db, y.db, y, y.db
	y.Trace = func(l trace.Line) { y.lines = append(y.lines, l) }
	return y
}

// Inventory implements provisioner.Identifier.
func (y *inboxYard) Inventory(_ context.Context, t ipmi.Target) (ipmi.Inventory, error) {
	if err := y.bmcNo[t.Address]; err != nil {
		return ipmi.Inventory{}, err
	}
	if t.Password != "secret" {
		return ipmi.Inventory{}, ipmi.ErrCredentials
	}
	inv, ok := y.bmcs[t.Address]
	if !ok {
		return inv, ipmi.ErrUnsupported
	}
	return inv, nil
}

// stranger is a machine that nobody has enrolled: number n, with two ports and the cards of class rtx5090x2.
func stranger(n int) machine.Inventory {
	mac := func(port int) string { return fmt.Sprintf("3c:ec:ef:00:%02x:%02x", n, port) }
	return machine.Inventory{
		CPU: "AMD EPYC 9554", Cores: 128, Sockets: 2, Memory: 1 << 40, Firmware: machine.UEFI, Kernel: "6.1",
		Hardware: machine.Hardware{UUID: fmt.Sprintf("00112233-4455-6677-8899-aabbccddee%02x", n), Serial: fmt.Sprintf("SRV-%d", n),
			NICs:         []machine.NIC{{MAC: mac(1)}, {MAC: mac(2)}, {MAC: mac(3)}},
			Disks:        []machine.Disk{{Serial: fmt.Sprintf("D%d-0", n), Size: 7 << 40}, {Serial: fmt.Sprintf("D%d-1", n), Size: 960 << 30}},
			Accelerators: []machine.Accelerator{{Slot: "0000:01:00.0", Vendor: "10de", Device: "2b85"}, {Slot: "0000:02:00.0", Vendor: "10de", Device: "2b85"}}},
		System: machine.System{Vendor: "Supermicro", Model: "AS-4125GS", BIOSVersion: "1.4"},
		Ports:  []machine.PortFacts{{Name: "eno1", MAC: mac(1), Link: true, Booted: true, Neighbour: &machine.Neighbour{System: "leaf1", Port: "swp7"}}, {Name: "eno2", MAC: mac(2), Link: true}, {Name: "eno3", MAC: mac(3)}},
		BMC:    &machine.BMCFacts{Address: fmt.Sprintf("10.78.1.%d", n), Firmware: "1.2"},
	}
}

func addrOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(200 + n)}) }

// visit boots a stranger by its first port and delivers an inventory.
func (y *inboxYard) visit(inv machine.Inventory, from netip.Addr) (machine.Instruction, error) {
	y.t.Helper()
	mac := inv.Hardware.NICs[0].MAC
	raw, err := y.MintBoot(y.t.Context(), mac, from)
	if err != nil {
		return machine.Instruction{}, err
	}
	var file provisioner.BootFile
	y.must(json.Unmarshal(raw, &file))
	hello := machine.Hello{Nonce: file.Nonce, UUID: inv.Hardware.UUID, Serial: inv.Hardware.Serial}
	for _, n := range inv.Hardware.NICs {
		hello.MACs = append(hello.MACs, n.MAC)
	}
	w, err := y.Hello(y.t.Context(), hello, from)
	if err != nil || w.Instruction.Do != machine.DoStep {
		return w.Instruction, err
	}
	if w.Instruction.Step != machine.StepDiscover {
		y.t.Fatalf("a stranger is told %+v", w.Instruction)
	}
	in, err := y.Report(y.t.Context(), w.Token, machine.Report{Step: machine.StepDiscover, Phase: machine.Working})
	if err != nil || in.Do != machine.DoContinue {
		y.t.Fatalf("while it looks, a stranger is told %+v, %v", in, err)
	}
	return y.Report(y.t.Context(), w.Token, machine.Report{Step: machine.StepDiscover, Phase: machine.Done, Result: encode(inv)})
}

// discover is visit that must go well, and returns what is in the inbox then.
func (y *inboxYard) discover(n int) machine.Found {
	y.t.Helper()
	in, err := y.visit(stranger(n), addrOf(n))
	if err != nil || in.Do != machine.DoPowerOff {
		y.t.Fatalf("after its report a stranger is told %+v, %v", in, err)
	}
	for _, f := range y.inbox() {
		if f.MAC == stranger(n).Hardware.NICs[0].MAC {
			return f
		}
	}
	y.t.Fatal("not in the inbox")
	return machine.Found{}
}

func (y *inboxYard) inbox() []machine.Found {
	y.t.Helper()
	list, err := y.db.Inbox(y.t.Context(), true)
	y.must(err)
	return list
}

// acts carries out what waits in the queue for a discovered machine.
func (y *inboxYard) enrolByList(id string, try int) {
	y.t.Helper()
	y.must(y.Act(y.t.Context(), provisioner.Action{Kind: provisioner.ActEnrol, MachineID: id, Turn: try}))
}

func approval() provisioner.Approval {
	return provisioner.Approval{Name: "gpu1", Site: "lab", Rack: "r1", Class: "rtx5090x2", BMC: machine.BMC{Username: "admin"}, BMCPassword: "secret", Admit: true, ProvisionPort: "p1"}
}

// TestDiscovery: a stranger's boot gives nothing but a way into the inbox; seen again, it is updated.
func TestDiscovery(t *testing.T) {
	y := newInboxYard(t)
	raw, err := y.MintBoot(t.Context(), "3c:ec:ef:00:01:01", addrOf(1))
	y.must(err)
	if s := string(raw); strings.Contains(s, "secret") || strings.Count(s, `":"`) != 4 {
		t.Errorf("a stranger is given %s", s)
	}
	f := y.discover(1)
	if f.State != machine.Discovered || f.From != "10.77.0.201" || f.Times != 1 || f.Inventory.Memory != 1<<40 || f.Inventory.Ports[0].Neighbour.Port != "swp7" {
		t.Errorf("found %+v", f)
	}
	again := stranger(1)
	again.Memory, again.Hardware.UUID = 2<<40, "33221100-5544-7766-8899-aabbccddee01" // another byte order (A05)
	if _, err := y.visit(again, addrOf(2)); err != nil {
		t.Fatal(err)
	}
	if list := y.inbox(); len(list) != 1 || list[0].ID != f.ID || list[0].Times != 2 || list[0].Inventory.Memory != 2<<40 || list[0].From != "10.77.0.202" || !list[0].FirstSeen.Equal(f.FirstSeen) {
		t.Errorf("after the second sighting: %+v", list)
	}
	events, err := y.db.Events(t.Context(), provisioner.EventFilter{MachineID: f.ID})
	y.must(err)
	if len(events) != 2 || !strings.Contains(events[0].Text, "2 × 10de:2b85") {
		t.Errorf("events %+v", events)
	}
	var told []string
	for _, l := range y.lines {
		told = append(told, l.MAC+" "+l.Asked+" "+string(l.Outcome))
	}
	if want := "3c:ec:ef:00:01:01 hello answered, 3c:ec:ef:00:01:01 inventory answered"; !strings.HasPrefix(strings.Join(told, ", "), want) {
		t.Errorf("traced %v", told)
	}
}

// TestDiscoveryOff: as if nobody had asked.
func TestDiscoveryOff(t *testing.T) {
	y := newInboxYard(t)
	y.Discovery = false
	if _, err := y.MintBoot(t.Context(), "3c:ec:ef:00:01:01", addrOf(1)); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("mint: %v", err)
	}
	if agent, known, err := y.Discovers(t.Context(), "3c:ec:ef:00:01:01"); agent || known || err != nil {
		t.Errorf("discovers %v %v %v", agent, known, err)
	}
	y.Discovery = true
	f := y.discover(1)
	y.Discovery = false
	if _, err := y.Approve(t.Context(), f.ID, approval()); err != nil {
		t.Errorf("what was found before cannot be approved: %v", err)
	}
}

// TestK11Stranger: a stranger opens nothing but the inbox, from its own address, once, and there is an end to how many.
func TestK11Stranger(t *testing.T) {
	y := newInboxYard(t)
	ctx := t.Context()
	raw, err := y.MintBoot(ctx, "3c:ec:ef:00:01:01", addrOf(1))
	y.must(err)
	var file provisioner.BootFile
	y.must(json.Unmarshal(raw, &file))
	hello := machine.Hello{Nonce: file.Nonce, MACs: []string{"3c:ec:ef:00:01:01", "x'; DROP TABLE machine", ""}}
	if _, err := y.Hello(ctx, hello, addrOf(2)); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("hello from another address: %v", err)
	}
	w, err := y.Hello(ctx, hello, addrOf(1))
	y.must(err)
	if _, err := y.Hello(ctx, machine.Hello{Nonce: w.Token}, addrOf(1)); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("a token taken for a nonce: %v", err)
	}
	if _, err := y.Report(ctx, file.Nonce, machine.Report{Step: machine.StepDiscover, Phase: machine.Done}); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("a nonce taken for a token: %v", err)
	}
	if err := y.MayFetchValidator(ctx, w.Token); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("a stranger fetches the validator: %v", err)
	}
	for _, step := range []machine.StepName{machine.StepWipe, machine.StepProve, machine.StepValidate, machine.StepInventory} {
		in, err := y.Report(ctx, w.Token, machine.Report{Step: step, Phase: machine.Done, Result: encode([]int{1})})
		if err != nil || in.Do != machine.DoStep || in.Step != machine.StepDiscover || in.Disks != nil || in.Target != nil {
			t.Errorf("%s of a stranger is answered %+v, %v", step, in, err)
		}
	}
	if _, err := y.Report(ctx, w.Token, machine.Report{Step: machine.StepDiscover, Phase: machine.Done, Result: json.RawMessage(`{"firmware":"bios","memory":-1}`)}); machine.CodeOf(err) != machine.Invalid {
		t.Errorf("an impossible inventory: %v", err)
	}
	if _, err := y.Report(ctx, w.Token, machine.Report{Step: machine.StepDiscover, Phase: machine.Done, Result: encode(stranger(1))}); err != nil {
		t.Errorf("a right one after it: %v", err)
	}
	if _, err := y.Report(ctx, w.Token, machine.Report{Step: machine.StepDiscover, Phase: machine.Done, Result: encode(stranger(2))}); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("the token after its report: %v", err)
	}
	if _, err := y.db.Conn.Exec(ctx, `INSERT INTO discovery SELECT 'x'||i, 'discovered', '02:00:00:00:00:01', NULL, '{}', '', now(), now(), 1 FROM generate_series(1, 300) i`); err != nil {
		t.Fatal(err)
	}
	if _, err := y.visit(stranger(3), addrOf(3)); machine.CodeOf(err) != machine.Exhausted {
		t.Errorf("an inbox that is full: %v", err)
	}
	if _, err := y.visit(stranger(1), addrOf(1)); err != nil {
		t.Errorf("one that is in the full inbox already: %v", err)
	}
	if _, err := y.db.Conn.Exec(ctx, `INSERT INTO visit (mac, addr, nonce) SELECT ('02:00:00:00:' || to_hex(i/256) || ':' || to_hex(i%256))::macaddr, '10.0.0.1', i::text::bytea FROM generate_series(1, 600) i`); err != nil {
		t.Fatal(err)
	}
	if _, err := y.MintBoot(ctx, "3c:ec:ef:00:09:01", addrOf(9)); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("more visits than there may be: %v", err)
	}
}

// TestA25Inventories: two machines show the same port of a BMC; both are discovered, and neither is known by it.
func TestA25Inventories(t *testing.T) {
	y := newInboxYard(t)
	const usb = "02:00:00:0b:00:01"
	for n := 1; n <= 2; n++ {
		inv := stranger(n)
		inv.Hardware.NICs = append(inv.Hardware.NICs, machine.NIC{MAC: usb}, machine.NIC{MAC: "00:00:00:00:00:00"})
		if n == 1 {
			inv.Ports = append(inv.Ports, machine.PortFacts{Name: "enx0200000b0001", MAC: usb, Driver: "cdc_ether"})
		} // the other's agent takes it for a port
		if _, err := y.visit(inv, addrOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	list := y.inbox()
	if len(list) != 2 || list[0].ID == list[1].ID {
		t.Fatalf("inbox %+v", list)
	}
	third := stranger(3)
	third.Hardware.NICs = append(third.Hardware.NICs, machine.NIC{MAC: usb})
	if _, err := y.visit(third, addrOf(3)); err != nil {
		t.Fatal(err)
	}
	if n := len(y.inbox()); n != 3 {
		t.Errorf("%d machines, want 3", n)
	}
}

// TestStrayPort: an enrolled machine that boots by a port which is not on its record gets back to its disk, and stays off the
// inbox.
func TestStrayPort(t *testing.T) {
	y := newInboxYard(t)
	m := y.addMachine(1)
	inv := machine.Inventory{Firmware: machine.BIOS, Hardware: m.Hardware}
	inv.Hardware.NICs = append([]machine.NIC{{MAC: "3c:ec:ef:00:77:01"}}, m.Hardware.NICs...)
	in, err := y.visit(inv, addrOf(1))
	if err != nil || in.Do != machine.DoReboot {
		t.Fatalf("it is told %+v, %v", in, err)
	}
	if agent, known, err := y.Discovers(t.Context(), "3c:ec:ef:00:77:01"); agent || !known || err != nil {
		t.Errorf("the next time it boots the agent: %v, known %v, %v", agent, known, err)
	}
	if _, err := y.MintBoot(t.Context(), "3c:ec:ef:00:77:01", addrOf(1)); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("mint: %v", err)
	}
	events, err := y.db.Events(t.Context(), provisioner.EventFilter{MachineID: m.ID})
	y.must(err)
	if !slices.ContainsFunc(events, func(ev provisioner.Event) bool { return ev.Kind == "machine.stray" }) || len(y.inbox()) != 0 {
		t.Errorf("events %+v", events)
	}
	if agent, _, err := y.Discovers(t.Context(), m.Hardware.NICs[0].MAC); agent || err != nil {
		t.Errorf("a port on record is discovered: %v, %v", agent, err)
	}
}

// TestApprove: from the inbox to an order in the customer's hands.
func TestApprove(t *testing.T) {
	y := newInboxYard(t)
	f := y.discover(1)
	bad := func(field string, change func(*provisioner.Approval)) {
		t.Helper()
		a := approval()
		change(&a)
		_, err := y.Approve(t.Context(), f.ID, a)
		var me *machine.Error
		if !errors.As(err, &me) || me.Field != field || me.Hint == "" {
			t.Errorf("%s: %v (%+v)", field, err, me)
		}
	}
	bad("name", func(a *provisioner.Approval) { a.Name = "No Such Name" })
	bad("bmc.protocol", func(a *provisioner.Approval) { a.BMC.Protocol = "telnet" })
	bad("bmc_password", func(a *provisioner.Approval) { a.BMCPassword = "wrong" })
	bad("public_mac", func(a *provisioner.Approval) { a.PublicMAC = "3c:ec:ef:00:99:99" })
	bad("public_mac", func(a *provisioner.Approval) { a.PublicMAC = "3c:ec:ef:00:01:01" })
	bad("system_disk", func(a *provisioner.Approval) { a.SystemDisk = "none of these" })
	if _, err := y.Approve(t.Context(), f.ID, provisioner.Approval{Name: "gpu1", Class: "none"}); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("an unknown class: %v", err)
	}
	y.must(y.db.PutClass(t.Context(), machine.Class{Name: "rtx5090x8", Accelerator: "10de:2b85", Count: 8, Currency: "CNY"}))
	bad("hardware.accelerators", func(a *provisioner.Approval) { a.Class = "rtx5090x8" })

	m, err := y.Approve(t.Context(), f.ID, approval())
	y.must(err)
	if m.ID != f.ID || m.State != machine.Available || m.BMC.Address != "10.78.1.1:623" || m.BMC.Protocol != "ipmi" || m.BootAddr != addrOf(1) || m.Firmware != machine.UEFI {
		t.Errorf("approved %+v", m)
	}
	if p, _ := m.Hardware.NICByRole(machine.ProvisionNIC); p.MAC != "3c:ec:ef:00:01:01" || p.Port != "p1" {
		t.Errorf("provisioning port %+v", p)
	}
	if p, _ := m.Hardware.NICByRole(machine.PublicNIC); p.MAC != "3c:ec:ef:00:01:02" { // the other one with a link
		t.Errorf("public port %+v", p)
	}
	if d, _ := m.Hardware.SystemDisk(); d.Serial != "D1-1" {
		t.Errorf("system disk %+v", d)
	}
	if len(y.inbox()) != 0 {
		t.Error("it is still in the inbox")
	}
	if _, err := y.Approve(t.Context(), f.ID, approval()); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("approved again: %v", err)
	}
	var leak int
	y.must(y.db.Conn.QueryRow(t.Context(), `SELECT count(*) FROM event WHERE text LIKE '%secret%'`).Scan(&leak))
	if leak != 0 {
		t.Error("the BMC's password is in the log of events (K05)")
	}

	_, err = y.Place(t.Context(), y.request(), "")
	y.must(err)
	y.turn(m.ID)
	r := y.bootAgent(m.ID)
	if r.last.Step != machine.StepInventory {
		t.Fatalf("the agent is told %+v", r.last)
	}
	_, err = r.report(machine.Report{Step: machine.StepInventory, Phase: machine.Done, Result: encode(stranger(1))})
	y.must(err)
	if r.last.Step == machine.StepInBand {
		r.do()
	}
	if r.last.Step != machine.StepWipe || len(r.last.Disks) != 2 {
		t.Errorf("the recorded disks are not those that were found: %+v", r.last)
	}
}

// TestApproveAsksTheBMC: a BMC that names another machine is refused (A05: in whatever byte order), one that says nothing is not.
func TestApproveAsksTheBMC(t *testing.T) {
	y := newInboxYard(t)
	const at = "10.78.1.1:623"
	for _, tt := range []struct {
		name string
		says *ipmi.Inventory
		err  error
		code machine.Code
		note string
	}{
		{"says nothing", nil, nil, "", "does not tell"},
		{"this machine, reversed as IPMI has it", &ipmi.Inventory{UUID: "01eeddcc-bbaa-9988-7766-554433221100"}, nil, "", "names this machine"},
		{"this machine by serial number", &ipmi.Inventory{UUID: "f0112233-4455-6677-8899-aabbccddeeff", Serial: "srv-1"}, nil, "", "names this machine"},
		{"another machine", &ipmi.Inventory{UUID: "f0112233-4455-6677-8899-aabbccddeeff", Serial: "SRV-2"}, nil, machine.Conflict, ""},
		{"another machine, no serial number", &ipmi.Inventory{UUID: "f0112233-4455-6677-8899-aabbccddeeff"}, nil, machine.Conflict, ""},
		{"does not answer", nil, ipmi.ErrUnreachable, machine.Unavailable, ""},
		{"is locked", nil, ipmi.ErrLocked, machine.Invalid, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y.t = t
			f := y.discover(1)
			delete(y.bmcs, at)
			if tt.says != nil {
				y.bmcs[at] = *tt.says
			}
			y.bmcNo[at] = tt.err
			_, err := y.Approve(t.Context(), f.ID, approval())
			if machine.CodeOf(err) != tt.code {
				t.Fatalf("%v, want %q", err, tt.code)
			}
			if err != nil {
				if list := y.inbox(); len(list) != 1 || list[0].State != machine.Discovered {
					t.Errorf("after a refusal the inbox has %+v", list)
				}
				a := approval()
				a.SkipCheck = true
				if _, err := y.Approve(t.Context(), f.ID, a); err != nil {
					t.Errorf("without asking: %v", err)
				}
			}
			events, err := y.db.Events(t.Context(), provisioner.EventFilter{MachineID: f.ID})
			y.must(err)
			if last := events[len(events)-1]; !strings.Contains(last.Text, tt.note) || last.Kind != "machine.enroll" {
				t.Errorf("the last event is %+v", last)
			}
			_, err = y.db.Conn.Exec(t.Context(), `DELETE FROM machine`)
			y.must(err)
		})
	}
}

// TestReject: a rejected machine gets its disk; forgotten, it is discovered anew.
func TestReject(t *testing.T) {
	y := newInboxYard(t)
	f := y.discover(1)
	y.must(y.Reject(t.Context(), f.ID, "a colleague's laptop", false))
	for _, mac := range []string{"3c:ec:ef:00:01:01", "3c:ec:ef:00:01:02"} {
		if agent, known, err := y.Discovers(t.Context(), mac); agent || !known || err != nil {
			t.Errorf("port %s after a rejection: agent %v, known %v, %v", mac, agent, known, err)
		}
	}
	if _, err := y.MintBoot(t.Context(), "3c:ec:ef:00:01:01", addrOf(1)); !errors.Is(err, provisioner.ErrDenied) {
		t.Errorf("mint: %v", err)
	}
	if _, err := y.Approve(t.Context(), f.ID, approval()); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("approve after reject: %v", err)
	}
	if err := y.Reject(t.Context(), f.ID, "again", false); machine.CodeOf(err) != machine.Conflict {
		t.Errorf("reject after reject: %v", err)
	}
	y.must(y.Reject(t.Context(), f.ID, "it is ours after all", true))
	if g := y.discover(1); g.ID == f.ID || g.Times != 1 {
		t.Errorf("forgotten and seen again: %+v", g)
	}
	if err := y.Reject(t.Context(), "m-none", "x", false); machine.CodeOf(err) != machine.NotFound {
		t.Errorf("reject of nothing: %v", err)
	}
}

// TestEnrolledByHand: a machine that an operator records himself leaves the inbox.
func TestEnrolledByHand(t *testing.T) {
	y := newInboxYard(t)
	y.discover(1)
	m := stranger(1)
	rec, err := provisioner.Record(machine.Found{State: machine.Discovered, MAC: m.Hardware.NICs[0].MAC, From: "10.77.0.50", Inventory: m}, approval())
	y.must(err)
	_, err = y.db.Enroll(t.Context(), rec, "secret", false)
	y.must(err)
	if list := y.inbox(); len(list) != 0 {
		t.Errorf("inbox %+v", list)
	}
	if agent, _, err := y.Discovers(t.Context(), "3c:ec:ef:00:01:02"); agent || err != nil {
		t.Errorf("its ports are still discovered: %v, %v", agent, err)
	}
}
