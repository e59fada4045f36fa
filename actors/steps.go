package actors

import (
	"fmt"
	"slices"

	"offload/device"
	"offload/internal/hostmem"
	"offload/messages"
)

// push makes the group a holder of what was saved. Tensors that will move are
// marked ready at the present point of the stream they were pushed on: one
// record for all of them.
func (d *deviceActor) push(c *messages.Command, g *group) error {
	r := c.Request
	s := d.order.index(r.Stream)
	for _, item := range c.Items {
		if err := d.pushable(item.Storage); err != nil {
			return err
		}
	}
	var ready *event
	var op int
	for _, item := range c.Items {
		e := d.ledger.take(g, item.Storage)
		e.producers = note(e.producers, s)
		e.moves, e.small = e.moves || item.Move, e.small && item.Small
		if !item.Move || e.onHost {
			continue
		}
		if ready == nil {
			ready, op = d.work.record(s)
		}
		d.work.effect(effect{op: op, kind: readied, entry: e, event: ready})
	}
	return nil
}

func (d *deviceActor) pushable(s *device.Storage) error {
	b := s.Buffer()
	if e := d.ledger.entries[s]; e != nil {
		if !e.onDevice {
			return fmt.Errorf("push: storage %q: %w: its bytes are on the host; pop it before it is saved again", s.Name(), ErrMoved)
		}
		return e.changed()
	}
	if b.IsZero() {
		return fmt.Errorf("push: storage %q: %w: it has no buffer; push it before it is freed", s.Name(), ErrMoved)
	}
	if b.Device != d.id {
		return fmt.Errorf("push: storage %q: %w: it is on device %d and the pass runs on device %d", s.Name(), ErrForeign, b.Device, d.id)
	}
	return nil
}

// startOffload copies what the group moves and is not on the host yet.
func (d *deviceActor) startOffload(g *group) error {
	for _, e := range g.entries {
		if e.moves {
			if err := e.changed(); err != nil {
				return err
			}
		}
	}
	d.sweep()
	for i, e := range g.entries {
		if !e.moves || e.onHost {
			continue
		}
		b, err := d.block(e.storage.Bytes())
		if err != nil {
			for _, e := range g.entries[:i] {
				if e.host != nil && !e.onHost {
					d.pool.Return(e.host)
					e.host = nil
				}
			}
			return fmt.Errorf("host memory for storage %q: %w", e.storage.Name(), err)
		}
		e.host = b
	}
	copied := false
	for _, e := range g.entries {
		if e.host == nil || e.onHost {
			continue
		}
		copied = true
		d.produced(e, d.out)
		for _, fence := range e.host.Fences() {
			d.work.wait(d.out, fence, device.AfterHostReader)
		}
		src := device.Range{Buffer: e.storage.Buffer(), Bytes: e.storage.Bytes()}
		d.copy(device.CopyOut, d.out, src, e.host)
	}
	if !copied {
		return nil
	}
	out, op := d.work.record(d.out)
	for _, e := range g.entries {
		if e.host != nil && !e.onHost {
			d.work.effect(effect{op: op, kind: copiedOut, entry: e, event: out})
		}
	}
	return nil
}

// produced orders stream s after all that pushed e. Of several pushes on one
// stream the last one has the others before it, so that it comes first.
func (d *deviceActor) produced(e *entry, s int) {
	for _, ready := range slices.Backward(e.ready) {
		d.work.wait(s, ready, device.AfterProducer)
	}
}

// copy copies between a device range and the host block that holds its bytes,
// which consists of several ranges if it is larger than a slab.
func (d *deviceActor) copy(kind device.Kind, s int, dev device.Range, b *hostmem.Block[*event]) {
	stream := d.order.streams[s].id
	off := int64(0)
	for _, host := range b.Ranges() {
		n := min(host.Bytes, dev.Bytes-off)
		op := device.Op{Kind: kind, Stream: stream, Dst: host.Sub(0, n), Src: dev.Sub(off, n)}
		if kind == device.CopyIn {
			op.Dst, op.Src = op.Src, op.Dst
		}
		d.work.add(op)
		off += n
	}
}

