package sim

import (
	"fmt"
	"slices"

	"offload/device"
)

// A request is one operation on its way through Submit.
type request struct {
	dev  *Device
	op   *device.Op
	site Site
	kept *Site // copy of site for the history; made at the first need
	on   *stream
	size int64 // of the memory that an Alloc or Free is about
}

// keep returns a copy of the site that outlives the request.
func (r *request) keep() *Site {
	if r.kept == nil {
		s := r.site
		r.kept = &s
	}
	return r.kept
}

// Submit enqueues the operations of b. An operation that breaks a rule and can
// still be executed is enqueued, and the finding is the only sign of it. Submit
// blocks for SyncStream and SyncEvent alone, and runs operations while it does;
// it may run some of what is queued before it returns in any case.
func (d *Device) Submit(b *device.Batch) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed && len(b.Ops) == 0 {
		return device.ErrClosed
	}
	if !d.closed {
		d.stats.Batches++
	}
	for i := range b.Ops {
		if err := d.submit(b, i); err != nil {
			op := b.Ops[i]
			op.Kernel = cloneKernel(op.Kernel)
			return &device.Error{Origin: b.Origin, Index: i, Op: op, Err: err}
		}
	}
	d.pump()
	return nil
}

// cloneKernel makes a copy for an error, which outlives Submit.
func cloneKernel(k *device.Kernel) *device.Kernel {
	if k == nil {
		return nil
	}
	return &device.Kernel{Name: k.Name, Args: slices.Clone(k.Args), Reads: slices.Clone(k.Reads), Writes: slices.Clone(k.Writes)}
}

func (d *Device) submit(b *device.Batch, i int) error {
	if d.closed {
		return device.ErrClosed
	}
	if d.lost != nil {
		return d.lost
	}
	op := &b.Ops[i]
	d.seq++
	r := request{dev: d, op: op, site: Site{Seq: d.seq, Origin: b.Origin, Index: i, Kind: op.Kind}}
	if op.Kernel != nil {
		r.site.Kernel = op.Kernel.Name
	}
	var err error
	switch op.Kind {
	case device.OpenStream:
		err = r.openStream()
	case device.Adopt:
		err = r.adopt()
	case device.Pin:
		err = r.pin()
	case device.Unpin:
		err = r.unpin()
	case device.Retire:
		err = r.retire()
	case device.HostRead, device.HostWrite:
		err = r.hostAccess()
	case device.SyncStream, device.SyncEvent:
		err = r.sync()
	case device.CloseStream, device.Record, device.Wait, device.Alloc, device.Free, device.Disown,
		device.CopyOut, device.CopyIn, device.CopyWithin, device.Launch, device.Access:
		err = r.onStream()
	default:
		err = fmt.Errorf("%w: there is no operation of kind %v", device.ErrInvalid, op.Kind)
	}
	if err == nil {
		d.stats.Ops[op.Kind]++
		if d.timer != nil {
			d.timer.submitted(&r)
		}
	}
	return err
}

// onStream enqueues an operation that is executed in the order of a stream.
func (r *request) onStream() error {
	s, err := r.stream()
	if err != nil {
		return err
	}
	r.site.Stream = s.id
	switch r.op.Kind {
	case device.CloseStream:
		s.closed = true // what is queued still runs
		return nil
	case device.Record:
		return r.record(s)
	case device.Wait:
		return r.wait(s)
	case device.Alloc:
		return r.alloc(s)
	case device.Free:
		return r.free(s)
	case device.Disown:
		return r.disown(s)
	case device.Launch, device.Access:
		return r.kernel(s)
	}
	return r.copy(s)
}

// enqueue gives the operation its time on s and queues it.
func (r *request) enqueue(s *stream, t task) {
	r.dev.catchUp(s)
	t.kind, t.time = r.op.Kind, s.now.tick(s.lane)
	r.dev.enqueue(s, t)
}

// catchUp orders what is submitted to s from now on after what the host has seen.
func (d *Device) catchUp(s *stream) {
	if s.now.at(hostLane) < d.host.at(hostLane) {
		s.now.join(d.host)
	}
}

func (r *request) openStream() error {
	d, id := r.dev, r.op.Stream
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return err
	}
	sp := d.space(id.Space)
	for int(id.Index) >= len(sp.streams) {
		sp.streams = append(sp.streams, nil)
	}
	if sp.streams[id.Index] != nil {
		return fmt.Errorf("%w: stream %v was opened before", device.ErrInvalid, id)
	}
	r.site.Stream = id
	s := &stream{id: id, opened: r.site}
	sp.streams[id.Index] = s
	s.now.join(d.host)
	for lane, old := range d.lanes {
		// The lane of a closed stream may be used again once the host has seen
		// its end: then everything on the new stream is ordered after it, as
		// their common lane says.
		if lane != hostLane && old.closed && old.empty() && d.host.covers(lane, old.now.at(lane)) {
			s.lane, s.done = lane, old.done
			d.lanes[lane] = s
			d.space(old.id.Space).streams[old.id.Index] = tombstone
			return nil
		}
	}
	s.lane = len(d.lanes)
	d.lanes = append(d.lanes, s)
	return nil
}

func (r *request) record(s *stream) error {
	e, err := r.unrecorded()
	if err != nil {
		return err
	}
	r.enqueue(s, task{})
	e.gen, e.retired, e.site = r.op.Event.Gen, false, r.site
	e.at = point{s.lane, s.now.at(s.lane)}
	e.clock = append(e.clock[:0], s.now...)
	return nil
}

func (r *request) wait(s *stream) error {
	e, err := r.recorded()
	if err != nil {
		return err
	}
	r.enqueue(s, task{after: e.at})
	s.now.join(e.clock)
	return nil
}

func (r *request) retire() error {
	id := r.op.Event
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return err
	}
	sp := r.dev.space(id.Space)
	if int(id.Index) >= len(sp.events) {
		return fmt.Errorf("%w: event %v was not recorded", device.ErrUnknown, id)
	}
	e := &sp.events[id.Index]
	if e.site.IsZero() || e.retired || e.gen > id.Gen {
		return fmt.Errorf("%w: event %v is not recorded, or no longer", device.ErrUnknown, id)
	}
	e.retired, e.clock = true, nil
	return nil
}

// sync runs operations until the stream or the event is reached.
func (r *request) sync() error {
	d := r.dev
	var seen clock
	if r.op.Kind == device.SyncStream {
		s, err := r.stream()
		if err != nil {
			return err
		}
		d.drain(point{s.lane, s.now.at(s.lane)})
		seen = s.now
	} else {
		e, err := r.recorded()
		if err != nil {
			return err
		}
		d.drain(e.at)
		seen = e.clock
	}
	if d.lost != nil {
		return d.lost
	}
	d.host.join(seen)
	d.host.tick(hostLane)
	d.memory.settle(d.host)
	return nil
}
