package actors

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"offload/device"
	"offload/fsm"
	"offload/internal/hostmem"
	"offload/internal/layout"
	"offload/messages"
)

// deviceActor owns what is behind the tensors of one device: the ledger, the
// pinned host memory, the transfer streams and the events. One message becomes
// at most one batch.
type deviceActor struct {
	dev      device.Device
	watch    watcher // dev, if it counts writes
	id       device.ID
	ids      *device.IDs
	hooks    *Hooks
	pool     *hostmem.Pool[*event]
	order    order
	ledger   ledger
	work     work
	out      int                // stream index of the copies out
	in       int                // stream index of the copies in
	open     bool               // these streams are
	fences   []*event           // the pool may still name them
	later    []leftover         // given back with the next batch
	returned messages.GiveBacks // memory of the caller, of which no answer has told yet
	stats    messages.Stats
	lost     error // once the device's context is lost

	marks    map[*device.Storage]*mark
	lastMark uint64     // number of the last one
	budget   int64      // of device memory in use, for reloads; zero: the device's own
	hostMax  int64      // budget of host memory; zero: no limit
	policy   HostPolicy // when the host budget has no memory
	retain   bool       // host memory stays with the layers
	shelves  map[shelfKey][]*shelf
	early    bool            // copy out at push instead of at start-offload
	coalesce int64           // bytes from which the small tensors of a group are moved together
	staging  [2]device.Range // by transfer stream: through which pieces are packed
	spare    []*hostBlock
	taken    []*hostBlock // by the command that is being handled
	putOff   int64        // bytes that are given back late, counted in this command
	together bool         // the small tensors of the group were worth a copy, in this command
	kept     int64        // what found no host memory and stays, in this command
	unfit    int64        // smallest size for which the whole host budget is too small, in this command

	// Scratch memory of the command that is being handled.
	touched  []int
	need     []layout.Span
	found    []layout.Comb
	combs    []layout.Comb // of direct
	direct   []outgoing
	packed   []segment
	pieces   []device.Comb
	ranges   []device.Range
	coming   []*entry
	late     []*entry
	unpacked []unpacking
}

// leftover is the device memory of a storage that is given back with the next
// batch, after the streams that used it.
type leftover struct {
	storage *device.Storage
	after   []int
}

// putOffBytes bounds the memory of small tensors that is given back with the
// next batch instead of by a batch of its own.
const putOffBytes = 4 << 20

func newDeviceActor(dev device.Device, cfg *Config, hooks *Hooks) *deviceActor {
	ids := device.NewIDs(dev)
	d := &deviceActor{
		dev: dev, id: dev.Info().ID, ids: ids, hooks: hooks, pool: hostmem.New[*event](cfg.Host, ids),
		ledger: newLedger(), marks: make(map[*device.Storage]*mark), early: cfg.EarlyCopies, coalesce: cfg.Limits.Coalesce,
		budget: cfg.DeviceBudget, hostMax: cfg.Host.Budget, policy: cfg.HostPolicy,
		retain: cfg.RetainHost, shelves: make(map[shelfKey][]*shelf),
	}
	d.watch, _ = dev.(watcher)
	d.order.ids = ids
	d.work.order = &d.order
	d.out, d.in = d.order.index(ids.Stream()), d.order.index(ids.Stream())
	return d
}

// command handles a request of a layer. The answer is in the command and its request.
func (d *deviceActor) command(c *messages.Command) {
	r := c.Request
	defer d.handOver(&r.GiveBacks)
	origin := device.Origin{Action: r.Event.String(), Pass: r.Slot.Pass, Layer: r.Layer, Occurrence: r.Slot.Occurrence}
	if d.lost != nil && r.Event != fsm.Reset {
		r.Err, c.Failed = d.lost, r.Event != fsm.Push || d.takeOver(c, origin)
		return
	}
	d.work.begin(origin)
	g := d.ledger.group(c.Ticket, origin)
	c.Ticket = g.ticket
	d.taken, d.kept, d.unfit = d.taken[:0], 0, 0
	if err := d.build(c, g); err != nil {
		for i := range d.work.effects {
			d.revert(&d.work.effects[i])
		}
		d.work.finish(0)
		r.Err = err
		if len(g.entries) == 0 {
			c.Ticket = 0
			d.ledger.forget(g)
		}
		return
	}
	if err := d.submit(g); err != nil {
		if r.Event == fsm.Reload {
			if r.Err = d.unallocated(g, err); r.Err != nil {
				return
			}
		}
		g.failed = true
		r.Err, c.Failed = err, true
		return
	}
	c.Ops = len(d.work.batch.Ops)
	d.settled(c, g)
}

// build turns the command into operations. An error is a refusal: nothing has changed.
func (d *deviceActor) build(c *messages.Command, g *group) error {
	r := c.Request
	switch r.Event {
	case fsm.Push:
		return d.push(c, g)
	case fsm.StartOffload:
		return d.startOffload(c, g)
	case fsm.Release:
		return d.release(g, d.order.index(r.Stream))
	case fsm.Reload:
		return d.reload(g, d.order.index(r.Stream))
	case fsm.Pop:
		return d.pop(c, d.order.index(r.Stream))
	case fsm.Revive:
		return nil // the copy out goes on; nobody will read what it wrote
	case fsm.Reset:
		return d.reset(g, d.order.index(r.Stream))
	}
	return fmt.Errorf("device actor: no work for event %v", r.Event)
}

