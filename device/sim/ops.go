package sim

import (
	"fmt"

	"offload/device"
)

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
	r.size = size
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
	if b.owner != nil {
		return fmt.Errorf("%w: %v is adopted memory, which the device must not hand out; disown it", device.ErrInvalid, b.id)
	}
	r.size = b.size
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
	if !d.cfg.Phantom {
		b.memory(&d.heap)
	}
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
	b.release(&d.heap) // of a phantom there is nothing
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
	if fn == nil && d.cfg.Phantom && d.costs[k.Name] != nil {
		fn = func(*Call) error { return nil }
	}
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
