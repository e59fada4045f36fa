package actors

import (
	"errors"
	"fmt"

	"offload/device"
	"offload/internal/layout"
)

const (
	// directBytes is the length from which a piece is worth a copy of its own: a
	// copy costs the host about 2 us, in which the link moves about 110 KB.
	directBytes = 128 << 10
	// directPieces is the number of shorter pieces up to which packing them costs
	// more than copying them.
	directPieces = 4
	// maxPieces bounds the pieces that one tensor is packed from. One with more
	// of them is moved by its whole storage.
	maxPieces = 4096
)

// segment is a comb of an entry that is copied.
type segment struct {
	entry *entry
	comb  layout.Comb
}

// missing appends to dst the bytes that have to be on the host and are not. All
// bytes of the storage count if those that the groups asked for are half of it
// or more: one copy is better than many, and what is moved is never copied twice.
func (e *entry) missing(dst []layout.Span) []layout.Span {
	whole := [1]layout.Span{{Lo: 0, Hi: e.storage.Bytes()}}
	want := e.want
	if e.all || 2*layout.Total(want) >= e.storage.Bytes() {
		want = whole[:]
	}
	if len(e.have) == 0 {
		return append(dst, want...)
	}
	return layout.Minus(dst, want, e.have)
}

// backed reports whether the host has everything that groups which are away may
// ask for, so that they do without the device buffer.
func (d *deviceActor) backed(e *entry) bool {
	if e.committed == 0 || e.stays {
		return false
	}
	d.need = e.missing(d.need[:0])
	return len(d.need) == 0
}

// outgoing is what one entry has copied directly: combs of deviceActor.combs.
type outgoing struct {
	entry       *entry
	first, last int
	host        *hostBlock
}

// copyOut copies to the host what the group moves and is not there yet. Small
// tensors are moved together, and only if together they are worth it. An error
// is a refusal: the batch is as it was.
func (d *deviceActor) copyOut(g *group) error {
	small := int64(0)
	for _, e := range g.entries {
		if e.goes() && e.small && e.committed == 0 {
			small += e.storage.Bytes()
		}
	}
	d.together = small >= d.coalesce
	d.combs, d.direct, d.packed = d.combs[:0], d.direct[:0], d.packed[:0]
	for _, e := range g.entries {
		if e.goes() && (!e.small || e.committed > 0 || d.together) {
			d.divide(e)
		}
	}
	d.reserve(g)
	packed, err := d.makeRoom(g)
	if err != nil {
		d.untake()
		d.restock(g.shelf, false)
		return err
	}
	d.restock(g.shelf, true)
	for _, o := range d.direct {
		d.copyDirect(o)
	}
	if packed != nil {
		d.copyPacked(packed, d.staging[d.out])
	}
	d.endCopyOut()
	return nil
}

// divide divides what e has to copy into combs that are copied directly and
// combs that are packed.
func (d *deviceActor) divide(e *entry) {
	d.need = e.missing(d.need[:0])
	if len(d.need) == 0 {
		return
	}
	few := len(d.need) <= directPieces && !e.small
	d.found = layout.Combs(d.found[:0], d.need)
	o := outgoing{entry: e, first: len(d.combs)}
	for _, c := range d.found {
		if !few && c.Span.Bytes() < directBytes {
			d.packed = append(d.packed, segment{e, c})
			continue
		}
		for i := range c.Count {
			span := layout.Span{Lo: c.Lo + i*c.Stride, Hi: c.Hi + i*c.Stride}
			d.combs = append(d.combs, layout.Comb{Span: span, Count: 1})
		}
	}
	if o.last = len(d.combs); o.last > o.first {
		d.direct = append(d.direct, o)
	}
}

