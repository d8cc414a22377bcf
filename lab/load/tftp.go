package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// tftpClient is what firmware is: it asks for a block size and for the length, and acknowledges each block.
type tftpClient struct {
	server  netip.AddrPort
	block   int // 0: asks for no option at all
	repeats int
	buf     [2048]byte
}

const tftpTries = 10

// Operations of RFC 1350 and RFC 2347.
const (
	opData  = 3
	opAck   = 4
	opError = 5
	opOAck  = 6
)

// fetch gets a file from a machine's own address, and returns how many bytes came.
func (c *tftpClient) fetch(ctx context.Context, local netip.Addr, name string) (n int64, err error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
	if err != nil {
		return 0, fmt.Errorf("open TFTP client: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })()
	block := 512
	say := []byte("\x00\x01" + name + "\x00octet\x00")
	if c.block > 0 {
		block = c.block
		say = append(say, "blksize\x00"+strconv.Itoa(block)+"\x00tsize\x000\x00"...)
	}
	peer, next := c.server, uint16(1)
	for {
		b, by, err := c.ask(ctx, conn, say, peer, next)
		if err != nil {
			// Nobody is to wait for us: an abandoned transfer would take a place of the next one's.
			_, _ = conn.WriteToUDPAddrPort([]byte("\x00\x05\x00\x00stopped\x00"), peer)
			return n, fmt.Errorf("get %s by TFTP, after %d bytes: %w", name, n, err)
		}
		peer, say = by, append(say[:0], 0, opAck, 0, 0)
		if b[1] == opOAck {
			continue
		}
		copy(say[2:], b[2:4])
		n += int64(len(b) - 4)
		if next++; len(b)-4 < block {
			_, err := conn.WriteToUDPAddrPort(say, peer)
			return n, err
		}
	}
}

// ask says something until the block next comes, or the answer to options before the first one.
func (c *tftpClient) ask(ctx context.Context, conn *net.UDPConn, say []byte, peer netip.AddrPort, next uint16) ([]byte, netip.AddrPort, error) {
	for try := range tftpTries {
		if try > 0 {
			c.repeats++
		}
		if _, err := conn.WriteToUDPAddrPort(say, peer); err != nil {
			return nil, peer, err
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		for {
			m, by, err := conn.ReadFromUDPAddrPort(c.buf[:])
			if ctx.Err() != nil {
				return nil, peer, ctx.Err()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, peer, err
			}
			if m < 4 {
				continue
			}
			b := c.buf[:m]
			switch number := binary.BigEndian.Uint16(b[2:]); {
			case b[1] == opError:
				text, _, _ := bytes.Cut(b[4:], []byte{0})
				return nil, peer, fmt.Errorf("error %d: %s", number, text)
			case b[1] == opOAck && next == 1 && say[1] == 1, b[1] == opData && number == next:
				return b, by, nil
			}
		}
	}
	return nil, peer, errors.New("no answer")
}
