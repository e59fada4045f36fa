package hostmem

import (
	"fmt"
	"math"

	"offload/device"
)

// Config says how a pool divides memory. The zero value works.
type Config struct {
	// SlabBytes is about how large slabs are: a slab has between two thirds and
	// four thirds of it, where the budget allows. A block that is larger
	// consists of several ranges of at most SlabBytes. Zero: 64 MiB.
	SlabBytes int64
	// PageBytes is what sizes are rounded up to. Zero: 4096.
	PageBytes int64
	// Budget is the most that is pinned at any instant. Zero: no limit.
	Budget int64
	// WasteDivisor bounds the rest of a new slab that is cut into blocks of
	// the size it was pinned for: one part in WasteDivisor. Where the rest would
	// be more, the slab is a multiple of the block instead. Zero: 32.
	WasteDivisor int64
}

// maxBytes is more than any host has, and far from where sums overflow.
const maxBytes = 1 << 48

// EnsureDefaults sets what is not positive to its default and rounds SlabBytes
// up to pages.
func (c *Config) EnsureDefaults() {
	if c.PageBytes <= 0 {
		c.PageBytes = 4096
	}
	if c.SlabBytes <= 0 {
		c.SlabBytes = 64 << 20
	}
	if c.WasteDivisor <= 0 {
		c.WasteDivisor = 32
	}
	c.Budget = max(c.Budget, 0)
	c.SlabBytes = c.pages(c.SlabBytes)
}

// pages rounds n up to whole pages.
func (c *Config) pages(n int64) int64 {
	return (n + c.PageBytes - 1) / c.PageBytes * c.PageBytes
}

// IDs mints the ids of slabs; [device.IDs] does.
type IDs interface {
	Buffer(device.Place) device.Buffer
	PutBuffer(device.Buffer)
}

// Pool hands out pinned host memory. F is the type of the caller's fences; its
// zero value means that bytes may be used at once. See the package comment.
type Pool[F comparable] struct {
	cfg   Config
	ids   IDs
	limit int64 // of stats.Held
	slabs []*slab[F]
	stats Stats // Free and Limit are filled in by Stats

	blocks []*Block[F] // all there are, in use or not
	spare  []*Block[F] // those not in use

	ops    []device.Op // returned by the last call: first Unpins, then Pins
	gone   []*slab[F]  // those that ops unpins, in order
	added  []*slab[F]  // those that ops pins, in order
	todo   []int64     // while taking: sizes that no slab can serve
	failed bool        // limit was lowered by a failed pin
}

// New returns a pool that has pinned nothing yet.
func New[F comparable](cfg Config, ids IDs) *Pool[F] {
	cfg.EnsureDefaults()
	p := &Pool[F]{cfg: cfg, ids: ids}
	p.SetBudget(cfg.Budget)
	return p
}

// SetBudget changes the budget; zero means no limit. Where more is pinned,
// nothing more will be until enough has been trimmed. A limit found by a failed
// pin is forgotten.
func (p *Pool[F]) SetBudget(bytes int64) {
	p.limit, p.failed = bytes, false
	if bytes <= 0 {
		p.limit = math.MaxInt64
	}
}

// Stats returns the figures as of now.
func (p *Pool[F]) Stats() Stats {
	s := p.stats
	s.mark()
	s.Free = s.Held - s.InUse - s.Fenced
	s.Limit = p.limit
	return s
}