// settled makes the changes to the group that follow when its batch is enqueued whole.
func (d *deviceActor) settled(c *messages.Command, g *group) {
	r := c.Request
	for i := range d.work.effects {
		r.Moved += d.work.effects[i].bytes
	}
	r.Unfit = d.unfit
	if r.Explain {
		d.explain(c, g)
	}
	switch r.Event {
	case fsm.StartOffload:
		g.started, g.hosted = true, true
		d.stats.KeptForBudget += d.kept
	case fsm.Release:
		g.away, g.released = true, true
		g.gain()
	case fsm.Reload, fsm.Revive:
		g.hosted, g.away = false, false
		for _, e := range g.entries {
			d.returnHost(e, g)
		}
	case fsm.Reset:
		c.Gainless = gainless(c.Gainless[:0], g)
		d.stats.NoGain += int64(len(c.Gainless))
		g.gain()
		d.dismiss(g)
		c.Ticket = 0
	}
}

// submit sends the batch that was built for g, if there is one, and applies the
// effects of the operations that were enqueued. What was put off goes with it;
// without a group it goes alone.
func (d *deviceActor) submit(g *group) error {
	w := &d.work
	if w.empty() && g != nil {
		w.finish(0)
		d.stats.WaitsElided += w.elided
		return nil
	}
	first, returned := d.freeLater(), len(d.returned)
	err := d.send(&w.batch)
	n := enqueued(&w.batch, err)
	for i := range w.effects {
		if fx := &w.effects[i]; fx.op < n {
			d.apply(fx)
		} else {
			d.revert(fx)
		}
	}
	d.forgetLater(first, n)
	if err != nil && g != nil {
		d.strand(g, n, returned)
	}
	d.count(w.batch.Ops[:n])
	d.stats.WaitsElided += w.elided
	w.finish(n)
	return err
}

// send submits b. A panic of the device, or of a wrapper of it, is a failure of
// the batch like any other.
func (d *deviceActor) send(b *device.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Actor: "device " + d.dev.Info().Name, Value: r, Stack: debug.Stack()}
		}
		if err != nil {
			d.stats.Failures++
			if errors.Is(err, device.ErrLost) {
				d.lost = err
			}
		}
		d.hooks.batch(b, err)
	}()
	d.stats.Batches++
	return d.dev.Submit(b)
}

// enqueued returns how many operations of b took effect.
func enqueued(b *device.Batch, err error) int {
	if err == nil {
		return len(b.Ops)
	}
	var failed *device.Error
	if errors.As(err, &failed) {
		return min(max(failed.Index, 0), len(b.Ops))
	}
	return 0
}

func (d *deviceActor) count(ops []device.Op) {
	s := &d.stats
	s.Operations += int64(len(ops))
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case device.Record:
			s.EventsRecorded++
		case device.Wait:
			s.WaitsIssued++
		case device.CopyOut:
			s.CopiesOut++
			s.BytesOut += op.Src.Bytes
		case device.CopyIn:
			s.CopiesIn++
			s.BytesIn += op.Src.Bytes
		}
	}
}

// apply notes what an enqueued operation means.
func (d *deviceActor) apply(fx *effect) {
	e := fx.entry
	switch fx.kind {
	case copiedOut:
		for _, p := range e.parts[e.committed:] {
			p.host.parts++
			d.used(p.host, fx.event)
			fx.bytes += p.comb.Bytes()
			for i := range p.comb.Count {
				e.have = append(e.have, layout.Span{Lo: p.comb.Lo + i*p.comb.Stride, Hi: p.comb.Hi + i*p.comb.Stride})
			}
		}
		e.have = layout.Union(e.have[:0], e.have, nil)
		e.committed, e.leaving = len(e.parts), false
		fx.event.refs++
		d.order.drop(e.out)
		e.out = fx.event
	case copiedIn:
		for _, p := range e.parts {
			d.used(p.host, fx.event)
		}
		fx.event.refs++
		d.order.drop(e.in)
		e.in, e.onDevice = fx.event, true
		e.storage.Move(e.incoming, d.ids, d.order.streams[fx.home].id)
		d.ledger.buffers[e.incoming] = e
		e.incoming = device.Buffer{}
		e.version = d.version(e.storage) // the copy in was a write, too
	case freed:
		e.onDevice = false
		delete(d.ledger.buffers, e.storage.Buffer())
		d.ended(e.storage, d.work.batch.Ops[fx.op].Stream)
		e.consumers = e.consumers[:0]
		d.order.drop(e.in)
		e.in = nil
	case scrapped:
		d.ids.PutBuffer(fx.span.Buffer)
		fx.group.debris.buffers = slices.DeleteFunc(fx.group.debris.buffers, func(r device.Range) bool { return r == fx.span })
	}
}

// revert undoes what was prepared for an operation that was not enqueued.
func (d *deviceActor) revert(fx *effect) {
	e := fx.entry
	switch fx.kind {
	case readied:
		e.ready = slices.DeleteFunc(e.ready, func(ev *event) bool { return ev == fx.event })
		d.order.drop(fx.event)
	case copiedOut:
		e.parts, e.leaving = e.parts[:e.committed], false
	case allocated:
		d.ids.PutBuffer(fx.span.Buffer)
		e.incoming = device.Buffer{}
	}
}
