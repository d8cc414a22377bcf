package ipmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// biosRequest is a change that was asked for.
type biosRequest struct {
	job  string // path of the BMC's job or task; may be empty
	want map[string]any
}

// bios reads the settings and what waits for the next start.
func (l *link) bios(ctx context.Context) (BIOS, error) {
	b, _, err := l.readBIOS(ctx)
	return b, err
}

func (l *link) readBIOS(ctx context.Context) (b BIOS, bios resource, err error) {
	system, err := l.rfSystem(ctx)
	if err != nil {
		return b, bios, err
	}
	b.Version = system.body.text("BiosVersion")
	if bios, err = follow(ctx, turns{l}, system.body, "Bios"); err != nil {
		return b, bios, err
	}
	b.Attributes = attributes(bios.body)
	if len(b.Attributes) == 0 {
		return b, bios, failf(ErrUnsupported, "it shows no BIOS settings")
	}
	settings := settingsPath(bios.body)
	if settings == "" {
		return b, bios, nil
	}
	pending, err := turns{l}.get(ctx, settings)
	if isAny(err, ErrUnsupported) {
		return b, bios, nil
	}
	if err != nil {
		return b, bios, err
	}
	b.Pending = map[string]any{}
	for name, value := range attributes(pending.body) {
		if is, ok := b.Attributes[name]; ok && !sameValue(is, value) {
			b.Pending[name] = value
		}
	}
	return b, bios, nil
}

// attributes is the settings that have a value: those that are passwords show none.
func attributes(o object) map[string]any {
	out := map[string]any{}
	for name, raw := range o.obj("Attributes") {
		var v any
		if json.Unmarshal(raw, &v) != nil {
			continue
		}
		name = clean(name)
		switch v := v.(type) {
		case string:
			out[name] = clean(v)
		case bool:
			out[name] = v
		case float64:
			if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
				out[name] = int64(v)
			} else {
				out[name] = v
			}
		}
	}
	return out
}

func (l *link) setBIOS(ctx context.Context, want map[string]any) (BIOSChange, error) {
	b, bios, err := l.readBIOS(ctx)
	if err != nil {
		return BIOSChange{}, err
	}
	if b.Holds(want) {
		return BIOSChange{State: BIOSApplied}, nil
	}
	wrong := compareBIOS(b.Attributes, want)
	rules, err := l.biosRules(ctx, bios.body.str("AttributeRegistry"))
	if err != nil {
		return BIOSChange{}, err
	}
	send := map[string]any{}
	for _, d := range wrong {
		now, ok := b.Attributes[d.Path]
		if !ok {
			return BIOSChange{}, failf(ErrUnsupported, "there is no BIOS setting %s", clip(d.Path, 100))
		}
		value, ok := asType(want[d.Path], now)
		if !ok {
			return BIOSChange{}, failf(ErrUnsupported, "BIOS setting %s cannot be %s: it is a %s", d.Path, clip(d.Is, 100), typeName(now))
		}
		if err := rules[d.Path].allows(d.Path, value); err != nil {
			return BIOSChange{}, err
		}
		send[d.Path] = value
	}
	for name, value := range want { // what waits for the next start would undo what holds now
		if waiting, ok := b.Pending[name]; ok && !sameValue(waiting, value) {
			send[name], _ = asType(value, b.Attributes[name])
		}
	}
	if err := l.sendBIOS(ctx, bios, send, len(compareBIOS(b.Pending, send)) == 0); err != nil {
		return BIOSChange{}, err
	}
	l.b.asked.Store(&biosRequest{job: l.b.job(), want: want})
	return l.checkBIOS(ctx, want)
}

func typeName(v any) string {
	switch v.(type) {
	case bool:
		return "boolean"
	case int64, float64:
		return "number"
	}
	return "text"
}

