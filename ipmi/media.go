package ipmi

import (
	"context"
	"net/url"
	"strings"
)

// Media is a virtual drive of a BMC.
type Media struct {
	ID       string
	Types    []string // CD, DVD, USBStick, Floppy
	Inserted bool
	Image    string // URL, without credentials; "" where none or not told
}

// Media lists the virtual drives. IPMI has none: ErrUnsupported.
func (c *Controller) Media(ctx context.Context, t Target) ([]Media, error) {
	var out []Media
	err := c.read(ctx, t, "list virtual media", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() error {
			out = nil
			drives, err := l.drives(ctx)
			for _, d := range drives {
				out = append(out, d.Media)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// InsertMedia puts the image at address (an http or https URL) into a virtual CD drive that is empty or holds the same image, and
// returns nil only when the BMC shows it there. The BMC fetches it by itself; the URL must not hold credentials.
func (c *Controller) InsertMedia(ctx context.Context, t Target, address string) (Media, error) {
	var m Media
	err := c.operate(ctx, t, "insert virtual media", func(ctx context.Context, l *link) (err error) {
		m, err = l.insert(ctx, address)
		return err
	})
	if err != nil {
		return Media{}, err
	}
	return m, nil
}

// EjectMedia empties every virtual drive that holds something, and looks that it is so.
func (c *Controller) EjectMedia(ctx context.Context, t Target) error {
	return c.operate(ctx, t, "eject virtual media", func(ctx context.Context, l *link) error { return l.eject(ctx) })
}

// BootMedia inserts the image at address and starts or restarts the host from it, once. Eject it when the machine was seen.
func (c *Controller) BootMedia(ctx context.Context, t Target, address string, uefi bool) error {
	return c.operate(ctx, t, "boot from virtual media", func(ctx context.Context, l *link) error {
		if _, err := l.insert(ctx, address); err != nil {
			return err
		}
		return l.bootFrom(ctx, DeviceMedia, uefi)
	})
}

func checkImage(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return failf(ErrUnsupported, "the image is not at an http or https URL")
	case u.User != nil:
		return failf(ErrUnsupported, "the image's URL holds credentials, which the BMC would show")
	}
	return nil
}

// isCD reports whether a machine can boot from the drive as from a CD. One that does not say what it is is taken for one.
func (m Media) isCD() bool {
	if len(m.Types) == 0 {
		return true
	}
	for _, t := range m.Types {
		if t == "CD" || t == "DVD" {
			return true
		}
	}
	return false
}

// shownImage is an image's URL without the credentials that somebody may have put into it.
func shownImage(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return strings.TrimSpace(address)
	}
	u.User = nil
	return u.String()
}
