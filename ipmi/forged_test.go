package ipmi_test

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/bougou/go-ipmi/pkg/protocol"

	"github.com/bareyard/bareyard/ipmi"
)

// forger relays between a client and a BMC and answers every command of a session itself first, in clear, with
// completion code 0 and four zero bytes: "the host is off".
func forger(t *testing.T, bmc string) string {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		backs := map[string]net.Conn{}
		pumps := make(chan struct{}, 64)
		defer func() {
			for _, b := range backs {
				_ = b.Close()
				<-pumps
			}
		}()
		buf := make([]byte, 4096)
		for {
			n, from, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			back := backs[from.String()]
			if back == nil {
				if back, err = net.Dial("udp", bmc); err != nil {
					t.Error(err)
					return
				}
				backs[from.String()] = back
				go func() {
					defer func() { pumps <- struct{}{} }()
					answer := make([]byte, 4096)
					for {
						n, err := back.Read(answer)
						if err != nil {
							return
						}
						_, _ = front.WriteTo(answer[:n], from)
					}
				}()
			}
			if session := binary.LittleEndian.Uint32(buf[6:]); session != 0 {
				for seq := range uint8(64) {
					lie := protocol.BuildIPMIResponse(0x00, 0x01, seq, 0, []byte{0, 0, 0, 0})
					_, _ = front.WriteTo(protocol.BuildRMCPPlusPacket(0, 0, 0xa0a1a2a3, 99, lie), from)
				}
			}
			_, _ = back.Write(buf[:n])
		}
	}()
	t.Cleanup(func() { _ = front.Close(); <-done })
	return front.LocalAddr().String()
}

// Who can forge the BMC's address cannot tell us that a host is off.
func TestForgedAnswers(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		w.memory.Force(true)
		w.target.Address = forger(t, w.target.Address)
		p, err := quick().Power(long(t), w.target)
		must(t, err)
		if p != ipmi.On {
			t.Errorf("power = %s, want on", p)
		}
	}, "IPMI")
}
