package hostmem

import "offload/device"

// Block is pinned host memory that one taker uses. It is valid until it is
// given back; the pool then uses the Block itself again, too.
type Block[F comparable] struct {
	asked    int64 // bytes that Take was called with
	capacity int64 // bytes rounded up to pages
	ranges   []device.Range
	slabs    []*slab[F] // of the ranges
	was      []piece[F] // what the bytes were before, range after range
	counts   []int      // how many of was belong to each range
	fences   []F
	live     bool
	retried  bool // a pin for this block has failed once
}

// Bytes returns how many bytes were asked for.
func (b *Block[F]) Bytes() int64 { return b.asked }

// Capacity returns how many bytes the block has: Bytes rounded up to pages.
func (b *Block[F]) Capacity() int64 { return b.capacity }

// Ranges returns where the block is: [Block.Capacity] bytes, in order, in one
// range unless the block is larger than a slab, or a pin for it failed. Then the
// first range is the shortest. The slice belongs to the block.
func (b *Block[F]) Ranges() []device.Range { return b.ranges }

// Fences returns the fences of earlier users of the bytes, each once. The
// first access to the block has to be ordered after all of them. The slice
// belongs to the block and is valid until the next call of the pool.
func (b *Block[F]) Fences() []F { return b.fences }

// Span appends to dst the ranges that hold the n bytes from offset off of the
// block: where to copy something that does not fill the block. It panics
// when they are not within [Block.Capacity].
func (b *Block[F]) Span(dst []device.Range, off, n int64) []device.Range {
	if off < 0 || n < 0 || off+n > b.capacity {
		panic("hostmem: span outside of the block")
	}
	for _, r := range b.ranges {
		if n == 0 {
			break
		}
		if off >= r.Bytes {
			off -= r.Bytes
			continue
		}
		part := r.Sub(off, min(n, r.Bytes-off))
		dst = append(dst, part)
		off, n = 0, n-part.Bytes
	}
	return dst
}

// cut takes n bytes for b from a slab that has them.
func (b *Block[F]) cut(s *slab[F], n int64) {
	i, had := s.place(n), len(b.was)
	r := device.Range{Buffer: s.buffer, Offset: s.pieces[i].off, Bytes: n}
	b.was = s.take(i, n, b.was)
	b.ranges = append(b.ranges, r)
	b.slabs = append(b.slabs, s)
	b.counts = append(b.counts, len(b.was)-had)
	b.capacity += n
}

// uncut undoes all cuts: the bytes are free as they were before.
func (b *Block[F]) uncut() {
	was := b.was
	for i, r := range b.ranges {
		b.slabs[i].give(r.Offset, was[:b.counts[i]]...)
		was = was[b.counts[i]:]
	}
	b.forget()
}

// settle notes the fences of the bytes that were cut.
func (b *Block[F]) settle() {
	var zero F
	b.fences = b.fences[:0]
next:
	for _, q := range b.was {
		if q.fence == zero {
			continue
		}
		for _, f := range b.fences {
			if f == q.fence {
				continue next
			}
		}
		b.fences = append(b.fences, q.fence)
	}
}

// fenced returns how many of the bytes had a fence.
func (b *Block[F]) fenced() (bytes int64) {
	for _, q := range b.was {
		if q.fence != *new(F) {
			bytes += q.bytes
		}
	}
	return bytes
}

// pass drops the fences that have passed.
func (b *Block[F]) pass(passed func(F) bool) {
	if len(b.fences) == 0 {
		return
	}
	var zero F
	for i := range b.was {
		if q := &b.was[i]; q.fence != zero && passed(q.fence) {
			q.fence = zero
		}
	}
	b.settle()
}

// forget empties b and keeps its memory.
func (b *Block[F]) forget() {
	clear(b.slabs) // an unpinned slab is not kept alive
	b.ranges, b.slabs, b.was, b.counts, b.fences = b.ranges[:0], b.slabs[:0], b.was[:0], b.counts[:0], b.fences[:0]
	b.capacity = 0
}
