package api_test

import (
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bareyard/bareyard/api"
)

// TestTraffic: the same traffic as JSON, CSV and a plot; what cannot be asked names its field.
func TestTraffic(t *testing.T) {
	o := newOffice(t)
	start := time.Now().UTC().Add(-40 * 24 * time.Hour).Truncate(time.Hour)
	_, err := o.db.Conn.Exec(t.Context(), `UPDATE orders SET state = 'active', started = $2, until = $2::timestamptz + interval '1 year', model = 'burst', committed = 1 WHERE id = $1`, o.order.ID, start)
	o.must(err)
	_, err = o.db.Conn.Exec(t.Context(), `INSERT INTO traffic_sample (order_id, slot, machine_id, took, up, down, doubt)
		SELECT $1, $2::timestamptz + i * interval '5 minutes', 'm', 300000000000, 75000000, 37500000, CASE WHEN i % 100 = 7 THEN '<script>alert("&")</script>' ELSE '' END
		FROM generate_series(0, 40 * 288 - 1) i WHERE i % 50 <> 3`, o.order.ID, start)
	o.must(err)
	path := "/v1/orders/" + o.order.ID + "/traffic"
	get := func(suffix string) (string, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.server.URL+path+suffix, nil)
		o.must(err)
		req.Header.Set("Authorization", "Bearer "+o.acme)
		res, err := o.server.Client().Do(req)
		o.must(err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		o.must(err)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", suffix, res.StatusCode, text)
		}
		return string(text), res.Header
	}
	var week api.Traffic
	from, to := start.Add(24*time.Hour), start.Add(8*24*time.Hour)
	span := "?from=" + from.Format("2006-01-02T15:04Z") + "&to=" + to.Format(time.RFC3339)
	text, _ := get(span)
	o.must(json.Unmarshal([]byte(text), &week))
	u := week.Usage
	if u.Slots != 7*288 || u.Measured+u.Doubtful != len(week.Points) || u.Doubtful < 15 || u.Up.P95 != 2_000_000 || week.Billed != 2_000_000 || week.Above != 1_000_000 || week.Basis != "higher" {
		t.Errorf("a week is %+v, billed %d, above %d", u, week.Billed, week.Above)
	}
	text, header := get(".csv" + span)
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) != len(week.Points)+1 || rows[1][0] != week.Points[0].At.Format(time.RFC3339) || rows[1][2] != "75000000" || rows[1][4] != "2000000" {
		t.Errorf("CSV: %v, %d rows, first %v", err, len(rows), rows[1])
	}
	if !strings.HasPrefix(header.Get("Content-Type"), "text/csv") {
		t.Errorf("CSV comes as %s", header.Get("Content-Type"))
	}
	for _, plot := range []string{".svg" + span, ".svg", ".svg?from=" + from.Format(time.DateOnly) + "&to=" + from.Format(time.DateOnly)} {
		text, header := get(plot)
		if header.Get("Content-Type") != "image/svg+xml" || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s comes as %v", plot, header)
		}
		if strings.Contains(text, "script") || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: %.300s", plot, text)
		}
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is no XML: %v", plot, err)
			}
		}
	}
	// The month under way is what is meant when nothing is said; longer times come by the hour.
	var month, long api.Traffic
	text, _ = get("")
	o.must(json.Unmarshal([]byte(text), &month))
	if month.Step != "5m" || !month.Usage.From.After(start) || month.Usage.From.After(time.Now()) {
		t.Errorf("the month under way is %+v", month.Usage)
	}
	text, _ = get("?from=" + start.Format(time.DateOnly))
	o.must(json.Unmarshal([]byte(text), &long))
	if long.Step != "1h" || long.Billed != 0 {
		t.Errorf("forty days come in steps of %s, billed %d", long.Step, long.Billed)
	}
	for query, field := range map[string]string{
		"?from=yesterday": "from", "?to=2026-11-03T10:00": "to", "?from=2026-02-01&to=2026-01-01": "to", "?from=2020-01-01&step=5m": "from", "?from=2001-01-01": "from",
	} {
		status, text := o.call("GET", path+query, o.acme, "")
		if status != http.StatusUnprocessableEntity || !strings.Contains(text, `"field":"`+field+`"`) || !strings.Contains(text, `"hint"`) {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
}
