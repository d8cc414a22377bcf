// Command bareyard-agent is process 1 of the RAM disk: it brings the machine up far enough to reach its server, and does what it is told.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/disk"
	"github.com/bareyard/bareyard/agent/efivar"
	"github.com/bareyard/bareyard/agent/inventory"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "error: bareyard-agent is the /init of Bareyard's RAM disk and wipes disks: it does not run here")
		os.Exit(2)
	}
	debug.SetMemoryLimit(256 << 20) // machines of the lab have 384 MiB, RAM disk included
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: sinceStart}))
	if err := run(context.Background(), log); err != nil {
		log.Error("the agent ends", "error", err)
	}
	powerOff(log)
}

// sinceStart replaces the time of day, which many a machine does not know, by the time since the kernel started.
func sinceStart(_ []string, a slog.Attr) slog.Attr {
	if a.Key != slog.TimeKey {
		return a
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return slog.Attr{}
	}
	return slog.String("up", time.Duration(up.Nano()).Round(time.Millisecond).String())
}

// bootTime bounds the way to the network: a machine that finds none is powered off, and its job tries again.
const bootTime = 10 * time.Minute

// run is the whole life of the agent.
func run(ctx context.Context, log *slog.Logger) error {
	if err := mountAll(); err != nil {
		return err
	}
	raw, err := os.ReadFile(agent.BootPath)
	if err != nil {
		return fmt.Errorf("read boot file: %w", err)
	}
	boot, err := agent.ParseBoot(raw)
	if err != nil {
		return err
	}
	if err := loadDrivers(ctx, log); err != nil {
		return err
	}
	mountFirmwareVariables(log)
	booting, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	lease, err := bringUp(booting, boot.MAC, log)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return lease.keep(ctx, log) })
	g.Go(func() error {
		err := agent.Run(ctx, agent.Config{Boot: boot, Hands: newHands(log), Log: log})
		if err == nil {
			return errFinished
		}
		return err
	})
	if err := g.Wait(); !errors.Is(err, errFinished) {
		return err
	}
	return nil
}

// errFinished ends the group when the server has said that all is done.
var errFinished = errors.New("finished")

// newHands joins the protocol with the disks of this machine.
func newHands(log *slog.Logger) *hands {
	set := disk.Set{Sys: "/sys", Dev: "/dev", Log: log}
	return &hands{
		disks: set,
		inventory: inventory.Source{Sys: "/sys", Proc: "/proc", Permanent: permanentMAC, Disks: func() ([]machine.Disk, error) {
			found, err := set.List()
			if err != nil {
				return nil, err
			}
			disks := make([]machine.Disk, 0, len(found))
			for _, d := range found {
				disks = append(disks, machine.Disk{Serial: d.Serial, Size: d.Size})
			}
			return disks, nil
		}},
		vars:    efivar.FS("/sys/firmware/efi/efivars"),
		methods: map[string]string{},
	}
}

// powerOff writes out what is left and powers off, even if a disk hangs.
func powerOff(log *slog.Logger) {
	log.Info("power off")
	done := make(chan struct{})
	go func() { // ends with the machine
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Error("power off", "error", err)
	}
	select {} // process 1 must not end
}

// permanentMAC asks the kernel for the address that a port was made with.
func permanentMAC(name string) net.HardwareAddr {
	link, err := linkByName(name)
	if err != nil {
		return nil
	}
	return link.Attrs().PermHWAddr
}