// makeRoom takes host memory for all that is to be copied: a block for each
// entry that is copied directly, and one for all that is packed, which it
// returns. What finds no memory is kept on the device, if that is the policy.
func (d *deviceActor) makeRoom(g *group) (packed *hostBlock, err error) {
	kept := d.direct[:0]
	for _, o := range d.direct {
		total := int64(0)
		for _, c := range d.combs[o.first:o.last] {
			total += c.Bytes()
		}
		h, err := d.take(g, total)
		if err != nil {
			if d.keep(g, err) {
				continue
			}
			return nil, fmt.Errorf("storage %q: %w", o.entry.storage.Name(), err)
		}
		o.host = h
		kept = append(kept, o)
	}
	d.direct = kept
	if len(d.packed) == 0 {
		return nil, nil
	}
	total := int64(0)
	for _, s := range d.packed {
		total += s.comb.Bytes()
	}
	if packed, err = d.take(g, total); err == nil {
		err = d.stage(d.out, 0)
	}
	if err != nil && !d.keep(g, err) {
		return nil, fmt.Errorf("%d pieces: %w", len(d.packed), err)
	}
	return packed, nil
}

// keep reports whether what found no host memory stays on the device.
func (d *deviceActor) keep(g *group, err error) bool {
	if d.policy != KeepOnDevice || !errors.Is(err, ErrBudget) || d.lost != nil {
		return false
	}
	d.kept++
	if g.shelf != nil && !g.shelf.fixed {
		g.shelf.short = true
	}
	var full *BudgetError
	if errors.As(err, &full) && full.Asked > full.Limit && (d.unfit == 0 || full.Asked < d.unfit) {
		d.unfit = full.Asked
	}
	return true
}

// copyDirect copies each of the spans of o by an operation of its own.
func (d *deviceActor) copyDirect(o outgoing) {
	e, off := o.entry, int64(0)
	d.beforeCopy(e, o.host)
	for _, c := range d.combs[o.first:o.last] {
		d.transfer(device.CopyOut, o.host, off, device.Range{Buffer: e.storage.Buffer(), Offset: c.Lo, Bytes: c.Bytes()})
		e.parts = append(e.parts, part{comb: c, host: o.host, off: off})
		off += c.Bytes()
	}
}

// beforeCopy orders the copies out after all producers of e and all earlier
// users of h, and notes that e is copied by this batch.
func (d *deviceActor) beforeCopy(e *entry, h *hostBlock) {
	d.produced(e, d.out)
	for _, fence := range h.fences {
		d.work.wait(d.out, fence, device.AfterHostReader)
	}
	if !e.leaving {
		e.leaving = true
		d.work.effect(effect{kind: copiedOut, entry: e})
	}
}

// endCopyOut records the event that follows the copies of this batch.
func (d *deviceActor) endCopyOut() {
	var out *event
	var op int
	for i := range d.work.effects {
		fx := &d.work.effects[i]
		if fx.kind != copiedOut {
			continue
		}
		if out == nil {
			out, op = d.work.record(d.out)
		}
		fx.event, fx.op = out, op
	}
}

// target returns the buffer that the bytes of e are in, or are being copied to.
func (e *entry) target() device.Buffer {
	if !e.onDevice {
		return e.incoming
	}
	return e.storage.Buffer()
}

// transfer copies between a device range and the bytes of h from off on, which
// are several ranges if the block is larger than a slab.
func (d *deviceActor) transfer(kind device.Kind, h *hostBlock, off int64, dev device.Range) {
	s := d.out
	if kind == device.CopyIn {
		s = d.in
	}
	d.ranges = h.block.Span(d.ranges[:0], off, dev.Bytes)
	done := int64(0)
	for _, host := range d.ranges {
		op := device.Op{Kind: kind, Stream: d.order.streams[s].id, Dst: host, Src: dev.Sub(done, host.Bytes)}
		if kind == device.CopyIn {
			op.Dst, op.Src = op.Src, op.Dst
		}
		d.work.add(op)
		done += host.Bytes
	}
}

// copyIn copies the parts of e back into its new buffer. Packed ones are put
// aside, and it reports whether there are any.
func (d *deviceActor) copyIn(e *entry) (packed bool) {
	for _, p := range e.parts {
		if p.packed {
			packed = true
			d.unpacked = append(d.unpacked, unpacking{p, segment{e, p.comb}})
			continue
		}
		d.transfer(device.CopyIn, p.host, p.off, device.Range{Buffer: e.incoming, Offset: p.comb.Lo, Bytes: p.comb.Bytes()})
	}
	return packed
}
