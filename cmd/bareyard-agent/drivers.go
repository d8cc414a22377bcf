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
	"time"

	"github.com/u-root/u-root/pkg/kmodule"
	"golang.org/x/sys/unix"
)

// alias says which module drives devices whose modalias matches.
type alias struct{ pattern, module string }

// loadDrivers loads the modules of all devices that there are. A driver may bring new devices to light (virtio, SCSI, NVMe
// behind a bridge), so it looks again until nothing new comes.
func loadDrivers(ctx context.Context, log *slog.Logger) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	aliases, err := readAliases(filepath.Join("/lib/modules", unix.ByteSliceToString(uts.Release[:]), "modules.alias"))
	if err != nil {
		return err
	}
	prober, err := kmodule.NewProber(kmodule.ProbeOpts{})
	if err != nil {
		return fmt.Errorf("read modules: %w", err)
	}
	loaded := map[string]bool{}
	if _, err := os.Stat("/sys/firmware/efi"); err == nil {
		aliases = append(aliases, alias{"firmware:efi", "efivarfs"})
	}
	quiet := 0
	for quiet < 2 && ctx.Err() == nil {
		quiet++
		for _, module := range needed(aliases) {
			if loaded[module] {
				continue
			}
			loaded[module], quiet = true, 0
			if err := prober.Probe(module, ""); err != nil {
				log.Warn("driver not loaded", "module", module, "err", err)
			}
		}
		if quiet == 1 {
			select { // buses are scanned in the background
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return ctx.Err()
}

// needed lists the modules that the devices of this machine ask for.
func needed(aliases []alias) []string {
	files, err := filepath.Glob("/sys/bus/*/devices/*/modalias")
	if err != nil {
		return nil // the pattern is right
	}
	var modules []string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // unplugged while we looked
		}
		modules = append(modules, match(aliases, strings.TrimSpace(string(raw)))...)
	}
	if _, err := os.Stat("/sys/firmware/efi"); err == nil {
		modules = append(modules, match(aliases, "firmware:efi")...)
	}
	return modules
}

// match lists the modules whose pattern takes a modalias.
func match(aliases []alias, modalias string) []string {
	bus, _, _ := strings.Cut(modalias, ":")
	var modules []string
	for _, a := range aliases {
		if !strings.HasPrefix(a.pattern, bus+":") {
			continue
		}
		if ok, err := path.Match(a.pattern, modalias); ok && err == nil {
			modules = append(modules, a.module)
		}
	}
	return modules
}

func readAliases(file string) ([]alias, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read module aliases: %w", err)
	}
	defer f.Close()
	var list []alias
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "alias" {
			list = append(list, alias{fields[1], fields[2]})
		}
	}
	return list, lines.Err()
}
