package hostmem

import (
	"fmt"
	"slices"

	"offload/device"
)

// fit says how the bytes of a block may be arranged.
type fit struct {
	most  int64 // bytes of a range
	exact bool  // a new slab holds one range only
}

// begin starts a call: the operations of the last one have been performed.
// The marks are only raised here, so that pins that failed do not raise them.
func (p *Pool[F]) begin() {
	p.stats.mark()
	for _, s := range p.gone {
		p.ids.PutBuffer(s.buffer)
	}
	clear(p.gone)
	clear(p.added)
	p.ops, p.gone, p.added, p.todo = p.ops[:0], p.gone[:0], p.added[:0], p.todo[:0]
}

// fill gives b its bytes, or changes nothing and returns a *BudgetError.
func (p *Pool[F]) fill(b *Block[F], f fit) error {
	missing := p.cut(b, f, p.slabs)
	if !p.room(missing) {
		// A part of b may be in the way of the rest, in a slab that could
		// else be unpinned to make room for all of it.
		b.uncut()
		missing = p.cut(b, f, nil)
		if !p.room(missing) {
			return p.refuse(b.asked)
		}
	}
	if missing > 0 {
		p.unpin(missing - (p.limit - p.stats.Held))
	}
	for _, n := range p.todo {
		missing -= n
		size := n
		if !f.exact {
			size = p.slabSize(n, p.limit-p.stats.Held-missing) // the later ranges need theirs
		}
		b.cut(p.pin(size), n)
	}
	b.settle()
	p.join(b)
	return nil
}

// cut cuts the ranges of b that fit out of slabs, notes the others in todo and
// returns their bytes. The shortest range comes first, so that where one does
// not fit the later ones do not either: the ranges lie in the same order,
// whether slabs have to be pinned or not.
func (p *Pool[F]) cut(b *Block[F], f fit, slabs []*slab[F]) (missing int64) {
	p.todo = p.todo[:0]
	for left := p.cfg.pages(b.asked); left > 0; {
		n := left - (left-1)/f.most*f.most // the short one, then most
		left -= n
		if s := find(slabs, n); s != nil {
			b.cut(s, n)
			continue
		}
		p.todo = append(p.todo, n)
		missing += n
	}
	return missing
}

// room reports whether so many bytes can be pinned, if need be in the place of
// slabs that nothing uses.
func (p *Pool[F]) room(bytes int64) bool {
	return bytes == 0 || bytes <= p.limit-p.stats.Held+p.idle()
}

// smaller returns how to try again for b when s could not be pinned: without
// the part of the slab that b does not need, else in halves. No range is
// left, most is zero, when it cannot be smaller.
func (p *Pool[F]) smaller(b *Block[F], s *slab[F]) fit {
	if s.bytes > s.live {
		return fit{most: p.cfg.SlabBytes, exact: true}
	}
	if s.live == p.cfg.PageBytes {
		return fit{}
	}
	return fit{most: p.cfg.pages(s.live / 2), exact: true}
}

// find returns the first slab that has a run of n bytes, nil if there is none.
func find[F comparable](slabs []*slab[F], n int64) *slab[F] {
	for _, s := range slabs {
		if s.run >= n {
			return s
		}
	}
	return nil
}

// slabSize returns how large a slab to pin for blocks of n bytes when no more
// than room may be pinned.
func (p *Pool[F]) slabSize(n, room int64) int64 {
	size := p.cfg.SlabBytes
	if size%n > size/p.cfg.WasteDivisor {
		size = (size + n/2) / n * n
	}
	if size > room {
		size = room / n * n
	}
	return size
}

// idle returns the bytes of the slabs that can be unpinned.
func (p *Pool[F]) idle() (bytes int64) {
	for _, s := range p.slabs {
		if s.idle() {
			bytes += s.bytes
		}
	}
	return bytes
}

