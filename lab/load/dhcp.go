package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// Kinds of DHCP message.
const (
	discover = 1
	offer    = 2
	request  = 3
	ack      = 5
)

// Where a question of ours has what differs from machine to machine, from the start of its frame.
const (
	atXID    = bootp + 4
	atMAC    = bootp + 28
	atKind   = bootp + 242 // option 53 comes first
	atAddr   = atKind + 3  // then 50
	atServer = atAddr + 6  // then 54
)

// stage is a client of a boot: the options it sends.
type stage []byte

func option(code byte, value ...byte) []byte { return append([]byte{code, byte(len(value))}, value...) }

func text(code byte, value string) []byte { return option(code, []byte(value)...) }

// Clients, as captures of the real ones show them.
var (
	firmware = stage(bytes.Join([][]byte{
		option(57, 0x05, 0xc0),
		option(55, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97, 128, 129, 130, 131, 132, 133, 134, 135),
		option(97, make([]byte, 17)...),
		option(94, 1, 3, 0),
		option(93, 0, 7),
		text(60, "PXEClient:Arch:00007:UNDI:003000"),
	}, nil))
	ipxe = stage(bytes.Join([][]byte{
		option(57, 0x05, 0xc0),
		option(93, 0, 7),
		option(94, 1, 3, 10),
		text(60, "PXEClient:Arch:00007:UNDI:003010"),
		text(77, "iPXE"),
		option(55, 1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175, 203),
		option(175, 0xb1, 5, 1, 0x1a, 0xf4, 0x10, 0, 0xeb, 3, 1, 21, 1, 23, 1, 1, 34, 1, 1, 19, 1, 1, 17, 1, 1, 39, 1, 1, 25, 1, 1, 16, 1, 2, 33, 1, 1, 18, 1, 1),
		option(97, make([]byte, 17)...),
	}, nil))
)

// template is a DISCOVER in a frame, for no machine yet. Pad options hold the place of what a REQUEST adds.
func (s stage) template(wantBroadcast bool) []byte {
	msg := make([]byte, 240, 600)
	copy(msg, []byte{1, 1, 6})
	if wantBroadcast {
		msg[10] = 0x80
	}
	copy(msg[236:], "\x63\x82\x53\x63")
	msg = append(msg, option(53, discover)...)
	msg = append(msg, make([]byte, 12)...)
	msg = append(append(msg, s...), 0xff)
	return broadcast(msg)
}

// address makes a frame one of a machine and a transaction.
func address(frame []byte, mac [6]byte, xid uint32) {
	copy(frame[6:], mac[:])
	copy(frame[atMAC:], mac[:])
	binary.BigEndian.PutUint32(frame[atXID:], xid)
}

// take makes a DISCOVER the REQUEST that takes an offer.
func take(frame []byte, o reply) {
	frame[atKind] = request
	frame[atAddr-2], frame[atAddr-1] = 50, 4
	copy(frame[atAddr:], o.addr[:])
	frame[atServer-2], frame[atServer-1] = 54, 4
	copy(frame[atServer:], o.server[:])
}

// parseReply reads what a machine needs of an answer.
func parseReply(msg []byte) reply {
	r := reply{at: time.Now(), addr: [4]byte(msg[16:20])}
	for o := msg[240:]; len(o) > 1 && o[0] != 0xff; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		n := int(o[1])
		if len(o) < 2+n {
			break
		}
		switch v := o[2 : 2+n]; {
		case o[0] == 53 && n == 1:
			r.kind = v[0]
		case o[0] == 54 && n == 4:
			r.server = [4]byte(v)
		}
		o = o[2+n:]
	}
	if name, _, _ := bytes.Cut(msg[108:236], []byte{0}); len(name) > 0 {
		r.file = string(name)
	}
	return r
}

// asker is one machine at a time asking for its address.
type asker struct {
	wire    *wire
	answers chan reply
	timer   *time.Timer
	buf     []byte
	repeats int
	waits   []time.Duration // from the first asking of a question to its answer
}

func newAsker(w *wire) *asker {
	return &asker{wire: w, answers: make(chan reply, 4), timer: time.NewTimer(time.Hour), buf: make([]byte, 0, 1024)}
}

var errSilence = errors.New("no answer to DHCP")

// Waits of firmware before it asks again: 1, 2, 4 and 8 seconds.
const firmwareTries = 4

// ask sends a frame until an answer of the wanted kind comes.
func (a *asker) ask(ctx context.Context, frame []byte, want byte) (reply, error) {
	asked := time.Now()
	for try := range firmwareTries {
		if try > 0 {
			a.repeats++
		}
		if err := a.wire.send(frame); err != nil {
			return reply{}, err
		}
		a.timer.Reset(time.Second << try)
		for waiting := true; waiting; {
			select {
			case r := <-a.answers:
				if r.kind == want {
					a.waits = append(a.waits, r.at.Sub(asked))
					return r, nil
				}
			case <-a.timer.C:
				waiting = false
			case <-ctx.Done():
				return reply{}, ctx.Err()
			}
		}
	}
	return reply{}, errSilence
}

// lease carries out one exchange, DISCOVER to ACK.
func (a *asker) lease(ctx context.Context, template []byte, mac [6]byte, xid uint32) (reply, error) {
	frame := append(a.buf[:0], template...)
	address(frame, mac, xid)
	a.wire.expect(xid, a.answers)
	defer a.wire.forget(xid)
	o, err := a.ask(ctx, frame, offer)
	if err != nil {
		return reply{}, err
	}
	take(frame, o)
	return a.ask(ctx, frame, ack)
}

// exchanges has machines ask for their addresses for a time, one after the other in each of several lanes.
func (s Spec) exchanges(ctx context.Context) (Result, error) {
	w, err := openWire(s.Interface)
	if err != nil {
		return Result{}, err
	}
	defer w.close()
	began := time.Now()
	end, cancel := context.WithDeadline(ctx, began.Add(s.For))
	defer cancel()
	flooded := s.flood(end, w)
	template := firmware.template(true)
	lanes := make([]Result, s.Parallel)
	waits := make([][]time.Duration, s.Parallel)
	group, end := errgroup.WithContext(end)
	for lane := range lanes {
		group.Go(func() error {
			a, r := newAsker(w), &lanes[lane]
			defer func() { r.Repeats, waits[lane] = a.repeats, a.waits }()
			for turn := 0; ; turn++ {
				n := (lane + turn*s.Parallel) % s.Count
				_, err := a.lease(end, template, MAC(n), uint32(lane)<<20|uint32(turn)&0xfffff)
				switch {
				case end.Err() != nil:
					return nil
				case err != nil:
					return err
				}
				r.Done++
			}
		})
	}
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	total := Result{Took: time.Since(began), Flooded: <-flooded}
	var all []time.Duration
	for i, r := range lanes {
		total.Done += r.Done
		total.Repeats += r.Repeats
		all = append(all, waits[i]...)
	}
	total.DHCPMedian, total.DHCPTail, total.DHCPWorst = spread(all)
	return total, nil
}
