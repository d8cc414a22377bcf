package netboot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/bareyard/bareyard/netboot/dhcp"
	"github.com/bareyard/bareyard/netboot/grub"
	"github.com/bareyard/bareyard/netboot/tftp"
)

// Names by which the signed chain is loaded. Shim looks for the second beside itself.
const (
	shimName = "shimx64.efi"
	grubName = "grubx64.efi"
)

// signedFiles returns the paths of the signed chain by the names that it is loaded by.
func (c *conversation) signedFiles() map[string]string {
	if c.ShimPath == "" || c.GRUBPath == "" {
		return nil
	}
	return map[string]string{shimName: c.ShimPath, grubName: c.GRUBPath}
}

// loader returns what firmware is to load; false when there is nothing for it.
func (c *conversation) loader(req *dhcp.Request, secure bool) (name string, boots bool) {
	p := req.Arch.Platform()
	if secure && p == dhcp.PlatformX64 && c.ShimPath != "" {
		switch req.Stage {
		case dhcp.PXE:
			return shimName, true
		case dhcp.HTTPBoot: // Debian's signed GRUB cannot load anything by HTTP; the firmware goes on to PXE
			return "", false
		}
	}
	return c.loaders[p], true
}

// errOptional marks a file that loaders look for and can do without.
var errOptional = fmt.Errorf("not there: %w", fs.ErrNotExist)

// open is what TFTP serves: the loaders, and what a signed GRUB needs, which cannot use HTTP.
func (c *conversation) open(ctx context.Context, asked string, peer netip.AddrPort) (tftp.File, error) {
	if name, ok := strings.CutPrefix(strings.TrimPrefix(asked, "/"), "grub/"); ok {
		return c.openGRUB(ctx, name, peer)
	}
	if name, ok := strings.CutPrefix(strings.TrimPrefix(asked, "/"), "boot/"); ok {
		return c.openSigned(ctx, name, peer)
	}
	name, err := tftp.Clean(asked)
	if err != nil {
		return nil, err
	}
	if path, ok := c.files[name]; ok {
		return tftp.OpenPath(path)
	}
	f, err := tftp.Dir(c.LoaderDir)(name)
	if errors.Is(err, fs.ErrNotExist) && optional(name) {
		return nil, errOptional
	}
	return f, err
}

// optional reports whether shim asks for a file without needing it.
func optional(name string) bool {
	return strings.HasPrefix(name, "revocations") || strings.HasPrefix(name, "shim_certificate")
}

// openGRUB serves the folder that GRUB looks into for its configuration. Its modules are built in; it asks for their
// lists all the same.
func (c *conversation) openGRUB(ctx context.Context, name string, peer netip.AddrPort) (tftp.File, error) {
	if c.ShimPath == "" {
		return nil, fs.ErrNotExist
	}
	if err := climbs(name); err != nil {
		return nil, err
	}
	if name == "grub.cfg" {
		return tftp.Bytes(grub.Redirect()), nil
	}
	text, ok := strings.CutPrefix(name, "grub.cfg-01-")
	if !ok {
		return nil, errOptional
	}
	mac, ok := parseMAC(text)
	if !ok {
		return nil, fs.ErrNotExist
	}
	b, err := c.config(ctx, mac, peer.Addr())
	if err != nil {
		return nil, outside(err)
	}
	return tftp.Bytes(b), nil
}

// config is what a machine boots now, for GRUB.
func (c *conversation) config(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	boot, err := c.boot(ctx, mac, from)
	if err != nil {
		return nil, err
	}
	c.loops.clear(mac)
	c.remember(c.nets.four(from), mac)
	c.log.Info("machine asks what to boot", "mac", mac, "boots", boot.Kind.String(), "by", "grub")
	if boot.Kind != BootAgent {
		return grub.Disk(), nil
	}
	b, err := grub.Agent{
		Kernel: bootPrefix + "vmlinuz", RAMDisk: bootPrefix + "ramdisk", Archive: bootPrefix + "archive/" + mac, Cmdline: boot.Cmdline,
	}.Config()
	if err != nil {
		return nil, fmt.Errorf("write GRUB configuration: %w", err)
	}
	return b, nil
}

// openSigned serves kernel, RAM disk and archive to GRUB, and only to a machine that boots the agent now.
func (c *conversation) openSigned(ctx context.Context, name string, peer netip.AddrPort) (tftp.File, error) {
	if c.ShimPath == "" {
		return nil, fs.ErrPermission
	}
	if err := climbs(name); err != nil {
		return nil, err
	}
	from := c.nets.four(peer.Addr())
	switch text, archive := strings.CutPrefix(name, "archive/"); {
	case archive:
		mac, ok := parseMAC(text)
		if !ok {
			return nil, fs.ErrNotExist
		}
		b, err := c.mint(ctx, mac, from)
		if err != nil {
			return nil, outside(err)
		}
		return tftp.Bytes(b), nil
	case name == "vmlinuz" || name == "ramdisk":
		boot, err := c.boot(ctx, c.macOf(from), from)
		if err == nil && boot.Kind != BootAgent {
			err = ErrRefused
		}
		if err != nil {
			return nil, outside(err)
		}
		if name == "vmlinuz" {
			return tftp.OpenPath(c.KernelPath)
		}
		return tftp.OpenPath(c.RAMDiskPath)
	}
	return nil, fs.ErrNotExist
}

// climbs refuses a path that is not what it seems.
func climbs(name string) error {
	if strings.ContainsAny(name, "\\\x00") || !fs.ValidPath(name) {
		return fmt.Errorf("%q is not a path: %w", name, fs.ErrPermission)
	}
	return nil
}

// outside is an error of ours as TFTP knows it.
func outside(err error) error {
	switch {
	case errors.Is(err, ErrRefused):
		return fmt.Errorf("%w: %w", err, fs.ErrPermission)
	case errors.Is(err, ErrUnknown):
		return fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	}
	return err
}
