package cuda

import (
	"fmt"
	"slices"

	"offload/device"
)

// A request is a batch on its way through Submit.
type request struct {
	*Device
	batch    *device.Batch
	index    int // of the operation that is being translated
	op       *device.Op
	bound    bool // the context is current on this thread
	previous uintptr
}

// A change is what a command made of a table entry, and what was there before.
type change struct {
	command int32
	event   device.Event  // the entry that was changed; zero: it was a buffer's
	buffer  device.Buffer // likewise

	eventWas  event
	bufferWas buffer
	memoryWas account
}

// Submit enqueues the operations of b. It blocks for SyncStream and SyncEvent,
// and for the driver when the queue of a stream is full. An Alloc that finds no
// memory leaves the device as usable as it was.
func (d *Device) Submit(b *device.Batch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(b.Ops) == 0 {
		return d.usable()
	}
	r := request{Device: d, batch: b}
	defer r.unbind()
	for i := range b.Ops {
		r.index, r.op = i, &b.Ops[i]
		if err := r.next(); err != nil {
			return err
		}
	}
	return r.flush()
}

// next translates one operation. What stands before it is enqueued first if it
// acts at once or is refused.
func (r *request) next() error {
	if atOnce(r.op) {
		if err := r.flush(); err != nil {
			return err
		}
	}
	err := r.usable()
	if err == nil {
		err = r.translate()
	}
	if err == nil {
		return nil
	}
	if earlier := r.flush(); earlier != nil {
		return earlier
	}
	return r.refuse(r.index, err)
}

// refuse makes the error of an operation. It outlives Submit, so it shares
// nothing with the batch.
func (r *request) refuse(index int, err error) error {
	op := r.batch.Ops[index]
	if k := op.Kernel; k != nil {
		op.Kernel = &device.Kernel{Name: k.Name, Args: slices.Clone(k.Args), Reads: slices.Clone(k.Reads), Writes: slices.Clone(k.Writes)}
	}
	return &device.Error{Origin: r.batch.Origin, Index: index, Op: op, Err: err}
}

// flush runs the commands. After a failure the tables say what was enqueued.
func (r *request) flush() error {
	if len(r.list) == 0 {
		return nil
	}
	done, err := r.drv.enqueue(r.list)
	for i := len(r.changes) - 1; i >= 0 && int(r.changes[i].command) >= done; i-- {
		r.undo(&r.changes[i])
	}
	for i := range r.changes {
		if c := &r.changes[i]; int(c.command) < done && !c.buffer.IsZero() {
			r.resolve(r.entry(c.buffer))
		}
	}
	if err != nil {
		err = r.failed(&r.list[done], err)
	}
	r.list, r.changes = r.list[:0], r.changes[:0]
	return err
}

// failed makes the error of a command that the driver refused.
func (r *request) failed(c *command, err error) error {
	index := int(c.op)
	err = r.answered(err)
	if c.verb == verbAlloc && r.lost == nil {
		if free, total, memErr := r.drv.memory(); memErr == nil {
			err = fmt.Errorf("%w: %d bytes asked for, %d in use by this device; the GPU has %d free of %d: %w",
				device.ErrOutOfMemory, c.bytes, r.memory.inUse, free, total, err)
		}
	}
	return r.refuse(index, err)
}

// undo puts back what a command changed that was not enqueued.
func (r *request) undo(c *change) {
	r.memory = c.memoryWas
	if !c.event.IsZero() {
		e := &r.space(c.event.Space).events[c.event.Index]
		m := e.mark
		*e = c.eventWas
		switch {
		case e.mark == nil:
			e.mark = m // for the next record
		case e.mark != m: // it was set aside because something blocks on it
			e.mark.dropped = false
			r.dropMark(m)
		}
		return
	}
	b := r.entry(c.buffer)
	*b = c.bufferWas
	r.resolve(b)
}

// resolve fills in the address of a buffer whose allocation has run.
func (r *request) resolve(b *buffer) {
	if b.from != none {
		b.address, b.from = r.list[b.from].dst, none
	}
}

// add appends a command of the operation.
func (r *request) add(c command) {
	c.op = int32(r.index)
	r.list = append(r.list, c)
}

// bind makes the context current for the rest of the batch.
func (r *request) bind() error {
	if r.bound {
		return nil
	}
	previous, err := r.drv.bind()
	if err != nil {
		return err
	}
	r.bound, r.previous = true, previous
	return nil
}

func (r *request) unbind() {
	if r.bound {
		r.drv.unbind(r.previous)
		r.bound = false
	}
}
