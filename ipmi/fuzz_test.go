package ipmi

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/bougou/go-ipmi/pkg/command/sensor"
	"github.com/bougou/go-ipmi/pkg/types"
)

// Whatever an event record holds, it is an event with its ID.
func FuzzSEL(f *testing.F) {
	f.Add([]byte{1, 0, 2, 0x80, 0x3b, 0x5e, 0x69, 0x20, 0, 4, 8, 8, 0x6f, 0xf1, 0, 0})
	f.Add([]byte{2, 0, 0xc0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{3, 0, 0xe0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
	f.Add([]byte{4, 0, 2, 0, 0, 0, 0, 0x20, 0, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, record []byte) {
		if len(record) != selRecord {
			return // those are refused before
		}
		e := parseSEL(record, (&link{b: &bmc{}}).sensorName)
		if e.ID == "" || e.Message == "" || e.Severity == "" || clean(e.Message) != e.Message || clean(e.Kind) != e.Kind {
			t.Errorf("event = %+v", e)
		}
		if got := selCursor(record); got != selCursor(record) || len(got) > 64 {
			t.Errorf("cursor = %q", got)
		}
	})
}

// Whatever a service writes into a text, what is read of it can be kept and shown, and what is fit already is read as it stands.
func FuzzText(f *testing.F) {
	f.Add("CPU1 Temp")
	f.Add("back\x1b[2Jdoor\x00")
	f.Add("one\r\n\ttwo\u0085\u009b\u007f é 温度 \xff\xfe")
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := json.Marshal(map[string]any{"Name": s, "List": []string{s}, "Attributes": map[string]any{s: s}})
		if err != nil {
			t.Fatal(err)
		}
		o, _ := parseObject(raw)
		list, _ := o.strs("List")
		got := append([]string{clean(s), o.str("Name"), o.text("Name")}, list...)
		for name, value := range attributes(o) {
			got = append(got, name, valueText(value))
		}
		for _, text := range got {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%q became %q", s, text)
			}
		}
		if utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) && o.str("Name") != s {
			t.Errorf("%q became %q", s, o.str("Name"))
		}
	})
}

// Whatever a sensor record holds, reading it does not panic, and a reading of it can be written as JSON.
func FuzzSDR(f *testing.F) {
	f.Add([]byte{1, 0, 0x51, 1, 51, 0x20, 0, 1, 7, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc4, 'C', 'P', 'U', '1'}, byte(45), byte(0xc0), byte(0))
	f.Add([]byte{2, 0, 0x51, 2, 27, 0x20, 0, 7, 7, 1, 0, 0, 8, 0x6f, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc1, 'P'}, byte(0), byte(0xc0), byte(1))
	f.Add([]byte{2, 0, 0x51, 1}, byte(0), byte(0), byte(0))
	f.Add([]byte{}, byte(0), byte(0), byte(0))
	f.Fuzz(func(t *testing.T, record []byte, a, b, c byte) {
		s, _ := parseSDR(record)
		if s == nil {
			return
		}
		if s.name == "" || clean(s.name) != s.name {
			t.Errorf("name %q", s.name)
		}
		var res sensor.GetSensorReadingResponse
		if res.Unpack([]byte{a, b, c}) != nil {
			return
		}
		r := s.reading(&res)
		if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) || r.State == "" {
			t.Errorf("reading = %+v", r)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

// Whatever a FRU holds, reading it does not panic and leaves readable text.
func FuzzFRU(f *testing.F) {
	good, err := types.PackFRU(types.FRUPackConfig{Product: &types.FRUPackProduct{Manufacturer: "M", Name: "N", Serial: "S"}, Board: &types.FRUPackBoard{Mfg: "M", Serial: "B"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:9])
	f.Add([]byte{1, 0, 1, 2, 3, 0, 0, 0xf9})
	f.Fuzz(func(t *testing.T, data []byte) {
		var inv Inventory
		_ = readFRU(data, &inv)
		for _, s := range []string{inv.Manufacturer, inv.Model, inv.Serial, inv.AssetTag} {
			if !utf8.ValidString(s) {
				t.Errorf("%q", s)
			}
		}
	})
}

// Whatever console packets a BMC sends, the console goes on, and takes no more than was sent.
func FuzzSOL(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 'h', 'i'}, []byte{1, 0, 0, 0, 'h', 'i', '!'})
	f.Add([]byte{15, 0, 0, 8, 'x'}, []byte{2, 1, 3, 0x40})
	f.Add([]byte{1}, []byte{0, 15, 255, 0x60})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		k := &Console{wake: make(chan struct{}, 1)}
		s := &solSession{k: k, send: func(types.Request) error { return nil }}
		sent := 0
		for _, p := range [][]byte{a, b, a} {
			keys := &keystrokes{data: []byte("ls\r"), took: make(chan error, 1)}
			if s.pending == nil {
				_ = s.press(keys)
			}
			_ = s.receive(p)
			sent += len(p)
		}
		got := 0
		for o, ok := k.take(); ok; o, ok = k.take() {
			got += len(o.Data)
		}
		if got > sent {
			t.Errorf("%d bytes of %d", got, sent)
		}
	})
}