// sendBIOS PATCHes the settings, unless they wait already, and makes the job without which Dell leaves them where they are.
func (l *link) sendBIOS(ctx context.Context, bios resource, send map[string]any, waiting bool) error {
	path := settingsPath(bios.body)
	if path == "" {
		path = bios.path
	}
	if !waiting {
		l.b.keepJob("")
		if err := l.redfish(ctx, func(c *rfConn) error {
			settings, err := c.get(ctx, path)
			if err != nil {
				return err
			}
			a, err := c.change(ctx, settings, map[string]any{"Attributes": send})
			if err != nil {
				return l.refusedSettings(a, err, send)
			}
			l.b.keepJob(taskPath(a))
			return nil
		}); err != nil {
			return err
		}
	}
	if l.b.job() != "" {
		return nil
	}
	manager, err := l.rfManager(ctx)
	if err != nil {
		if isAny(err, ErrUnsupported) {
			return nil
		}
		return err
	}
	jobs := manager.body.obj("Links").obj("Oem").obj("Dell").obj("Jobs").str("@odata.id")
	if !strings.HasPrefix(jobs, "/") {
		return nil
	}
	return l.redfish(ctx, func(c *rfConn) error {
		a, err := c.post(ctx, jobs, map[string]string{"TargetSettingsURI": path}, rfAnswer{})
		switch {
		case err != nil:
			return err
		case waiting && a.status == http.StatusBadRequest: // there is a job already
			return nil
		case !a.ok():
			return l.refusedSettings(a, a.refusal(), send)
		}
		l.b.keepJob(taskPath(a))
		return nil
	})
}

// refusedSettings is a refusal with the names of the settings that were sent, and the BMC's own words: none of the settings is a password, and
// ours is taken out.
func (l *link) refusedSettings(a rfAnswer, err error, send map[string]any) error {
	var f *failure
	if !errors.As(err, &f) || f.status == 0 || f.kind != ErrUnsupported {
		return err
	}
	var words []string
	for _, m := range a.messages() {
		if text := strings.TrimSpace(m.str("MessageId") + " " + m.str("Message")); text != "" {
			words = append(words, clip(text, 200))
		}
	}
	f.detail = fmt.Sprintf("it refuses %s: HTTP %d", clip(strings.Join(slices.Sorted(maps.Keys(send)), ", "), 300), f.status)
	if len(words) > 0 {
		f.detail += ": " + clip(l.scrub(strings.Join(words, "; ")), 500)
	}
	return f
}

// taskPath is the task or job in an answer: a relative or an absolute Location, or the body of a Task.
func taskPath(a rfAnswer) string {
	if u, err := url.Parse(a.header.Get("Location")); err == nil && strings.HasPrefix(u.Path, "/") {
		return u.Path
	}
	if p := a.body.str("@odata.id"); a.status == http.StatusAccepted && strings.HasPrefix(p, "/") {
		return p
	}
	return ""
}

// checkBIOS judges by the settings themselves: a job that says that it is done proves nothing, and one that is gone neither.
func (l *link) checkBIOS(ctx context.Context, want map[string]any) (BIOSChange, error) {
	b, _, err := l.readBIOS(ctx)
	if err != nil {
		return BIOSChange{}, err
	}
	change := BIOSChange{State: BIOSApplied, Wrong: compareBIOS(b.Attributes, want)}
	asked := l.b.asked.Load()
	if asked != nil && len(compareBIOS(asked.want, want)) > 0 {
		asked = nil // another set
	}
	if asked != nil && asked.job != "" {
		change.Job = asked.job
	}
	if len(change.Wrong) == 0 {
		return change, nil
	}
	waiting := true
	for _, d := range change.Wrong {
		waiting = waiting && sameValue(b.Pending[d.Path], want[d.Path])
	}
	change.State = BIOSDiffers
	switch {
	case waiting && b.Pending != nil:
		change.State = BIOSPending
	case asked != nil:
		change.State, change.Text = BIOSFailed, "the BMC took the settings and does not keep them"
	}
	if change.Job == "" {
		return change, nil
	}
	task, err := l.task(ctx, change.Job)
	switch {
	case err != nil:
		return change, err
	case task.failed:
		change.State, change.Text = BIOSFailed, task.text
	case task.gone:
		change.Text = "the BMC no longer knows the job"
	case task.done && change.State != BIOSPending:
		change.State, change.Text = BIOSFailed, "the BMC says that the job is done, and the settings do not hold"
	case !task.done:
		change.State, change.Text = BIOSPending, task.text
	}
	return change, nil
}

