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
	"sync"
	"time"

	"github.com/bareyard/bareyard/agent"
	"github.com/bareyard/bareyard/agent/disk"
	"github.com/bareyard/bareyard/agent/efivar"
	"github.com/bareyard/bareyard/agent/inventory"
	"github.com/bareyard/bareyard/machine"
	"golang.org/x/sys/unix"
)

// version is set by the linker.
var version = "unknown"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "error: bareyard-agent is the /init of Bareyard's RAM disk and wipes disks: it does not run here")
		os.Exit(2)
	}
	debug.SetMemoryLimit(256 << 20) // machines of the lab have 384 MiB, RAM disk included
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{ReplaceAttr: sinceStart}))
	log.Info("the agent starts", "version", version)
	how := unix.LINUX_REBOOT_CMD_POWER_OFF
	switch err := run(context.Background(), log); {
	case errors.Is(err, agent.ErrNotWanted):
		log.Info("the agent ends", "reason", err)
	case errors.Is(err, agent.ErrReboot):
		log.Info("the agent ends", "reason", err)
		how = unix.LINUX_REBOOT_CMD_RESTART
	case err != nil:
		log.Error("the agent ends", "error", err)
	}
	leave(how, log)
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
	return slog.String(slog.TimeKey, time.Duration(up.Nano()).Round(time.Millisecond).String())
}

// run is the whole life of the agent. The ports' drivers come first, so that the server hears of the machine while its disks
// are still being found; no step begins before they are.
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
	d, err := newDrivers(log)
	if err != nil {
		return err
	}
	if err := d.load(ctx, isPort); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	found := make(chan struct{})
	background.Go(func() {
		defer close(found)
		mountFirmwareVariables(d, log)
		if err := d.load(ctx, nil); err != nil && ctx.Err() == nil {
			log.Error("drivers are missing", "error", err)
		}
	})
	lease, err := bringUp(ctx, boot.MAC, log)
	if err != nil {
		return err
	}
	background.Go(func() { lease.keep(ctx, log) })
	err = agent.Run(ctx, agent.Config{Boot: boot, Hands: newHands(boot.MAC, d, log, found), Log: log})
	cancel()
	settle(&background, log)
	return err
}

// settle waits for what runs in the background, but not for a driver that hangs: the machine has to go off.
func settle(background *sync.WaitGroup, log *slog.Logger) {
	ended := make(chan struct{})
	go func() { // ends with the machine at the latest
		background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		log.Warn("something hangs in the background")
	}
}

// newHands joins the protocol with the disks of this machine, which are all there when found is closed.
func newHands(booted string, d *drivers, log *slog.Logger, found <-chan struct{}) *hands {
	set := disk.New(log)
	return &hands{
		booted: booted, drivers: d, log: log,
		found: found,
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
		vars:   efivar.FS("/sys/firmware/efi/efivars"),
		erased: map[string]machine.Erasure{},
	}
}

// leave writes out what is left and powers off or restarts, even if a disk hangs.
func leave(how int, log *slog.Logger) {
	if how == unix.LINUX_REBOOT_CMD_RESTART {
		log.Info("restart")
	} else {
		log.Info("power off")
	}
	done := make(chan struct{})
	go func() { // ends with the machine
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	if err := unix.Reboot(how); err != nil {
		log.Error("leave", "error", err)
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
