package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bareyard/bareyard/api"
	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

type classBIOS struct {
	remote
	Name   string   `arg:"" help:"The class."`
	Set    []string `sep:"none" placeholder:"NAME=VALUE" help:"A setting that its machines shall have, by the BMC's name of it. Repeat for more."`
	Unset  []string `sep:"none" placeholder:"NAME" help:"Take a setting off the profile; machines keep it as it is. Repeat for more."`
	Policy string   `placeholder:"quarantine|warn" help:"What becomes of a machine that does not take them: it is kept out of stock, or its events say so (default: quarantine)."`
}

// Run shows or changes the profile of a class.
func (k *classBIOS) Run(ctx context.Context, t *terminal) error {
	return k.call(ctx, func(ctx context.Context, c *client.Client) error {
		p, err := c.ClassBIOS(ctx, k.Name)
		if err != nil {
			return err
		}
		if len(k.Set) > 0 || len(k.Unset) > 0 || k.Policy != "" {
			if err := k.change(&p); err != nil {
				return err
			}
			if p, err = c.PutClassBIOS(ctx, k.Name, api.NewBIOSProfile{Attributes: p.Attributes, Policy: p.Policy}); err != nil {
				return err
			}
		}
		return k.show(t, p, func(w io.Writer) {
			if len(p.Attributes) == 0 {
				fmt.Fprintf(w, "class %s has no BIOS profile: --set NAME=VALUE makes one\n", k.Name)
				return
			}
			fmt.Fprintln(w, "SETTING\tSHOULD BE")
			for _, name := range slices.Sorted(maps.Keys(p.Attributes)) {
				fmt.Fprintf(w, "%s\t%s\n", name, ipmi.BIOSText(p.Attributes[name]))
			}
			fmt.Fprintf(w, "policy\t%s\n", p.Policy)
		})
	})
}

// change makes the profile as the flags have it.
func (k *classBIOS) change(p *machine.BIOSProfile) error {
	if p.Attributes == nil {
		p.Attributes = map[string]any{}
	}
	for _, name := range k.Unset {
		if _, ok := p.Attributes[name]; !ok {
			return &machine.Error{Code: machine.Invalid, Field: "unset", Message: fmt.Sprintf("the profile of class %s has no setting %s", k.Name, name), Hint: fmt.Sprintf("`bareyard class bios %s` lists them", k.Name)}
		}
		delete(p.Attributes, name)
	}
	for _, text := range k.Set {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return &machine.Error{Code: machine.Invalid, Field: "set", Message: fmt.Sprintf("%q is no setting with a value", text), Hint: "write it as NAME=VALUE, e.g. --set SriovEnable=Enabled"}
		}
		if slices.Contains(k.Unset, name) {
			return &machine.Error{Code: machine.Invalid, Field: "set", Message: fmt.Sprintf("%s is both set and unset", name), Hint: "give one of the two"}
		}
		p.Attributes[name] = settingValue(value)
	}
	if k.Policy != "" {
		if len(p.Attributes) == 0 {
			return &machine.Error{Code: machine.Invalid, Field: "policy", Message: fmt.Sprintf("class %s has no BIOS profile for a policy to be about", k.Name), Hint: "give --set NAME=VALUE with it"}
		}
		p.Policy = machine.BIOSPolicy(k.Policy)
	}
	return nil
}

// settingValue gives a value the type that it looks like. The BMC's own type decides in the end.
func settingValue(text string) any {
	switch text {
	case "true":
		return true
	case "false":
		return false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text {
		return n
	}
	return text
}

type machineBIOS struct {
	oneMachine
	All   bool `xor:"do" help:"Those settings too that its class says nothing of."`
	Apply bool `xor:"do" help:"Give a machine that nobody holds the settings of its class: set, started into the RAM disk, read back."`
	Wait  bool `help:"With --apply: wait for the result; exit 4 when they do not hold."`
}

// Run shows the firmware's settings, or begins to set them.
func (m *machineBIOS) Run(ctx context.Context, t *terminal) error {
	return m.call(ctx, func(ctx context.Context, c *client.Client) error {
		if m.Apply {
			return m.apply(ctx, t, c)
		}
		b, err := c.MachineBIOS(ctx, m.Machine, m.All)
		if err != nil {
			return err
		}
		return m.show(t, b, func(w io.Writer) { showBIOS(w, b) })
	})
}

func (m *machineBIOS) apply(ctx context.Context, t *terminal, c *client.Client) error {
	j, err := c.ApplyBIOS(ctx, m.Machine)
	if err != nil {
		return err
	}
	if !m.Wait {
		return m.tell(t, j, "job %s sets the BIOS settings of machine %s, starts it and reads them back; `bareyard machine show %s` has what comes of it", j.ID, m.Machine, m.Machine)
	}
	if j, err = ended(ctx, c, j); err != nil {
		return err
	}
	if j.State != machine.JobSucceeded || j.Finding != "" {
		return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("job %s %s: %s", j.ID, j.State, strings.TrimSpace(j.Reason+" "+j.Finding)), Hint: fmt.Sprintf("`bareyard machine show %s` has what happened", m.Machine)}
	}
	b, err := c.MachineBIOS(ctx, m.Machine, false) // where the class only warns, the job succeeds all the same
	if err != nil {
		return err
	}
	for _, s := range b.Settings {
		if s.State != provisioner.SettingRight {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("BIOS setting %s is %s, the class wants %s", s.Name, dash(s.Is), s.Want), Hint: fmt.Sprintf("`bareyard machine show %s` has what happened", m.Machine)}
		}
	}
	return m.tell(t, j, "machine %s has the BIOS settings of its class", m.Machine)
}

func showBIOS(w io.Writer, b provisioner.MachineBIOS) {
	if len(b.Settings) == 0 {
		fmt.Fprintf(w, "class %s wants no BIOS settings; --all lists what %s has\n", b.Class, b.Machine)
		return
	}
	fmt.Fprintln(w, "SETTING\tIS\tSHOULD BE\tAFTER RESTART\tSTATE")
	for _, s := range b.Settings {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, dash(s.Is), dash(s.Want), dash(s.Pending), dash(string(s.State)))
	}
}
