package netboot

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
)

// TestFloodOfStrangers: while somebody sends as many requests of made-up machines as he can, a known machine is answered
// as fast as in quiet, though each look-up of a stranger takes long. The figures are printed.
func TestFloodOfStrangers(t *testing.T) {
	h := newHub(t, testMAC, "02:00:5e:00:00:66")
	booter := &rosterBooter{slow: 50 * time.Millisecond, fakeBooter: fakeBooter{leases: map[string]Lease{testMAC: {Addr: netip.MustParsePrefix("10.99.0.64/24")}}}}
	s := &Server{Booter: booter, Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"), HTTPPort: 8080, Subnets: []Subnet{{
		Prefix: netip.MustParsePrefix("10.99.0.0/24"), Interface: "br0", Addr: netip.MustParseAddr("10.99.0.1"), Range: mustRange(t, "10.99.0.200-10.99.0.250"),
	}}}
	files(t, s)
	start(t, h.server, s)

	measure := func() (worst, median time.Duration) {
		var took []time.Duration
		onStation(t, h.hosts[0], func(c *station) error {
			for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
				began := time.Now()
				all, err := c.ask(5*time.Second, 1, append(ipxeClient(), message(dhcpv4.MessageTypeDiscover))...)
				if err != nil || len(all) == 0 {
					return fmt.Errorf("no answer within 5 s: %v", err)
				}
				took = append(took, time.Since(began))
			}
			return nil
		})
		slices.Sort(took)
		return took[len(took)-1], took[len(took)/2]
	}
	quietWorst, quietMedian := measure()
	var sent atomic.Int64
	stop := make(chan struct{})
	flood := inNamespace(t, h.hosts[1], func() error {
		conn, err := nclient4.NewRawUDPConn("eth0", 68)
		if err != nil {
			return err
		}
		defer conn.Close()
		req, err := dhcpv4.New(append(ipxeClient(), message(dhcpv4.MessageTypeDiscover))...)
		if err != nil {
			return err
		}
		b := req.ToBytes()
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			for range 20 {
				copy(b[28:], []byte{2, 0, byte(rand.Int()), byte(rand.Int()), byte(rand.Int()), byte(rand.Int())})
				_, _ = conn.WriteTo(b, &net.UDPAddr{IP: net.IPv4bcast, Port: 67}) // the queue is full now and then
				sent.Add(1)
			}
			time.Sleep(time.Millisecond) // up to 20 000 a second
		}
	})
	began := time.Now()
	worst, median := measure()
	rate := float64(sent.Load()) / time.Since(began).Seconds()
	close(stop)
	if err := <-flood; err != nil {
		t.Fatal(err)
	}
	t.Logf("quiet: median %s, worst %s; under %.0f strangers/s: median %s, worst %s", quietMedian, quietWorst, rate, median, worst)
	if rate < 1000 {
		t.Errorf("that was no flood: %.0f/s", rate)
	}
	if worst > time.Second {
		t.Errorf("a known machine waited %s: it would have asked again", worst)
	}
}
