package sim

import (
	"fmt"
	"math/rand/v2"

	"offload/device"
)

// Order says when queued operations run.
type Order uint8

const (
	// Seeded runs queued operations of different streams in a legal order that
	// Config.Seed chooses, some during Submit and some only when they are waited for.
	Seeded Order = iota
	// Eager runs everything before Submit returns.
	Eager
)

// String returns "seeded" or "eager".
func (o Order) String() string {
	switch o {
	case Seeded:
		return "seeded"
	case Eager:
		return "eager"
	}
	return fmt.Sprintf("order(%d)", uint8(o))
}

// A chooser makes the choices that the edges leave open.
type chooser interface {
	// pick chooses one of the streams whose next operation may run. There is at
	// least one; pick is called for every operation that runs.
	pick(ready []*stream) int
	// burst chooses how many of the queued operations to run before Submit returns.
	burst(queued int) int
}

type eager struct{}

func (eager) pick([]*stream) int   { return 0 }
func (eager) burst(queued int) int { return queued }

type seeded struct{ r *rand.Rand }

func newSeeded(seed uint64) seeded {
	return seeded{rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

func (s seeded) pick(ready []*stream) int {
	if len(ready) == 1 {
		return 0
	}
	return s.r.IntN(len(ready))
}

// burst keeps the device far behind in half of the cases, level in some, and
// anywhere between in the rest.
func (s seeded) burst(queued int) int {
	switch s.r.IntN(8) {
	case 0:
		return queued
	case 1, 2, 3:
		return s.r.IntN(queued + 1)
	}
	return 0
}

// maxQueued bounds the operations that wait in queues. It keeps a program that
// never synchronises in bounded memory.
const maxQueued = 4096

// A task is a queued operation with its ids looked up.
type task struct {
	kind     device.Kind
	time     uint64 // on its stream
	after    point  // of a wait: what must have run
	dst, src *buffer
	to, from int64 // offsets
	bytes    int64
	call     *Call
}

// A point is a time on a lane.
type point struct {
	lane int
	time uint64
}

// A stream is a queue of tasks and the clock of what was submitted to it. It
// stays on its lane after it was closed, until the lane is used again.
type stream struct {
	id     device.Stream
	lane   int
	opened Site
	closed bool
	now    clock
	done   uint64 // time of the last task that has run
	queue  []task
	head   int // index of the first task that has not run
}

func (s *stream) empty() bool { return s.head == len(s.queue) }

func (s *stream) push(t task) {
	if s.head > 64 && s.head > len(s.queue)/2 {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.queue = append(s.queue, t)
}

func (s *stream) pop() task {
	t := s.queue[s.head]
	s.queue[s.head] = task{}
	s.head++
	if s.empty() {
		s.queue, s.head = s.queue[:0], 0
	}
	s.done = t.time
	return t
}

// passed reports whether the operation at p has run.
func (d *Device) passed(p point) bool { return d.lanes[p.lane].done >= p.time }

// enqueue appends t to the queue of s.
func (d *Device) enqueue(s *stream, t task) {
	if d.graph != nil {
		d.graph.add(s, &t)
	}
	s.push(t)
	d.queued++
}

// settle runs what changes no bytes: records, declared accesses, ends of adoptions, and waits that
// are satisfied. When they run makes no difference to anybody, so that they
// are no choices. It collects the streams that can go on.
func (d *Device) settle() {
	for again := true; again; {
		again = false
		d.ready = d.ready[:0]
		for _, s := range d.lanes[1:] {
			for !s.empty() && d.silent(&s.queue[s.head]) {
				s.pop()
				d.queued--
				again = true
			}
			if !s.empty() && s.queue[s.head].kind != device.Wait {
				d.ready = append(d.ready, s)
			}
		}
	}
}

func (d *Device) silent(t *task) bool {
	switch t.kind {
	case device.Record, device.Access, device.Disown:
		return true
	case device.Wait:
		return d.passed(t.after)
	}
	return false
}

// step runs one operation of one stream and reports whether there was one. A
// wait names a record that was submitted before it, so while anything is queued
// some stream can go on.
func (d *Device) step() bool {
	d.settle()
	if len(d.ready) == 0 {
		return false
	}
	t := d.ready[d.order.pick(d.ready)].pop()
	d.queued--
	d.exec(&t)
	return true
}

// pump runs as much as the order wants to before Submit returns.
func (d *Device) pump() {
	if d.queued == 0 {
		return
	}
	n := d.order.burst(d.queued)
	for n > 0 && d.step() {
		n--
	}
	for d.queued > maxQueued && d.step() {
	}
}

// drain runs operations, of whatever stream, until the one at p has run.
func (d *Device) drain(p point) {
	for !d.passed(p) {
		if !d.step() && !d.passed(p) {
			panic("sim: an operation waits for one that is not queued") // see step
		}
	}
}

// exec runs one operation. It is the only place where bytes of device memory move.
func (d *Device) exec(t *task) {
	if d.lost != nil || d.cfg.Phantom { // nothing runs any more, or at all
		if t.call != nil {
			d.recycle(t.call)
		}
		return
	}
	switch t.kind {
	case device.Alloc:
		t.dst.memory(&d.heap)
	case device.Free:
		t.dst.release(&d.heap)
	case device.CopyOut, device.CopyIn, device.CopyWithin:
		dst, src := t.dst.memory(&d.heap), t.src.memory(&d.heap)
		copy(dst[t.to:t.to+t.bytes], src[t.from:t.from+t.bytes])
	case device.Launch:
		d.launch(t.call)
		d.recycle(t.call)
	}
}
