package ipmi

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Baseline is what a tenant could have changed about a machine through its BMC, as one value to keep and to compare: users and
// their privileges, LAN, boot order and override, virtual media, SNMP, SSH and other services, certificate, firmware
// versions, BIOS settings. It holds no password and nothing that changes by itself. encoding/json writes and reads it.
type Baseline struct {
	Taken time.Time `json:"taken"`
	// Facts is path to value, such as users/2/name: admin, lan/1/address, bios/BootMode, firmware/BMC.
	Facts map[string]string `json:"facts"`
	// Unread is the subjects, the first words of paths, that could not be read, and why. Unread is not absent.
	Unread map[string]string `json:"unread,omitempty"`
}

// Difference is a fact that changed.
type Difference struct {
	Path string `json:"path"`
	Was  string `json:"was"` // "" where it was not there
	Is   string `json:"is"`  // "" where it is not there any more
}

// Subjects of a baseline.
const (
	subjectIdentity = "identity"
	subjectUsers    = "users"
	subjectLAN      = "lan"
	subjectBoot     = "boot"
	subjectServices = "services"
	subjectMedia    = "media"
	subjectFirmware = "firmware"
	subjectBIOS     = "bios"
	subjectTLS      = "certificate"
	subjectChannel  = "channel"
)

// factLength bounds a value; what is longer is kept by its beginning and its length.
const factLength = 512

