package main

import (
	"context"
	"strings"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/network/bridgeport"
	"github.com/bareyard/bareyard/network/manual"
	"github.com/bareyard/bareyard/network/snmp"
	"github.com/bareyard/bareyard/network/switchcli"
	"github.com/bareyard/bareyard/postgres"
)

// newPorts returns the ports of every configured switch, and of this box's bridges.
func newPorts(cfg config, tasks network.Tasks) (*network.Wiring, error) {
	spoken := map[string]switchcli.Switch{}
	w := &network.Wiring{Switches: map[string]network.PortDriver{}, Bridges: &bridgeport.Driver{Netns: cfg.Ports.Netns}}
	for _, s := range cfg.Switches {
		switch s.Dialect {
		case "":
		case manualDialect:
			w.Switches[s.Name] = manual.Ports{Tasks: tasks}
		default:
			spoken[s.Name] = s.cli()
		}
	}
	driver, err := switchcli.New(spoken)
	if err != nil {
		return nil, err
	}
	for name := range spoken {
		w.Switches[name] = driver
	}
	return w, nil
}

// byHand returns an edge of people, counted by those switches that can be asked.
func byHand(cfg config, db *postgres.DB) network.Edge {
	meter := &snmp.Meter{Switches: map[string]snmp.Switch{}}
	for _, s := range cfg.Switches {
		if s.counted() {
			meter.Switches[s.Name] = s.meter()
		}
	}
	if len(meter.Switches) == 0 {
		return manual.Edge{Tasks: db}
	}
	return &snmp.Edge{Edge: manual.Edge{Tasks: db}, Meter: meter, Ports: func(ctx context.Context) (map[string]string, error) {
		machines, err := db.Machines(ctx, "")
		ports := map[string]string{}
		for _, m := range machines {
			if nic, ok := m.Hardware.NICByRole(machine.PublicNIC); m.Public && ok && strings.Contains(nic.Port, ":") {
				ports[m.ID] = nic.Port
			}
		}
		return ports, err
	}}
}
