// Package inband asks the BMC of the machine it runs on what it is, and tries to change it, through the machine's own interface to it.
package inband

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/bougou/go-ipmi/pkg/open"

	"github.com/bareyard/bareyard/machine"
)

// Sender carries one request to the BMC and returns completion code and data; answered by go-ipmi's driver for /dev/ipmi0.
type Sender interface {
	Send(ctx context.Context, req *open.Request, timeout time.Duration) ([]byte, error)
}

// IPMI 2.0: network functions and commands.
const (
	netApp, netTransport = 0x06, 0x0c

	getDeviceID    = 0x01 // 20.1
	getSystemGUID  = 0x37 // 22.14
	getChannelInfo = 0x42 // 22.24
	getLANConfig   = 0x02 // 23.2

	paramIP, paramMAC = 3, 5
	mediumLAN         = 0x04 // 802.3
	lastChannel       = 0x0b
)

// answerTime bounds one question: a BMC that is busy takes seconds, a broken one for ever.
const answerTime = 5 * time.Second

// Read asks the BMC behind /dev/ipmi0, whose driver must be loaded.
func Read(ctx context.Context) (machine.BMCFacts, error) {
	var device open.DeviceBackend
	if err := device.Connect(ctx, 0); err != nil {
		return machine.BMCFacts{}, fmt.Errorf("reach BMC: %w", err)
	}
	defer device.Close(ctx)
	return Ask(ctx, &device)
}

// Ask asks a BMC what it is. What it does not tell is left out; that it does not answer at all is an error.
func Ask(ctx context.Context, s Sender) (machine.BMCFacts, error) {
	var f machine.BMCFacts
	id, err := ask(ctx, s, netApp, getDeviceID)
	if err != nil {
		return f, fmt.Errorf("ask BMC what it is: %w", err)
	}
	if len(id) >= 5 {
		f.Firmware = fmt.Sprintf("%d.%02x", id[2]&0x7f, id[3]) // the minor number is in BCD
		f.IPMI = fmt.Sprintf("%d.%d", id[4]&0x0f, id[4]>>4)
	}
	if guid, err := ask(ctx, s, netApp, getSystemGUID); err == nil && len(guid) == 16 {
		f.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", guid[0:4], guid[4:6], guid[6:8], guid[8:10], guid[10:16])
	}
	for channel := byte(1); channel <= lastChannel && ctx.Err() == nil; channel++ {
		info, err := ask(ctx, s, netApp, getChannelInfo, channel)
		if err != nil || len(info) < 2 || info[1]&0x7f != mediumLAN {
			continue
		}
		addr, mac := lan(ctx, s, channel)
		if f.MAC == "" || f.Address == "" && addr != "" { // the first, unless it has no address and a further one has
			f.Address, f.MAC = addr, mac
		}
		if f.Address != "" {
			break
		}
	}
	return f, nil
}

// lan reads the address of a LAN channel.
func lan(ctx context.Context, s Sender, channel byte) (addr, mac string) {
	if v, err := ask(ctx, s, netTransport, getLANConfig, channel, paramIP, 0, 0); err == nil && len(v) == 5 {
		if a := netip.AddrFrom4([4]byte(v[1:])); !a.IsUnspecified() { // v[0] is the revision of the parameter
			addr = a.String()
		}
	}
	if v, err := ask(ctx, s, netTransport, getLANConfig, channel, paramMAC, 0, 0); err == nil && len(v) == 7 {
		mac = machine.PortMAC(net.HardwareAddr(v[1:]).String())
	}
	return addr, mac
}

// ask sends a request and returns the data of its answer; a completion code that is not 0 is an error.
func ask(ctx context.Context, s Sender, netFn, cmd byte, data ...byte) ([]byte, error) {
	answer, err := s.Send(ctx, &open.Request{NetFn: netFn, Cmd: cmd, Data: data}, answerTime)
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, fmt.Errorf("command %#02x: empty answer", cmd)
	}
	if answer[0] != 0 {
		return nil, refusal{cmd, answer[0]}
	}
	return answer[1:], nil
}
