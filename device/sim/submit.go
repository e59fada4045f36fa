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
	case device.CloseStream, device.Record, device.Wait, device.Alloc, device.Free,
		device.CopyOut, device.CopyIn, device.CopyWithin, device.Launch, device.Access:
		err = r.onStream()
	default:
		err = fmt.Errorf("%w: there is no operation of kind %v", device.ErrInvalid, op.Kind)
	}
	if err == nil {
		d.stats.Ops[op.Kind]++
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

func (r *request) alloc(s *stream) error {
	d := r.dev
	sl, err := r.unmade(r.op.Dst, device.OnDevice)
	if err != nil {
		return err
	}
	size := align(r.op.Dst.Bytes)
	d.catchUp(s)
	if err := d.memory.take(size, s.lane, s.now); err != nil {
		return err
	}
	b := r.make(sl, size)
	r.enqueue(s, task{dst: b})
	b.made = access{s.lane, s.now.at(s.lane), r.keep()}
	d.stats.BytesAlloc += size
	return nil
}

// make enters a new buffer in the table.
func (r *request) make(sl *slot, size int64) *buffer {
	rg := r.op.Dst
	b := &buffer{id: rg.Buffer, bytes: rg.Bytes, size: size}
	if !r.dev.cfg.NoChecker {
		b.shadow = shadow{{hi: rg.Bytes}}
	}
	sl.gen, sl.live, sl.gone = rg.Buffer.Gen, b, nil
	return b
}

func (r *request) free(s *stream) error {
	d := r.dev
	b, err := r.live(r.op.Dst.Buffer, device.OnDevice)
	if err != nil {
		return err
	}
	r.enqueue(s, task{dst: b})
	r.checkIdle(b, s.now, FreeInFlight)
	d.memory.free(b.size, s.lane, s.now.at(s.lane))
	r.forget(b)
	return nil
}

// forget takes b out of the table.
func (r *request) forget(b *buffer) {
	sl := r.dev.slot(b.id)
	sl.live, sl.gone = nil, r.keep()
	b.shadow = nil
}

func (r *request) pin() error {
	d := r.dev
	sl, err := r.unmade(r.op.Dst, device.OnHost)
	if err != nil {
		return err
	}
	size := align(r.op.Dst.Bytes)
	if err := d.pinned.takeHost(size); err != nil {
		return err
	}
	b := r.make(sl, size)
	b.made = access{hostLane, d.host.tick(hostLane), r.keep()}
	b.memory(&d.heap)
	d.stats.BytesPinned += size
	return nil
}

func (r *request) unpin() error {
	d := r.dev
	b, err := r.live(r.op.Dst.Buffer, device.OnHost)
	if err != nil {
		return err
	}
	r.checkIdle(b, d.host, UnpinInFlight)
	d.pinned.inUse -= b.size
	r.forget(b)
	b.release(&d.heap)
	return nil
}

func (r *request) copy(s *stream) error {
	dstPlace, srcPlace := device.OnDevice, device.OnDevice
	switch r.op.Kind {
	case device.CopyOut:
		dstPlace = device.OnHost
	case device.CopyIn:
		srcPlace = device.OnHost
	}
	dst, err := r.span(r.op.Dst, dstPlace)
	if err != nil {
		return err
	}
	src, err := r.span(r.op.Src, srcPlace)
	if err != nil {
		return err
	}
	if dst.Bytes != src.Bytes {
		return fmt.Errorf("%w: %d bytes copied to %d", device.ErrInvalid, src.Bytes, dst.Bytes)
	}
	if dst.Overlaps(src.Range) {
		return fmt.Errorf("%w: source and destination overlap", device.ErrInvalid)
	}
	r.enqueue(s, task{dst: dst.buf, src: src.buf, to: dst.Offset, from: src.Offset, bytes: dst.Bytes})
	r.checkUse(s, src, false)
	r.checkUse(s, dst, true)
	st := &r.dev.stats
	switch r.op.Kind {
	case device.CopyOut:
		st.BytesOut += dst.Bytes
	case device.CopyIn:
		st.BytesIn += dst.Bytes
	default:
		st.BytesWithin += dst.Bytes
	}
	return nil
}

// kernel enqueues a Launch or an Access.
func (r *request) kernel(s *stream) error {
	d, k := r.dev, r.op.Kernel
	if k == nil {
		return fmt.Errorf("%w: %v without a kernel", device.ErrInvalid, r.op.Kind)
	}
	fn := d.kernels[k.Name]
	if fn == nil && r.op.Kind == device.Launch {
		d.report(Finding{Rule: UnknownKernel, Second: r.site, Subject: fmt.Sprintf("%q", k.Name),
			Missing: "a registered implementation"})
		return fmt.Errorf("%w: no kernel %q is registered", device.ErrInvalid, k.Name)
	}
	var err error
	if d.reads, err = r.spans(d.reads[:0], k.Reads); err != nil {
		return err
	}
	if d.writes, err = r.spans(d.writes[:0], k.Writes); err != nil {
		return err
	}
	t := task{}
	if r.op.Kind == device.Launch {
		t.call = d.newCall(fn, r.site, k, d.reads, d.writes)
	}
	r.enqueue(s, t)
	for _, sp := range d.reads {
		r.checkUse(s, sp, false)
	}
	for _, sp := range d.writes {
		r.checkUse(s, sp, true)
	}
	clear(d.reads) // let go of the buffers
	clear(d.writes)
	return nil
}

func (r *request) spans(to []span, ranges []device.Range) ([]span, error) {
	for _, rg := range ranges {
		sp, err := r.span(rg, device.Nowhere)
		if err != nil {
			return to, err
		}
		to = append(to, sp)
	}
	return to, nil
}

func (r *request) hostAccess() error {
	rg, write := r.op.Src, r.op.Kind == device.HostWrite
	if write {
		rg = r.op.Dst
	}
	sp, err := r.span(rg, device.OnHost)
	if err != nil {
		return err
	}
	d := r.dev
	r.enter(sp, write, access{hostLane, d.host.tick(hostLane), r.keep()}, d.host)
	return nil
}

// checkUse enters a use of sp by the operation, which has just been enqueued on s.
func (r *request) checkUse(s *stream, sp span, write bool) {
	if r.dev.cfg.NoChecker {
		return
	}
	if !sp.buf.made.covered(s.now) {
		first := *sp.buf.made.site
		r.dev.report(Finding{Rule: UseBeforeAlloc, First: first, Second: r.site, Subject: sp.Range.String(), Missing: edge(first, r.site)})
	}
	r.enter(sp, write, access{s.lane, s.now.at(s.lane), r.keep()}, s.now)
}

// enter puts an access into the history of its bytes and reports what it conflicts with.
func (r *request) enter(sp span, write bool, a access, now clock) {
	d := r.dev
	lo, hi := sp.Offset, sp.Offset+sp.Bytes
	if write {
		d.conflict = sp.buf.shadow.write(lo, hi, a, now, d.conflict[:0])
	} else {
		d.conflict = sp.buf.shadow.read(lo, hi, a, now, d.conflict[:0])
	}
	for _, c := range d.conflict {
		f := Finding{Rule: c.rule, Second: r.site,
			Subject: device.Range{Buffer: sp.Buffer, Offset: max(lo, c.lo), Bytes: min(hi, c.hi) - max(lo, c.lo)}.String()}
		if c.rule == UninitialisedRead {
			f.First, f.Missing = *sp.buf.made.site, "a write of these bytes before"
		} else {
			f.First = *c.first.site
			f.Missing = edge(f.First, r.site)
			if a.lane == hostLane {
				f.Rule = HostUnsynchronised
			}
		}
		d.report(f)
	}
}

// checkIdle reports a use of b, or its allocation, that is not ordered before
// what has clock now and gives b back.
func (r *request) checkIdle(b *buffer, now clock, rule Rule) {
	c, found := b.shadow.pending(now)
	if !found && !b.made.covered(now) {
		c, found = conflict{first: b.made, hi: b.bytes}, true
	}
	if !found {
		return
	}
	first := *c.first.site
	r.dev.report(Finding{Rule: rule, First: first, Second: r.site,
		Subject: device.Range{Buffer: b.id, Offset: c.lo, Bytes: c.hi - c.lo}.String(), Missing: edge(first, r.site)})
}
