package ipmi

import (
	"context"
	"errors"
	"net/http"
)

// drive is a virtual drive and its resource.
type drive struct {
	Media
	resource
	full string // the image as the BMC shows it
}

// drives lists the virtual drives, which are under the system or under its BMC.
func (l *link) drives(ctx context.Context) ([]drive, error) {
	var out []drive
	var last error
	for _, of := range []func(context.Context) (resource, error){l.rfSystem, l.rfManager} {
		owner, err := of(ctx)
		list := owner.body.obj("VirtualMedia").str("@odata.id")
		if err == nil && list != "" {
			_, err = each(ctx, turns{l}, list, 16, func(r resource) bool {
				out = append(out, parseDrive(r))
				return true
			})
		}
		if err != nil && !isAny(err, ErrUnsupported) || l.t.Protocol == IPMI {
			return nil, err
		}
		if err != nil {
			last = err
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	if last != nil {
		return nil, last
	}
	return nil, failf(ErrUnsupported, "it has no virtual media")
}

func parseDrive(r resource) drive {
	d := drive{resource: r, Media: Media{ID: r.body.text("Id")}, full: r.body.str("Image")}
	d.Types, _ = r.body.strs("MediaTypes")
	d.Image = shownImage(d.full)
	d.Inserted = r.body.flag("Inserted", d.full != "")
	return d
}

// insert puts an image into the first CD drive that is free, and looks until the BMC shows it there.
func (l *link) insert(ctx context.Context, address string) (Media, error) {
	if err := checkImage(address); err != nil {
		return Media{}, err
	}
	drives, err := l.drives(ctx)
	if err != nil {
		return Media{}, err
	}
	var free *drive
	cds := 0
	for i, d := range drives {
		if d.isCD() {
			cds++
		}
		if d.Inserted && d.full == address && d.isCD() {
			return d.Media, nil
		}
		if d.isCD() && !d.Inserted && free == nil {
			free = &drives[i]
		}
	}
	switch {
	case cds == 0:
		return Media{}, failf(ErrUnsupported, "it has no virtual CD drive")
	case free == nil:
		return Media{}, failf(ErrBusy, "no free virtual CD drive")
	}
	// The shortest request first: some services refuse what others demand.
	if err := l.changeDrive(ctx, *free, "#VirtualMedia.InsertMedia", []map[string]any{
		{"Image": address}, {"Image": address, "Inserted": true, "WriteProtected": true},
		{"Image": address, "Inserted": true, "WriteProtected": true, "TransferMethod": "Stream", "TransferProtocolType": protocolOf(address)},
	}, map[string]any{"Image": address, "Inserted": true}); err != nil && !mayHaveArrived(err) {
		return Media{}, err
	}
	return l.watchDrive(ctx, free.path, func(d drive) bool { return d.Inserted && (d.full == address || d.full == "") })
}

func protocolOf(address string) string {
	if len(address) > 5 && address[:5] == "https" {
		return "HTTPS"
	}
	return "HTTP"
}

// eject empties the drives, each whatever becomes of the others. A drive that is full and cannot be emptied is never ErrUnsupported, which says that
// there is none to empty.
func (l *link) eject(ctx context.Context) error {
	drives, err := l.drives(ctx)
	if err != nil {
		return err
	}
	var first error
	for _, d := range drives {
		if !d.Inserted {
			continue
		}
		err := l.changeDrive(ctx, d, "#VirtualMedia.EjectMedia", []map[string]any{{}}, map[string]any{"Image": nil, "Inserted": false})
		if err == nil || mayHaveArrived(err) {
			_, err = l.watchDrive(ctx, d.path, func(d drive) bool { return !d.Inserted })
		}
		if f := (*failure)(nil); errors.As(err, &f) && f.kind == ErrUnsupported {
			err = &failure{kind: ErrBusy, detail: "a disc is in a drive and does not come out: " + f.detail, status: f.status, sent: f.sent}
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// changeDrive uses the drive's action, with one body after the other as long as the service finds fault with it, or where there is no such action
// changes the drive's properties.
func (l *link) changeDrive(ctx context.Context, d drive, action string, bodies []map[string]any, properties map[string]any) error {
	target := d.body.obj("Actions").obj(action).str("target")
	return l.redfish(ctx, func(c *rfConn) error {
		if target == "" {
			r, err := c.get(ctx, d.path)
			if err == nil {
				_, err = c.change(ctx, r, properties)
			}
			return err
		}
		var a rfAnswer
		for _, body := range bodies {
			var err error
			if a, err = c.post(ctx, target, body, d.rfAnswer); err != nil || a.ok() {
				return err
			}
			if a.status != http.StatusBadRequest {
				break
			}
		}
		return a.refusal()
	})
}

// watchDrive reads a drive until it is as wanted: a BMC fetches an image after it said yes.
func (l *link) watchDrive(ctx context.Context, path string, want func(drive) bool) (Media, error) {
	for failed, read := 0, false; ; {
		r, err := turns{l}.get(ctx, path)
		d := parseDrive(r)
		switch {
		case err == nil && want(d):
			return d.Media, nil
		case err == nil:
			failed, read = 0, true
		case !transient(err) && ctx.Err() == nil:
			return Media{}, err
		default:
			failed++
		}
		if l.c.pause(ctx, failed, err) {
			continue
		}
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return Media{}, over(ctx)
		case err != nil && (failed > 1 || !read || ctx.Err() == nil): // a single one is what the deadline cut short
			return Media{}, orOver(ctx, err)
		}
		return Media{}, &failure{kind: ErrLied, detail: "the drive does not show it", cause: ctx.Err()}
	}
}
