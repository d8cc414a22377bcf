package bmctest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/bougou/go-ipmi/pkg/hal"
	"github.com/bougou/go-ipmi/pkg/handlers"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/bareyard/bareyard/ipmi"
)

// boardStore shows a board's sensor records and the machine's FRU to go-ipmi's server.
type boardStore struct {
	board *Board
	fru   []byte
}

func (s boardStore) FRU() hal.FRUStore { return fruStore(s) }
func (s boardStore) SDR() hal.SDRStore { return sdrStore(s) }

type fruStore boardStore

func (s fruStore) Read(_ context.Context, id uint8) ([]byte, error) {
	if id != 0 {
		return nil, hal.ErrNotFound
	}
	return s.fru, nil
}
func (s fruStore) Write(context.Context, uint8, []byte) error { return hal.ErrNotSupported }
func (s fruStore) Delete(context.Context, uint8) error        { return hal.ErrNotSupported }
func (s fruStore) DeviceIDs(context.Context) ([]uint8, error) { return []uint8{0}, nil }

type sdrStore boardStore

func (s sdrStore) Read(_ context.Context, id uint16) ([]byte, error) {
	sensors := s.board.Sensors()
	if id < 1 || int(id) > len(sensors) {
		return nil, hal.ErrNotFound
	}
	return sdr(int(id), sensors[id-1])
}
func (s sdrStore) Write(context.Context, uint16, []byte) error { return hal.ErrNotSupported }
func (s sdrStore) Delete(context.Context, uint16) error        { return hal.ErrNotSupported }
func (s sdrStore) RecordIDs(context.Context) ([]uint16, error) {
	var ids []uint16
	for i := range s.board.Sensors() {
		ids = append(ids, uint16(i+1))
	}
	return ids, nil
}

func fru(id Identity) ([]byte, error) {
	out, err := types.PackFRU(types.FRUPackConfig{
		Board:   &types.FRUPackBoard{Mfg: "Bareyard", Product: id.Model + " Board", Serial: id.Serial + "-B", PartNumber: "1"},
		Product: &types.FRUPackProduct{Manufacturer: "Bareyard", Name: id.Model, PartModel: "1", Version: "1", Serial: id.Serial},
	})
	if err != nil {
		return nil, fmt.Errorf("pack FRU: %w", err)
	}
	return out, nil
}

// hardware is what go-ipmi's server asks of the machine, with our storage.
type hardware struct {
	hal.HAL
	store boardStore
}

// Storage is the board's.
func (h hardware) Storage() hal.StorageHAL { return h.store }

// GetConfig is the BMC's network.
func (s boardStore) GetConfig(context.Context) (*hal.IPConfig, error) {
	l := s.board.LAN()
	out := &hal.IPConfig{DHCP: l.Source == "dhcp"}
	if mac, err := net.ParseMAC(l.MAC); err == nil && len(mac) == 6 {
		copy(out.MAC[:], mac)
	}
	if l.Address.IsValid() && l.Address.Addr().Is4() {
		out.IP, out.Mask = l.Address.Addr().As4(), netip.AddrFrom4([4]byte(net.CIDRMask(l.Address.Bits(), 32))).As4()
	}
	if l.Gateway.Is4() {
		out.Gateway = l.Gateway.As4()
	}
	return out, nil
}

// SetConfig is refused: nothing here uses it.
func (s boardStore) SetConfig(context.Context, *hal.IPConfig) error { return hal.ErrNotSupported }

// Network is the BMC's.
func (h hardware) Network() hal.NetworkHAL { return h.store }

