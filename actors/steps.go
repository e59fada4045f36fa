package actors

import (
	"fmt"
	"slices"

	"offload/device"
	"offload/internal/layout"
	"offload/messages"
)

// push makes the group a holder of what was saved. Tensors that may move are
// ready where they were marked so, and otherwise at the present point of the
// stream they were pushed on: one record for all of them.
func (d *deviceActor) push(c *messages.Command, g *group) error {
	r := c.Request
	s := d.order.index(r.Stream)
	for _, item := range c.Items {
		if err := d.pushable(item.Storage); err != nil {
			return err
		}
	}
	for _, item := range c.Items {
		d.arrived(item.Storage, s)
	}
	var ready *event
	var op int
	for _, item := range c.Items {
		e := d.ledger.take(g, item.Storage, d.version(item.Storage))
		e.small, e.stays = e.small && item.Small, e.stays || item.Fate == messages.Stays
		if item.Fate == messages.Goes && !e.moves {
			e.moves = true
			for _, p := range e.producers { // of what had no reason to move until now
				point, op := d.work.record(p)
				d.makeReady(e, point, op)
			}
		}
		e.producers = note(e.producers, s)
		if item.Fate != messages.Held {
			e.ask(r.Tensors[item.Index])
		}
		if !e.moves || d.marked(e, g, r.Tensors[item.Index], s) {
			continue
		}
		if ready == nil {
			ready, op = d.work.record(s)
		}
		d.makeReady(e, ready, op)
	}
	if d.early {
		// The copies may begin before StartOffload asks for them. If there is no
		// memory for them yet, StartOffload will say so.
		_ = d.copyOut(g)
	}
	return nil
}

// takeOver makes the group a holder of what is pushed although the device is
// lost, so that a failed push leaves the same with its caller as any other. It
// reports false, and has done nothing, where the push would be refused.
func (d *deviceActor) takeOver(c *messages.Command, o device.Origin) bool {
	for _, item := range c.Items {
		if d.pushable(item.Storage) != nil {
			return false
		}
	}
	g := d.ledger.group(c.Ticket, o)
	c.Ticket = g.ticket
	for _, item := range c.Items {
		d.ledger.take(g, item.Storage, d.version(item.Storage))
	}
	return true
}

// arrived orders stream s after the copy in of a storage that is on its way back
// for another slot. The caller has not popped it there, so that it cannot know.
func (d *deviceActor) arrived(st *device.Storage, s int) {
	if e := d.ledger.entries[st]; e != nil {
		d.work.wait(s, e.in, device.AfterCopyIn)
	}
}

// makeReady notes that e is ready at ev, which operation op records.
func (d *deviceActor) makeReady(e *entry, ev *event, op int) {
	if slices.Contains(e.ready, ev) {
		return
	}
	ev.refs++
	e.ready = append(e.ready, ev)
	d.work.effect(effect{op: op, kind: readied, entry: e, event: ev})
}

// ask adds the bytes of t to those of e that are to be moved.
func (e *entry) ask(t device.Tensor) {
	if e.all || t.Contiguous() && t.Bytes() == e.storage.Bytes() {
		e.all = true
		return
	}
	spans, ok := layout.Of(nil, t, maxPieces)
	if !ok {
		e.all = true
		return
	}
	e.want = layout.Union(nil, e.want, spans)
	e.all = len(e.want) > maxPieces
}

func (d *deviceActor) pushable(s *device.Storage) error {
	b := s.Buffer()
	if e := d.ledger.entries[s]; e != nil {
		if !e.onDevice {
			return fmt.Errorf("push: storage %q: %w: its bytes are on the host; pop it before it is saved again", s.Name(), ErrMoved)
		}
		return d.changed(e)
	}
	if b.IsZero() {
		return fmt.Errorf("push: storage %q: %w: it has no buffer; push it before it is freed", s.Name(), ErrMoved)
	}
	if b.Device != d.id {
		return fmt.Errorf("push: storage %q: %w: it is on device %d and the pass runs on device %d", s.Name(), ErrForeign, b.Device, d.id)
	}
	if o := d.ledger.buffers[b]; o != nil {
		return fmt.Errorf("push: storage %q: %w: its buffer %v is that of storage %q, which is saved; "+
			"tensors that share memory have to share a *device.Storage", s.Name(), ErrForeign, b, o.storage.Name())
	}
	return nil
}

// startOffload copies what the group moves and is not on the host yet.
func (d *deviceActor) startOffload(c *messages.Command, g *group) error {
	for _, e := range g.entries {
		if e.moves {
			if err := d.changed(e); err != nil {
				return err
			}
		}
	}
	d.sweep()
	if err := d.copyOut(g); err != nil {
		return fmt.Errorf("start-offload layer %d: %w", g.origin.Layer, err)
	}
	return nil
}

