package actors

import "offload/device"

// order keeps what is known of the order between the streams of one device, as
// vector clocks, so that a wait is issued only where the order is not there
// already. It knows the edges that its own operations make and no others:
// what it does not know costs a wait, never a missing one.
//
// OR1: the position of a stream counts the records made on it. An event carries
// the clock of its stream at the record; a wait joins that clock into the
// waiting stream's.
type order struct {
	ids     *device.IDs
	streams []streamClock
	spare   []*event
	live    int // events minted and not put back
}

// streamClock is one stream and what is ordered before whatever is enqueued on it next.
type streamClock struct {
	id    device.Stream
	seq   uint64   // records made on the stream
	clock []uint64 // by stream index: the position up to which that stream is ordered before
	saved []uint64 // the clock before the batch that is being built
}

// event is a recorded point of a stream, counted by those that may still wait on it.
type event struct {
	id     device.Event
	stream int
	seq    uint64
	clock  []uint64
	refs   int
	kept   device.Event // the generation that the device has; zero before the first one
}

// index returns the number of the stream s, which is noted if it is new.
func (o *order) index(s device.Stream) int {
	for i := range o.streams {
		if o.streams[i].id == s {
			return i
		}
	}
	o.streams = append(o.streams, streamClock{id: s})
	return len(o.streams) - 1
}

// covered reports whether everything before e is ordered before what is
// enqueued next on stream s.
func (o *order) covered(s int, e *event) bool {
	return e.stream == s || at(o.streams[s].clock, e.stream) >= e.seq
}

// record returns a new event at the present point of stream s, with one holder.
func (o *order) record(s int) *event {
	var e *event
	if n := len(o.spare); n > 0 {
		e, o.spare = o.spare[n-1], o.spare[:n-1]
	} else {
		e = new(event)
	}
	c := &o.streams[s]
	c.seq++
	*e = event{id: o.ids.Event(), stream: s, seq: c.seq, clock: append(e.clock[:0], c.clock...), refs: 1, kept: e.kept}
	o.live++
	return e
}

// join notes that stream s waits for e.
func (o *order) join(s int, e *event) {
	c := &o.streams[s]
	for i, seq := range e.clock {
		c.clock = raise(c.clock, i, seq)
	}
	c.clock = raise(c.clock, e.stream, e.seq)
}

// drop takes one holder of e away; the last one gives the event back. Drop of
// nil does nothing.
func (o *order) drop(e *event) {
	if e == nil {
		return
	}
	if e.refs--; e.refs == 0 {
		o.ids.PutEvent(e.id)
		o.live--
		o.spare = append(o.spare, e)
	}
}

// save notes the clocks as they are, for undo.
func (o *order) save() {
	for i := range o.streams {
		c := &o.streams[i]
		c.saved = append(c.saved[:0], c.clock...)
	}
}

// undo forgets the waits joined since save, because their batch was not
// enqueued whole. To know less is safe. Positions are not used again.
func (o *order) undo() {
	for i := range o.streams {
		c := &o.streams[i]
		c.clock = append(c.clock[:0], c.saved...)
	}
}

func at(clock []uint64, i int) uint64 {
	if i < len(clock) {
		return clock[i]
	}
	return 0
}

func raise(clock []uint64, i int, seq uint64) []uint64 {
	for len(clock) <= i {
		clock = append(clock, 0)
	}
	clock[i] = max(clock[i], seq)
	return clock
}
