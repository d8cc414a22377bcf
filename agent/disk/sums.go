package disk

import (
	"hash/maphash"
	"sync"
)

// sums remembers a cheap sum of each chunk that this process wrote, after the chunk's digest had been checked, so that reading
// back need not compute sha256 again: it looks for disks that lie, not for forgers. The seed is random, so nobody can aim at it.
// A nil *sums remembers nothing.
type sums struct {
	seed maphash.Seed
	mu   sync.Mutex
	at   map[place]uint64
}

type place struct {
	serial string
	offset int64
}

func newSums() *sums {
	return &sums{seed: maphash.MakeSeed(), at: map[place]uint64{}}
}

// of returns a function that remembers what is written to a disk.
func (s *sums) of(serial string) func(offset int64, data []byte) {
	if s == nil {
		return func(int64, []byte) {}
	}
	return func(offset int64, data []byte) {
		sum := maphash.Bytes(s.seed, data)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at[place{serial, offset}] = sum
	}
}

// forget drops what is known of a disk.
func (s *sums) forget(serial string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.at {
		if p.serial == serial {
			delete(s.at, p)
		}
	}
}

// matches compares data with what was written there; known is false when this process has not written it.
func (s *sums) matches(serial string, offset int64, data []byte) (same, known bool) {
	if s == nil {
		return false, false
	}
	s.mu.Lock()
	want, known := s.at[place{serial, offset}]
	s.mu.Unlock()
	return known && maphash.Bytes(s.seed, data) == want, known
}
