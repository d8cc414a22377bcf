package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/bougou/go-ipmi/pkg/command/storage"
	"github.com/bougou/go-ipmi/pkg/types"
)

const (
	fruLimit = 4096 // bytes of the machine's FRU that are read
	fruChunk = 16   // what every BMC gives at a time
)

// rmcpInventory reads Get Device ID, the system GUID, the FRU of the machine and the LAN parameters.
func (l *link) rmcpInventory(ctx context.Context) (inv Inventory, err error) {
	err = l.ipmi(ctx, func(r *rmcpConn) error {
		id, err := ask(ctx, r, r.c.GetDeviceID)
		if err != nil {
			return err
		}
		inv.BMCVersion = fmt.Sprintf("%d.%02d", id.MajorFirmwareRevision, id.MinorFirmwareRevision)
		inv.BMCModel = fmt.Sprintf("%d/%d", id.ManufacturerID, id.ProductID)
		inv.Firmware = []Firmware{{ID: "BMC", Name: "BMC", Version: inv.BMCVersion}}
		guid, err := r.raw(ctx, types.NetFnAppRequest, types.CommandGetSystemGUID.ID)
		switch {
		case err == nil && len(guid) == 16:
			inv.UUID = guidText([16]byte(guid))
		case err == nil:
			inv.unread("system GUID", failf(ErrUnsupported, "%d bytes", len(guid)))
		case !errors.Is(err, ErrUnsupported):
			return err
		default:
			inv.unread("system GUID", err)
		}
		return nil
	})
	if err != nil {
		return inv, err
	}
	if err := l.rmcpFRU(ctx, &inv); err != nil {
		return inv, err
	}
	return inv, l.ipmi(ctx, func(r *rmcpConn) error {
		lan, err := r.lan(ctx)
		switch {
		case err == nil:
			inv.LAN = []LAN{lan}
		case errors.Is(err, ErrUnsupported), errors.Is(err, ErrCredentials):
			inv.unread("LAN", err)
			err = nil
		}
		return err
	})
}

// guidText is a system GUID as SMBIOS prints it. By the standard its bytes come in reverse; some BMCs send it as RFC 4122 writes it, or as
// SMBIOS keeps it. The version and the variant of the UUID tell which; where none of them makes sense it is by the standard.
func guidText(g [16]byte) string {
	if g == [16]byte{} {
		return ""
	}
	for _, mode := range []types.GUIDMode{types.GUIDModeIPMI, types.GUIDModeRFC4122, types.GUIDModeSMBIOS} {
		if u, err := types.ParseGUID(g[:], mode); err == nil && u[8]>>6 == 2 && u[6]>>4 >= 1 && u[6]>>4 <= 8 {
			return u.String()
		}
	}
	u, err := types.ParseGUID(g[:], types.GUIDModeIPMI)
	if err != nil {
		return ""
	}
	return u.String()
}

func (l *link) rmcpFRU(ctx context.Context, inv *Inventory) error {
	data, err := l.fru(ctx)
	if errors.Is(err, ErrUnsupported) {
		inv.unread("FRU", err)
		return nil
	}
	if err != nil {
		return err
	}
	if err := readFRU(data, inv); err != nil {
		inv.unread("FRU", err)
	}
	return nil
}

// fru reads FRU 0, a chunk at a time.
func (l *link) fru(ctx context.Context) ([]byte, error) {
	size := 0
	if err := l.ipmi(ctx, func(r *rmcpConn) error {
		info, err := ask(ctx, r, func(ctx context.Context) (*storage.GetFRUInventoryAreaInfoResponse, error) {
			return r.c.GetFRUInventoryAreaInfo(ctx, 0)
		})
		if err == nil {
			size = min(int(info.AreaSizeBytes), fruLimit)
			if info.DeviceAccessedByWords {
				return failf(ErrUnsupported, "it is read by words")
			}
		}
		return err
	}); err != nil {
		return nil, err
	}
	var data []byte
	for len(data) < size {
		if err := l.ipmi(ctx, func(r *rmcpConn) error {
			res, err := ask(ctx, r, func(ctx context.Context) (*storage.ReadFRUDataResponse, error) {
				return r.c.ReadFRUData(ctx, 0, uint16(len(data)), uint8(min(fruChunk, size-len(data))))
			})
			switch {
			case err != nil:
				return err
			case len(res.Data) == 0:
				return failf(ErrUnsupported, "it ends early")
			}
			data = append(data, res.Data...)
			return nil
		}); err != nil {
			if len(data) > 0 && errors.Is(err, ErrUnsupported) {
				break // some say that it is larger than it is
			}
			return nil, err
		}
	}
	return data, nil
}

