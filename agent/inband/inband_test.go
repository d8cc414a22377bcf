package inband_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/open"
	"github.com/bougou/go-ipmi/pkg/vmproto"
	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/agent/inband"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/ipmi/bmctest"
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

// host is a machine's end of the interface to its BMC, as QEMU and the kernel's driver are.
type host struct{ c *vmproto.Client }

func (h host) Send(_ context.Context, r *open.Request, _ time.Duration) ([]byte, error) {
	code, data, err := h.c.Command(r.NetFn, r.Cmd, r.Data...)
	return append([]byte{code}, data...), err
}

// TestK07FromInside: what the BMC's Redfish service says of the host's way is held against what the host can do: open, shut, and said to
// be shut.
func TestK07FromInside(t *testing.T) {
	for _, vendor := range []bmctest.Vendor{bmctest.Supermicro, bmctest.IDRAC, bmctest.OpenBMC} {
		t.Run(string(vendor), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "host")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			board, faults, memory := bmctest.NewBoard(), &bmctest.Faults{}, bmctest.NewMemory(bmctest.Identity{})
			web := &bmctest.Redfish{Addr: "127.0.0.1:0", User: "admin", Password: "Test-pass-1", Vendor: vendor, Chassis: memory, Board: board, Faults: faults}
			kcs := &bmctest.IPMI{Addr: "127.0.0.1:0", User: "admin", Password: "Test-pass-1", Chassis: memory, Board: board, InBand: l}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 2)
			for _, s := range []interface{ Run(context.Context) error }{web, kcs} {
				go func() { done <- s.Run(ctx) }()
			}
			defer func() {
				cancel()
				if err := errors.Join(<-done, <-done); err != nil {
					t.Error(err)
				}
			}()
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			inside := host{vmproto.NewClient(conn, 10*time.Second)}
			c := &ipmi.Controller{}
			try := func(want machine.InBandState) {
				t.Helper()
				if got := inband.TryWith(t.Context(), inside); got.State != want || got.Why == "" {
					t.Errorf("%+v, want %s", got, want)
				}
			}
			try(machine.InBandOpen)
			if _, err := c.SetHostAccess(t.Context(), web.Target(), false, nil); err != nil {
				t.Fatal(err)
			}
			try(machine.InBandClosed)
			if f, err := inband.Ask(t.Context(), inside); err != nil || f.IPMI != "2.0" {
				t.Errorf("questions: %+v, %v", f, err)
			}
			if _, err := c.SetHostAccess(t.Context(), web.Target(), true, nil); err != nil {
				t.Fatal(err)
			}
			try(machine.InBandOpen)
			faults.Set(func(f *bmctest.Fault) { f.KeepHost = true })
			if _, err := c.SetHostAccess(t.Context(), web.Target(), false, nil); err != nil {
				t.Fatal(err)
			}
			try(machine.InBandOpen)
		})
	}
}

// TestTry: boards that refuse in other ways, and nobody there.
func TestTry(t *testing.T) {
	id, lan := []byte{0, 0x20, 0x81, 1, 0x74, 2, 0xbf}, []byte{0, 1, 4, 1}
	user := []byte{0, 10, 1, 1, 0x04}
	for name, tt := range map[string]struct {
		b    board
		want machine.InBandState
	}{
		"no driver":                       {nil, machine.InBandAbsent},
		"all of it is refused":            {board{"06 01 ": {0xd4}}, machine.InBandClosed},
		"accounts are not told":           {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": {0xd4}}, machine.InBandClosed},
		"accounts are unknown":            {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": {0xff}}, ""},
		"short":                           {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": {0, 1}}, ""},
		"disabled":                        {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": user, "06 44 01 0a": user, "06 43 01 0a 04": {0xd6}}, machine.InBandClosed},
		"done":                            {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": user, "06 44 01 0a": user, "06 43 01 0a 04": {0}}, machine.InBandOpen},
		"the last slot is not there":      {board{"06 01 ": id, "06 42 01": lan, "06 44 01 01": user, "06 43 01 01 04": {0}}, machine.InBandOpen},
		"looked at, and not for this one": {board{"06 01 ": id, "06 42 08": lan, "06 44 08 01": user, "06 44 08 0a": user, "06 43 08 0a 04": {0xcc}}, machine.InBandOpen},
	} {
		if got := inband.TryWith(t.Context(), tt.b); got.State != tt.want || got.Why == "" {
			t.Errorf("%s: %+v, want %q", name, got, tt.want)
		}
	}
}
