package actors

import (
	"slices"

	"offload/device"
)

// reset gives back what only this group held. What was copying, writing or
// reading it is waited for on stream s (LG3). After a failure the ledger does
// not know what is under way, so the streams are drained first.
func (d *deviceActor) reset(g *group, s int) error {
	if d.lost != nil {
		return nil // the memory went with the context
	}
	if g.failed {
		d.drain(g, s)
	}
	for _, span := range g.debris.buffers {
		op := d.work.add(device.Op{Kind: device.Free, Stream: d.order.streams[s].id, Dst: span})
		d.work.effect(effect{op: op, kind: scrapped, group: g, span: span})
	}
	d.coming = d.coming[:0]
	d.putOff = 0
	for _, l := range d.later {
		d.putOff += l.storage.Bytes()
	}
	for _, e := range g.entries {
		if e.onDevice && !e.needed(g) {
			d.coming = append(d.coming, e)
		}
	}
	d.landed(s, d.coming)
	for _, e := range d.coming {
		switch {
		case len(e.groups) > 1 && !d.backed(e):
			// The other groups are away and count on bytes that are nowhere else.
		case e.shared():
			// Whoever holds it besides may free it, or write to it, on the
			// pass's stream from here on, and knows nothing of the copies.
			d.work.wait(s, e.out, device.AfterCopyOut)
			d.work.wait(s, e.in, device.AfterCopyIn)
		case len(e.groups) > 1 || !d.canPutOff(e, s):
			d.free(e, s)
		}
	}
	return nil
}

// shared reports whether somebody outside the ledger holds the storage: a named
// holder, or another engine.
func (e *entry) shared() bool { return e.storage.Holders() > 1 }

// drain blocks until the streams that the group's batches were for are empty.
func (d *deviceActor) drain(g *group, s int) {
	d.touched = append(d.touched[:0], d.out, d.in)
	d.touched = note(d.touched, s)
	for _, e := range g.entries {
		d.touched = e.streams(d.touched)
	}
	for _, s := range d.touched {
		d.work.add(device.Op{Kind: device.SyncStream, Stream: d.order.streams[s].id})
	}
}

// canPutOff reports whether the memory of e is given back together with the next
// batch, and counts it: it never moved, it is small and the device's, and only the
// stream that allocated it has used it. So a slot with nothing but such tensors
// costs the device nothing at all.
func (d *deviceActor) canPutOff(e *entry, s int) bool {
	if !e.small || e.out != nil || e.storage.Adopted() || d.order.streams[s].id != e.storage.Home() {
		return false
	}
	d.touched = e.streams(d.touched[:0])
	if d.putOff+e.storage.Bytes() > putOffBytes || len(d.touched) != 1 || d.touched[0] != s {
		return false
	}
	d.putOff += e.storage.Bytes()
	return true
}

// dismiss ends the group after its batch was enqueued: entries that no group
// holds are ended, and their host memory goes back to the pool.
func (d *deviceActor) dismiss(g *group) {
	for _, h := range g.debris.blocks {
		d.give(h) // the streams were drained
	}
	d.returned = append(d.returned, g.debris.returned...)
	clear(g.debris.returned)
	g.debris = debris{blocks: g.debris.blocks[:0], buffers: g.debris.buffers[:0], returned: g.debris.returned[:0]}
	for _, e := range g.entries {
		d.returnHost(e, g)
		e.leave(g)
		if len(e.groups) > 0 {
			continue
		}
		switch last := e.storage.Release(); {
		case !last || !e.onDevice:
		case d.lost == nil:
			// Put off, or held by somebody outside who let go just now.
			d.later = append(d.later, leftover{e.storage, d.users(e)})
		default:
			d.abandoned(e.storage)
		}
		for _, ready := range e.ready {
			d.order.drop(ready)
		}
		d.order.drop(e.out)
		d.order.drop(e.in)
		d.ledger.end(e)
	}
	d.unreserve(g)
	d.ledger.forget(g)
}

// users returns all streams that have used the device buffer of e.
func (d *deviceActor) users(e *entry) []int {
	list := e.streams(nil)
	if e.out != nil {
		list = note(list, d.out)
	}
	if e.in != nil {
		list = note(list, d.in)
	}
	return list
}

// freeLater adds what was put off to the batch and returns the index of its
// first Free.
func (d *deviceActor) freeLater() (first int) {
	for _, l := range d.later {
		for _, s := range l.after {
			d.work.follow(d.order.index(l.storage.Home()), s, device.AfterConsumer)
		}
	}
	first = len(d.work.batch.Ops)
	for _, l := range d.later {
		d.work.add(l.storage.FreeOn(l.storage.Home()))
	}
	return first
}

// forgetLater takes off the list what the first n operations of the batch gave back.
func (d *deviceActor) forgetLater(first, n int) {
	gone := min(max(n-first, 0), len(d.later))
	for _, l := range d.later[:gone] {
		d.ended(l.storage, l.storage.Home())
	}
	d.later = slices.Delete(d.later, 0, gone)
}

// strand notes what the failed batch of g, of which n operations were
// enqueued, leaves behind. Those that it gave their memory back to, from index
// returned on, are told after the drain.
func (d *deviceActor) strand(g *group, n, returned int) {
	g.debris.returned = append(g.debris.returned, d.returned[returned:]...)
	clear(d.returned[returned:])
	d.returned = d.returned[:returned]
	for i := range d.work.effects {
		if fx := &d.work.effects[i]; fx.kind == allocated && fx.op < n && !fx.entry.onDevice {
			g.debris.buffers = append(g.debris.buffers, fx.span)
		}
	}
	for _, h := range d.taken {
		if h.parts == 0 && !h.retained { // what is retained stays on the shelf, which g has until its reset
			g.debris.blocks = append(g.debris.blocks, h)
		}
	}
}
