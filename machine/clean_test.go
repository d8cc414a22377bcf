package machine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bareyard/bareyard/machine"
)

// TestK11Inventory: what a stranger sends is bounded, and what cannot be true is refused with the field's name.
func TestK11Inventory(t *testing.T) {
	manyNICs := `{"firmware":"bios","hardware":{"nics":[` + strings.Repeat(`{"mac":"52:54:00:00:00:01"},`, 3000) + `{"mac":""}]}}`
	for name, tt := range map[string]struct{ raw, field string }{
		"100 MB":                 {`{"cpu":"` + strings.Repeat("x", 100<<20) + `"}`, "inventory"},
		"too many NICs":          {manyNICs, "hardware.nics"},
		"negative memory":        {`{"firmware":"bios","memory":-1}`, "memory"},
		"negative disk":          {`{"firmware":"bios","hardware":{"disks":[{"serial":"a","size":-5}]}}`, "hardware.disks[0].size"},
		"absurd disk":            {`{"firmware":"bios","hardware":{"disks":[{"serial":"a","size":9000000000000000000}]}}`, "hardware.disks[0].size"},
		"negative cores":         {`{"firmware":"bios","cores":-4}`, "cores"},
		"NaN":                    {`{"firmware":"bios","memory":NaN}`, "inventory"},
		"1e400":                  {`{"firmware":"bios","memory":1e400}`, "memory"},
		"a key twice":            {`{"firmware":"bios","cpu":"a","cpu":"b"}`, "inventory"},
		"a key twice, in case":   {`{"firmware":"bios","cpu":"a","CPU":"b"}`, "inventory"},
		"a key twice, deep":      {`{"firmware":"bios","hardware":{"disks":[{"serial":"a","size":1,"serial":"b"}]}}`, "inventory"},
		"climbing slot":          {`{"firmware":"bios","hardware":{"accelerators":[{"slot":"../../etc/passwd","vendor":"10de","device":"2b85"}]}}`, "hardware.accelerators[0]"},
		"no PCI vendor":          {`{"firmware":"bios","hardware":{"accelerators":[{"slot":"0000:01:00.0","vendor":"<b>","device":"2b85"}]}}`, "hardware.accelerators[0]"},
		"two cards in one slot":  {`{"firmware":"bios","hardware":{"accelerators":[{"slot":"0000:01:00.0","vendor":"10de","device":"2b85"},{"slot":"0000:01:00.0","vendor":"10de","device":"2b85"}]}}`, "hardware.accelerators[1].slot"},
		"another firmware":       {`{"firmware":"coreboot"}`, "firmware"},
		"wrong type":             {`{"firmware":"bios","hardware":{"nics":"all of them"}}`, "hardware.nics"},
		"nested":                 {strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), "inventory"},
		"not JSON":               {`{"firmware":`, "inventory"},
		"nothing":                {``, "inventory"},
		"a list":                 {`[1,2]`, ""},
		"more than one document": {`{"firmware":"bios"}{"firmware":"bios"}`, "inventory"},
	} {
		_, err := machine.ReadInventory([]byte(tt.raw))
		var me *machine.Error
		if !errors.As(err, &me) || me.Code != machine.Invalid || me.Field != tt.field || len(me.Message) > 300 {
			t.Errorf("%s: %.300v, field %q; want it refused for %q", name, err, fieldOf(me), tt.field)
		}
	}
}

func fieldOf(e *machine.Error) string {
	if e == nil {
		return ""
	}
	return e.Field
}

// TestK04Strings: what a stranger calls itself cannot draw on an operator's terminal, nor hide.
func TestK04Strings(t *testing.T) {
	evil := "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\r\n\u202e\u0000" + strings.Repeat("A", 5000)
	inv := machine.Inventory{Firmware: machine.UEFI, CPU: evil, Kernel: evil, System: machine.System{Vendor: evil, Model: evil, Board: evil, BIOSVersion: evil},
		Hardware: machine.Hardware{UUID: evil, Serial: evil, NICs: []machine.NIC{{MAC: evil, Role: machine.PublicNIC, Port: evil}}, Disks: []machine.Disk{{Serial: evil, Size: 1, Role: machine.SystemDisk}}},
		Ports:    []machine.PortFacts{{Name: evil, MAC: evil, Driver: evil, Slot: evil, Neighbour: &machine.Neighbour{System: evil, Chassis: evil, Port: evil, Text: evil}}},
		Drives:   []machine.Drive{{Serial: evil, Name: evil, Model: evil, Bus: evil}},
		Cards:    []machine.Card{{Accelerator: machine.Accelerator{Slot: evil}}},
		BMC:      &machine.BMCFacts{Address: evil, MAC: evil, Firmware: evil, UUID: evil},
	}
	raw, err := json.Marshal(inv)
	if err != nil {
		t.Fatal(err)
	}
	got, err := machine.ReadInventory(raw)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%+v %+v %+v", got, *got.BMC, *got.Ports[0].Neighbour)
	for _, r := range shown {
		if r < ' ' || r > '~' {
			t.Fatalf("%q is left in %q", r, shown)
		}
	}
	if strings.Contains(shown, strings.Repeat("A", 129)) {
		t.Error("a text is not cut")
	}
	if h := got.Hardware; h.UUID != "" || len(h.NICs) != 0 || h.Disks[0].Role != "" || got.BMC.Address != "" || len(got.Cards) != 0 {
		t.Errorf("it is believed: %+v", got)
	}
}

// TestA25Ports: a BMC's port on USB and ports without an address never say which machine it is, whoever lists them.
func TestA25Ports(t *testing.T) {
	raw := `{"firmware":"bios","hardware":{"nics":[
		{"mac":"02:00:00:0b:00:01"},{"mac":"3C:EC:EF:00:00:01"},{"mac":"3c-ec-ef-00-00-02"},{"mac":"3c:ec:ef:00:00:01"},
		{"mac":"00:00:00:00:00:00"},{"mac":"01:00:5e:00:00:01"},{"mac":"80:00:00:48:fe:80:00:00"},{"mac":"x"},{"mac":""},{"mac":"3c:ec:ef:00:00:04"}]},
		"ports":[{"name":"enx0200000b0001","mac":"02:00:00:0b:00:01","driver":"cdc_ether"},{"name":"eno1","mac":"3c:ec:ef:00:00:01","driver":"igb","bus":"pci"},
		{"name":"eno1v0","mac":"3c:ec:ef:00:00:04","virtual":true}]}`
	inv, err := machine.ReadInventory([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.NIC{{MAC: "3c:ec:ef:00:00:01"}, {MAC: "3c:ec:ef:00:00:02"}}
	if diff := cmp.Diff(want, inv.Hardware.NICs); diff != "" {
		t.Error(diff)
	}
	if !inv.Ports[0].Virtual || inv.Ports[1].Virtual {
		t.Errorf("ports %+v", inv.Ports)
	}
}

func FuzzReadInventory(f *testing.F) {
	f.Add([]byte(`{"firmware":"bios","hardware":{"nics":[{"mac":"52:54:00:00:00:01"}]}}`))
	f.Add([]byte(`{"firmware":"uefi","ports":[{"name":"a","neighbour":{"port":"x"}}],"bmc":{"address":"10.0.0.1"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		inv, err := machine.ReadInventory(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(inv)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := machine.ReadInventory(again)
		if err != nil {
			t.Fatalf("what was taken is refused: %v", err)
		}
		if diff := cmp.Diff(inv, twice, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("cleaning twice is not cleaning once: %s", diff)
		}
	})
}
