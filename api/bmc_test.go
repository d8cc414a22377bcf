package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/provisioner"
)

// TestCustomersSeeNoAddresses: reasons and events are the operators' words; where BMCs, switches and edges are does not get
// through to a customer, by whichever route he reads, and his own address does.
func TestCustomersSeeNoAddresses(t *testing.T) {
	o := newOffice(t)
	for text, want := range map[string]string{
		"power-off: BMC 10.78.0.11:623: power off: unreachable":              "power-off: BMC (internal): power off: unreachable",
		"BMC https://10.78.0.11/redfish/v1: HTTP 503 at 07:42:06":            "BMC (internal) HTTP 503 at 07:42:06",
		"switch [fd00::5]:22, edge fe80::1%eth0 and fd00::/64, 10.0.0.0/8.":  "switch [(internal)]:22, edge (internal) and (internal), (internal).",
		"n1 is yours at ADDR: port 52:54:00:00:00:01 (public), 1.5 GB, v1.2": "n1 is yours at ADDR: port 52:54:00:00:00:01 (public), 1.5 GB, v1.2",
		"card 10de:2b85 in slot 0000:01:00.0 is missing; UUID 00112233-4455": "card 10de:2b85 in slot 0000:01:00.0 is missing; UUID 00112233-4455",
		"dial tcp 192.0.2.7:443->10.1.2.3:55: connection refused":            "dial tcp (internal)->(internal): connection refused",
		"2001:db8::1": "(internal)",
	} {
		text, want = strings.ReplaceAll(text, "ADDR", o.order.Address.String()), strings.ReplaceAll(want, "ADDR", o.order.Address.String())
		ctx := t.Context()
		for _, sql := range []string{`UPDATE orders SET reason = $1`, `UPDATE job SET reason = $1`, `UPDATE event SET text = $1`} {
			_, err := o.db.Conn.Exec(ctx, sql, text)
			o.must(err)
		}
		for _, path := range []string{"/v1/orders/" + o.order.ID, "/v1/orders", "/v1/orders/" + o.order.ID + "/jobs", "/v1/jobs/" + o.order.JobID, "/v1/events?order=" + o.order.ID} {
			quoted := strings.NewReplacer(">", `\u003e`).Replace
			if status, body := o.call("GET", path, o.acme, ""); status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("%q", quoted(want))[1:len(quoted(want))+1]) && !strings.Contains(body, want) {
				t.Errorf("%s: %d %s\nwant %s", path, status, body, want)
			}
			if status, body := o.call("GET", path, o.boss, ""); status != http.StatusOK || !strings.Contains(body, text) && !strings.Contains(body, quoted(text)) {
				t.Errorf("%s: the operator does not see all of it: %d %s", path, status, body)
			}
		}
	}
}

// TestCustomersSeeNoFindings: what keeps a machine out of stock after an order is the operators', and so are the reports of machines that failed an order
// which has none now.
func TestCustomersSeeNoFindings(t *testing.T) {
	o := newOffice(t)
	rep := accelerator.Report{Schema: accelerator.Schema, Taken: time.Now()}.With(accelerator.Check{ID: "card.ecc", Outcome: accelerator.Fail, Required: true})
	k, err := provisioner.NewKept(provisioner.Verdict{ID: "r-1", MachineID: o.order.MachineID, OrderID: o.order.ID}, rep, nil)
	o.must(err)
	o.must(o.db.KeepReport(t.Context(), k))
	_, err = o.db.Conn.Exec(t.Context(), `UPDATE job SET finding = 'BIOS settings are refused'`)
	o.must(err)
	reports := "/v1/orders/" + o.order.ID + "/reports"
	shows := func(path, token, text string, want bool) {
		t.Helper()
		if status, body := o.call("GET", path, token, ""); status != http.StatusOK || strings.Contains(body, text) != want {
			t.Errorf("%s: %d %s, want %q in it: %v", path, status, body, text, want)
		}
	}
	for _, path := range []string{"/v1/orders/" + o.order.ID + "/jobs", "/v1/jobs/" + o.order.JobID} {
		shows(path, o.acme, "are refused", false)
		shows(path, o.boss, "are refused", true)
	}
	shows(reports, o.acme, "r-1", true)
	_, err = o.db.Conn.Exec(t.Context(), `UPDATE orders SET machine_id = '', state = 'placed'`)
	o.must(err)
	shows(reports, o.acme, "r-1", false)
	shows(reports, o.boss, "r-1", true)
}

// TestK05RequestsAreNotEchoed: an answer that says what is wrong with a request does not repeat what was in it.
func TestK05RequestsAreNotEchoed(t *testing.T) {
	o := newOffice(t)
	for path, body := range map[string]string{
		"POST /v1/machines":                     `{"name":"n2","colour":"red","bmc_password":"canary"}`,
		"PUT /v1/machines/n1/bmc/credentials":   `{"password":["canary"]}`,
		"PUT /v1/machines/n1/bmc/credentials ":  `{"passwort":"canary"}`,
		"PUT /v1/machines/n1/bmc/credentials  ": `{"password":"canary"`,
	} {
		method, url, _ := strings.Cut(strings.TrimSpace(path), " ")
		if status, text := o.call(method, url, o.boss, body); status < 400 || strings.Contains(text, "canary") {
			t.Errorf("%s %s: %d %s", path, body, status, text)
		}
	}
}
