package ipmi

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strings"
)

// rfInventory reads the system, its BMC, its chassis and the firmware inventory, each as far as it can be read.
func (l *link) rfInventory(ctx context.Context) (Inventory, error) {
	var inv Inventory
	system, err := l.rfSystem(ctx)
	if err != nil {
		return inv, err
	}
	s := system.body
	inv.Manufacturer, inv.Model, inv.Serial = s.text("Manufacturer"), s.text("Model"), s.text("SerialNumber")
	inv.UUID, inv.AssetTag, inv.BIOSVersion = strings.ToLower(s.text("UUID")), s.text("AssetTag"), s.text("BiosVersion")
	for name, value := range map[string]string{"SerialNumber": inv.Serial, "UUID": inv.UUID, "Model": inv.Model} {
		if value == "" {
			inv.unread("system "+name, nil)
		}
	}
	if paths := s.obj("Links").links("Chassis"); inv.Serial == "" && len(paths) > 0 {
		chassis, err := turns{l}.get(ctx, paths[0])
		if err != nil && !isAny(err, ErrUnsupported) {
			return inv, err
		}
		inv.Serial = chassis.body.text("SerialNumber")
	}
	for what, read := range map[string]func(context.Context, *Inventory) error{"BMC": l.rfBMC, "firmware": l.rfFirmware} {
		if err := read(ctx, &inv); err != nil {
			if !isAny(err, ErrUnsupported) {
				return inv, err
			}
			inv.unread(what, err)
		}
	}
	return inv, nil
}

func (l *link) rfBMC(ctx context.Context, inv *Inventory) error {
	manager, err := l.rfManager(ctx)
	if err != nil {
		return err
	}
	inv.BMCModel, inv.BMCVersion = manager.body.text("Model"), manager.body.text("FirmwareVersion")
	list := manager.body.obj("EthernetInterfaces").str("@odata.id")
	if list == "" {
		return failf(ErrUnsupported, "it shows no network interface")
	}
	_, err = each(ctx, turns{l}, list, 16, func(r resource) bool {
		inv.LAN = append(inv.LAN, parseEthernet(r.body))
		return true
	})
	return err
}

func parseEthernet(o object) LAN {
	lan := LAN{ID: o.text("Id"), Hostname: o.text("HostName")}
	if mac, err := net.ParseMAC(cmp.Or(o.text("MACAddress"), o.text("PermanentMACAddress"))); err == nil {
		lan.MAC = mac.String()
	}
	if vlan := o.obj("VLAN"); vlan.flag("VLANEnable", false) {
		id, _ := vlan.integer("VLANId")
		lan.VLAN = int(id)
	}
	for _, a := range o.objs("IPv4Addresses") {
		addr, err := netip.ParseAddr(a.str("Address"))
		lan.Source = strings.ToLower(a.str("AddressOrigin"))
		if err != nil || addr.IsUnspecified() {
			continue
		}
		bits := 32
		if m, err := netip.ParseAddr(a.str("SubnetMask")); err == nil && m.Is4() {
			four := m.As4()
			if ones, size := net.IPMask(four[:]).Size(); size == 32 {
				bits = ones
			}
		}
		lan.Address = netip.PrefixFrom(addr, bits)
		if gw, err := netip.ParseAddr(a.str("Gateway")); err == nil && !gw.IsUnspecified() {
			lan.Gateway = gw
		}
		break
	}
	return lan
}

// rfFirmware reads the firmware inventory. What is listed and not there is left out.
func (l *link) rfFirmware(ctx context.Context, inv *Inventory) error {
	root, err := l.rfRoot(ctx)
	if err != nil {
		return err
	}
	update, err := follow(ctx, turns{l}, root, "UpdateService")
	if err != nil {
		return err
	}
	list := update.body.obj("FirmwareInventory").str("@odata.id")
	if list == "" {
		return failf(ErrUnsupported, "it shows no firmware inventory")
	}
	more, err := each(ctx, turns{l}, expanded(root, list), rfMembers, func(r resource) bool {
		f := Firmware{ID: r.body.text("Id"), Name: r.body.text("Name"), Version: r.body.text("Version")}
		// Dell lists what was installed before, and what could be, beside what runs.
		if f.ID != "" && !strings.HasPrefix(f.ID, "Previous-") && !strings.HasPrefix(f.ID, "Available-") {
			inv.Firmware = append(inv.Firmware, f)
		}
		return true
	})
	if more {
		inv.unread("firmware beyond the first ones", nil)
	}
	return err
}
