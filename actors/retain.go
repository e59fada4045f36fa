package actors

import (
	"errors"
	"fmt"
)

// ErrShape is returned by start-offload when host memory is retained and no
// buffer that is left can take a tensor. Nothing has been enqueued.
var ErrShape = errors.New("no retained buffer fits")

// shelf is the host memory that the slots of one layer use, pass after pass, at
// fixed addresses. Slots that are in flight together have a shelf each.
type shelf struct {
	blocks []*hostBlock // fixed once it is filled
	filled bool         // by the first slot that moved something
	busy   bool         // a slot has it
}

// shelfKey says whose shelf it is.
type shelfKey struct{ layer, occurrence int }

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
// not in use.
func (d *deviceActor) fromShelf(s *shelf, n int64) (*hostBlock, error) {
	var best *hostBlock
	left := 0
	for _, h := range s.blocks {
		if h.parts > 0 || h.offered {
			continue
		}
		left++
		if c := h.block.Capacity(); c >= n && (best == nil || c < best.block.Capacity()) {
			best = h
		}
	}
	if best == nil {
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
// made, so that a shelf that was empty is filled with what they use.
func (d *deviceActor) restock(s *shelf, done bool) {
	if s == nil {
		return
	}
	if !s.filled && done {
		for _, h := range d.taken {
			h.retained = true
			s.blocks = append(s.blocks, h)
		}
		s.filled = len(s.blocks) > 0
	}
	for _, h := range s.blocks {
		h.offered = false
	}
}

// clearShelves gives back the memory of the shelves that no slot uses.
func (d *deviceActor) clearShelves() {
	for key, list := range d.shelves {
		kept := list[:0]
		for _, s := range list {
			if s.busy {
				kept = append(kept, s)
				continue
			}
			for _, h := range s.blocks {
				h.retained = false
				d.give(h)
			}
		}
		if len(kept) == 0 {
			delete(d.shelves, key)
		} else {
			d.shelves[key] = kept
		}
	}
}