// unpin gives up slabs that nothing uses until they make up the given bytes
// or there are no more. The last ones go first: placement prefers the others.
func (p *Pool[F]) unpin(bytes int64) {
	for i := len(p.slabs) - 1; i >= 0 && bytes > 0; i-- {
		s := p.slabs[i]
		if !s.idle() {
			continue
		}
		p.ops = append(p.ops, device.Op{Kind: device.Unpin, Dst: s.whole()})
		p.gone = append(p.gone, s)
		p.slabs = slices.Delete(p.slabs, i, i+1)
		p.stats.Held -= s.bytes
		p.stats.Unpins++
		bytes -= s.bytes
	}
}

// pin adds a slab.
func (p *Pool[F]) pin(bytes int64) *slab[F] {
	s := newSlab[F](p.ids.Buffer(device.OnHost), bytes)
	p.ops = append(p.ops, device.Op{Kind: device.Pin, Dst: s.whole()})
	p.added = append(p.added, s)
	p.slabs = append(p.slabs, s)
	p.stats.Held += bytes
	p.stats.Pins++
	return s
}

// restore makes the slabs what they are when only the first done operations of
// the last call were performed.
func (p *Pool[F]) restore(done int) {
	unpins := len(p.gone)
	for _, s := range p.added[max(done-unpins, 0):] {
		p.slabs = slices.DeleteFunc(p.slabs, func(o *slab[F]) bool { return o == s })
		p.gone = append(p.gone, s) // its id goes back with the others
		p.stats.Held -= s.bytes
		p.stats.Pins--
	}
	if done >= unpins {
		return
	}
	for _, s := range p.gone[done:unpins] {
		p.slabs = append(p.slabs, s)
		p.stats.Held += s.bytes
		p.stats.Unpins--
	}
	p.gone = slices.Delete(p.gone, done, unpins)
}

// refuse returns the error for a block of n bytes.
func (p *Pool[F]) refuse(n int64) *BudgetError {
	p.stats.Refused++
	s := p.Stats()
	e := &BudgetError{
		Asked: n, Held: s.Held, InUse: s.InUse, Free: s.Free, Fenced: s.Fenced,
		Limit: p.limit, PinFailed: p.failed,
	}
	e.Fits = max(p.limit-s.Held+p.idle(), 0) / p.cfg.PageBytes * p.cfg.PageBytes
	for _, s := range p.slabs {
		e.Fits = max(e.Fits, s.run)
	}
	return e
}

// block returns an empty block.
func (p *Pool[F]) block() *Block[F] {
	if n := len(p.spare); n > 0 {
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return b
	}
	b := new(Block[F])
	p.blocks = append(p.blocks, b)
	return b
}

// drop puts away b, which has no bytes any more or whose bytes are given back.
func (p *Pool[F]) drop(b *Block[F]) {
	b.forget()
	b.live = false
	p.spare = append(p.spare, b)
}

// join counts b as in use.
func (p *Pool[F]) join(b *Block[F]) {
	p.stats.InUse += b.capacity
	p.stats.Waste += b.capacity - b.asked
	p.stats.Fenced -= b.fenced()
	if len(p.added) > 0 {
		p.stats.Misses++
	} else {
		p.stats.Hits++
	}
}

// leave counts b as no longer in use.
func (p *Pool[F]) leave(b *Block[F]) {
	p.stats.InUse -= b.capacity
	p.stats.Waste -= b.capacity - b.asked
}

// undo makes the bytes of b what they were before it was taken.
func (p *Pool[F]) undo(b *Block[F]) {
	p.leave(b)
	p.stats.Fenced += b.fenced()
	b.uncut()
}

// mustLive panics when b is not in use: a block given back twice would give
// its bytes to two owners.
func (p *Pool[F]) mustLive(b *Block[F]) {
	if !b.live {
		panic(fmt.Sprintf("hostmem: block of %d bytes given back, but it is not in use", b.asked))
	}
}
