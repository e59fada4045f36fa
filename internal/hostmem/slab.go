package hostmem

import (
	"slices"

	"offload/device"
)

// piece is a part of a slab: the bytes of one live block, or free bytes that
// have one fence. The zero fence is none.
type piece[F comparable] struct {
	off, bytes int64
	live       bool
	fence      F
}

// slab is one pinned buffer, divided without gaps into pieces in the order of
// their offsets. Adjacent free pieces with the same fence are one piece, and
// adjacent free pieces together are a run.
type slab[F comparable] struct {
	buffer device.Buffer
	bytes  int64
	pieces []piece[F]
	run    int64 // bytes of the longest run
	live   int64 // bytes of live pieces
	fenced int64 // bytes of free pieces with a fence
}

func newSlab[F comparable](b device.Buffer, bytes int64) *slab[F] {
	s := &slab[F]{buffer: b, bytes: bytes, run: bytes}
	s.pieces = append(s.pieces, piece[F]{bytes: bytes})
	return s
}

// whole returns all bytes of the slab.
func (s *slab[F]) whole() device.Range { return device.Range{Buffer: s.buffer, Bytes: s.bytes} }

// idle reports whether the slab can be unpinned: nothing uses it any more.
func (s *slab[F]) idle() bool { return s.live == 0 && s.fenced == 0 }

// place returns the index of the piece with which the tightest run of at
// least n bytes begins, the first of equal ones. There must be one.
func (s *slab[F]) place(n int64) int {
	at, best := -1, int64(0)
	for i := 0; i < len(s.pieces); {
		next, bytes := s.runFrom(i)
		if bytes >= n && (at < 0 || bytes < best) {
			at, best = i, bytes
		}
		i = next
	}
	return at
}

// runFrom returns the length of the run that begins with piece i, zero if the
// piece is live, and the index at which to look for the next run.
func (s *slab[F]) runFrom(i int) (next int, bytes int64) {
	for ; i < len(s.pieces) && !s.pieces[i].live; i++ {
		bytes += s.pieces[i].bytes
	}
	return i + 1, bytes
}

// take makes the first n bytes of the run at piece i live and appends to was
// the free pieces that they were.
func (s *slab[F]) take(i int, n int64, was []piece[F]) []piece[F] {
	var zero F
	off := s.pieces[i].off
	end, left := i, n
	for left > 0 {
		q := s.pieces[end]
		q.bytes = min(q.bytes, left)
		was = append(was, q)
		left -= q.bytes
		if q.fence != zero {
			s.fenced -= q.bytes
		}
		if q.bytes < s.pieces[end].bytes {
			s.pieces[end].off += q.bytes
			s.pieces[end].bytes -= q.bytes
			break
		}
		end++
	}
	s.replace(i, end, piece[F]{off: off, bytes: n, live: true})
	s.live += n
	s.measure()
	return was
}

// give makes the live piece at offset off free; was says with which fences,
// and covers it in order.
func (s *slab[F]) give(off int64, was ...piece[F]) {
	var zero F
	i, ok := slices.BinarySearchFunc(s.pieces, off, func(q piece[F], off int64) int {
		return int(min(max(q.off-off, -1), 1))
	})
	if !ok || !s.pieces[i].live {
		panic("hostmem: bytes given back that are not in use")
	}
	s.live -= s.pieces[i].bytes
	s.replace(i, i+1, was...)
	for _, q := range was {
		if q.fence != zero {
			s.fenced += q.bytes
		}
	}
	s.merge(max(i-1, 0), i+len(was)+1)
	s.measure()
}

// pass drops the fences that have passed and returns the bytes they held.
func (s *slab[F]) pass(passed func(F) bool) (bytes int64) {
	var zero F
	for i := range s.pieces {
		if q := &s.pieces[i]; q.fence != zero && passed(q.fence) {
			q.fence = zero
			bytes += q.bytes
		}
	}
	if bytes > 0 {
		s.fenced -= bytes
		s.merge(0, len(s.pieces))
	}
	return bytes
}

// replace puts with in the place of the pieces from i to j, without allocating
// where the slice has room.
func (s *slab[F]) replace(i, j int, with ...piece[F]) {
	n, m := len(s.pieces), len(s.pieces)+len(with)-(j-i)
	if m > n {
		s.pieces = slices.Grow(s.pieces, m-n)[:m]
	}
	copy(s.pieces[i+len(with):], s.pieces[j:n])
	copy(s.pieces[i:], with)
	s.pieces = s.pieces[:m]
}

// merge makes one piece of adjacent free pieces with the same fence among the
// pieces from i to j.
func (s *slab[F]) merge(i, j int) {
	j = min(j, len(s.pieces))
	w := i
	for r := i + 1; r < j; r++ {
		q := s.pieces[r]
		if p := &s.pieces[w]; !p.live && !q.live && p.fence == q.fence {
			p.bytes += q.bytes
			continue
		}
		w++
		s.pieces[w] = q
	}
	s.replace(w+1, j)
}

// measure finds the longest run again.
func (s *slab[F]) measure() {
	s.run = 0
	for i := 0; i < len(s.pieces); {
		next, bytes := s.runFrom(i)
		s.run = max(s.run, bytes)
		i = next
	}
}
