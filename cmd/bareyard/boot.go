package main

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// newBoot is the boot servers as configured.
func newBoot(cfg config, engine *provisioner.Engine, db *postgres.DB, reserved *reservations, log *slog.Logger, metrics prometheus.Registerer) (*netboot.Server, error) {
	b := cfg.Boot
	counted, err := netboot.NewMetrics(metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics of network boot: %w", err)
	}
	s := &netboot.Server{
		Interface: b.Interface, Addr: b.Address, Subnets: b.networks(), HTTPPort: b.HTTPPort, OtherServers: b.OtherServers,
		LoaderDir: b.LoaderDir, Loaders: b.loaders(), KernelPath: b.Kernel, RAMDiskPath: b.RAMDisk, SecureBoot: b.SecureBoot == secureShim,
		Log: log, Metrics: counted,
	}
	if b.Mode == modeProxy {
		s.Mode = netboot.Proxy
	}
	if s.SecureBoot {
		s.ShimPath, s.GRUBPath = b.Shim, b.GRUB
	}
	s.Booter = booter{engine: engine, db: db, reserved: reserved, args: b.KernelArgs, signed: func(class string) bool {
		return s.SecureBoot && (len(b.Classes) == 0 || slices.Contains(b.Classes, class))
	}}
	return s, nil
}

// bootNets is what the seeds of installed machines say of the networks.
func bootNets(cfg config) []provisioner.BootNet {
	var all []provisioner.BootNet
	for _, n := range cfg.Boot.networks() {
		all = append(all, provisioner.BootNet{Prefix: n.Prefix, Router: n.Router})
	}
	return all
}
