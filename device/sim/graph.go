package sim

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"offload/device"
)

// A graph is what a program submitted: for every stream the operations that
// change bytes, each with what happens before it. It does not depend on the
// order in which they ran.
type graph struct {
	lanes []column // by number of the stream
}

// column is the operations of one stream in order.
type column []*node

// A node is one operation.
type node struct {
	kind   device.Kind
	lane   int // number of its stream
	time   uint64
	clock  clock
	reads  []device.Range
	writes []device.Range
	need   []int   // by number of the stream: how many of its operations come before
	rivals []*node // those that touch the same bytes and have no order with this one
	index  int     // in its column
}

// add enters a task, which has just got its time on s.
func (g *graph) add(s *stream, t *task) {
	n := &node{kind: t.kind, lane: s.number(), time: t.time, clock: slices.Clone(s.now)}
	switch t.kind {
	case device.Alloc, device.Free:
		n.writes = []device.Range{t.dst.span(0, t.dst.bytes)}
	case device.CopyOut, device.CopyIn, device.CopyWithin:
		n.reads = []device.Range{t.src.span(t.from, t.bytes)}
		n.writes = []device.Range{t.dst.span(t.to, t.bytes)}
	case device.Launch:
		for _, r := range t.call.reads {
			n.reads = append(n.reads, r.buf.span(r.Offset, r.Bytes))
		}
		for _, w := range t.call.writes {
			n.writes = append(n.writes, w.buf.span(w.Offset, w.Bytes))
		}
	default:
		return // it runs unseen; see settle
	}
	for len(g.lanes) <= n.lane {
		g.lanes = append(g.lanes, nil)
	}
	n.index = len(g.lanes[n.lane])
	g.lanes[n.lane] = append(g.lanes[n.lane], n)
}

// size returns the number of operations.
func (g *graph) size() int {
	n := 0
	for _, c := range g.lanes {
		n += len(c)
	}
	return n
}

// differs says how o differs from g, or returns the empty string. A program that
// does other things when its operations run in another order is not explored.
func (g *graph) differs(o *graph) string {
	if len(g.lanes) != len(o.lanes) {
		return fmt.Sprintf("%d streams have operations in one run and %d in another", len(g.lanes), len(o.lanes))
	}
	for lane, c := range g.lanes {
		if len(c) != len(o.lanes[lane]) {
			return fmt.Sprintf("stream %d has %d operations in one run and %d in another", lane, len(c), len(o.lanes[lane]))
		}
		for i, a := range c {
			b := o.lanes[lane][i]
			if a.kind != b.kind || !slices.Equal(a.clock, b.clock) || !slices.Equal(a.reads, b.reads) || !slices.Equal(a.writes, b.writes) {
				return fmt.Sprintf("operation %d of stream %d is %v in one run and %v in another, or its order is", i, lane, a.kind, b.kind)
			}
		}
	}
	return ""
}

// seal works out what has to be known of each node.
func (g *graph) seal() {
	var all []*node
	for _, c := range g.lanes {
		for _, n := range c {
			n.need = make([]int, len(g.lanes))
			for lane, other := range g.lanes {
				if lane == n.lane {
					n.need[lane] = n.index
					continue
				}
				t := n.clock.at(lane + 1)
				for n.need[lane] < len(other) && other[n.need[lane]].time <= t {
					n.need[lane]++
				}
			}
			all = append(all, n)
		}
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if a.need[b.lane] <= b.index && b.need[a.lane] <= a.index && a.clashes(b) {
				a.rivals, b.rivals = append(a.rivals, b), append(b.rivals, a)
			}
		}
	}
}

// clashes reports whether the order of the two can make a difference.
func (n *node) clashes(o *node) bool {
	overlap := func(a, b []device.Range) bool {
		return slices.ContainsFunc(a, func(r device.Range) bool { return slices.ContainsFunc(b, r.Overlaps) })
	}
	return overlap(n.writes, o.writes) || overlap(n.writes, o.reads) || overlap(n.reads, o.writes)
}

// A walk is a search through the orders of a graph.
type walk struct {
	*graph
	reduce bool  // orders that differ in nothing but independent operations count once
	done   []int // by stream: how many of its operations have run
	order  []int
	visit  func(order []int) bool
}

// each calls visit for every order, until it returns false.
func (g *graph) each(reduce bool, visit func(order []int) bool) {
	w := &walk{graph: g, reduce: reduce, done: make([]int, len(g.lanes)), visit: visit}
	w.from(make([]bool, len(g.lanes)))
}

// from goes on from here. The next operations of the streams in asleep need not
// be tried: what follows from them was, and nothing since then touches what they
// touch (they are what the literature calls a sleep set).
func (w *walk) from(asleep []bool) (more bool) {
	if len(w.order) == w.size() {
		return w.visit(w.order)
	}
	if w.reduce {
		for lane := range w.lanes {
			// An operation that no later one of another stream clashes with may
			// as well run now.
			if n := w.next(lane); n != nil && w.alone(n) {
				return asleep[lane] || w.take(lane, asleep)
			}
		}
	}
	asleep = slices.Clone(asleep)
	for lane := range w.lanes {
		n := w.next(lane)
		if n == nil || asleep[lane] {
			continue
		}
		still := make([]bool, len(asleep))
		for other, a := range asleep {
			still[other] = a && !n.clashes(w.lanes[other][w.done[other]])
		}
		if !w.take(lane, still) {
			return false
		}
		asleep[lane] = w.reduce
	}
	return true
}

// take runs the next operation of a stream and goes on from there.
func (w *walk) take(lane int, asleep []bool) (more bool) {
	w.done[lane]++
	w.order = append(w.order, lane)
	more = w.from(asleep)
	w.order = w.order[:len(w.order)-1]
	w.done[lane]--
	return more
}

// next returns the next operation of the stream if it may run.
func (w *walk) next(lane int) *node {
	if w.done[lane] == len(w.lanes[lane]) {
		return nil
	}
	n := w.lanes[lane][w.done[lane]]
	for other, need := range n.need {
		if w.done[other] < need {
			return nil
		}
	}
	return n
}

func (w *walk) alone(n *node) bool {
	return !slices.ContainsFunc(n.rivals, func(r *node) bool { return w.done[r.lane] <= r.index })
}

// maxStates bounds the work of count.
const maxStates = 1 << 20

// count returns the number of orders without making them: every set of
// operations that can have run is looked at once. It returns nil if there are
// too many such sets.
func (g *graph) count() *big.Int {
	w := &walk{graph: g, done: make([]int, len(g.lanes))}
	known := make(map[string]*big.Int)
	var from func(left int) *big.Int
	from = func(left int) *big.Int {
		if left == 0 {
			return big.NewInt(1)
		}
		key := w.state()
		if n := known[key]; n != nil {
			return n
		}
		sum := new(big.Int)
		for lane := range w.lanes {
			if w.next(lane) == nil {
				continue
			}
			w.done[lane]++
			n := from(left - 1)
			w.done[lane]--
			if n == nil {
				return nil
			}
			sum.Add(sum, n)
		}
		if len(known) == maxStates {
			return nil
		}
		known[key] = sum
		return sum
	}
	return from(g.size())
}

func (w *walk) state() string {
	var b strings.Builder
	for _, n := range w.done {
		fmt.Fprintf(&b, "%d,", n)
	}
	return b.String()
}