// release frees the device memory that nobody needs any more, in the order of
// stream s, after the copies out.
func (d *deviceActor) release(g *group, s int) error {
	for _, e := range g.entries {
		switch {
		case !e.onDevice || !d.backed(e):
		case e.needed(g) || e.shared():
			e.holder, e.outside = e.holders(g)
		default:
			d.free(e, s)
		}
	}
	return nil
}

// free gives back the device buffer of e on stream s, after everything that
// reads or writes it (LG3).
func (d *deviceActor) free(e *entry, s int) {
	d.settle(e, s)
	op := d.work.add(e.storage.FreeOn(d.order.streams[s].id))
	d.work.effect(effect{op: op, kind: freed, entry: e})
}

// settle orders stream s after everything that reads or writes the device
// buffer of e. The caller's streams come first: one that has used what was
// copied in has that copy before it.
func (d *deviceActor) settle(e *entry, s int) {
	d.touched = e.streams(d.touched[:0])
	for _, c := range d.touched {
		d.work.follow(s, c, device.AfterConsumer)
	}
	d.work.follow(s, d.order.index(e.storage.Home()), device.AfterAllocStream)
	d.work.wait(s, e.in, device.AfterCopyIn)
	d.work.wait(s, e.out, device.AfterCopyOut)
}

// produced orders stream s after all that wrote e. Of several points of one
// stream the last one has the others before it, so that it comes first.
func (d *deviceActor) produced(e *entry, s int) {
	for _, ready := range slices.Backward(e.ready) {
		d.work.wait(s, ready, device.AfterProducer)
	}
}

// reload copies back what is not on the device. Memory is allocated in the
// order of stream s, where what was freed there can be used again; the copies
// wait for this one point, and for nothing that is enqueued on s later.
func (d *deviceActor) reload(g *group, s int) error {
	d.coming = d.coming[:0]
	for _, e := range g.entries {
		if e.committed > 0 && !e.onDevice {
			d.coming = append(d.coming, e)
		}
	}
	if len(d.coming) == 0 {
		return nil
	}
	need := d.incoming()
	if err := d.room(need); err != nil {
		return fmt.Errorf("reload layer %d: %w", g.origin.Layer, err)
	}
	packed := false
	for _, e := range d.coming {
		e.incoming = d.ids.Buffer(device.OnDevice)
		span := device.Range{Buffer: e.incoming, Bytes: e.storage.Bytes()}
		op := d.work.add(device.Op{Kind: device.Alloc, Stream: d.order.streams[s].id, Dst: span})
		d.work.effect(effect{op: op, kind: allocated, entry: e, span: span})
		packed = packed || slices.ContainsFunc(e.parts, func(p part) bool { return p.packed })
	}
	if packed {
		if err := d.stage(d.in, need); err != nil {
			return err
		}
	}
	d.work.follow(d.in, s, device.AfterAlloc)
	last := d.late[:0] // those whose last bytes come through the staging buffer
	for _, e := range d.coming {
		d.work.wait(d.in, e.out, device.AfterHostWriter)
		if d.copyIn(e) {
			last = append(last, e)
			continue
		}
		in, op := d.work.record(d.in)
		d.work.effect(effect{op: op, kind: copiedIn, entry: e, event: in, home: s})
	}
	if len(last) > 0 {
		d.copyUnpacked(d.staging[d.in])
		in, op := d.work.record(d.in)
		for _, e := range last {
			d.work.effect(effect{op: op, kind: copiedIn, entry: e, event: in, home: s})
		}
	}
	d.late = last
	return nil
}

// pop makes stream s wait for the bytes, once, and notes it as a consumer.
func (d *deviceActor) pop(c *messages.Command, s int) error {
	d.coming = d.coming[:0]
	for _, item := range c.Items {
		e := d.ledger.entries[item.Storage]
		if e == nil || !e.onDevice {
			return fmt.Errorf("pop: storage %q: %w: the ledger has no device buffer for it", item.Storage.Name(), ErrMoved)
		}
		d.coming = append(d.coming, e)
	}
	d.landed(s, d.coming)
	for _, e := range d.coming {
		switch {
		case e.in != nil: // it has landed
		case len(e.ready) > 0:
			d.produced(e, s)
		default:
			for _, p := range e.producers {
				d.work.follow(s, p, device.AfterProducer)
			}
		}
		e.consumers = note(e.consumers, s)
	}
	return nil
}

// landed orders stream s after the copies in of the entries, by the wait for
// the last one, which has the others before it.
func (d *deviceActor) landed(s int, entries []*entry) {
	var last *event
	for _, e := range entries {
		if e.in != nil && (last == nil || e.in.seq > last.seq) {
			last = e.in
		}
	}
	if last != nil && !d.order.covered(s, last) {
		d.work.wait(s, last, device.AfterCopyIn)
	}
}
