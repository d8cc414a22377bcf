package main

import (
	"os"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/machine"
)

// TestExampleMachines: the example file is what the command reads, and would be enrolled.
func TestExampleMachines(t *testing.T) {
	text, err := os.ReadFile("../../docs/machines.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list []api.NewMachine
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, b := range list {
		if err := machine.CheckRecord(machine.Machine{Name: b.Name, Firmware: b.Firmware, Hardware: b.Hardware, BMC: b.BMC, BootAddr: b.BootAddr}); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
}
