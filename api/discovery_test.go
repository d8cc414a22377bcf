package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/provisioner"
)

// ask makes a request as an operator and decodes the answer.
func ask[T any](o *office, method, path, body string, want int) (out T) {
	o.t.Helper()
	status, text := o.call(method, path, o.boss, body)
	if status != want {
		o.t.Fatalf("%s %s: %d %s, want %d", method, path, status, text, want)
	}
	if status < 300 && text != "" {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			o.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
	return out
}

// discover has a machine looked at by the agents' own routes, and returns what it is told then.
func (o *office) discover(mac string) string {
	o.t.Helper()
	ctx := o.t.Context()
	raw, err := o.engine.MintBoot(ctx, mac, netip.MustParseAddr("127.0.0.1"))
	o.must(err)
	var file provisioner.BootFile
	o.must(json.Unmarshal(raw, &file))
	var w machine.Welcome
	status, text := o.call("POST", "/agent/v1/hello", "", fmt.Sprintf(`{"nonce":%q,"uuid":"","serial":"S1","macs":[%q]}`, file.Nonce, mac))
	if status != http.StatusOK {
		o.t.Fatalf("hello: %d %s", status, text)
	}
	o.must(json.Unmarshal([]byte(text), &w))
	inv, err := json.Marshal(machine.Inventory{Firmware: machine.BIOS, CPU: "<script>alert(1)</script>\x1b[31m", Memory: 64 << 30,
		Hardware: machine.Hardware{Serial: "S1", NICs: []machine.NIC{{MAC: mac}, {MAC: "3c:ec:ef:00:00:99"}}, Disks: []machine.Disk{{Serial: "D9", Size: 1 << 40}}}})
	o.must(err)
	status, text = o.call("POST", "/agent/v1/report", w.Token, fmt.Sprintf(`{"step":"discover","phase":"done","result":%s}`, inv))
	if status != http.StatusOK {
		o.t.Fatalf("report: %d %s", status, text)
	}
	return text
}

// TestDiscoveredRoutes: the inbox over HTTP, from a stranger's hello to an enrolled machine.
func TestDiscoveredRoutes(t *testing.T) {
	o := newOffice(t)
	o.engine.Discovery, o.engine.Inbox, o.engine.Visits, o.engine.List = true, o.db, o.db, o.db
	const mac = "3c:ec:ef:00:00:01"
	if in := o.discover(mac); !strings.Contains(in, `"power-off"`) {
		t.Errorf("after its report it is told %s", in)
	}
	list := ask[[]machine.Found](o, "GET", "/v1/discovered", "", 200)
	if len(list) != 1 || list[0].MAC != mac || list[0].Inventory.CPU != "<script>alert(1)</script>[31m" || len(list[0].Proposals) != 1 || list[0].Proposals[0].Class != "c" {
		t.Fatalf("inbox %+v", list)
	}
	ask[any](o, "PUT", "/v1/classes/c/facts", `{"memory":137438953472,"disks":2,"disk_size":0}`, 204)
	if f := ask[machine.Found](o, "GET", "/v1/discovered/3C-EC-EF-00-00-99", "", 200); f.ID != list[0].ID || f.Proposals[0].Fits || !strings.Contains(strings.Join(f.Proposals[0].Facts, ", "), "64 GiB of memory, at least 128 GiB, 1 disk, at least 2") {
		t.Errorf("by another port, with facts: %+v", f)
	}
	ask[any](o, "PUT", "/v1/classes/none/facts", `{"memory":0,"disks":0,"disk_size":0}`, 404)

	path := "/v1/discovered/" + list[0].ID
	for want, body := range map[string]string{
		"boot_addr":  `{"name":"g1","class":"c","bmc":{"username":"u","address":"10.1.1.1"},"bmc_password":"canary-2","boot_addr":"10"}`,
		"public_mac": `{"name":"g1","class":"c","bmc":{"username":"u","address":"10.1.1.1"},"bmc_password":"canary-2","public_mac":"3c:ec:ef:00:00:77"}`,
		"bmc":        `{"name":"g1","class":"c","bmc":{"username":"u","protocol":"snmp"},"bmc_password":"canary-2"}`,
	} {
		status, text := o.call("POST", path+"/approve", o.boss, body)
		if status != http.StatusUnprocessableEntity || !strings.Contains(text, want) || strings.Contains(text, "canary") {
			t.Errorf("%s: %d %s", want, status, text)
		}
	}
	ask[any](o, "POST", "/v1/discovered/m-none/approve", `{"name":"g1","class":"c","bmc":{"username":"u"},"bmc_password":"p"}`, 404)
	m := ask[machine.Machine](o, "POST", path+"/approve", `{"name":"g1","site":"s","class":"c","bmc":{"username":"u","address":"10.1.1.1"},"bmc_password":"canary-2","boot_addr":"10.0.0.77"}`, 200)
	if m.ID != list[0].ID || m.State != machine.Enrolled || m.BMC.Address != "10.1.1.1:623" || m.BootAddr.String() != "10.0.0.77" {
		t.Errorf("approved %+v", m)
	}
	if list := ask[[]machine.Found](o, "GET", "/v1/discovered", "", 200); len(list) != 0 {
		t.Errorf("still in the inbox: %+v", list)
	}

	if in := o.discover("3c:ec:ef:00:00:02"); !strings.Contains(in, `"reboot"`) { // it has the port :99, too: a card that was put into g1
		t.Errorf("g1, booted by a port that is not on its record, is told %s", in)
	}
	if list = ask[[]machine.Found](o, "GET", "/v1/discovered", "", 200); len(list) != 0 {
		t.Errorf("a port that is not on g1's record is taken for a new machine: %+v", list)
	}
}

// TestExpectedRoutes: the enrolment list over HTTP.
func TestExpectedRoutes(t *testing.T) {
	o := newOffice(t)
	o.engine.List = o.db
	row := func(line int, name, mac string) string {
		return fmt.Sprintf(`{"line":%d,"bmc_password":"canary-3","entry":{"name":%q,"mac":%q,"class":"c","bmc":{"protocol":"ipmi","address":"10.1.1.%d","username":"u"}}}`, line, name, mac, line)
	}
	if done := ask[provisioner.ExpectResult](o, "POST", "/v1/expected", `{"list":[`+row(2, "g1", "3c:ec:ef:00:00:01")+`]}`, 200); done.Added != 1 {
		t.Errorf("done %+v", done)
	}
	status, text := o.call("POST", "/v1/expected", o.boss, `{"list":[`+row(2, "g2", "3c:ec:ef:00:00:02")+`,`+row(3, "g3", "nonsense")+`]}`)
	var p api.Problem
	o.must(json.Unmarshal([]byte(text), &p))
	if status != http.StatusUnprocessableEntity || p.Field != "line 3: mac" || !strings.Contains(p.Detail, "nothing was enrolled") {
		t.Errorf("%d %s", status, text)
	}
	list := ask[[]machine.Expected](o, "GET", "/v1/expected", "", 200)
	if len(list) != 1 || list[0].Name != "g1" || list[0].Created.IsZero() {
		t.Errorf("list %+v", list)
	}
	if _, text := o.call("GET", "/v1/expected", o.boss, ""); strings.Contains(text, "canary") {
		t.Errorf("the password shows (K05): %s", text)
	}
	ask[any](o, "DELETE", "/v1/expected/g1", "", 204)
	ask[any](o, "DELETE", "/v1/expected/g1", "", 404)
}

// TestBootRoutes: boots by name, by id and by MAC address, of machines and of strangers.
func TestBootRoutes(t *testing.T) {
	o := newOffice(t)
	at := time.Now().Add(-time.Hour)
	var lines []trace.Line
	for i, mac := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02", "02:00:00:00:00:07"} {
		lines = append(lines, trace.Line{At: at.Add(time.Duration(i) * time.Minute), MAC: mac, Proto: trace.DHCP, Asked: "DISCOVER pxe", Outcome: trace.Answered, Times: 4,
			File: "snponly.efi", DHCP: &trace.DHCPFacts{Message: "DISCOVER", Answer: "OFFER", Stage: trace.StagePXE, Arch: 7}})
	}
	o.must(o.db.WriteTrace(t.Context(), lines))
	for _, id := range []string{"n1", o.order.MachineID, "52:54:00:00:00:01", "52-54-00-00-00-02"} {
		list := ask[[]api.BootTrace](o, "GET", "/v1/machines/"+id+"/boots", "", 200)
		if len(list) != 2 || list[0].MAC != "52:54:00:00:00:02" || list[0].Lines != nil || list[0].Diagnosis.Code != "never-requested" {
			t.Errorf("%s: %+v", id, list)
		}
	}
	list := ask[[]api.BootTrace](o, "GET", "/v1/machines/n1/boots", "", 200)
	for path, mac := range map[string]string{"n1/boots/latest": "52:54:00:00:00:02", fmt.Sprintf("n1/boots/%d", list[1].Number): "52:54:00:00:00:01", "02:00:00:00:00:07/boots/latest": "02:00:00:00:00:07"} {
		if b := ask[api.BootTrace](o, "GET", "/v1/machines/"+path, "", 200); b.MAC != mac || len(b.Lines) != 1 || b.Lines[0].Times != 4 || b.Diagnosis.Verdict != trace.Stopped {
			t.Errorf("%s: %+v", path, b)
		}
	}
	if unknown := ask[[]api.BootTrace](o, "GET", "/v1/boots/unknown", "", 200); len(unknown) != 1 || unknown[0].MAC != "02:00:00:00:00:07" {
		t.Errorf("unknown %+v", unknown)
	}
	ask[any](o, "GET", "/v1/machines/nobody/boots", "", 404)
	ask[any](o, "GET", "/v1/machines/02:00:00:00:00:99/boots/latest", "", 404)
	ask[any](o, "GET", "/v1/machines/n1/boots/99999", "", 404)
	if got := ask[[]api.BootTrace](o, "GET", "/v1/machines/02:00:00:00:00:99/boots", "", 200); len(got) != 0 {
		t.Errorf("a port that never asked: %+v", got)
	}
}
