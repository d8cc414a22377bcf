package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/kmodule"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// drivers loads the modules that the devices of this machine ask for.
type drivers struct {
	sys     string
	aliases aliasTable
	probe   func(module string) error
	seen    map[string]bool // device ids that were looked up
	asked   map[string]bool // modules that were asked for
	log     *slog.Logger
}

// newDrivers reads the module tables of the RAM disk.
func newDrivers(log *slog.Logger) (*drivers, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("read kernel version: %w", err)
	}
	aliases, err := readAliases(filepath.Join("/lib/modules", unix.ByteSliceToString(uts.Release[:]), "modules.alias"))
	if err != nil {
		return nil, err
	}
	prober, err := kmodule.NewProber(kmodule.ProbeOpts{})
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	return &drivers{sys: "/sys", aliases: aliases, log: log, seen: map[string]bool{}, asked: map[string]bool{},
		probe: func(module string) error { return prober.Probe(module, "") }}, nil
}

// maxPasses bounds how often a driver may bring new devices to light: PCI, then virtio or SCSI hosts, then disks.
const maxPasses = 8

// load loads the drivers of all devices that want takes, nil for all, again and again until nothing new comes to light. The
// kernel waits in finit_module for what a driver probes in the background, so that ports and disks are there when load
// returns. A driver that fails is logged: it need not be the one that matters.
func (d *drivers) load(ctx context.Context, want func(id string) bool) error {
	for range maxPasses {
		var fresh []string
		for _, id := range d.devices() {
			if d.seen[id] || want != nil && !want(id) {
				continue
			}
			d.seen[id] = true
			for _, module := range d.aliases.match(id) {
				if !d.asked[module] && !strings.HasPrefix(module, "ipmi") { // slow, and of use to discovery alone
					d.asked[module] = true
					fresh = append(fresh, module)
				}
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		var g errgroup.Group
		for _, module := range fresh {
			g.Go(func() error {
				if err := d.probe(module); err != nil {
					d.log.Warn("driver not loaded", "module", module, "error", err)
				}
				return nil
			})
		}
		g.Wait() // never an error: they are logged
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// isPort reports whether a device id is a network controller: PCI base class 02, which virtio ports have too, before and
// behind their PCI driver.
func isPort(id string) bool {
	return strings.HasPrefix(id, "pci:") && strings.Contains(id, "bc02sc") || strings.HasPrefix(id, "virtio:d00000001v")
}

// devices returns the ids of all devices on all buses.
func (d *drivers) devices() []string {
	files, err := filepath.Glob(filepath.Join(d.sys, "bus/*/devices/*/modalias"))
	if err != nil {
		return nil // the pattern is a constant
	}
	var ids []string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // unplugged while we looked
		}
		if id := strings.TrimSpace(string(raw)); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// aliasTable is modules.alias, by what a pattern says up to its first wildcard, cut to a fixed length per bus: matching
// thousands of patterns against each device takes seconds on an emulated machine.
type aliasTable map[string][]alias

// alias says which module drives the devices whose id matches.
type alias struct{ pattern, module string }

// aliasKey returns under which key patterns that can match this id or pattern are filed: the bus, and the vendor on PCI.
func aliasKey(s string) string {
	const vendor = len("pci:v00001AF4")
	if strings.HasPrefix(s, "pci:v") && len(s) >= vendor && !strings.ContainsAny(s[:vendor], "*?[") {
		return s[:vendor]
	}
	bus, _, _ := strings.Cut(s, ":")
	return bus
}

// match returns the modules that drive a device.
func (t aliasTable) match(id string) []string {
	bus, _, _ := strings.Cut(id, ":")
	var modules []string
	for _, key := range []string{aliasKey(id), bus} {
		for _, a := range t[key] {
			if ok, err := path.Match(a.pattern, id); ok && err == nil {
				modules = append(modules, a.module)
			}
		}
		if key == bus {
			break
		}
	}
	return modules
}

func readAliases(file string) (aliasTable, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read module aliases: %w", err)
	}
	defer f.Close()
	t := aliasTable{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "alias" {
			key := aliasKey(fields[1])
			t[key] = append(t[key], alias{fields[1], fields[2]})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read module aliases: %w", err)
	}
	return t, nil
}
