package actors

import (
	"fmt"
	"slices"

	"offload/device"
	"offload/internal/hostmem"
	"offload/internal/layout"
)

// hostBlock is pinned memory that holds parts of one or more entries.
type hostBlock struct {
	block  *hostmem.Block[*event]
	fences []*event // of earlier users of the memory
	parts  int      // that are in it
	last   *event   // follows the last copy that wrote or read it

	retained bool // it stays on a shelf
	offered  bool // it was chosen for the batch that is being built
}

// part is bytes of an entry that are on the host, or will be when its out event
// has passed.
type part struct {
	comb   layout.Comb // within the storage
	host   *hostBlock
	off    int64 // within the block; the pieces of the comb are adjacent there
	packed bool  // copied through the staging buffer, together with others
}

// take takes host memory for the group from its shelf or the pool. Memory that
// has to be pinned first is pinned now, by a batch of its own, so that a failure
// is a refusal.
func (d *deviceActor) take(g *group, n int64) (*hostBlock, error) {
	if g.shelf != nil {
		if h, err := d.fromShelf(g.shelf, n); h != nil || err != nil {
			return h, err
		}
	}
	b, ops, err := d.pool.Take(n)
	var failure error
	for err == nil && len(ops) > 0 {
		batch := device.Batch{Origin: device.Origin{Action: "pin"}, Ops: d.quiesced(ops)}
		if failure = d.send(&batch); failure == nil {
			d.count(batch.Ops)
			break
		}
		done := enqueued(&batch, failure) - (len(batch.Ops) - len(ops))
		b, ops, err = d.pool.Failed(b, min(max(done, 0), len(ops)-1))
	}
	if err != nil {
		err = d.hostBudget(err)
		if failure != nil {
			err = fmt.Errorf("%w: %w", err, failure)
		}
		return nil, err
	}
	if d.policy == RefuseOffload && len(b.Fences()) > 0 {
		d.pool.Return(b)
		s := d.pool.Stats()
		return nil, &BudgetError{Place: device.OnHost, Asked: n, InUse: s.InUse + s.Fenced, Limit: s.Limit, Fits: s.Free,
			Top: d.holdings((*entry).hosted)}
	}
	var h *hostBlock
	if k := len(d.spare); k > 0 {
		h, d.spare = d.spare[k-1], d.spare[:k-1]
	} else {
		h = new(hostBlock)
	}
	h.retained, h.offered = false, false
	h.block, h.fences = b, append(h.fences[:0], b.Fences()...)
	d.taken = append(d.taken, h)
	return h, nil
}

// untake gives back what was taken for copies that are not made.
func (d *deviceActor) untake() {
	for _, h := range d.taken {
		d.pool.Return(h.block)
		d.spare = append(d.spare, h)
	}
	d.taken = d.taken[:0]
}

// quiesced puts in front of operations that unpin memory what makes that legal:
// the host has to know that all copies have ended.
func (d *deviceActor) quiesced(ops []device.Op) []device.Op {
	unpins := func(op device.Op) bool { return op.Kind == device.Unpin }
	if !slices.ContainsFunc(ops, unpins) {
		return ops
	}
	return append([]device.Op{
		{Kind: device.SyncStream, Stream: d.order.streams[d.out].id},
		{Kind: device.SyncStream, Stream: d.order.streams[d.in].id},
	}, ops...)
}

// used notes that ev follows the last copy from or to h.
func (d *deviceActor) used(h *hostBlock, ev *event) {
	if h.last == ev {
		return
	}
	ev.refs++
	d.order.drop(h.last)
	h.last = ev
}

// returnHost gives the host memory of e back unless a group other than g still
// needs it.
func (d *deviceActor) returnHost(e *entry, g *group) {
	if e.committed == 0 || e.wanted(g) {
		return
	}
	for _, p := range e.parts {
		if p.host.parts--; p.host.parts == 0 && !p.host.retained {
			d.give(p.host)
		}
	}
	e.parts, e.have, e.committed = e.parts[:0], e.have[:0], 0
}

// give gives a block back to the pool, which may name the event of its last use
// until the copies out are ordered after it. So the event stays until then.
func (d *deviceActor) give(h *hostBlock) {
	switch {
	case h.last == nil || d.lost != nil || d.order.covered(d.out, h.last):
		d.pool.Give(h.block, nil)
		d.order.drop(h.last)
	default:
		d.pool.Give(h.block, h.last)
		d.fences = append(d.fences, h.last)
	}
	h.block, h.last = nil, nil
	d.spare = append(d.spare, h)
}

// sweep lets go of fences that have passed for the copies out.
func (d *deviceActor) sweep() {
	passed := func(e *event) bool { return d.order.covered(d.out, e) }
	if !slices.ContainsFunc(d.fences, passed) {
		return
	}
	d.pool.Passed(passed)
	d.fences = slices.DeleteFunc(d.fences, func(e *event) bool {
		if !passed(e) {
			return false
		}
		d.order.drop(e)
		return true
	})
}
