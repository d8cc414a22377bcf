package main

import (
	"context"
	"time"

	"github.com/bareyard/bareyard/accelerator"
	"github.com/bareyard/bareyard/accelerator/disk"
)

// examine reads what the RAM disk can see without a driver for the cards. It writes nothing and judges nothing: the server does.
func examine(ctx context.Context) accelerator.Facts {
	var roots accelerator.Roots
	f := accelerator.Facts{Taken: time.Now().UTC(), RAMDisk: true, PCI: accelerator.ReadPCI(roots), Host: accelerator.ReadHost(roots)}
	disk.Reader{}.Read(ctx, f.Host.Disks)
	f.Log = accelerator.ReadKernelLog(roots)
	return f
}
