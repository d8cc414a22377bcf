package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/bareyard/bareyard/images/ramdisk"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/netboot"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
)

// booter answers netboot's questions from the database and the engine.
type booter struct {
	engine   *provisioner.Engine
	db       *postgres.DB
	reserved *reservations
	args     string
	signed   func(class string) bool // its machines get the signed chain
}

// Lease implements netboot.Booter. How long the prefix is, netboot knows by its subnets.
func (b booter) Lease(ctx context.Context, mac string) (netboot.Lease, error) {
	r, err := b.reserved.find(ctx, mac)
	if err != nil {
		return netboot.Lease{}, err
	}
	return netboot.Lease{Addr: netip.PrefixFrom(r.Addr, r.Addr.BitLen()), Hostname: r.Machine, SecureBoot: b.signed(r.Class)}, nil
}

// Knows implements netboot.Roster.
func (b booter) Knows(mac string) bool { return b.reserved.knows(mac) }

// Reserves implements netboot.Roster.
func (b booter) Reserves(a netip.Addr) bool {
	return b.reserved.reserves(a)
}

// Boot implements netboot.Booter: the agent within the boot window of a job, the disk at any other time. Where discovery is
// on, a machine that nobody has enrolled boots the agent too.
func (b booter) Boot(ctx context.Context, mac string) (netboot.Boot, error) {
	_, j, err := b.db.ByMAC(ctx, mac)
	if machine.CodeOf(err) == machine.NotFound {
		return b.stranger(ctx, mac)
	}
	if err != nil {
		return netboot.Boot{}, err
	}
	if provisioner.BootWindow(j) {
		return netboot.Boot{Kind: netboot.BootAgent, Cmdline: b.args}, nil
	}
	return netboot.Boot{Kind: netboot.BootDisk}, nil
}

// stranger says what a machine boots that nobody has enrolled.
func (b booter) stranger(ctx context.Context, mac string) (netboot.Boot, error) {
	agent, known, err := b.engine.Discovers(ctx, mac)
	switch {
	case err != nil:
		return netboot.Boot{}, err
	case agent:
		return netboot.Boot{Kind: netboot.BootAgent, Cmdline: b.args}, nil
	case known: // rejected, or an enrolled machine's port that is not on its record
		return netboot.Boot{Kind: netboot.BootDisk}, nil
	}
	return netboot.Boot{}, netboot.ErrUnknown
}

// Archive implements netboot.Booter.
func (b booter) Archive(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	file, err := b.engine.MintBoot(ctx, mac, from)
	if errors.Is(err, provisioner.ErrDenied) {
		return nil, netboot.ErrRefused
	}
	if err != nil {
		return nil, unknown(err)
	}
	return ramdisk.Archive(map[string][]byte{"etc/bareyard/boot.json": file})
}

func unknown(err error) error {
	if machine.CodeOf(err) == machine.NotFound {
		return netboot.ErrUnknown
	}
	return err
}
