// Package load plays many network clients at once against a boot server, whoever made it, and measures how it answers.
package load

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Kinds of load.
const (
	DHCP  = "dhcp"  // full exchanges, DISCOVER to ACK, by machines with a reservation
	TFTP  = "tftp"  // one file again and again
	HTTP  = "http"  // one file again and again, on connections that are kept
	Storm = "storm" // whole boots, all at once
)

// Spec is one run of load. It is carried out in the network namespace of its process.
type Spec struct {
	Kind      string
	Interface string        // towards the server
	Server    netip.Addr    // the server's address
	For       time.Duration // how long; a storm lasts until all have booted, or this long
	Parallel  int           // how many clients ask at the same time

	First netip.Addr // address that machine number 0 has reserved; the others follow it
	Count int        // machines

	File  string // TFTP: name; HTTP: path
	Port  uint16 // HTTP
	Block int    // TFTP: block size; 0 means none asked for

	Flood int // DISCOVERs per second by machines that nobody knows, all the while
}

// Result is what came of a run.
type Result struct {
	Done    int           // exchanges, files or boots
	Bytes   int64         // of files
	Repeats int           // DHCP questions that had to be asked again
	Again   int           // TFTP packets that had to be sent again
	Flooded int           // DISCOVERs of unknown machines sent
	Took    time.Duration // the run

	DHCPMedian, DHCPTail, DHCPWorst time.Duration // from a DHCP question to its answer: median, 99th percentile, longest
	BootMedian, BootTail, BootWorst time.Duration // a whole boot

	Failures []string // why machines did not boot, the first few
}

// Rate is what was done per second.
func (r Result) Rate() float64 { return float64(r.Done) / r.Took.Seconds() }

// Throughput is bytes per second.
func (r Result) Throughput() float64 { return float64(r.Bytes) / r.Took.Seconds() }

// Run carries out a run of load.
func Run(ctx context.Context, s Spec) (Result, error) {
	switch s.Kind {
	case DHCP:
		return s.exchanges(ctx)
	case TFTP:
		return s.transfers(ctx, s.tftpLane)
	case HTTP:
		return s.transfers(ctx, s.httpLane)
	case Storm:
		return s.storm(ctx)
	}
	return Result{}, fmt.Errorf("run load: no kind %q", s.Kind)
}

// MAC is the address of the provisioning port of machine number n.
func MAC(n int) [6]byte { return [6]byte{0x02, 0x00, 0x5e, byte(n >> 16), byte(n >> 8), byte(n)} }

// Addr is the address that machine number n has reserved.
func (s Spec) Addr(n int) netip.Addr {
	a := s.First.As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// spread returns median, 99th percentile and maximum.
func spread(all []time.Duration) (median, tail, worst time.Duration) {
	if len(all) == 0 {
		return 0, 0, 0
	}
	slices.Sort(all)
	at := func(part float64) time.Duration { return all[min(int(part*float64(len(all))), len(all)-1)] }
	return at(0.5), at(0.99), all[len(all)-1]
}
