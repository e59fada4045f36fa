package cuda

import (
	"fmt"

	"offload/device"
)

// atOnce reports whether an operation is no command: it acts while the batch is
// translated, so what stands before it is enqueued first.
func atOnce(op *device.Op) bool {
	switch op.Kind {
	case device.OpenStream, device.CloseStream, device.Pin, device.Unpin, device.Retire,
		device.Adopt, device.Disown, device.SyncStream, device.SyncEvent:
		return true
	case device.Launch:
		return op.Kernel == nil || !packs(op.Kernel)
	}
	return false
}

func (r *request) translate() error {
	switch r.op.Kind {
	case device.OpenStream:
		return r.openStream()
	case device.CloseStream:
		return r.closeStream()
	case device.Record:
		return r.record()
	case device.Wait:
		return r.wait()
	case device.Retire:
		return r.retire()
	case device.Alloc:
		return r.alloc()
	case device.Free:
		return r.free()
	case device.Adopt:
		return r.adopt()
	case device.Disown:
		return r.disown()
	case device.Pin:
		return r.pin()
	case device.Unpin:
		return r.unpin()
	case device.CopyOut:
		return r.copy(verbCopyOut, device.OnHost, device.OnDevice)
	case device.CopyIn:
		return r.copy(verbCopyIn, device.OnDevice, device.OnHost)
	case device.CopyWithin:
		return r.copy(verbCopyWithin, device.OnDevice, device.OnDevice)
	case device.Launch, device.Access:
		return r.kernel()
	case device.HostRead:
		_, err := r.within(r.op.Src, device.OnHost)
		return err
	case device.HostWrite:
		_, err := r.within(r.op.Dst, device.OnHost)
		return err
	case device.SyncStream:
		return r.syncStream()
	case device.SyncEvent:
		return r.syncEvent()
	}
	return fmt.Errorf("%w: there is no operation of kind %v", device.ErrInvalid, r.op.Kind)
}

func (r *request) openStream() error {
	id := r.op.Stream
	if err := own(r.Device, id, id.Device, id.Space, id.Index); err != nil {
		return err
	}
	sp := r.space(id.Space)
	for int(id.Index) >= len(sp.streams) {
		sp.streams = append(sp.streams, nil)
	}
	if sp.streams[id.Index] != nil {
		return fmt.Errorf("%w: stream %v was opened before", device.ErrInvalid, id)
	}
	h, err := r.drv.createStream()
	if err != nil {
		return r.answered(err)
	}
	sp.streams[id.Index] = &stream{handle: h}
	return nil
}

func (r *request) closeStream() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	s.closed = true
	return r.dispose(s)
}

// dispose ends a stream that is closed once nobody waits for it. The driver
// lets what is queued run.
func (r *request) dispose(s *stream) error {
	if s.adopted || s.waiters > 0 {
		return nil
	}
	return r.answered(r.drv.destroyStream(s.handle))
}

func (r *request) record() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	e, err := r.unrecorded(r.op.Event)
	if err != nil {
		return err
	}
	m := e.mark
	if m == nil || m.waiters > 0 {
		if m, err = r.takeMark(); err != nil {
			return err
		}
	}
	r.changes = append(r.changes, change{command: int32(len(r.list)), event: r.op.Event, eventWas: *e, memoryWas: r.memory})
	r.add(command{verb: verbRecord, stream: s.handle, event: m.handle})
	if e.mark != nil && e.mark != m {
		r.dropMark(e.mark)
	}
	s.records++
	*e = event{gen: r.op.Event.Gen, on: s, number: s.records, mark: m}
	return nil
}

func (r *request) wait() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	e, err := r.recorded(r.op.Event)
	if err != nil {
		return err
	}
	if e.on != s && !e.passed() {
		r.add(command{verb: verbWait, stream: s.handle, event: e.mark.handle})
	}
	return nil
}

func (r *request) retire() error {
	id := r.op.Event
	if err := own(r.Device, id, id.Device, id.Space, id.Index); err != nil {
		return err
	}
	sp := r.space(id.Space)
	if int(id.Index) >= len(sp.events) {
		return fmt.Errorf("%w: event %v was not recorded", device.ErrUnknown, id)
	}
	e := &sp.events[id.Index]
	if e.on == nil || e.retired || e.gen > id.Gen {
		return fmt.Errorf("%w: event %v is not recorded, or no longer", device.ErrUnknown, id)
	}
	r.dropMark(e.mark)
	e.retired, e.mark = true, nil
	return nil
}

func (r *request) alloc() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	b, err := r.unmade(r.op.Dst, device.OnDevice)
	if err != nil {
		return err
	}
	was := r.memory
	size := align(r.op.Dst.Bytes)
	if err := r.memory.take(size); err != nil {
		return err
	}
	i := int32(len(r.list))
	r.changes = append(r.changes, change{command: i, buffer: r.op.Dst.Buffer, bufferWas: *b, memoryWas: was})
	r.add(command{verb: verbAlloc, dstFrom: none, srcFrom: none, stream: s.handle, bytes: uintptr(size)})
	*b = buffer{gen: r.op.Dst.Buffer.Gen, live: true, from: i, bytes: r.op.Dst.Bytes}
	return nil
}

