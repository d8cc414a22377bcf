package main

import (
	"log/slog"
	"slices"

	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// newBoot is the boot servers as configured.
func newBoot(cfg config, engine *provisioner.Engine, db *postgres.DB, reserved *reservations, log *slog.Logger) *netboot.Server {
	b := cfg.Boot
	s := &netboot.Server{
		Interface: b.Interface, Addr: b.Address, Subnets: b.networks(), HTTPPort: b.HTTPPort, OtherServers: b.OtherServers,
		LoaderDir: b.LoaderDir, Loaders: b.loaders(), KernelPath: b.Kernel, RAMDiskPath: b.RAMDisk, SecureBoot: b.SecureBoot == secureShim,
		Log: log,
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
	return s
}

// bootNets is what the seeds of installed machines say of the networks.
func bootNets(cfg config) []provisioner.BootNet {
	var all []provisioner.BootNet
	for _, n := range cfg.Boot.networks() {
		all = append(all, provisioner.BootNet{Prefix: n.Prefix, Router: n.Router})
	}
	return all
}
