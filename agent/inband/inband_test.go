package inband_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/open"
	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/agent/inband"
	"github.com/bareyard/bareyard/machine"
)

// board answers by "netfn cmd data" in hex; what it does not know has completion code C1h.
type board map[string][]byte

func (b board) Send(_ context.Context, r *open.Request, _ time.Duration) ([]byte, error) {
	if b == nil {
		return nil, errors.New("no such device")
	}
	if v, ok := b[fmt.Sprintf("%02x %02x % x", r.NetFn, r.Cmd, r.Data)]; ok {
		return v, nil
	}
	return []byte{0xc1}, nil
}

// TestAsk: boards that tell all, little, nonsense and nothing.
func TestAsk(t *testing.T) {
	id := []byte{0, 0x20, 0x81, 0x01, 0x74, 0x02, 0xbf}
	whole := board{
		"06 01 ":            id,
		"06 37 ":            {0, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00},
		"06 42 01":          {0, 1, 0x04, 1},
		"0c 02 01 03 00 00": {0, 0x11, 10, 98, 0, 112},
		"0c 02 01 05 00 00": {0, 0x11, 0x3c, 0xec, 0xef, 0, 0, 1},
	}
	for _, tt := range []struct {
		name string
		b    board
		want machine.BMCFacts
	}{
		{"a whole one", whole, machine.BMCFacts{Address: "10.98.0.112", MAC: "3c:ec:ef:00:00:01", Firmware: "1.74", IPMI: "2.0", UUID: "ffeeddcc-bbaa-9988-7766-554433221100"}},
		{"identity alone", board{"06 01 ": id}, machine.BMCFacts{Firmware: "1.74", IPMI: "2.0"}},
		{"its LAN on channel 8, a serial line on 1", board{"06 01 ": id, "06 42 01": {0, 1, 0x05, 1}, "06 42 08": {0, 8, 0x04, 1}, "0c 02 08 03 00 00": {0, 0x11, 10, 0, 0, 8}},
			machine.BMCFacts{Firmware: "1.74", IPMI: "2.0", Address: "10.0.0.8"}},
		{"a first LAN without an address, a second with one", board{"06 01 ": id, "06 42 01": {0, 1, 4, 1}, "0c 02 01 03 00 00": {0, 0x11, 0, 0, 0, 0}, "0c 02 01 05 00 00": {0, 0x11, 0x3c, 0xec, 0xef, 0, 0, 1},
			"06 42 02": {0, 2, 4, 1}, "0c 02 02 03 00 00": {0, 0x11, 10, 0, 0, 2}, "0c 02 02 05 00 00": {0, 0x11, 0x3c, 0xec, 0xef, 0, 0, 2}},
			machine.BMCFacts{Firmware: "1.74", IPMI: "2.0", Address: "10.0.0.2", MAC: "3c:ec:ef:00:00:02"}},
		{"short answers", board{"06 01 ": {0, 1}, "06 37 ": {0, 1, 2}, "06 42 01": {0, 1}, "06 42 02": {0, 2, 4}, "0c 02 02 03 00 00": {0, 0x11}, "0c 02 02 05 00 00": {0}}, machine.BMCFacts{}},
	} {
		got, err := inband.Ask(t.Context(), tt.b)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tt.name, err, diff)
		}
	}
	for name, b := range map[string]board{"no driver": nil, "nobody answers": {}, "an empty answer": {"06 01 ": {}}} {
		if _, err := inband.Ask(t.Context(), b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