// Whatever Redfish resources hold, reading them does not panic, and what is read can be written as JSON.
func FuzzResources(f *testing.F) {
	f.Add([]byte(`{"Id":"1","Severity":"Critical","Created":"2026-01-01T00:00:00Z","Message":"PSU","EntryCode":"Deassert","SensorNumber":"N/A"}`))
	f.Add([]byte(`{"TaskState":"Completed","PercentComplete":100,"TaskStatus":"Critical","Messages":[{"MessageId":"IDRAC.2.8.JCP052"}]}`))
	f.Add([]byte(`{"MACAddress":"02:00:00:00:00:01","IPv4Addresses":[{"Address":"192.0.2.1","SubnetMask":"255.255.0.255","Gateway":"x"}],"VLAN":{"VLANEnable":true,"VLANId":"7"}}`))
	f.Add([]byte(`{"Image":"http://u:p@192.0.2.1/x","Inserted":"yes","MediaTypes":"CD"}`))
	f.Add([]byte(`{"RegistryEntries":{"Attributes":[{"AttributeName":"A","Type":"Enumeration","Value":[{"ValueName":"x"}],"LowerBound":"1e999"}]},"Attributes":{"A":1e400,"B":null,"C":[1]}}`))
	f.Add([]byte(`{"Reading":"NAN"}`)) // found by fuzzing: it was no number and stood in the value all the same
	f.Add([]byte(`{"Reading":"NaN","ReadingCelsius":"N/A","Status":{"State":"Absent","Health":7},"MemberId":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, _ := parseObject(data)
		h := Health{}
		h.sensor("/x", o)
		h.member("/x", o, Fan, "Reading", "RPM")
		h.supply("/x", o)
		rules := parseRules(o)
		for name, r := range rules {
			_ = r.allows(name, int64(1))
		}
		settings := attributes(o)
		for _, d := range compareBIOS(settings, map[string]any{"A": "1"}) {
			_, _ = asType("1", settings[d.Path])
		}
		host := parseEthernet(o)
		task := parseTask(o)
		for _, v := range []any{parseLogEntry(o).Event, task.text, host, parseDrive(resource{"/x", rfAnswer{body: o}}).Media, h, settings} {
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("%T: %v", v, err)
			}
		}
		if task.failed && !task.done {
			t.Error("failed and not done")
		}
	})
}

// Whatever a baseline holds, it differs from itself in nothing, and from another one as that one from it.
func FuzzDiff(f *testing.F) {
	f.Add("users/2/name", "admin", "users/3/name", "x", "users", "why")
	f.Add("", "", "/", "a", "", "")
	f.Fuzz(func(t *testing.T, p1, v1, p2, v2, unread, why string) {
		a := Baseline{Facts: map[string]string{p1: v1}}
		b := Baseline{Facts: map[string]string{p2: v2}, Unread: map[string]string{unread: why}}
		if d := a.Diff(a); len(d) != 0 {
			t.Errorf("%+v", d)
		}
		if d := b.Diff(b); len(d) != 0 {
			t.Errorf("%+v", d)
		}
		_ = a.Diff(b)
		_ = b.Diff(a)
	})
}
