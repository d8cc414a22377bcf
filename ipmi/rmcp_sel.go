package ipmi

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/command/storage"
	"github.com/bougou/go-ipmi/pkg/types"
)

const (
	selFirst  = 0x0000
	selEnd    = 0xffff
	selRecord = 16
	// selInit is the time before which a timestamp counts seconds since the BMC started (IPMI 2.0 section 37).
	selInit = 0x20000000
)

// selCursor is the last record that was read: its ID, and a fingerprint, because IDs begin anew when the log is cleared.
func selCursor(record []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(record)
	return fmt.Sprintf("sel:%d:%x", uint16(record[0])|uint16(record[1])<<8, h.Sum64())
}

// rmcpEvents reads the log behind a cursor, one record at a time, so that others can speak to the BMC in between.
func (l *link) rmcpEvents(ctx context.Context, cursor string, limit int) (EventPage, error) {
	page := EventPage{Cursor: cursor}
	var info *storage.GetSELInfoResponse
	if err := l.ipmi(ctx, func(r *rmcpConn) (err error) {
		info, err = ask(ctx, r, r.c.GetSELInfo)
		return err
	}); err != nil {
		return page, err
	}
	page.Full = info.OperationSupport.Overflow
	next := uint16(selFirst)
	if cursor != "" {
		after, known, err := l.selAfter(ctx, cursor, info.Entries)
		if err != nil {
			return page, err
		}
		if next = after; !known {
			page.Reset, page.Cursor = true, ""
		}
	}
	if info.Entries == 0 || next == selEnd {
		return page, nil
	}
	for seen := map[uint16]bool{}; next != selEnd && !seen[next]; {
		if len(page.Events) == limit {
			page.More = true
			break
		}
		seen[next] = true
		record, after, err := l.selEntry(ctx, next)
		switch {
		case errors.Is(err, ErrUnsupported) && next == selFirst: // emptied meanwhile
			return page, nil
		case err != nil:
			return page, err
		}
		page.Events = append(page.Events, parseSEL(record, l.sensorName))
		page.Cursor = selCursor(record)
		next = after
	}
	return page, nil
}

// selAfter is the record that follows the cursor; known is false when the cursor's record is not there any more.
func (l *link) selAfter(ctx context.Context, cursor string, entries uint16) (next uint16, known bool, err error) {
	parts := strings.Split(cursor, ":")
	id := 0
	if len(parts) == 3 && parts[0] == "sel" {
		id, _ = strconv.Atoi(parts[1])
	}
	if id <= selFirst || id >= selEnd {
		return selFirst, false, nil
	}
	if entries == 0 {
		return selFirst, false, nil
	}
	record, after, err := l.selEntry(ctx, uint16(id))
	switch {
	case errors.Is(err, ErrUnsupported), err == nil && selCursor(record) != cursor:
		return selFirst, false, nil
	case err != nil:
		return selFirst, false, err
	}
	return after, true, nil
}

func (l *link) selEntry(ctx context.Context, id uint16) (record []byte, next uint16, err error) {
	err = l.ipmi(ctx, func(r *rmcpConn) error {
		res, err := ask(ctx, r, func(ctx context.Context) (*storage.GetSELEntryResponse, error) {
			res := &storage.GetSELEntryResponse{}
			return res, r.c.Exchange(ctx, &storage.GetSELEntryRequest{RecordID: id, ReadBytes: 0xff}, res)
		})
		if err != nil {
			return err
		}
		if len(res.Data) != selRecord {
			return failf(ErrUnsupported, "an event of %d bytes", len(res.Data))
		}
		record, next = res.Data, res.NextRecordID
		return nil
	})
	return record, next, err
}

// rmcpClear empties the log and waits until the BMC has done it.
func (l *link) rmcpClear(ctx context.Context) error {
	reservation := uint16(0)
	if err := l.ipmi(ctx, func(r *rmcpConn) error {
		res, err := ask(ctx, r, r.c.ReserveSEL)
		if err == nil {
			reservation = res.ReservationID
		}
		return err
	}); err != nil && !errors.Is(err, ErrUnsupported) {
		return err
	}
	for status := false; ; status = true {
		done := false
		if err := l.ipmi(ctx, func(r *rmcpConn) error {
			res, err := ask(ctx, r, func(ctx context.Context) (*storage.ClearSELResponse, error) {
				res := &storage.ClearSELResponse{}
				return res, r.c.Exchange(ctx, &storage.ClearSELRequest{ReservationID: reservation, GetErasureStatusFlag: status}, res)
			})
			done = err == nil && res.ErasureProgressStatus&0x0f == 1
			return err
		}); err != nil {
			return err
		}
		if done {
			break
		}
		if !l.c.pause(ctx, 0, nil) {
			return over(ctx)
		}
	}
	return l.ipmi(ctx, func(r *rmcpConn) error {
		info, err := ask(ctx, r, r.c.GetSELInfo)
		if err == nil && info.Entries > 1 { // one may say that it was cleared
			return failf(ErrLied, "%d events are still there", info.Entries)
		}
		return err
	})
}

var selSeverity = map[types.EventSeverity]Severity{
	types.EventSeverityInfo: OK, types.EventSeverityOK: OK, types.EventSeverityWarning: Warning, types.EventSeverityDegraded: Warning,
	types.EventSeverityNonFatal: Warning, types.EventSeverityCritical: Critical,
}

// parseSEL reads a record of 16 bytes. Whatever is in it, it is an event.
func parseSEL(record []byte, name func(types.GeneratorID, types.SensorNumber) string) (e Event) {
	e = Event{ID: strconv.Itoa(int(record[0]) | int(record[1])<<8), Severity: Unclear, Kind: "oem", Message: fmt.Sprintf("record type %02x: % x", record[2], record[3:])}
	defer func() {
		_ = recover() // in go-ipmi's tables: what is read so far stands
		e.Kind, e.Message = clean(e.Kind), clean(e.Message)
	}()
	sel, err := types.ParseSEL(record)
	if err != nil {
		return e
	}
	switch {
	case sel.Standard != nil:
		s := sel.Standard
		e.At = selTime(record[3:7])
		e.Kind = strings.ToLower(s.SensorType.String())
		e.Sensor = name(s.GeneratorID, s.SensorNumber)
		e.Cleared = bool(s.EventDir)
		e.Message = fmt.Sprintf("%s: event type %02x, data %02x %02x %02x", s.SensorType, uint8(s.EventReadingType), s.EventData.EventData1, s.EventData.EventData2, s.EventData.EventData3)
		if sev, ok := selSeverity[s.EventSeverity()]; ok {
			e.Severity = sev
		}
		if text := s.EventString(); text != "" {
			e.Message = text
		}
		if e.Cleared {
			e.Message += " (over)"
			e.Severity = OK
		}
	case sel.OEMTimestamped != nil:
		e.At = selTime(record[3:7])
		e.Message = fmt.Sprintf("vendor %06x: % x", sel.OEMTimestamped.ManufacturerID, record[10:])
	}
	return e
}

func selTime(b []byte) time.Time {
	t := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	if t < selInit || t == 0xffffffff {
		return time.Time{}
	}
	return time.Unix(int64(t), 0).UTC()
}
