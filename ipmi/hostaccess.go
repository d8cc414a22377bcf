package ipmi

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// hostSwitch is a way by which a host's own system reaches its BMC, and which can be shut.
type hostSwitch struct {
	name string
	res  resource
	open func(object) (open, told bool)
	body func(open bool) any
}

// SetHostAccess shuts, or opens, the ways that the BMC shows by which its host's own system reaches it without a password, reads each
// back, and returns the names of those that it changed, also beside an error: one that fails leaves the others as they were asked for. It
// touches those that are named, or, where only is nil, all. What is shut is what the BMC says: only the host can tell whether it is so. There is no standard
// for it but Redfish's HostInterface, which is the network card of the BMC in the host; KCS, which ipmitool uses, is each vendor's own. A
// BMC that shows none is ErrUnsupported, and so is IPMI.
func (c *Controller) SetHostAccess(ctx context.Context, t Target, open bool, only []string) (changed []string, err error) {
	doing := "shut the host's way to it"
	if open {
		doing = "open the host's way to it"
	}
	if t.Protocol != Redfish {
		return nil, t.on(doing, failf(ErrUnsupported, "IPMI has no command for it"))
	}
	tried := map[string]bool{} // of an answer that was lost it is not known whether the BMC did it
	err = c.operate(ctx, t, doing, func(ctx context.Context, l *link) error {
		return l.again(ctx, func() error {
			list, err := l.hostSwitches(ctx)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return failf(ErrUnsupported, "it shows no switch for it")
			}
			if open { // the other way round: a lock-down that is the last to be shut is the first to be opened
				slices.Reverse(list)
			}
			var failed error
			for _, s := range list {
				if only != nil && !slices.Contains(only, s.name) {
					continue
				}
				if is, _ := s.open(s.res.body); is == open {
					if tried[s.name] && !slices.Contains(changed, s.name) {
						changed = append(changed, s.name)
					}
					continue
				}
				tried[s.name] = true
				err := l.setSwitch(ctx, s, open)
				switch {
				case err == nil:
					changed = append(changed, s.name)
				case !isAny(err, ErrLied, ErrUnsupported): // the BMC, and not this way
					return err
				case failed == nil:
					failed = err
				}
			}
			return failed
		})
	})
	slices.Sort(changed)
	return changed, err
}

// setSwitch sets a switch and reads it back.
func (l *link) setSwitch(ctx context.Context, s hostSwitch, open bool) error {
	return l.redfish(ctx, func(c *rfConn) error {
		if _, err := c.change(ctx, s.res, s.body(open)); err != nil {
			return about(err, s.name)
		}
		now, err := c.get(ctx, s.res.path)
		if err != nil {
			return err
		}
		if is, told := s.open(now.body); !told || is != open {
			return failf(ErrLied, "%s reads the other way", s.name)
		}
		return nil
	})
}

// about adds the name of what was asked for to a failure.
func about(err error, name string) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	named := *f
	named.detail = strings.TrimSpace(name + " " + f.detail)
	return &named
}

// hostSwitches finds the switches that a service shows.
func (l *link) hostSwitches(ctx context.Context) ([]hostSwitch, error) {
	manager, err := l.rfManager(ctx)
	if err != nil {
		return nil, err
	}
	g := turns{l}
	var out []hostSwitch
	add := func(s hostSwitch) {
		if _, told := s.open(s.res.body); told {
			out = append(out, s)
		}
	}
	if list := manager.body.obj("HostInterfaces").str("@odata.id"); list != "" {
		_, err := each(ctx, g, list, 8, func(r resource) bool {
			add(flagSwitch("HostInterface "+r.body.text("Id"), r, true, "InterfaceEnabled"))
			return true
		})
		if err != nil && !isAny(err, ErrUnsupported) {
			return nil, err
		}
	}
	oem := manager.body.obj("Oem")
	add(flagSwitch("Lenovo KCSEnabled", manager, true, "Oem", "Lenovo", "KCSEnabled"))
	add(flagSwitch("HPE RequireHostAuthentication", manager, false, "Oem", "Hpe", "RequireHostAuthentication"))
	for _, linked := range []struct {
		from     object
		property string
		make     func(resource) hostSwitch
	}{
		{oem.obj("Supermicro"), "KCSInterface", supermicroKCS},
		{manager.body, "NetworkProtocol", func(r resource) hostSwitch {
			return flagSwitch("HPE KcsEnabled", r, true, "Oem", "Hpe", "KcsEnabled")
		}},
	} {
		r, err := follow(ctx, g, linked.from, linked.property)
		if isAny(err, ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, err
		}
		add(linked.make(r))
	}
	dell, err := l.dellLocalConfig(ctx, manager)
	if err != nil {
		return nil, err
	}
	return append(out, dell...), nil
}

// flagSwitch is a boolean at a path; opens says whether true is open.
func flagSwitch(name string, r resource, opens bool, at ...string) hostSwitch {
	last := at[len(at)-1]
	return hostSwitch{name: name, res: r,
		open: func(o object) (open, told bool) {
			for _, p := range at[:len(at)-1] {
				o = o.obj(p)
			}
			return o.flag(last, false) == opens, o.has(last)
		},
		body: func(open bool) any {
			body := map[string]any{last: open == opens}
			for _, p := range slices.Backward(at[:len(at)-1]) {
				body = map[string]any{p: body}
			}
			return body
		}}
}

// supermicroKCS is the privilege that whoever comes by KCS has: Callback may next to nothing.
func supermicroKCS(r resource) hostSwitch {
	return hostSwitch{name: "Supermicro KCSInterface", res: r,
		open: func(o object) (open, told bool) {
			p := o.str("Privilege")
			return p != "Callback" && p != "No Access", p != ""
		},
		body: func(open bool) any {
			if open {
				return map[string]any{"Privilege": "Administrator"}
			}
			return map[string]any{"Privilege": "Callback"}
		}}
}

// dellLocalConfig is iDRAC's switch for what the host's own system may configure. Enabled means that it may not. It is among the
// attributes of the manager, whose place and whose number of the group differ.
func (l *link) dellLocalConfig(ctx context.Context, manager resource) ([]hostSwitch, error) {
	places := manager.body.obj("Links").obj("Oem").obj("Dell").links("DellAttributes")
	if p := manager.body.obj("Attributes").str("@odata.id"); p != "" {
		places = append(places, p)
	}
	for _, place := range places {
		r, err := turns{l}.get(ctx, place)
		if isAny(err, ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for name := range r.body.obj("Attributes") {
			if !strings.HasPrefix(name, "LocalSecurity.") || !strings.HasSuffix(name, ".LocalConfig") {
				continue
			}
			return []hostSwitch{{name: "Dell " + clean(name), res: r,
				open: func(o object) (open, told bool) {
					v := o.obj("Attributes").str(name)
					return v != "Enabled", v != ""
				},
				body: func(open bool) any {
					value := "Enabled"
					if open {
						value = "Disabled"
					}
					return map[string]any{"Attributes": map[string]any{name: value}}
				}}}, nil
		}
	}
	return nil, nil
}

// rfHostAccessFacts reads how the host may reach its BMC.
func (l *link) rfHostAccessFacts(ctx context.Context, b *Baseline) error {
	list, err := l.hostSwitches(ctx)
	for _, s := range list {
		text := "shut"
		if open, _ := s.open(s.res.body); open {
			text = "open"
		}
		b.fact(text, subjectServices, "host-access", s.name)
	}
	return err
}
