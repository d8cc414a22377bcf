package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/images/ramdisk"
)

// imageCommand is the catalogue of operating systems.
type imageCommand struct {
	List   imageList   `cmd:"" help:"List images."`
	Import imageImport `cmd:"" help:"Import an image: raw, qcow2, VMDK or VHD, compressed or not."`
}

type imageList struct{ remote }

// Run lists images.
func (i *imageList) Run(ctx context.Context, t *terminal) error {
	return i.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Images(ctx)
		if err != nil {
			return err
		}
		return i.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "IMAGE\tSIZE\tBIOS\tUEFI\tDRIVER\tUSER\tDIGEST")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%.1f GB\t%s\t%s\t%s\t%s\t%.12s\n", x.Name, float64(x.Size)/1e9, yesNo(x.BIOS), yesNo(x.UEFI), yesNo(x.Driver), x.DefaultUser, x.Digest)
			}
		})
	})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type imageImport struct {
	remote
	Name   string `arg:"" help:"Name in the catalogue, e.g. debian-12."`
	File   string `arg:"" type:"existingfile" help:"raw, qcow2, VMDK in one file or fixed VHD, as it is or in gzip, xz, zstd, bzip2 or lz4."`
	SHA256 string `name:"sha256" placeholder:"HEX" help:"What the publisher says."`
	Of     string `default:"downloaded" enum:"downloaded,written" help:"Which bytes that digest is of: the file as downloaded, or the disk as written (default: downloaded)."`
	Format string `placeholder:"raw|qcow2|vmdk|vhd" help:"Refuse anything else (default: whatever is found)."`
	Driver bool   `help:"It brings the accelerators' driver: validation asks the driver, too."`
	User   string `default:"root" help:"Account that gets the customer's key (default: root)."`
}

// Run sends the image.
func (i *imageImport) Run(ctx context.Context, t *terminal) error {
	f, err := os.Open(i.File)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	return i.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.ImportImage(ctx, client.Upload{Name: i.Name, SHA256: i.SHA256, DigestOf: i.Of, Format: i.Format, DefaultUser: i.User, Driver: i.Driver}, f)
		if err != nil {
			return err
		}
		return i.tell(t, x, "image %s is in the catalogue: %.1f GB, digest %.12s", x.Name, float64(x.Size)/1e9, x.Digest)
	})
}

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