// readFRU takes what a FRU says of the product, and else of the board or the chassis.
func readFRU(data []byte, inv *Inventory) (err error) {
	defer func() {
		if recover() != nil { // in go-ipmi's decoder
			err = failf(ErrUnsupported, "it cannot be read")
		}
	}()
	fru, err := types.ParseFRU(data)
	if err != nil {
		return failf(ErrUnsupported, "it cannot be read")
	}
	field := func(tl types.TypeLength, raw []byte) string {
		return strings.TrimSpace(clean(types.FRUFieldString(tl, raw)))
	}
	if p := fru.ProductInfoArea; p != nil {
		inv.Manufacturer = field(p.ManufacturerTypeLength, p.Manufacturer)
		inv.Model = field(p.NameTypeLength, p.Name)
		inv.Serial = field(p.SerialNumberTypeLength, p.SerialNumber)
		inv.AssetTag = field(p.AssetTagTypeLength, p.AssetTag)
	}
	if b := fru.BoardInfoArea; b != nil {
		inv.Manufacturer = cmp.Or(inv.Manufacturer, field(b.ManufacturerTypeLength, b.Manufacturer))
		inv.Model = cmp.Or(inv.Model, field(b.ProductNameTypeLength, b.ProductName))
		inv.Serial = cmp.Or(inv.Serial, field(b.SerialNumberTypeLength, b.SerialNumber))
	}
	if c := fru.ChassisInfoArea; c != nil {
		inv.Serial = cmp.Or(inv.Serial, field(c.SerialNumberTypeLength, c.SerialNumber))
	}
	return nil
}

var lanSources = map[byte]string{1: "static", 2: "dhcp", 3: "bios"}

// lan reads the LAN parameters of the channel that the session came in by.
func (r *rmcpConn) lan(ctx context.Context) (LAN, error) {
	l := LAN{ID: "1"}
	if info, err := ask(ctx, r, r.c.GetCurrentSessionInfo); err == nil {
		l.ID = strconv.Itoa(int(info.ChannelNumber))
	}
	var mask []byte
	read := 0
	for _, p := range []struct {
		selector types.LanConfigParamSelector
		size     int
		take     func([]byte)
	}{
		{types.LanConfigParamSelector_IP, 4, func(b []byte) { l.Address = netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), 32) }},
		{types.LanConfigParamSelector_IPSource, 1, func(b []byte) { l.Source = cmp.Or(lanSources[b[0]&0x0f], "other") }},
		{types.LanConfigParamSelector_MAC, 6, func(b []byte) { l.MAC = net.HardwareAddr(b).String() }},
		{types.LanConfigParamSelector_SubnetMask, 4, func(b []byte) { mask = b }},
		{types.LanConfigParamSelector_DefaultGatewayIP, 4, func(b []byte) { l.Gateway = netip.AddrFrom4([4]byte(b)) }},
		{types.LanConfigParamSelector_VLANID, 2, func(b []byte) {
			if b[1]&0x80 != 0 {
				l.VLAN = int(b[0]) | int(b[1]&0x0f)<<8
			}
		}},
	} {
		b, err := r.lanParam(ctx, p.selector)
		switch {
		case err == nil && len(b) >= p.size:
			p.take(b[:p.size])
			read++
		case err != nil && !errors.Is(err, ErrUnsupported):
			return l, err
		}
	}
	if read == 0 {
		return l, failf(ErrUnsupported, "it tells no LAN parameter")
	}
	if ones, bits := net.IPMask(mask).Size(); bits == 32 && l.Address.IsValid() {
		l.Address = netip.PrefixFrom(l.Address.Addr(), ones)
	}
	if l.Address.IsValid() && l.Address.Addr().IsUnspecified() {
		l.Address = netip.Prefix{}
	}
	if l.Gateway.IsUnspecified() {
		l.Gateway = netip.Addr{}
	}
	return l, nil
}

// lanParam reads a LAN parameter, without its revision.
func (r *rmcpConn) lanParam(ctx context.Context, selector types.LanConfigParamSelector) ([]byte, error) {
	b, err := r.raw(ctx, types.NetFnTransportRequest, types.CommandGetLanConfigParam.ID, thisChannel, byte(selector), 0, 0)
	if err != nil {
		return nil, err
	}
	if len(b) < 1 {
		return nil, failf(ErrUnsupported, "an empty LAN parameter")
	}
	return b[1:], nil
}
