package lab

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bareyard/bareyard/machine"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", name, diff)
	}
}

// TestServerConfig pins the file that the lab's controller reads. A test of cmd/bareyard reads the golden file as the
// controller does.
func TestServerConfig(t *testing.T) {
	cfg, err := Config{Dir: "/var/lib/lab", Server: &ServerConfig{
		Binary: "/opt/bareyard", Kernel: "/opt/vmlinuz", RAMDisk: "/opt/ramdisk", Validator: "/opt/validate",
	}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b, err := serverConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "serve.yaml", string(b))

	cfg.Server.Extra = map[string]any{"database_url": "postgres://elsewhere", "ports": map[string]any{"netns": "other"}}
	if b, err = serverConfig(cfg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"database_url: postgres://elsewhere\n", "  netns: other\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in:\n%s", want, b)
		}
	}
}

// TestMachines pins what makes a machine: its command line, its identity and its inventory record.
func TestMachines(t *testing.T) {
	cfg, err := Config{Dir: "/var/lib/lab", Machines: []MachineConfig{
		{},
		{Name: "big", Firmware: machine.UEFI, BMC: Redfish, Bus: NVMe, Order: []Device{FromDisk}, Cards: 3, Absent: 1},
	}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range planMachines(cfg) {
		fmt.Fprintf(&b, "# %s\n", p.Name)
		for _, a := range p.arguments([]string{"-accel", "tcg"}, p.Order) {
			if strings.HasPrefix(a, "-") {
				b.WriteString("\n")
			} else {
				b.WriteString(" ")
			}
			b.WriteString(a)
		}
		hardware, err := json.MarshalIndent(p.record().Hardware, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n\n%s\n\n", hardware)
	}
	golden(t, "machines.txt", b.String())
}

func TestConfigRefused(t *testing.T) {
	one := func(m MachineConfig) Config { return Config{Machines: []MachineConfig{m}} }
	for name, c := range map[string]Config{
		"name with a dash":   {Name: "by-x"},
		"long name":          {Name: strings.Repeat("a", 17)},
		"long directory":     {Dir: "/" + strings.Repeat("d", 120)},
		"twins":              {Machines: []MachineConfig{{Name: "a"}, {Name: "a"}}},
		"too many":           {Machines: make([]MachineConfig, maxMachines+1)},
		"machine name":       one(MachineConfig{Name: "Node 1"}),
		"long machine name":  one(MachineConfig{Name: "abcdefghijk"}), // its port's name would not fit
		"firmware":           one(MachineConfig{Firmware: "coreboot"}),
		"BMC":                one(MachineConfig{BMC: "ilo"}),
		"bus":                one(MachineConfig{Bus: "ide"}),
		"boot device":        one(MachineConfig{Order: []Device{"floppy"}}),
		"boot device twice":  one(MachineConfig{Order: []Device{FromDisk, FromDisk}}),
		"nine cards":         one(MachineConfig{Cards: 9}),
		"more absent":        one(MachineConfig{Cards: 1, Absent: 2}),
		"odd disk":           one(MachineConfig{SystemSize: 4<<30 + 1}),
		"hardly any memory":  one(MachineConfig{Memory: 64}),
		"negative data disk": one(MachineConfig{DataSize: -512}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.withDefaults()
			var e *machine.Error
			if !errors.As(err, &e) || e.Code != machine.Invalid || e.Field == "" {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// Every machine of a full lab has names and addresses of its own.
func TestPlansDoNotCollide(t *testing.T) {
	cfg, err := Config{Machines: make([]MachineConfig, maxMachines)}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]string)
	for _, p := range planMachines(cfg) {
		if !ProvisionNet.Contains(p.bootAddr) || !BMCNet.Contains(p.bmcAddr) || p.bootAddr == Controller {
			t.Errorf("%s has %s and %s", p.Name, p.bootAddr, p.bmcAddr)
		}
		for _, v := range []string{p.provMAC, p.pubMAC, p.provTap, p.pubTap, p.uuid, p.serial, p.bootAddr.String(), p.bmcAddr.String()} {
			if other, ok := seen[v]; ok {
				t.Errorf("%s has %s of %s", p.Name, v, other)
			}
			seen[v] = p.Name
		}
		if len(p.provTap) > 15 || len(p.systemSerial()) > 20 { // IFNAMSIZ; virtio-blk
			t.Errorf("%s: names too long", p.Name)
		}
	}
}

func TestReorder(t *testing.T) {
	for _, c := range []struct {
		order []Device
		want  []qomSet
	}{
		{[]Device{FromDisk, FromNetwork}, []qomSet{bootIndex("nic0", -1), bootIndex("disk0", -1), bootIndex("nic0", 2), bootIndex("disk0", 1)}},
		{[]Device{FromDisk}, []qomSet{bootIndex("nic0", -1), bootIndex("disk0", -1), bootIndex("disk0", 1)}},
	} {
		if diff := cmp.Diff(c.want, reorder(c.order)); diff != "" {
			t.Errorf("reorder(%s):\n%s", c.order, diff)
		}
	}
}

func TestKeptIdentity(t *testing.T) {
	dir := t.TempDir()
	for name, keep := range map[string]func() (string, error){
		"password": func() (string, error) { return keptPassword(filepath.Join(dir, "password"), "") },
		"certificate": func() (string, error) {
			c, err := keptCertificate(filepath.Join(dir, "cert"), Controller)
			if err != nil {
				return "", err
			}
			return string(c.Certificate[0]), nil
		},
	} {
		a, err := keep()
		if err != nil {
			t.Fatal(err)
		}
		b, err := keep()
		if err != nil || a != b || len(a) < 16 {
			t.Errorf("%s: %q, then %q, %v", name, a, b, err)
		}
	}
}

func TestIperfRate(t *testing.T) {
	for _, c := range []struct {
		report string
		want   float64 // 0 for an error
	}{
		{`{"end": {"sum_sent": {"bits_per_second": 99e6}, "sum_received": {"bits_per_second": 95.5e6}}}`, 95.5},
		{`{"error": "unable to connect to server: Connection refused"}`, 0},
		{`{"end": {}}`, 0},
		{``, 0},
	} {
		got, err := iperfRate([]byte(c.report))
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("iperfRate(%s) = %v, %v", c.report, got, err)
		}
	}
}
