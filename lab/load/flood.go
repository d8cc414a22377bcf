package load

import (
	"context"
	"math/rand/v2"
	"time"
)

// flood sends DISCOVERs of machines that nobody knows, s.Flood a second, until ctx ends, and then tells how many.
func (s Spec) flood(ctx context.Context, w *wire) <-chan int {
	sent := make(chan int, 1)
	go func() { // ends with ctx
		n := 0
		defer func() { sent <- n }()
		if s.Flood <= 0 {
			return
		}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		frame := firmware.template(true)
		for began := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for due := int(time.Since(began).Seconds() * float64(s.Flood)); n < due && ctx.Err() == nil; n++ {
				r := rand.Uint32()
				address(frame, [6]byte{0x02, 0xbb, byte(r >> 24), byte(r >> 16), byte(r >> 8), byte(r)}, r|1<<31)
				if w.send(frame) != nil {
					return
				}
			}
		}
	}()
	return sent
}
