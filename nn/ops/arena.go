package ops

import (
	"errors"
	"fmt"
	"slices"

	"offload/device"
)

// Arena queues operations for one compute stream of one device, and allocates
// and frees tensors in the order of that stream.
type Arena struct {
	dev    device.Device
	ids    *device.IDs
	stream device.Stream
	batch  device.Batch
	about  []*device.Storage // by operation of the batch: what an Alloc or Free is about
	err    error             // the first error since the last Flush
	scopes []*Scope
	hosts  []*Host
	marks  []mark
}

// mark is an event that was made by Mark and not awaited yet.
type mark struct {
	event   device.Event
	dropped bool // its record never reached the device
}

// NewArena returns an arena that works in the order of stream, a compute
// stream that is open on dev and that the caller closes after the arena.
func NewArena(dev device.Device, stream device.Stream) *Arena {
	return &Arena{dev: dev, ids: device.NewIDs(dev), stream: stream}
}

// Stream returns the compute stream of the arena.
func (a *Arena) Stream() device.Stream { return a.stream }

// Launch queues a kernel. It takes the results of a constructor as they are:
// an error is kept and returned by Flush.
func (a *Arena) Launch(k device.Kernel, err error) {
	if err != nil {
		a.fail(err)
		return
	}
	a.queue(device.Op{Kind: device.Launch, Stream: a.stream, Kernel: &k}, nil)
}

// Flush submits what is queued as one batch, on behalf of o. Nothing queued
// means nothing submitted.
//
// If an operation was refused, or an error was kept, the rest of the queue is
// dropped, except that memory whose Free was queued is given back all the same.
// Tensors whose allocation was dropped have no memory; freeing them does
// nothing. An allocation that found no memory is reported as a *[MemoryError].
func (a *Arena) Flush(o device.Origin) error {
	kept := a.err
	a.err = nil
	done := 0
	var err error
	if kept != nil {
		err = fmt.Errorf("%v: %w", o, kept)
	} else if len(a.batch.Ops) > 0 {
		a.batch.Origin = o
		err = a.dev.Submit(&a.batch)
		done = enqueued(err, len(a.batch.Ops))
	}
	if kept == nil && done < len(a.batch.Ops) {
		err = a.explain(err, a.batch.Ops[done], a.about[done])
	}
	again := a.settle(done)
	if len(again) > 0 {
		err = errors.Join(err, a.release(o, again))
	}
	return err
}

// enqueued returns how many of n operations were enqueued, given what Submit returned.
func enqueued(err error, n int) int {
	var at *device.Error
	switch {
	case err == nil:
		return n
	case errors.As(err, &at):
		return min(at.Index, n)
	}
	return 0 // a lost or closed device: it looked at nothing
}

// settle empties the queue, of which the first done operations were enqueued,
// and brings ids and storages in line with the device. It returns the storages
// whose Free is still to be submitted.
func (a *Arena) settle(done int) (again []*device.Storage) {
	for i, op := range a.batch.Ops {
		s := a.about[i]
		switch {
		case op.Kind == device.Record && i >= done:
			a.marks[a.marked(op.Event)].dropped = true
		case op.Kind == device.Alloc && i >= done:
			s.Freed()
		case op.Kind == device.Free && i < done:
			s.Freed()
		case op.Kind == device.Free && !s.Buffer().IsZero():
			again = append(again, s)
		}
	}
	clear(a.batch.Ops) // drop the kernels
	clear(a.about)
	a.batch.Ops, a.about = a.batch.Ops[:0], a.about[:0]
	return again
}

// release submits the frees that went down with a failed batch.
func (a *Arena) release(o device.Origin, storages []*device.Storage) error {
	frees := make([]device.Op, len(storages))
	for i, s := range storages {
		frees[i] = device.Op{Kind: device.Free, Stream: a.stream, Dst: whole(s)}
	}
	err := a.submit(o, frees...)
	for _, s := range storages[:enqueued(err, len(storages))] {
		s.Freed()
	}
	return err
}

// Mark queues the recording of an event: the point that the stream has reached
// once everything queued so far has run. Await waits for it.
func (a *Arena) Mark() device.Event {
	e := a.ids.Event()
	a.marks = append(a.marks, mark{event: e})
	a.queue(device.Op{Kind: device.Record, Stream: a.stream, Event: e}, nil)
	return e
}

// Await blocks until the stream has passed e, which Mark made and which was
// flushed, and takes e back. Of a mark that never reached the device, because
// an operation before it was refused, only the id is taken back.
func (a *Arena) Await(e device.Event) error {
	i := a.marked(e)
	if i < 0 {
		return fmt.Errorf("await: %v is not a mark of this arena, or was awaited before", e)
	}
	if !a.marks[i].dropped {
		err := a.submit(device.Origin{Action: "await"},
			device.Op{Kind: device.SyncEvent, Event: e},
			device.Op{Kind: device.Retire, Event: e})
		if err != nil {
			return err // the mark stays known: Close retires it
		}
	}
	a.marks = slices.Delete(a.marks, i, i+1)
	a.ids.PutEvent(e)
	return nil
}

func (a *Arena) marked(e device.Event) int {
	return slices.IndexFunc(a.marks, func(m mark) bool { return m.event == e })
}

// Sync blocks until all work of the stream has ended. It also brings out the
// errors of kernels that ran.
func (a *Arena) Sync() error {
	return a.submit(device.Origin{Action: "synchronise"}, device.Op{Kind: device.SyncStream, Stream: a.stream})
}

// Close frees the tensors of every open scope, submits what is queued, waits
// for the stream and gives everything back to the device. The arena must not be
// used afterwards. An error says what could not be given back; the rest is.
func (a *Arena) Close() error {
	for len(a.scopes) > 0 {
		a.scopes[len(a.scopes)-1].Close()
	}
	o := device.Origin{Action: "close"}
	errs := []error{a.Flush(o), a.Sync()}
	for len(a.hosts) > 0 {
		errs = append(errs, a.hosts[len(a.hosts)-1].Close())
	}
	for _, m := range a.marks {
		if !m.dropped {
			errs = append(errs, a.submit(o, device.Op{Kind: device.Retire, Event: m.event}))
		}
		a.ids.PutEvent(m.event)
	}
	a.marks = nil
	return errors.Join(errs...)
}

// fail keeps the first error for Flush.
func (a *Arena) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// queue appends an operation; about is the storage of an Alloc or a Free.
func (a *Arena) queue(op device.Op, about *device.Storage) {
	a.batch.Ops = append(a.batch.Ops, op)
	a.about = append(a.about, about)
}

// submit submits operations at once, past the queue.
func (a *Arena) submit(o device.Origin, ops ...device.Op) error {
	return a.dev.Submit(&device.Batch{Origin: o, Ops: ops})
}

func whole(s *device.Storage) device.Range {
	return device.Range{Buffer: s.Buffer(), Bytes: s.Bytes()}
}
