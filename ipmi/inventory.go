package ipmi

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
)

// Inventory is what a BMC says that it and its machine are. A field that it does not tell, or tells in a way that cannot be
// read, is empty and named in Unread.
type Inventory struct {
	Manufacturer string
	Model        string
	Serial       string
	UUID         string // canonical lower case, in the byte order in which SMBIOS 2.6 prints it
	AssetTag     string
	BIOSVersion  string // Redfish
	BMCModel     string
	BMCVersion   string
	Firmware     []Firmware // sorted by ID; IPMI tells that of the BMC only
	LAN          []LAN      // of the BMC; sorted by ID
	Unread       []string   // what could not be read and why, for operators; no secrets
}

// Firmware is a piece of firmware.
type Firmware struct {
	ID      string
	Name    string
	Version string
}

// LAN is a network interface of a BMC.
type LAN struct {
	ID       string // IPMI: the channel number; Redfish: the interface's Id
	MAC      string // lower case with colons
	Address  netip.Prefix
	Source   string // static, dhcp, bios or other
	Gateway  netip.Addr
	VLAN     int // 0 is none
	Hostname string
}

// Inventory reads who the machine and its BMC are.
func (c *Controller) Inventory(ctx context.Context, t Target) (Inventory, error) {
	var inv Inventory
	err := c.read(ctx, t, "read inventory", func(ctx context.Context, l *link) error {
		return l.again(ctx, func() (err error) {
			inv, err = l.inventory(ctx)
			return err
		})
	})
	if err != nil {
		return Inventory{}, err
	}
	return inv, nil
}

func (l *link) inventory(ctx context.Context) (inv Inventory, err error) {
	if l.t.Protocol == IPMI {
		inv, err = l.rmcpInventory(ctx)
	} else {
		inv, err = l.rfInventory(ctx)
	}
	slices.SortFunc(inv.Firmware, func(a, b Firmware) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(inv.LAN, func(a, b LAN) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(inv.Unread)
	return inv, err
}

func (inv *Inventory) unread(what string, err error) {
	inv.Unread = append(inv.Unread, unread(what, err))
}
