package hostmem

import "fmt"

// Stats counts bytes and calls. At all times Held = InUse + Free + Fenced.
type Stats struct {
	Held   int64 // bytes pinned
	InUse  int64 // bytes of blocks that are taken, pages included
	Free   int64 // bytes that can be used at once
	Fenced int64 // bytes that can be used after a fence
	Waste  int64 // bytes of InUse that nobody asked for: the rest of the last pages

	HighWater     int64 // highest InUse
	HighWaterHeld int64 // highest Held
	Limit         int64 // most that Held may become; math.MaxInt64: no limit

	Pins       int // slabs pinned
	Unpins     int // slabs unpinned
	FailedPins int // pins that the device refused
	Hits       int // blocks taken from slabs that were there
	Misses     int // blocks that a slab was pinned for
	Refused    int // blocks refused with a BudgetError
}

// mark raises the high-water marks to what is now.
func (s *Stats) mark() {
	s.HighWater = max(s.HighWater, s.InUse)
	s.HighWaterHeld = max(s.HighWaterHeld, s.Held)
}

// String returns the bytes on one line.
func (s Stats) String() string {
	return fmt.Sprintf("%d bytes pinned: %d in use (%d wasted), %d free, %d fenced; at most %d in use, %d pinned; %d pins, %d unpins",
		s.Held, s.InUse, s.Waste, s.Free, s.Fenced, s.HighWater, s.HighWaterHeld, s.Pins, s.Unpins)
}

// BudgetError says that a block does not fit. Nothing has changed.
type BudgetError struct {
	Asked  int64 // bytes that Take was called with
	Held   int64
	InUse  int64
	Free   int64
	Fenced int64
	Limit  int64 // most that Held may become
	Fits   int64 // a block of this many bytes would be granted now
	// PinFailed says that the limit is not the budget but what was pinned
	// when the device refused to pin more.
	PinFailed bool
}

// Error says what was asked, what there is and what would fit.
func (e *BudgetError) Error() string {
	why := "the budget"
	if e.PinFailed {
		why = "the limit since the device refused to pin more"
	}
	return fmt.Sprintf("pinned host memory: asked for %d bytes, but of %d (%s) %d are in use, %d free, %d free after a fence, %d not pinned; a block of %d bytes would fit now",
		e.Asked, e.Limit, why, e.InUse, e.Free, e.Fenced, max(e.Limit-e.Held, 0), e.Fits)
}
