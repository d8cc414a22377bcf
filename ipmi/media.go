package ipmi

import "context"

// Media is a virtual drive of a BMC.
type Media struct {
	ID       string
	Types    []string // CD, DVD, USBStick, Floppy
	Inserted bool
	Image    string // URL, without credentials; "" where none or not told
}

// Media lists the virtual drives. IPMI has none: ErrUnsupported.
func (c *Controller) Media(ctx context.Context, t Target) ([]Media, error) {
	return nil, t.on("list virtual media", failf(ErrUnsupported, "not yet"))
}

// InsertMedia puts the image at url (http or https) into a virtual CD drive that is empty or holds the same image, and returns nil
// only when the BMC shows it there. The BMC fetches it by itself; url must not hold credentials.
func (c *Controller) InsertMedia(ctx context.Context, t Target, url string) (Media, error) {
	return Media{}, t.on("insert virtual media", failf(ErrUnsupported, "not yet"))
}

// EjectMedia empties every virtual drive that holds something, and looks that it is so.
func (c *Controller) EjectMedia(ctx context.Context, t Target) error {
	return t.on("eject virtual media", failf(ErrUnsupported, "not yet"))
}

// BootMedia inserts the image at url and starts or restarts the host from it, once. Eject it when the machine was seen.
func (c *Controller) BootMedia(ctx context.Context, t Target, url string, uefi bool) error {
	return t.on("boot from virtual media", failf(ErrUnsupported, "not yet"))
}
