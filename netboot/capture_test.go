package netboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	pin "github.com/pin/tftp/v3"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestCaptures sends what real firmware sent, frame by frame, to a running Server, and compares with the golden files
// what it answers: DHCP as it came, TFTP by an independent client with the options of the capture.
func TestCaptures(t *testing.T) {
	captures, err := filepath.Glob("dhcp/testdata/*.pcap")
	if err != nil || len(captures) != 5 {
		t.Fatalf("captures %v, %v", captures, err)
	}
	for _, capture := range captures {
		name := strings.TrimSuffix(filepath.Base(capture), ".pcap")
		t.Run(name, func(t *testing.T) {
			const mac = "52:54:00:99:00:00"
			w := newWire(t, mac)
			s := &Server{
				Booter:    &fakeBooter{leases: map[string]Lease{mac: {Addr: netip.MustParsePrefix("10.99.0.64/24"), SecureBoot: strings.HasPrefix(name, "secboot")}}, boot: Boot{Kind: BootAgent}},
				Interface: "nb0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080,
			}
			files(t, s)
			signed(t, s)
			start(t, w.server, s)
			var text strings.Builder
			frames := clientFrames(t, capture)
			// First what comes before the client has its address, then what it does with it.
			if err := <-inNamespace(t, w.client, func() error { return replayDHCP(&text, frames) }); err != nil {
				t.Fatal(err)
			}
			ip(t, "-n", w.client, "addr", "add", "10.99.0.64/24", "dev", "eth0")
			if err := <-inNamespace(t, w.client, func() error { return replayTFTP(&text, frames) }); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (run with -update)", err)
			}
			if text.String() != string(want) {
				t.Errorf("answers differ from %s:\n%s", golden, text.String())
			}
		})
	}
}

// clientFrames returns the Ethernet frames of the machine in a capture (classic pcap, IPv4, UDP).
func clientFrames(t testing.TB, capture string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is not a little-endian pcap file", capture)
	}
	var out [][]byte
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		f := b[16 : 16+n]
		b = b[16+n:]
		if bytes.Equal(f[6:12], []byte{0x52, 0x54, 0, 0x99, 0, 0}) && binary.BigEndian.Uint16(f[12:]) == 0x0800 && f[14+9] == 17 {
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no frames of the machine in %s", capture)
	}
	return out
}

// payload returns the UDP payload of a frame and the port that it is for.
func payload(f []byte) (uint16, []byte) {
	udp := f[14+4*int(f[14]&15):]
	return binary.BigEndian.Uint16(udp[2:]), udp[8:binary.BigEndian.Uint16(udp[4:])]
}

// replayDHCP sends each DHCP frame as it was captured and writes down the answer.
func replayDHCP(text io.Writer, frames [][]byte) error {
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, f := range frames {
		port, asked := payload(f)
		if port != 67 {
			continue
		}
		req, err := dhcpv4.FromBytes(asked)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}); err != nil {
			return err
		}
		fmt.Fprintf(text, "> %s %q\n", req.MessageType(), req.ClassIdentifier())
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return fmt.Errorf("no answer to %s: %w", req.MessageType(), err)
			}
			if n < 42 || buf[14+9] != 17 {
				continue
			}
			port, answer := payload(buf[:n])
			rep, err := dhcpv4.FromBytes(answer)
			if port != 68 || err != nil || rep.TransactionID != req.TransactionID {
				continue
			}
			fmt.Fprintf(text, "< frame to %s, datagram to %s, %d bytes\n  %s yi %s si %s file %q\n", net.HardwareAddr(buf[:6]), net.IP(buf[30:34]), len(answer),
				rep.MessageType(), rep.YourIPAddr, rep.ServerIPAddr, rep.BootFileName)
			var codes []int
			for code := range rep.Options {
				codes = append(codes, int(code))
			}
			slices.Sort(codes)
			for _, code := range codes {
				fmt.Fprintf(text, "  %3d % x\n", code, rep.Options[uint8(code)])
			}
			break
		}
	}
	return nil
}

// replayTFTP asks for each file of the capture with the options of the capture.
func replayTFTP(text io.Writer, frames [][]byte) error {
	for _, f := range frames {
		port, asked := payload(f)
		if port != 69 {
			continue
		}
		fields := strings.Split(string(asked[2:len(asked)-1]), "\x00")
		fmt.Fprintf(text, "> RRQ %q\n", fields)
		answer, err := firstAnswer(asked)
		if err != nil {
			return fmt.Errorf("RRQ %q: %w", fields, err)
		}
		fmt.Fprintf(text, "< %q\n", answer)
		if answer[1] == 5 {
			continue
		}
		cl, err := pin.NewClient("10.99.0.1:69")
		if err != nil {
			return err
		}
		wt, err := cl.Receive(fields[0], fields[1])
		if err != nil {
			return fmt.Errorf("receive %s: %w", fields[0], err)
		}
		n, err := wt.WriteTo(io.Discard)
		fmt.Fprintf(text, "  %d bytes, %v\n", n, err)
	}
	return nil
}

// firstAnswer sends a request as it is and returns what comes first. The transfer is broken off.
func firstAnswer(asked []byte) ([]byte, error) {
	c, err := net.Dial("udp4", "10.99.0.1:69")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	buf := make([]byte, 2048)
	for range 5 {
		if _, err := c.Write(asked); err != nil {
			return nil, err
		}
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		_, err = c.Write([]byte("\x00\x05\x00\x08User aborted the transfer\x00"))
		return buf[:n], err
	}
	return nil, os.ErrDeadlineExceeded
}