// Take returns a block of n bytes. The caller owns it until Give or Return.
//
// The operations, of which there are none when the slabs can serve, have to be
// submitted in this order before the next call of the pool and before the
// block is used: Unpin for slabs that make room, then Pin for new ones. If the
// device refuses one, call [Pool.Failed]. The slice is valid until the next
// call.
//
// A *[BudgetError] says that n bytes do not fit; nothing has changed then.
func (p *Pool[F]) Take(n int64) (*Block[F], []device.Op, error) {
	p.begin()
	if n <= 0 {
		return nil, nil, fmt.Errorf("pinned host memory: asked for %d bytes; a block has at least one", n)
	}
	if n > maxBytes {
		return nil, nil, fmt.Errorf("pinned host memory: asked for %d bytes; a block has at most %d", n, int64(maxBytes))
	}
	b := p.block()
	b.asked, b.retried, b.live = n, false, true
	if err := p.fill(b, fit{most: p.cfg.SlabBytes}); err != nil {
		p.drop(b)
		return nil, nil, err
	}
	return b, p.ops, nil
}

// Give takes b back. Its bytes are used again after fence; the caller has
// ordered the fence after all its accesses to b, and those after b.Fences().
// The zero fence says that all this has passed already.
func (p *Pool[F]) Give(b *Block[F], fence F) {
	p.begin()
	p.mustLive(b)
	for i, r := range b.ranges {
		b.slabs[i].give(r.Offset, piece[F]{off: r.Offset, bytes: r.Bytes, fence: fence})
	}
	if fence != *new(F) {
		p.stats.Fenced += b.capacity
	}
	p.leave(b)
	p.drop(b)
}

// Return takes b back as if it had not been taken: it was not used, and the
// fences of earlier users stand.
func (p *Pool[F]) Return(b *Block[F]) {
	p.begin()
	p.mustLive(b)
	p.undo(b)
	p.drop(b)
}

// Passed drops the fences for which passed returns true: bytes given back with
// them are free without condition, and no block will name them. A fence must not
// be used for something else while the pool may still hold it.
func (p *Pool[F]) Passed(passed func(F) bool) {
	p.begin()
	if p.stats.Fenced > 0 {
		for _, s := range p.slabs {
			if s.fenced > 0 {
				p.stats.Fenced -= s.pass(passed)
			}
		}
	}
	for _, b := range p.blocks {
		b.pass(passed)
	}
}

// Trim returns an Unpin operation for every slab that is wholly free without
// condition. The slice is valid until the next call of the pool, before which
// the operations have to be submitted; that call puts the ids back.
func (p *Pool[F]) Trim() []device.Op {
	p.begin()
	p.unpin(math.MaxInt64)
	return p.ops
}

// Failed says that of the operations that the last call returned together
// with b only the first done were performed, because the device refused the
// next one. It undoes what was not done. Where a Pin was refused it tries once
// with less memory: a slab for just this block, or where it was that already,
// two halves. The result is used like that of Take; b is gone.
//
// When the second attempt fails, too, Failed returns a *[BudgetError], and
// the pool does not try to pin more than it holds until [Pool.SetBudget]. It
// returns one also when an Unpin was refused.
//
// After a refused operation of [Pool.Trim], b is nil, and so are the results.
func (p *Pool[F]) Failed(b *Block[F], done int) (*Block[F], []device.Op, error) {
	if done < 0 || done >= len(p.ops) {
		panic(fmt.Sprintf("hostmem: operation %d of %d is said to have failed", done, len(p.ops)))
	}
	if b == nil {
		p.restore(done)
		p.begin()
		return nil, nil, nil
	}
	p.mustLive(b)
	pin := done - (len(p.ops) - len(p.added)) // index of the refused Pin; negative: an Unpin
	smaller := fit{}
	if pin >= 0 {
		p.stats.FailedPins++
		smaller = p.smaller(b, p.added[pin])
	}
	p.undo(b)
	p.stats.Misses--
	p.restore(done)
	p.begin()
	if pin >= 0 && (b.retried || smaller.most == 0) {
		p.limit, p.failed = p.stats.Held, true
	}
	if pin < 0 || b.retried || smaller.most == 0 {
		err := p.refuse(b.asked)
		p.drop(b)
		return nil, nil, err
	}
	b.retried = true
	if err := p.fill(b, smaller); err != nil {
		p.drop(b)
		return nil, nil, err
	}
	return b, p.ops, nil
}
