package tftp

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzServer: a sequence of packets of one client never panics, and no packet makes more than a window of answers.
func FuzzServer(f *testing.F) {
	f.Add([]byte("\x00\x01900\x00octet\x00"), []byte("\x00\x04\x00\x01"), []byte("\x00\x04\x00\x02"))
	f.Add([]byte("\x00\x013000\x00octet\x00blksize\x001468\x00windowsize\x004\x00tsize\x000\x00"), []byte("\x00\x04\x00\x00"), []byte("\x00\x04\x00\x02"))
	f.Add([]byte("\x00\x01shimx64.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00windowsize\x004\x00"), []byte("\x00\x05\x00\x08User aborted the transfer\x00"), []byte(nil))
	f.Add([]byte("\x00\x02x\x00octet\x00"), []byte("\x00\x01\xff\x00mail\x00"), []byte("\x00\x01a\x00netascii\x00blksize\x008\x00"))
	peer := netip.MustParseAddrPort("127.0.0.1:2000")
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		tb := newTable(&Server{Open: func(_ context.Context, name string, _ netip.AddrPort) (File, error) {
			if _, err := Clean(name); err != nil {
				return nil, err
			}
			return Bytes(pattern(len(name) * 100)), nil
		}})
		now := time.Unix(0, 0)
		for _, p := range [][]byte{a, b, c} {
			var out counter
			tb.receive(&out, peer, p, now)
			if out.packets > 16 {
				t.Fatalf("%d packets for one", out.packets)
			}
			if len(tb.sessions) > 1 || tb.hosts[peer.Addr()] != len(tb.sessions) {
				t.Fatalf("%d sessions, counted %d", len(tb.sessions), tb.hosts[peer.Addr()])
			}
		}
		for range 20 {
			now = now.Add(5 * time.Minute)
			tb.expire(&counter{}, now)
		}
		if len(tb.sessions) != 0 || len(tb.hosts) != 0 {
			t.Fatal("a silent client keeps its session")
		}
	})
}

type counter struct{ packets int }

func (*counter) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) { panic("not read") }
func (*counter) SetReadDeadline(time.Time) error                         { return nil }
func (c *counter) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	c.packets++
	return len(b), nil
}

// FuzzClean: what passes is one name that stays in its folder, and is clean already.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"undionly.kpxe", "/snponly.efi", "x\xff", "../x", `a\b`, "....//", "\xff", "/", "..\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := Clean(s)
		if err != nil {
			if !errors.Is(err, fs.ErrPermission) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if filepath.Base(name) != name || !filepath.IsLocal(name) || strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r > '~' }) {
			t.Fatalf("%q became %q", s, name)
		}
		if again, err := Clean(name); err != nil || again != name {
			t.Fatalf("%q became %q, then %q (%v)", s, name, again, err)
		}
	})
}
