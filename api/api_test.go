package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/images"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/postgres/postgrestest"
	"github.com/bareyard/bareyard/provisioner"
)

var cluster postgrestest.Cluster

func TestMain(m *testing.M) { postgrestest.Main(m, &cluster) }

// office is a server over an empty database, with one order of project acme on one machine.
type office struct {
	t      *testing.T
	api    *api.Server
	server *httptest.Server
	db     *postgrestest.DB
	engine *provisioner.Engine
	order  machine.Order
	acme   string // tokens
	other  string
	boss   string
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{t: t, db: cluster.DB(t)}
	ctx := t.Context()
	engine := &provisioner.Engine{Store: o.db, Shelf: o.db, Tickets: o.db, Vault: o.db, BMCs: o.db, Inbox: o.db, Boots: o.db, Pins: o.db}
	o.engine = engine
	s := &api.Server{Reports: o.db, Cards: o.db, Erasures: o.db, Accounts: o.db, Machines: o.db, Orders: o.db, Log: o.db, Catalogue: o.db, Shelf: o.db, Inbox: o.db, Boots: o.db, Desk: api.Desk{BMCs: o.db, Records: o.db}, Store: &images.Store{Dir: t.TempDir()},
		Engine: engine, Logger: slog.New(slog.DiscardHandler), Version: "test"}
	s.Pools, s.Addresses, s.Ledger, s.Tasks, s.Books, engine.Directory = o.db, o.db, o.db, o.db, o.db, o.db
	o.api, o.server = s, httptest.NewServer(s.Handler())
	t.Cleanup(o.server.Close)
	o.must(o.db.PutClass(ctx, machine.Class{Name: "c", MonthlyPrice: 1, Currency: "CNY"}))
	o.must(o.db.PutImage(ctx, machine.Image{Name: "i", Digest: strings.Repeat("ab", 32), Size: 1 << 20, BIOS: true}))
	o.must(o.db.PutLine(ctx, network.Line{Name: "l", Site: "s", MinBandwidth: 1, MaxBandwidth: 100}, time.Hour))
	_, err := o.db.AddAddresses(ctx, "l", netip.MustParsePrefix("203.0.113.0/30"))
	o.must(err)
	_, err = o.db.Enroll(ctx, machine.Machine{Name: "n1", Site: "s", Class: "c", Firmware: machine.BIOS, BootAddr: netip.MustParseAddr("10.0.0.9"), BMC: machine.BMC{Protocol: "ipmi", Address: "127.0.0.1:9"},
		Hardware: machine.Hardware{NICs: []machine.NIC{{MAC: "52:54:00:00:00:01", Role: machine.ProvisionNIC}, {MAC: "52:54:00:00:00:02", Role: machine.PublicNIC}},
			Disks: []machine.Disk{{Serial: "D", Size: 1 << 30, Role: machine.SystemDisk}}}}, "canary-password", true)
	o.must(err)
	o.order, err = engine.Place(ctx, provisioner.Request{Project: "acme", Class: "c", Image: "i", Line: "l", Bandwidth: 10, Hostname: "web",
		SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl t"}}, "")
	o.must(err)
	for project, token := range map[string]*string{"acme": &o.acme, "other": &o.other} {
		*token, err = o.db.NewAPIToken(ctx, "customer", project)
		o.must(err)
	}
	o.boss, err = o.db.NewAPIToken(ctx, "operator", "")
	o.must(err)
	return o
}

func (o *office) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// call makes a request and returns status and body.
func (o *office) call(method, path, token, body string) (int, string) {
	o.t.Helper()
	req, err := http.NewRequestWithContext(o.t.Context(), method, o.server.URL+path, strings.NewReader(body))
	o.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := o.server.Client().Do(req)
	o.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	o.must(err)
	return res.StatusCode, string(text)
}

// TestForeignToken walks every route of the API: without a token nothing opens; with another project's token nothing of
// acme's shows, not even that it exists; operators' routes are closed to customers.
func TestForeignToken(t *testing.T) {
	o := newOffice(t)
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	_, text := o.fetch("/openapi.json")
	o.must(json.Unmarshal(text, &doc))
	if len(doc.Paths) < 15 {
		t.Fatalf("only %d paths in the API's description", len(doc.Paths))
	}
	shared := map[string]bool{"list-classes": true, "list-lines": true, "list-images": true, "list-orders": true, "create-order": true, "list-report-keys": true}
	job := o.order.JobID
	for path, methods := range doc.Paths {
		for method, op := range methods {
			id := o.order.ID
			if strings.HasPrefix(path, "/v1/jobs/") {
				id = job
			}
			url := strings.NewReplacer("{id}", id, "{name}", "x", "{serial}", "x").Replace(path)
			if strings.HasPrefix(path, "/v1/events") {
				url += "?order=" + o.order.ID
			}
			body := bodies[op.OperationID]
			if status, text := o.call(strings.ToUpper(method), url, "", body); status != http.StatusUnauthorized && !strings.Contains(text, `"unauthorized"`) {
				t.Errorf("%s %s without a token: %d %s", method, path, status, text)
			}
			status, text := o.call(strings.ToUpper(method), url, o.other, body)
			switch {
			case shared[op.OperationID]:
			case status == http.StatusNotFound || status == http.StatusForbidden:
			case strings.Contains(text, `"not-found"`) || strings.Contains(text, `"forbidden"`): // streams answer in their first message
			default:
				t.Errorf("%s %s with another project's token: %d %s", method, path, status, text)
			}
			if strings.Contains(text, o.order.Hostname) || strings.Contains(text, "canary") {
				t.Errorf("%s %s shows another project's data: %s", method, path, text)
			}
		}
	}
	if status, text := o.call("PUT", "/v1/images/x", o.acme, "x"); status != http.StatusForbidden {
		t.Errorf("a customer imports an image: %d %s", status, text)
	}
	if status, text := o.call("GET", "/v1/orders/"+o.order.ID, o.acme, ""); status != http.StatusOK || !strings.Contains(text, "web") {
		t.Errorf("the owner does not see his order: %d %s", status, text)
	}
}

// bodies are right requests, so that a refusal is about who asks.
var bodies = map[string]string{
	"put-address-pool": `{"line":"l","cool_down":"1h","ranges":["203.0.113.64/30"]}`, "retire-address-range": `{"range":"203.0.113.0/30"}`, "keep-addresses": `{"address":"203.0.113.1","state":"reserved"}`,
	"add-order-addresses": `{}`, "remove-order-address": `{"address":"203.0.113.0"}`, "move-order-address": `{"address":"203.0.113.0","to":"o"}`,
	"set-order-name": `{"address":"203.0.113.0","name":"a.example.com"}`, "done-task": `{}`, "refuse-task": `{"note":"no"}`,
	"set-bandwidth": `{"up":20}`, "add-pack": `{"up":20,"days":1}`, "limit-order": `{}`, "blackhole-order": `{"for":"2h"}`,
	"reinstall-order": `{"image":"i","consent":"web"}`, "power-order": `{"op":"off"}`,
	"create-order": `{"class":"c","image":"i","line":"l","bandwidth":10,"ssh_keys":["x"]}`,
	"create-token": `{"role":"operator"}`, "park-machine": `{"reason":"because"}`, "unpark-machine": `{"reason":"because"}`, "retire-machine": `{"reason":"because"}`,
	"withdraw-waiver": `{"who":"me"}`, "forget-card": `{"who":"me","why":"because"}`, "make-waiver": `{"check":"card.ecc","who":"me","why":"because it is","until":"2030-01-01T00:00:00Z"}`,
	"admit-machine": `{"reason":"because"}`, "quarantine-machine": `{"reason":"because"}`,
	"approve-discovered": `{"name":"x","class":"c","bmc":{"username":"u"},"bmc_password":"p"}`, "reject-discovered": `{"reason":"because"}`,
	"expect-machines": `{"list":[]}`, "put-class-facts": `{"memory":1,"disks":1,"disk_size":1}`,
	"put-class": `{"monthly_price":1,"currency":"CNY"}`, "put-line": `{"site":"s","min_bandwidth":1,"max_bandwidth":2,"cool_down":"1h","ranges":[]}`,
	"put-class-bios":       `{"attributes":{}}`,
	"begin-acceptance-run": `{"machines":["x"]}`, "retry-acceptance-run": `{}`, "cancel-acceptance-run": `{}`, "admit-acceptance-run": `{}`, "set-machine-boot": `{}`,
	"set-bmc-credentials": `{"password":"x"}`, "trust-bmc": `{}`,
	"enroll-machine": `{"name":"n2","site":"s","class":"c","firmware":"bios","bmc_password":"x","boot_addr":"10.0.0.8","bmc":{"protocol":"ipmi","address":"x","username":"u"},"hardware":{"uuid":"","serial":"","nics":[],"disks":[]}}`,
}

func (o *office) fetch(path string) (int, []byte) {
	o.t.Helper()
	res, err := o.server.Client().Get(o.server.URL + path)
	o.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	o.must(err)
	return res.StatusCode, text
}

// TestK11AgentRoutes: what a machine may send is bounded, and opens nothing without a nonce or a token of its own.
func TestK11AgentRoutes(t *testing.T) {
	o := newOffice(t)
	for name, tt := range map[string]struct {
		path, token, body string
		status            int
	}{
		"hello with a guessed nonce": {"/agent/v1/hello", "", `{"nonce":"guess","macs":["52:54:00:00:00:01"]}`, http.StatusUnauthorized},
		"report without a token":     {"/agent/v1/report", "", `{"step":"erase","phase":"done"}`, http.StatusUnauthorized},
		"report with an API token":   {"/agent/v1/report", o.boss, `{"step":"erase","phase":"done"}`, http.StatusUnauthorized},
		"not JSON":                   {"/agent/v1/report", "", `{"step":`, http.StatusUnprocessableEntity},
		"huge hello":                 {"/agent/v1/hello", "", `{"nonce":"` + strings.Repeat("x", 1<<20) + `"}`, http.StatusUnprocessableEntity},
		"huge report":                {"/agent/v1/report", "", `{"error":"` + strings.Repeat("x", 8<<20) + `"}`, http.StatusUnprocessableEntity},
	} {
		if status, text := o.call("POST", tt.path, tt.token, tt.body); status != tt.status {
			t.Errorf("%s: %d %.200s, want %d", name, status, text, tt.status)
		}
	}
	if status, _ := o.call("GET", "/agent/v1/validator", o.acme, ""); status != http.StatusUnauthorized {
		t.Errorf("validator with a customer's token: %d", status)
	}
}

// TestParkedIsNotReinstalled: a machine that an operator took out of service is not reinstalled by its customer, in words that say so, until it is given
// back; one that a failed job left in maintenance is.
func TestParkedIsNotReinstalled(t *testing.T) {
	o := newOffice(t)
	ctx := t.Context()
	set := func(state machine.State, parked bool) {
		t.Helper()
		_, err := o.db.Conn.Exec(ctx, `UPDATE machine SET state = $1, parked = $2, job_id = ''`, state, parked)
		o.must(err)
	}
	_, err := o.db.Conn.Exec(ctx, `UPDATE job SET state = 'cancelled', finished = now()`)
	o.must(err)
	_, err = o.db.Conn.Exec(ctx, `UPDATE orders SET state = 'active', started = now(), until = now() + interval '1 month'`)
	o.must(err)
	set(machine.Active, false)
	path := "/v1/orders/" + o.order.ID + "/reinstall"
	refused := func(what string) {
		t.Helper()
		status, text := o.call("POST", path, o.acme, bodies["reinstall-order"])
		if status != http.StatusConflict || !strings.Contains(text, "taken out of service by its operator") || !strings.Contains(text, "until it is given back") || strings.Contains(text, "memory is bad") {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if status, text := o.call("POST", "/v1/machines/"+o.order.MachineID+"/park", o.boss, `{"reason":"its memory is bad"}`); status != http.StatusOK || !strings.Contains(text, `"parked":true`) {
		t.Fatalf("park: %d %s", status, text)
	}
	refused("parked")
	set(machine.Quarantined, false)
	refused("quarantined")
	if status, text := o.call("POST", "/v1/machines/"+o.order.MachineID+"/park", o.boss, `{"reason":"its memory is bad"}`); status != http.StatusOK {
		t.Fatalf("park: %d %s", status, text)
	}
	refused("parked from quarantine")
	if status, text := o.call("POST", "/v1/machines/"+o.order.MachineID+"/unpark", o.boss, `{"reason":"its memory is new"}`); status != http.StatusOK || strings.Contains(text, `"parked"`) {
		t.Fatalf("unpark: %d %s", status, text)
	}
	set(machine.Maintenance, false) // as a failed reinstallation leaves it
	if status, text := o.call("POST", path, o.acme, bodies["reinstall-order"]); status != http.StatusOK {
		t.Errorf("after a failed job: %d %s", status, text)
	}
}

// TestJobsAreListedShort: a list of jobs says what came of each, and one job, like the order's report, has everything.
func TestJobsAreListedShort(t *testing.T) {
	o := newOffice(t)
	_, err := o.db.Conn.Exec(t.Context(), `UPDATE job SET result = jsonb_build_object('schema', 'bareyard.validation/2', 'outcome', 'warn', 'checks', jsonb_build_array(jsonb_build_object('id', 'card.canary'))) WHERE id = $1`, o.order.JobID)
	o.must(err)
	for path, whole := range map[string]bool{"/v1/jobs": false, "/v1/jobs?machine=" + o.order.MachineID: false, "/v1/orders/" + o.order.ID + "/jobs": false,
		"/v1/jobs/" + o.order.JobID: true, "/v1/orders/" + o.order.ID + "/report": true} {
		status, text := o.call("GET", path, o.boss, "")
		if status != http.StatusOK || !strings.Contains(text, `"outcome":"warn"`) && !strings.Contains(text, `"outcome": "warn"`) || strings.Contains(text, "card.canary") != whole {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// TestK05PasswordsDoNotShow: nothing that an operator can read holds a BMC's password.
func TestK05PasswordsDoNotShow(t *testing.T) {
	o := newOffice(t)
	for _, path := range []string{"/v1/machines", "/v1/machines/n1", "/v1/events?machine=" + o.order.MachineID, "/v1/jobs"} {
		status, text := o.call("GET", path, o.boss, "")
		if status != http.StatusOK || strings.Contains(text, "canary") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	var sealed []byte
	o.must(o.db.Conn.QueryRow(t.Context(), `SELECT bmc_secret FROM machine`).Scan(&sealed))
	if strings.Contains(fmt.Sprintf("%q", sealed), "canary") {
		t.Error("the password is in the database as it is")
	}
}
