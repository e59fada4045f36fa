package actors

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"offload/device"
)

// ErrShape is returned by start-offload when host memory is retained and no
// buffer that is left can take a tensor. Nothing has been enqueued.
var ErrShape = errors.New("no retained buffer fits")

// shelf is the host memory that the slots of one layer use, pass after pass, at
// fixed addresses. Slots that are in flight together have a shelf each.
type shelf struct {
	blocks []*hostBlock
	fixed  bool // by the first slot that moved something: no blocks are added
	short  bool // by a slot with more to move than there was host memory for
	busy   bool // a slot has it
}

// shelfKey says whose shelf it is.
type shelfKey struct{ layer, occurrence int }

func (k shelfKey) compare(o shelfKey) int {
	return cmp.Or(cmp.Compare(k.layer, o.layer), cmp.Compare(k.occurrence, o.occurrence))
}

// reserve gives the group a shelf, if host memory is retained.
func (d *deviceActor) reserve(g *group) {
	if !d.retain || g.shelf != nil {
		return
	}
	key := shelfKey{g.origin.Layer, g.origin.Occurrence}
	for _, s := range d.shelves[key] {
		if !s.busy {
			g.shelf = s
			break
		}
	}
	if g.shelf == nil {
		g.shelf = new(shelf)
		d.shelves[key] = append(d.shelves[key], g.shelf)
	}
	g.shelf.busy = true
}

// fromShelf returns the tightest block of the shelf that holds n bytes and is
// not in use. Nil without an error: there is none, and the shelf may get one.
func (d *deviceActor) fromShelf(s *shelf, n int64) (*hostBlock, error) {
	var best *hostBlock
	left, largest := 0, int64(0)
	for _, h := range s.blocks {
		if h.parts > 0 || h.offered {
			continue
		}
		left++
		c := h.block.Capacity()
		largest = max(largest, c)
		if c >= n && (best == nil || c < best.block.Capacity()) {
			best = h
		}
	}
	switch {
	case best != nil:
	case !s.fixed:
		return nil, nil
	case s.short:
		p := d.pool.Stats()
		return nil, &BudgetError{Place: device.OnHost, Asked: n, InUse: p.InUse, Limit: p.Limit, Fits: largest, Top: d.holdings((*entry).hosted)}
	default:
		return nil, fmt.Errorf("%w: %d bytes were asked for, and of the %d buffers that were retained at the layer's first offload "+
			"none of the %d unused ones is large enough; open the engine without RetainHost if shapes grow", ErrShape, n, len(s.blocks), left)
	}
	best.offered = true
	best.fences = best.fences[:0]
	if best.last != nil {
		best.fences = append(best.fences, best.last)
	}
	return best, nil
}

// restock ends the choice of blocks for a batch: done says that the copies are
// made, so that what they use is retained.
func (d *deviceActor) restock(s *shelf, done bool) {
	if s == nil {
		return
	}
	if done {
		for _, h := range d.taken {
			h.retained = true
			s.blocks = append(s.blocks, h)
		}
	}
	for _, h := range s.blocks {
		h.offered = false
	}
}

// unreserve takes the shelf from a group that uses none of its blocks any more.
// A slot whose offload was not started may not have saved all that its layer
// saves, so that what it used is no measure for others.
func (d *deviceActor) unreserve(g *group) {
	s := g.shelf
	if s == nil {
		return
	}
	switch {
	case s.fixed:
	case g.started:
		s.fixed = len(s.blocks) > 0
	default:
		d.clear(s)
	}
	s.busy, g.shelf = false, nil
}

// clear gives back the memory of a shelf; blocks that slots of other layers still
// count on, because they share a storage, when these are done.
func (d *deviceActor) clear(s *shelf) {
	for _, h := range s.blocks {
		h.retained = false
		if h.parts == 0 {
			d.give(h)
		}
	}
	s.blocks, s.short = nil, false
}

// clearShelves gives back the memory of the shelves that no slot uses.
func (d *deviceActor) clearShelves() {
	for _, key := range slices.SortedFunc(maps.Keys(d.shelves), shelfKey.compare) { // the same blocks next time
		list := d.shelves[key]
		kept := list[:0]
		for _, s := range list {
			if s.busy {
				kept = append(kept, s)
				continue
			}
			d.clear(s)
		}
		if len(kept) == 0 {
			delete(d.shelves, key)
		} else {
			d.shelves[key] = kept
		}
	}
}
