package main

import (
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/bareyard/bareyard/lab"
)

// The configuration that the lab writes for its server is one that the server takes, every key of it.
func TestLabConfigIsRight(t *testing.T) {
	const file = "../../lab/testdata/serve.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(file, text)
	if err != nil {
		t.Fatal(err)
	}
	if c.Boot.Interface != "prov0" || c.Boot.Address != lab.Controller || c.Edge.Netns != "by-edge" || c.Ports.Netns != "by-fabric" || len(c.Edge.Deny) != 2 {
		t.Errorf("configuration: %+v", c)
	}
}

// The detached lab must be the one that was asked for: what up is told, run is told.
func TestLabRunGetsWhatUpGot(t *testing.T) {
	parse := func(args []string) commands {
		t.Helper()
		var cli commands
		parser, err := kong.New(&cli)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err != nil {
			t.Fatal(err)
		}
		return cli
	}
	up := parse(strings.Fields("lab up --dir /x --name z --cards 8 --missing n2 --kernel k --ramdisk r --validator v")).Lab.Up
	run := parse(up.arguments()).Lab.Run
	if run.labShape != up.labShape || up.Cards != 8 || up.Checker != "v" {
		t.Errorf("up: %+v, run: %+v", up.labShape, run.labShape)
	}
	cfg, err := run.config(nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Machines[1].Absent != 1 || cfg.Machines[0].Absent != 0 || cfg.Machines[2].Cards != 8 {
		t.Errorf("machines: %+v", cfg.Machines)
	}
}