// registerStorage serves the event log and the sensors' readings, which go-ipmi's server has not.
func (b *IPMI) registerStorage(reg *handlers.Registry) {
	reg.RegisterFunc(types.CommandGetSystemGUID, func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
		guid := b.bmc.GUID // by the standard it is sent in reverse
		slices.Reverse(guid[:])
		return guid[:], types.CodeOK, nil
	})
	reg.RegisterFunc(types.CommandGetSELInfo, func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
		b.Board.mu.Lock()
		defer b.Board.mu.Unlock()
		out := make([]byte, 14)
		out[0] = 0x51
		binary.LittleEndian.PutUint16(out[1:], uint16(len(b.Board.events)))
		binary.LittleEndian.PutUint16(out[3:], uint16(16*(b.Board.capacity-len(b.Board.events))))
		binary.LittleEndian.PutUint32(out[5:], stamp(b.Board.added))
		binary.LittleEndian.PutUint32(out[9:], stamp(b.Board.erased))
		out[13] = 0x02
		if b.Faults.Now().FullLog {
			out[13] |= 0x80
		}
		return out, types.CodeOK, nil
	})
	reg.RegisterFunc(types.CommandReserveSEL, func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
		return []byte{1, 0}, types.CodeOK, nil
	})
	reg.RegisterFunc(types.CommandGetSELEntry, b.selEntry)
	reg.RegisterFunc(types.CommandClearSEL, func(_ context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		if len(req) < 6 || string(req[2:5]) != "CLR" {
			return nil, types.CodeRequestDataFieldInvalid, nil
		}
		if req[5] == 0xaa {
			b.Board.Clear()
		}
		return []byte{1}, types.CodeOK, nil
	})
	reg.RegisterFunc(types.CommandGetSensorReading, func(_ context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		sensors := b.Board.Sensors()
		if len(req) < 1 || req[0] < 1 || int(req[0]) > len(sensors) {
			return nil, types.CodeRequestedDataNotPresent, nil
		}
		s := sensors[req[0]-1]
		if s.Absent {
			return []byte{0, 0xe0, 0}, types.CodeOK, nil
		}
		reading, states := s.raw()
		return []byte{reading, 0xc0, states}, types.CodeOK, nil
	})
}

// lanConfig answers the LAN parameters that go-ipmi's server does not know: the SNMP community and the VLAN.
func (b *IPMI) lanConfig(plain *handlers.Registry) func(context.Context, *handlers.HandlerContext, []byte) ([]byte, types.CompletionCode, error) {
	return func(ctx context.Context, h *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
		if len(req) >= 2 {
			switch types.LanConfigParamSelector(req[1]) {
			case types.LanConfigParamSelector_CommunityString:
				out := make([]byte, 19)
				out[0] = 0x11
				b.mu.Lock()
				copy(out[1:], b.community)
				b.mu.Unlock()
				return out, types.CodeOK, nil
			case types.LanConfigParamSelector_VLANID:
				vlan := b.Board.LAN().VLAN
				out := []byte{0x11, byte(vlan), byte(vlan >> 8)}
				if vlan != 0 {
					out[2] |= 0x80
				}
				return out, types.CodeOK, nil
			}
		}
		return plain.Dispatch(ctx, h, uint8(types.CommandGetLanConfigParam.NetFn), types.CommandGetLanConfigParam.ID, req)
	}
}

// SetCommunity sets the SNMP community as somebody with access would.
func (b *IPMI) SetCommunity(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.community = text
}

func stamp(t time.Time) uint32 {
	if t.IsZero() {
		return 0xffffffff
	}
	return uint32(t.Unix())
}

func (b *IPMI) selEntry(_ context.Context, _ *handlers.HandlerContext, req []byte) ([]byte, types.CompletionCode, error) {
	if len(req) < 6 {
		return nil, types.CodeRequestDataTruncated, nil
	}
	want := binary.LittleEndian.Uint16(req[2:])
	events := b.Board.Events()
	for i, e := range events {
		id := recordID(e)
		if want != id && !(want == 0 && i == 0) && !(want == 0xffff && i == len(events)-1) {
			continue
		}
		next := uint16(0xffff)
		if i+1 < len(events) {
			next = recordID(events[i+1])
		}
		out := binary.LittleEndian.AppendUint16(nil, next)
		return append(out, b.Board.sel(id, e)...), types.CodeOK, nil
	}
	return nil, types.CodeRequestedDataNotPresent, nil
}

func recordID(e ipmi.Event) uint16 {
	n, _ := strconv.Atoi(e.ID)
	return uint16(n)
}