// block takes host memory from the pool. Memory that has to be pinned first is
// pinned now, by a batch of its own, so that a failure is a refusal.
func (d *deviceActor) block(n int64) (*hostmem.Block[*event], error) {
	b, ops, err := d.pool.Take(n)
	var failure error
	for err == nil && len(ops) > 0 {
		batch := device.Batch{Origin: device.Origin{Action: "pin"}, Ops: d.quiesced(ops)}
		if failure = d.send(&batch); failure == nil {
			d.stats.Operations += int64(len(batch.Ops))
			return b, nil
		}
		done := enqueued(&batch, failure) - (len(batch.Ops) - len(ops))
		b, ops, err = d.pool.Failed(b, min(max(done, 0), len(ops)-1))
	}
	if err != nil && failure != nil {
		err = fmt.Errorf("%w: %w", err, failure)
	}
	return b, err
}

// quiesced puts in front of operations that unpin memory what makes that legal:
// the host has to know that all copies have ended.
func (d *deviceActor) quiesced(ops []device.Op) []device.Op {
	for i := range ops {
		if ops[i].Kind == device.Unpin {
			sync := []device.Op{
				{Kind: device.SyncStream, Stream: d.order.streams[d.out].id},
				{Kind: device.SyncStream, Stream: d.order.streams[d.in].id},
			}
			return append(sync, ops...)
		}
	}
	return ops
}

// release frees the device memory that nobody needs any more, in the order of
// stream s, after the copies out.
func (d *deviceActor) release(g *group, s int) error {
	for _, e := range g.entries {
		if e.moves && e.onDevice && !e.needed(g) && !e.shared() {
			d.free(e, s)
		}
	}
	return nil
}

// free gives back the device buffer of e on stream s, after everything that
// reads or writes it (LG3).
func (d *deviceActor) free(e *entry, s int) {
	d.settle(e, s)
	op := d.work.add(device.Op{Kind: device.Free, Stream: d.order.streams[s].id,
		Dst: device.Range{Buffer: e.storage.Buffer(), Bytes: e.storage.Bytes()}})
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

// reload copies back what is not on the device. Memory is allocated in the
// order of stream s, where what was freed there can be used again; the copies
// wait for this one point, and for nothing that is enqueued on s later.
func (d *deviceActor) reload(g *group, s int) error {
	first := len(d.work.effects)
	for _, e := range g.entries {
		if !e.moves || e.onDevice {
			continue
		}
		span := device.Range{Buffer: d.ids.Buffer(device.OnDevice), Bytes: e.storage.Bytes()}
		op := d.work.add(device.Op{Kind: device.Alloc, Stream: d.order.streams[s].id, Dst: span})
		d.work.effect(effect{op: op, kind: allocated, entry: e, span: span, home: s})
	}
	last := len(d.work.effects)
	if first == last {
		return nil
	}
	d.work.follow(d.in, s, device.AfterAlloc)
	for _, fx := range d.work.effects[first:last] {
		d.work.wait(d.in, fx.entry.out, device.AfterHostWriter)
		d.copy(device.CopyIn, d.in, fx.span, fx.entry.host)
		in, op := d.work.record(d.in)
		d.work.effect(effect{op: op, kind: copiedIn, entry: fx.entry, event: in, span: fx.span, home: s})
	}
	return nil
}

// pop makes stream s wait for the bytes, once, and notes it as a consumer.
func (d *deviceActor) pop(c *messages.Command, s int) error {
	for _, item := range c.Items {
		e := d.ledger.entries[item.Storage]
		if e == nil || !e.onDevice {
			return fmt.Errorf("pop: storage %q: %w: the ledger has no device buffer for it", item.Storage.Name(), ErrMoved)
		}
		switch {
		case e.in != nil:
			d.work.wait(s, e.in, device.AfterCopyIn)
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