// rfTask is what a task or job says of itself.
type rfTask struct {
	done, failed, gone bool
	text               string
}

// Ends of a task, and of a Dell job, other than that it succeeded.
var taskFailures = []string{"Exception", "Killed", "Cancelled", "Interrupted", "Failed", "CompletedWithErrors", "RebootFailed", "Invalid"}

func (l *link) task(ctx context.Context, path string) (rfTask, error) {
	r, err := turns{l}.get(ctx, path)
	if isAny(err, ErrUnsupported) {
		return rfTask{gone: true}, nil
	}
	if err != nil {
		return rfTask{}, err
	}
	t := parseTask(r.body)
	t.text = l.scrub(t.text)
	return t, nil
}

// parseTask reads a task: success is Completed and OK. Completed at 100 % with another status is a failure that some BMCs word so.
func parseTask(o object) rfTask {
	state, status := o.str("TaskState"), o.str("TaskStatus")
	if state == "" {
		state = o.str("JobState")
	}
	t := rfTask{text: fmt.Sprintf("the job is %s", clip(strings.TrimSpace(state+" "+status), 100))}
	for _, m := range append(o.objs("Messages"), o) {
		if id := m.str("MessageId"); id != "" {
			t.text += ", " + clip(id, 100)
		}
	}
	t.failed = slices.Contains(taskFailures, state) || state == "Completed" && status != "" && status != "OK"
	t.done = t.failed || state == "Completed"
	return t
}

// biosRule is what a registry says of a setting. The zero value allows everything.
type biosRule struct {
	readOnly     bool
	values       []string
	lower, upper *float64
}

func (r biosRule) allows(name string, value any) error {
	n, number := value.(int64)
	switch {
	case r.readOnly:
		return failf(ErrUnsupported, "BIOS setting %s is read-only", name)
	case len(r.values) > 0 && !slices.Contains(r.values, valueText(value)):
		return failf(ErrUnsupported, "BIOS setting %s cannot be %s: it can be %s", name, clip(valueText(value), 100), clip(strings.Join(r.values, ", "), 300))
	case number && r.lower != nil && float64(n) < *r.lower, number && r.upper != nil && float64(n) > *r.upper:
		return failf(ErrUnsupported, "BIOS setting %s cannot be %d: it is out of range", name, n)
	}
	return nil
}

// biosRules reads the attribute registry. A service without one leaves it to the PATCH.
func (l *link) biosRules(ctx context.Context, registry string) (map[string]biosRule, error) {
	if registry == "" {
		return nil, nil
	}
	root, err := l.rfRoot(ctx)
	if err != nil {
		return nil, err
	}
	list := root.obj("Registries").str("@odata.id")
	if list == "" {
		return nil, nil
	}
	g := turns{l}
	file, err := g.get(ctx, strings.TrimRight(list, "/")+"/"+url.PathEscape(registry))
	if err == nil {
		for _, at := range file.body.objs("Location") {
			if uri := at.str("Uri"); strings.HasPrefix(uri, "/") {
				if file, err = g.get(ctx, uri); err == nil {
					return parseRules(file.body), nil
				}
				break
			}
		}
	}
	if err == nil || isAny(err, ErrUnsupported) {
		return nil, nil
	}
	return nil, err
}

func parseRules(registry object) map[string]biosRule {
	out := map[string]biosRule{}
	for _, a := range registry.obj("RegistryEntries").objs("Attributes") {
		r := biosRule{readOnly: a.flag("ReadOnly", false)}
		if strings.EqualFold(a.str("Type"), "Enumeration") {
			for _, v := range a.objs("Value") {
				if name := v.text("ValueName"); name != "" {
					r.values = append(r.values, name)
				}
			}
		}
		if f, ok := a.number("LowerBound"); ok {
			r.lower = &f
		}
		if f, ok := a.number("UpperBound"); ok && f > 0 {
			r.upper = &f
		}
		if name := a.str("AttributeName"); name != "" {
			out[name] = r
		}
	}
	return out
}
