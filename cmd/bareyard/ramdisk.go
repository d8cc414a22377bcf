package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bareyard/bareyard/images/ramdisk"
)

// ramdiskCommand builds what machines network-boot.
type ramdiskCommand struct {
	KernelDir string `name:"kernel" default:"build/kernel" type:"existingdir" help:"Folder with vmlinuz and modules/ (default: build/kernel)."`
	Agent     string `default:"bin/bareyard-agent" type:"existingfile" help:"The agent (default: bin/bareyard-agent)."`
	Out       string `default:"build/ramdisk/ramdisk.cpio.zst" help:"File to write (default: build/ramdisk/ramdisk.cpio.zst)."`
	ISO       string `name:"iso" placeholder:"FILE" help:"Make a disc of it as well, for machines that boot from virtual media."`
	Args      string `name:"kernel-args" default:"console=tty0 console=ttyS0,115200" help:"Kernel parameters on that disc (default: console=tty0 console=ttyS0,115200)."`
}

// Run builds the RAM disk.
func (r *ramdiskCommand) Run(ctx context.Context, t *terminal) error {
	if err := os.MkdirAll(filepath.Dir(r.Out), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := ramdisk.Build(ctx, ramdisk.Options{KernelDir: r.KernelDir, AgentBinary: r.Agent, Out: r.Out}); err != nil {
		return err
	}
	if r.ISO != "" {
		if err := ramdisk.BuildISO(ctx, ramdisk.ISOOptions{Kernel: filepath.Join(r.KernelDir, "vmlinuz"), RAMDisk: r.Out, Cmdline: r.Args, Out: r.ISO}); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(t.out, "%s is ready\n", r.ISO); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(t.out, "%s is ready\n", r.Out)
	return err
}