func (r *request) free() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	b, err := r.live(r.op.Dst.Buffer, device.OnDevice)
	if err != nil {
		return err
	}
	if b.adopted {
		return fmt.Errorf("%w: %v was adopted; disown it", device.ErrInvalid, r.op.Dst.Buffer)
	}
	r.changes = append(r.changes, change{command: int32(len(r.list)), buffer: r.op.Dst.Buffer, bufferWas: *b, memoryWas: r.memory})
	r.add(command{verb: verbFree, dstFrom: b.from, srcFrom: none, stream: s.handle, dst: b.address})
	r.memory.give(align(b.bytes))
	b.live = false
	return nil
}

func (r *request) pin() error {
	b, err := r.unmade(r.op.Dst, device.OnHost)
	if err != nil {
		return err
	}
	size := align(r.op.Dst.Bytes)
	mem, err := r.drv.pin(size)
	if err != nil {
		if err = r.answered(err); r.lost == nil {
			err = fmt.Errorf("%w: %d bytes of pinned host memory asked for, %d in use: %w",
				device.ErrOutOfMemory, size, r.pinned.inUse, err)
		}
		return err
	}
	r.pinned.add(size)
	n := r.op.Dst.Bytes
	*b = buffer{gen: r.op.Dst.Buffer.Gen, live: true, from: none, bytes: n, address: address(mem), host: mem[:n:n]}
	return nil
}

func (r *request) unpin() error {
	b, err := r.live(r.op.Dst.Buffer, device.OnHost)
	if err != nil {
		return err
	}
	mem := b.host
	r.pinned.give(align(b.bytes))
	b.live, b.host = false, nil
	return r.answered(r.drv.unpin(mem))
}

func (r *request) copy(v verb, dstPlace, srcPlace device.Place) error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	dst, err := r.within(r.op.Dst, dstPlace)
	if err != nil {
		return err
	}
	src, err := r.within(r.op.Src, srcPlace)
	if err != nil {
		return err
	}
	if r.op.Dst.Bytes != r.op.Src.Bytes {
		return fmt.Errorf("%w: %d bytes copied to %d", device.ErrInvalid, r.op.Src.Bytes, r.op.Dst.Bytes)
	}
	if r.op.Dst.Overlaps(r.op.Src) {
		return fmt.Errorf("%w: source and destination overlap", device.ErrInvalid)
	}
	if r.op.Dst.Bytes == 0 {
		return nil
	}
	r.add(command{verb: v, dstFrom: dst.from, srcFrom: src.from, stream: s.handle, bytes: uintptr(r.op.Dst.Bytes),
		dst: dst.address + uintptr(r.op.Dst.Offset), src: src.address + uintptr(r.op.Src.Offset)})
	return nil
}

// kernel checks a Launch or an Access, and launches.
func (r *request) kernel() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	k := r.op.Kernel
	if k == nil {
		return fmt.Errorf("%w: %v without a kernel", device.ErrInvalid, r.op.Kind)
	}
	if packs(k) && r.op.Kind == device.Launch {
		return r.pack(s)
	}
	launch := r.kernels[k.Name]
	if launch == nil && r.op.Kind == device.Launch {
		return fmt.Errorf("%w: no kernel %q is registered", device.ErrInvalid, k.Name)
	}
	c := &r.call
	if c.reads, err = r.spans(c.reads[:0], k.Reads); err != nil {
		return err
	}
	if c.writes, err = r.spans(c.writes[:0], k.Writes); err != nil {
		return err
	}
	if r.op.Kind == device.Access {
		return nil
	}
	if err := r.bind(); err != nil {
		return r.answered(err)
	}
	c.stream, c.kernel = s.handle, k
	err = c.run(launch)
	c.kernel = nil
	if err == nil {
		return nil
	}
	// The launcher's error need not be the driver's: ask whether the context still works.
	if state := r.answered(r.drv.queryStream(s.handle)); r.lost != nil {
		return fmt.Errorf("%w; the launcher of kernel %q returned: %w", state, k.Name, err)
	}
	return err
}

func (r *request) spans(to []span, ranges []device.Range) ([]span, error) {
	for _, rg := range ranges {
		b, err := r.within(rg, device.Nowhere)
		if err != nil {
			return to, err
		}
		to = append(to, span{rg, b.address + uintptr(rg.Offset)})
	}
	return to, nil
}

func (r *request) syncStream() error {
	s, err := r.stream(r.op.Stream)
	if err != nil {
		return err
	}
	records := s.records
	s.waiters++
	err = r.block(driver.syncStream, s.handle)
	s.waiters--
	if err == nil {
		s.passed = max(s.passed, records)
	}
	if s.closed {
		if disposed := r.dispose(s); err == nil {
			err = disposed
		}
	}
	return err
}

func (r *request) syncEvent() error {
	e, err := r.recorded(r.op.Event)
	if err != nil || e.passed() {
		return err
	}
	m, on, number := e.mark, e.on, e.number // the table may move while mu is free
	m.waiters++
	err = r.block(driver.syncEvent, m.handle)
	m.waiters--
	if m.waiters == 0 && m.dropped {
		r.dropMark(m)
	}
	if err == nil {
		on.passed = max(on.passed, number) // with it the earlier ones of its stream
	}
	return err
}

// block calls sync and lets others use the device meanwhile. Close waits for it.
func (r *request) block(sync func(driver, uintptr) error, handle uintptr) error {
	r.unbind()
	r.blocked++
	r.mu.Unlock()
	err := sync(r.drv, handle)
	r.mu.Lock()
	r.blocked--
	if r.blocked == 0 {
		r.idle.Broadcast()
	}
	return r.answered(err)
}