// Baseline reads the machine's baseline. A subject that this BMC does not tell is in Unread; an error means that the BMC could not be asked.
func (c *Controller) Baseline(ctx context.Context, t Target) (Baseline, error) {
	var b Baseline
	err := c.read(ctx, t, "read baseline", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() error {
			b = Baseline{Taken: time.Now().UTC(), Facts: map[string]string{}, Unread: map[string]string{}}
			for _, s := range l.subjects() {
				err := s.read(ctx, &b)
				switch {
				case err == nil:
				case isAny(err, ErrUnsupported) || forbidden(err):
					b.Unread[s.name] = err.Error()
				default:
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return Baseline{}, err
	}
	return b, nil
}

// forbidden reports whether the BMC refused one request rather than the login.
func forbidden(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.kind == ErrCredentials && !f.login
}

// subject is a part of a baseline and how it is read.
type subject struct {
	name string
	read func(context.Context, *Baseline) error
}

func (l *link) subjects() []subject {
	common := []subject{{subjectIdentity, l.factsOfInventory}, {subjectUsers, l.factsOfUsers}}
	if l.t.Protocol == IPMI {
		return append(common, subject{subjectBoot, l.rmcpBootFacts}, subject{subjectServices, l.rmcpServiceFacts}, subject{subjectChannel, l.rmcpChannelFacts})
	}
	return append(common, subject{subjectBoot, l.rfBootFacts}, subject{subjectServices, l.rfServiceFacts}, subject{subjectTLS, l.rfCertificateFact},
		subject{subjectMedia, l.factsOfMedia}, subject{subjectBIOS, l.factsOfBIOS})
}

func (b *Baseline) fact(value string, path ...string) {
	for i, p := range path { // a name may hold the separator
		path[i] = strings.ReplaceAll(p, "/", "_")
	}
	if len(value) > factLength {
		value = clip(value, factLength) + "… (" + strconv.Itoa(len(value)) + " bytes)"
	}
	b.Facts[strings.Join(path, "/")] = value
}

func (l *link) factsOfInventory(ctx context.Context, b *Baseline) error {
	inv, err := l.inventory(ctx)
	if err != nil {
		return err
	}
	b.fact(inv.Serial, subjectIdentity, "serial")
	b.fact(inv.UUID, subjectIdentity, "uuid")
	b.fact(inv.Model, subjectIdentity, "model")
	b.fact(inv.AssetTag, subjectIdentity, "asset-tag")
	if inv.BIOSVersion != "" {
		b.fact(inv.BIOSVersion, subjectFirmware, "bios-version")
	}
	b.fact(inv.BMCVersion, subjectFirmware, "bmc-version")
	for _, f := range inv.Firmware {
		b.fact(f.Version, subjectFirmware, f.ID)
	}
	for _, n := range inv.LAN {
		b.fact(n.MAC, subjectLAN, n.ID, "mac")
		b.fact(n.Source, subjectLAN, n.ID, "source")
		b.fact(strconv.Itoa(n.VLAN), subjectLAN, n.ID, "vlan")
		if n.Source != "dhcp" { // what a server hands out changes by itself
			b.fact(prefixText(n), subjectLAN, n.ID, "address")
			b.fact(gatewayText(n), subjectLAN, n.ID, "gateway")
		}
	}
	for _, u := range inv.Unread {
		what, why, _ := strings.Cut(u, ": ")
		for _, name := range map[string][]string{"firmware": {subjectFirmware}, "LAN": {subjectLAN}, "BMC": {subjectLAN, subjectFirmware}, "FRU": {subjectIdentity}}[what] {
			b.Unread[name] = cmp.Or(why, "not told")
		}
	}
	return nil
}

func prefixText(n LAN) string {
	if !n.Address.IsValid() {
		return ""
	}
	return n.Address.String()
}

func gatewayText(n LAN) string {
	if !n.Gateway.IsValid() {
		return ""
	}
	return n.Gateway.String()
}

func (l *link) factsOfUsers(ctx context.Context, b *Baseline) error {
	return on(ctx, l, func(k accountKeeper) error {
		list, err := k.accounts(ctx)
		if err != nil {
			return err
		}
		for _, a := range list {
			b.fact(a.Name, subjectUsers, a.ID, "name")
			b.fact(string(a.Privilege), subjectUsers, a.ID, "privilege")
			b.fact(strconv.FormatBool(a.Enabled), subjectUsers, a.ID, "enabled")
			b.fact(a.Role, subjectUsers, a.ID, "role")
			for name, value := range a.extra {
				b.fact(value, subjectUsers, a.ID, name)
			}
		}
		return nil
	})
}

func (l *link) factsOfMedia(ctx context.Context, b *Baseline) error {
	drives, err := l.drives(ctx)
	for _, d := range drives {
		b.fact(strconv.FormatBool(d.Inserted), subjectMedia, d.ID, "inserted")
		b.fact(d.Image, subjectMedia, d.ID, "image")
	}
	return err
}

func (l *link) factsOfBIOS(ctx context.Context, b *Baseline) error {
	bios, err := l.bios(ctx)
	for name, value := range bios.Attributes {
		b.fact(valueText(value), subjectBIOS, name)
	}
	for name, value := range bios.Pending {
		b.fact(valueText(value), subjectBIOS, name, "pending")
	}
	return err
}

// Diff lists what differs between b and a later baseline, sorted by path. A subject that was read in b and is unread later differs
// as a whole: path SUBJECT, Is "unread: why". A subject that was unread in b is not compared.
func (b Baseline) Diff(later Baseline) []Difference {
	var out []Difference
	subject := func(path string) string { s, _, _ := strings.Cut(path, "/"); return s }
	lost := map[string]bool{}
	for name, why := range later.Unread {
		if _, before := b.Unread[name]; !before {
			lost[name] = true
			out = append(out, Difference{Path: name, Was: "read", Is: "unread: " + why})
		}
	}
	paths := map[string]bool{}
	for p := range maps.Keys(b.Facts) {
		paths[p] = true
	}
	for p := range maps.Keys(later.Facts) {
		paths[p] = true
	}
	for p := range paths {
		s := subject(p)
		if _, unread := b.Unread[s]; unread || lost[s] {
			continue
		}
		was, had := b.Facts[p]
		is, has := later.Facts[p]
		if was != is || had != has {
			out = append(out, Difference{Path: p, Was: was, Is: is})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return cmp.Compare(a.Path, b.Path) })
	return out
}
