package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/postgres"
	"github.com/bareyard/bareyard/provisioner"
	"github.com/bareyard/bareyard/provisioner/console"
)

// consoleConfig is what happens with the machines' serial consoles.
type consoleConfig struct {
	Customers api.CustomersMay `yaml:"customers"` // what they may do with the console of the machine that they hold
	Record    size             `yaml:"record"`    // bytes kept of each job's console; 0 records nothing
	Keep      duration         `yaml:"keep"`      // how long after the job
}

// size is a number of bytes that is written as 64KiB or 1MiB.
type size struct {
	Bytes int
	Given bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *size) UnmarshalText(text []byte) error {
	number, unit := strings.TrimSpace(string(text)), 1
	for suffix, n := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20} {
		if rest, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = strings.TrimSpace(rest), n
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 20)
	if err != nil {
		return fmt.Errorf("%q is no size: write it as 64KiB or 1MiB, or 0", text)
	}
	*s = size{Bytes: int(n) * unit, Given: true}
	return nil
}

func (c *consoleConfig) fill() {
	c.Customers = cmp.Or(c.Customers, api.MayType)
	c.Keep = cmp.Or(c.Keep, duration(30*24*time.Hour))
	if !c.Record.Given {
		c.Record = size{Bytes: 1 << 20, Given: true}
	}
}

func (c *consoleConfig) problem() (key, problem, hint string) {
	switch {
	case !slices.Contains([]api.CustomersMay{api.MayType, api.MayLook, api.MayNot}, c.Customers):
		return "console.customers", fmt.Sprintf("is %q", c.Customers), "read-write, read-only or no"
	case c.Record.Bytes != 0 && (c.Record.Bytes < 4<<10 || c.Record.Bytes > 64<<20):
		return "console.record", fmt.Sprintf("is %d bytes", c.Record.Bytes), "choose 4KiB to 64MiB, or 0 to record nothing"
	}
	return "", "", ""
}

// newConsoles is what shares the serial consoles and, unless it is switched off, what records them.
func newConsoles(cfg config, engine *provisioner.Engine, db *postgres.DB, node string, log *slog.Logger) (*console.Hub, *console.Recorder) {
	hub := &console.Hub{Open: engine.OpenConsole, Claims: db, Node: node, Log: log}
	if cfg.Console.Record.Bytes == 0 {
		return hub, nil
	}
	return hub, &console.Recorder{Hub: hub, Records: db, Limit: cfg.Console.Record.Bytes, Keep: time.Duration(cfg.Console.Keep), Log: log}
}
