package ipmi

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	rfLogEntries = 5000 // of a log that are looked at
	rfMessage    = 1000 // bytes of a message that are kept
)

// rfLogs is the names of the logs that tell of the machine's hardware, best first: that of the standard, Dell, HPE, OpenBMC, Supermicro.
var rfLogs = []string{"SEL", "Sel", "IML", "EventLog", "Log1", "Log"}

// logService is the hardware event log. Where it is is remembered.
func (l *link) logService(ctx context.Context) (resource, error) {
	if path := l.b.log.Load(); path != nil {
		log, err := turns{l}.get(ctx, *path)
		if !isAny(err, ErrUnsupported) {
			return log, err
		}
	}
	log, err := l.findLog(ctx)
	if err == nil {
		l.b.log.Store(&log.path)
	}
	return log, err
}

func (l *link) findLog(ctx context.Context) (resource, error) {
	g := turns{l}
	var candidates []resource
	for _, of := range []func(context.Context) (resource, error){l.rfSystem, l.rfManager} {
		owner, err := of(ctx)
		if err != nil {
			if isAny(err, ErrUnsupported) {
				continue
			}
			return resource{}, err
		}
		list := owner.body.obj("LogServices").str("@odata.id")
		if list == "" {
			continue
		}
		if _, err := each(ctx, g, list, 32, func(r resource) bool {
			candidates = append(candidates, r)
			return true
		}); err != nil && !isAny(err, ErrUnsupported) {
			return resource{}, err
		}
	}
	best, at := -1, len(rfLogs)
	for i, r := range candidates {
		rank := slices.Index(rfLogs, r.body.text("Id"))
		if r.body.str("LogEntryType") == "SEL" && (rank < 0 || rank > 0) {
			rank = 1
		}
		if rank >= 0 && rank < at {
			best, at = i, rank
		}
	}
	if best < 0 {
		return resource{}, failf(ErrUnsupported, "it shows no hardware event log")
	}
	return candidates[best], nil
}

// rfEntry is a log entry and its place in the order of the log.
type rfEntry struct {
	Event
	number int64 // of its Id, or -1
	mark   string
}

func (e rfEntry) before(o rfEntry) int {
	if e.number >= 0 && o.number >= 0 && e.number != o.number {
		return int(max(-1, min(1, e.number-o.number)))
	}
	return e.At.Compare(o.At)
}

// rfEvents reads the log from its end to the cursor. Services show it in either order; one that shows the newest first is not read further
// than needed.
func (l *link) rfEvents(ctx context.Context, cursor string, limit int) (EventPage, error) {
	page := EventPage{Cursor: cursor}
	log, err := l.logService(ctx)
	if err != nil {
		return page, err
	}
	page.Full = log.body.flag("Overflow", false)
	entries := log.body.obj("Entries").str("@odata.id")
	if entries == "" {
		return page, failf(ErrUnsupported, "its event log has no Entries")
	}
	var list []rfEntry
	found := false
	more, err := each(ctx, turns{l}, entries, rfLogEntries, func(r resource) bool {
		e := parseLogEntry(r.body)
		e.Message = l.scrub(e.Message)
		list = append(list, e)
		found = found || e.mark == cursor
		newestFirst := len(list) > 1 && list[0].before(e) > 0
		return !found || !newestFirst
	})
	if err != nil {
		return page, err
	}
	slices.SortStableFunc(list, rfEntry.before)
	if cursor != "" {
		at := slices.IndexFunc(list, func(e rfEntry) bool { return e.mark == cursor })
		page.Reset = at < 0
		list = list[at+1:]
		if page.Reset {
			page.Cursor = ""
		}
	}
	if page.More = len(list) > limit; page.More {
		list = list[:limit]
	}
	for _, e := range list {
		page.Events = append(page.Events, e.Event)
		page.Cursor = e.mark
	}
	page.Full = page.Full || more
	return page, nil
}

var rfSeverities = map[string]Severity{"ok": OK, "warning": Warning, "critical": Critical}

func parseLogEntry(o object) rfEntry {
	id := o.text("Id")
	e := rfEntry{number: -1, Event: Event{ID: id, Severity: Unclear, Sensor: o.text("SensorNumber"), Kind: strings.ToLower(o.str("SensorType")), Message: o.text("Message")}}
	if n, err := strconv.ParseInt(id, 10, 64); err == nil && n >= 0 {
		e.number = n
	}
	if s, ok := rfSeverities[strings.ToLower(o.str("Severity"))]; ok {
		e.Severity = s
	}
	for _, field := range []string{"EventTimestamp", "Created"} {
		if at, err := time.Parse(time.RFC3339, o.str(field)); err == nil && at.Year() > 1980 {
			e.At = at.UTC()
			break
		}
	}
	e.Cleared = strings.HasPrefix(o.str("EntryCode"), "Deassert") || o.flag("Resolved", false)
	e.Message = clip(e.Message, rfMessage)
	if e.Cleared && e.Severity != Unclear {
		e.Severity = OK
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00%s", id, o.str("Created"), e.Message)
	e.mark = fmt.Sprintf("redfish:%x", h.Sum64())
	return e
}

// scrub takes our password out of a text that the BMC wrote: some log the requests that they get.
func (l *link) scrub(text string) string {
	if len(l.t.Password) < 6 { // it would be found in words
		return text
	}
	return strings.ReplaceAll(text, l.t.Password, "•••")
}

// clip cuts text to n bytes, between characters, and makes it printable.
func clip(text string, n int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xc0 == 0x80 {
		n--
	}
	return text[:n]
}

func (l *link) rfClear(ctx context.Context) error {
	log, err := l.logService(ctx)
	if err != nil {
		return err
	}
	target := log.body.obj("Actions").obj("#LogService.ClearLog").str("target")
	if target == "" {
		return failf(ErrUnsupported, "its event log cannot be cleared")
	}
	if err := l.redfish(ctx, func(c *rfConn) error {
		a, err := c.post(ctx, target, map[string]any{}, log.rfAnswer)
		if err == nil && a.status == http.StatusBadRequest { // it wants no body at all
			a, err = c.post(ctx, target, nil, log.rfAnswer)
		}
		if err == nil && !a.ok() {
			err = a.refusal()
		}
		return err
	}); err != nil {
		return err
	}
	page, err := l.rfEvents(ctx, "", 10)
	if err == nil && len(page.Events) > 1 { // one may say that it was cleared
		return failf(ErrLied, "events are still there")
	}
	return err
}
