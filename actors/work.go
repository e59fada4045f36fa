package actors

import "offload/device"

// work is the batch that one message becomes, and what follows when it is
// enqueued. One value is used for one message after the other.
type work struct {
	order   *order
	batch   device.Batch
	effects []effect
	records []recorded // the records of this batch, whose events it holds
	forks   []*event   // by stream: the record made for waits in this batch
	elided  int64

	kernels  []*device.Kernel
	launches int // kernels used by this batch
}

// recorded is a record within the batch.
type recorded struct {
	op    int // index of the operation
	event *event
}

// effect is what one operation of the batch means for the ledger once it is enqueued.
type effect struct {
	op    int // index of the operation
	kind  effectKind
	entry *entry
	event *event
	span  device.Range // the new device buffer
	home  int          // the stream in whose order the buffer is allocated
	bytes int64        // that were copied
	group *group
}

type effectKind uint8

const (
	readied   effectKind = iota // entry is ready at event
	copiedOut                   // entry is being copied out; event follows the copy
	allocated                   // span exists; entry is to move there
	copiedIn                    // entry is being copied into span; event follows the copy
	freed                       // entry's device buffer is given back
	scrapped                    // span, debris of group, is given back
)

func (w *work) begin(o device.Origin) {
	w.batch.Reset(o)
	w.effects, w.records, w.forks = w.effects[:0], w.records[:0], w.forks[:0]
	w.elided, w.launches = 0, 0
	w.order.save()
}

func (w *work) empty() bool { return len(w.batch.Ops) == 0 }

// add appends an operation and returns its index.
func (w *work) add(op device.Op) int {
	w.batch.Ops = append(w.batch.Ops, op)
	return len(w.batch.Ops) - 1
}

func (w *work) effect(fx effect) { w.effects = append(w.effects, fx) }

// record marks the present point of stream s.
func (w *work) record(s int) (ev *event, op int) {
	ev = w.order.record(s)
	op = w.add(device.Op{Kind: device.Record, Stream: w.order.streams[s].id, Event: ev.id})
	w.records = append(w.records, recorded{op, ev})
	return ev, op
}

// wait orders stream s after ev, unless it is ordered so already.
func (w *work) wait(s int, ev *event, why device.Reason) {
	if ev == nil {
		return
	}
	if w.order.covered(s, ev) {
		w.elided++
		return
	}
	w.add(device.Op{Kind: device.Wait, Stream: w.order.streams[s].id, Event: ev.id, Reason: why})
	w.order.join(s, ev)
}

// follow orders stream s after everything that has been enqueued on stream
// other, by the caller too. Within a batch, other is recorded once for this.
func (w *work) follow(s, other int, why device.Reason) {
	if s == other {
		return
	}
	for len(w.forks) <= other {
		w.forks = append(w.forks, nil)
	}
	if w.forks[other] == nil {
		w.forks[other], _ = w.record(other)
	}
	w.wait(s, w.forks[other], why)
}

// finish gives up what the batch itself held. n of its operations were enqueued.
func (w *work) finish(n int) {
	if n < len(w.batch.Ops) {
		w.order.undo()
	}
	for _, m := range w.records {
		if m.op < n {
			m.event.kept = m.event.id
		}
		w.order.drop(m.event)
	}
}

// gather adds the kernel that packs the combs into dst.
func (w *work) gather(s int, dst device.Range, combs []device.Comb) {
	k := w.kernel()
	k.Gather(dst, combs)
	w.add(device.Op{Kind: device.Launch, Stream: w.order.streams[s].id, Kernel: k})
}

// scatter adds the kernel that unpacks src into the combs.
func (w *work) scatter(s int, combs []device.Comb, src device.Range) {
	k := w.kernel()
	k.Scatter(combs, src)
	w.add(device.Op{Kind: device.Launch, Stream: w.order.streams[s].id, Kernel: k})
}

// kernel returns a kernel to be filled in, which is used again by a later batch.
func (w *work) kernel() *device.Kernel {
	if w.launches == len(w.kernels) {
		w.kernels = append(w.kernels, new(device.Kernel))
	}
	w.launches++
	return w.kernels[w.launches-1]
}
