package offload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"offload/actors"
	"offload/device"
	"offload/fsm"
	"offload/messages"
	"offload/schedule"
)

// Pass is one forward and its backward of one micro-batch, or the forward of an
// inference. It ends with End or Abort, one of which has to be called.
type Pass struct {
	engine *Engine
	ctx    context.Context
	kind   PassKind
	number uint64
	stream device.Stream
	device int
	ended  atomic.Bool // over is set; for those who do not hold the lock

	step       *Step // that the pass is of, if any
	microBatch int   // of the step

	mu        sync.Mutex
	over      error // once the pass has ended: why a call on it is refused
	request   messages.Request
	cursor    int    // the next boundary of the plan
	runs      []*run // by layer: its last run
	live      []*run // those that are not closed
	chunk     []run  // runs are made several at a time
	previous  *run   // whose backward ran last
	putOff    []*run // whose reload found no device memory, in the order of the plan
	turned    bool   // the backward has begun
	unused    int
	unflushed bool  // what was put off could not be given back at the end
	started   int   // offloads that were started
	moved     int64 // bytes copied out
	unfit     int64 // smallest tensor for which the whole host budget is too small
	records   []Record
	returned  messages.GiveBacks // whose owners are told when the pass is unlocked
}

// run is one slot: one run of a layer within the pass.
type run struct {
	pass       *Pass
	layer      int
	occurrence int
	before     *run          // the layer's run before this one
	gen        uint32        // counts the resets; part of a Saved
	state      atomic.Uint32 // an fsm.State, as last reported by the layer's machine
	offloaded  bool          // its offload was started and not given up
	copied     bool          // bytes were copied out for an offload that is not started
	revived    bool          // the plan's later directives for it are dropped
	backward   bool          // its backward has run or is running
	closed     bool
	view       Slot // of the pass's stream
}

// at returns where the tensors of the slot are.
func (r *run) at() fsm.State { return fsm.State(r.state.Load()) }

func newPass(e *Engine, ctx context.Context, kind PassKind, number uint64, stream device.Stream, dev int) *Pass {
	return &Pass{engine: e, ctx: ctx, kind: kind, number: number, stream: stream, device: dev,
		runs: make([]*run, e.opts.Layers)}
}

// Kind returns whether the pass has a backward.
func (p *Pass) Kind() PassKind { return p.kind }

// Number returns the number of the pass, as listeners are told.
func (p *Pass) Number() uint64 { return p.number }

// Ended reports whether the pass has ended or was aborted.
func (p *Pass) Ended() bool { return p.ended.Load() }

// Forward says that the forward of the layer comes next on the pass's stream.
// It does what the plan has for this point, and returns a new slot for what the
// layer saves. A second Forward of a layer opens a second slot; what the plan
// does not have stays on the device.
//
// An error is that of a directive of the plan, which names its own layer, or a
// refusal. The pass should be aborted then.
func (p *Pass) Forward(layer int) (*Slot, error) {
	if err := p.lock("forward", layer); err != nil {
		return nil, err
	}
	defer p.unlock()
	if err := p.inTurn(false); err != nil {
		return nil, fmt.Errorf("forward of layer %d: %w", layer, err)
	}
	before := p.runs[layer]
	occurrence := 0
	if before != nil {
		occurrence = before.occurrence + 1
	}
	if err := p.follow(schedule.Boundary{Phase: schedule.Forward, Layer: layer, Occurrence: occurrence}); err != nil {
		return nil, err
	}
	if len(p.chunk) == 0 {
		p.chunk = make([]run, min(max(len(p.runs)-layer, 1), 64))
	}
	r := &p.chunk[0]
	*r = run{pass: p, layer: layer, occurrence: occurrence, before: before}
	r.view = Slot{run: r, stream: p.stream}
	q := p.fill(r, p.stream)
	q.Verb, q.Device, q.Mode = messages.Open, p.device, p.mode(layer, occurrence)
	if err := p.call(r); err != nil {
		return nil, err
	}
	p.chunk = p.chunk[1:]
	p.runs[layer] = r
	p.live = append(p.live, r)
	return &r.view, nil
}

// mode says what becomes of what is pushed to the next run of a layer.
func (p *Pass) mode(layer, occurrence int) messages.Mode {
	plan := p.engine.opts.Plan
	switch {
	case p.kind == Inference:
		return messages.Forget
	case plan.IsManual():
		return messages.Offload
	case plan.Offloaded(layer) && occurrence == 0 && !p.turned:
		return messages.Offload
	}
	return messages.Stay
}

// MarkReady says that the tensors are complete at the present point of the
// stream. A copy out then waits for this point and not for that of the push.
// A tensor that several streams wrote is marked on each of them, or each stream
// marks the view that it wrote; the stream that it is pushed on counts as one of
// them. Other views of its storage are not marked by it. A mark is valid for this
// pass and until the storage is changed (device.Storage.Touch).
func (p *Pass) MarkReady(stream device.Stream, ts ...device.Tensor) error {
	if p.engine.notifier.reentrant() {
		return fmt.Errorf("mark: %w", ErrReentrant)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refused(); err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	if stream.Device != p.stream.Device {
		return fmt.Errorf("mark: %w: %v is not a stream of the device of pass %d, which runs on %v", ErrForeign, stream, p.number, p.stream)
	}
	var marked []device.Tensor
	for _, t := range ts {
		if err := t.Check(); err != nil {
			return fmt.Errorf("mark: %w", err)
		}
		switch {
		case t.IsNil() || t.Elements() == 0 || t.Storage.Buffer().Place == device.OnHost:
		case t.Storage.Buffer().Device != stream.Device && !t.Storage.Buffer().IsZero():
			return fmt.Errorf("mark: %v: %w: it is on device %d", t, ErrForeign, t.Storage.Buffer().Device)
		default:
			marked = append(marked, t)
		}
	}
	if len(marked) == 0 || p.kind == Inference {
		return nil
	}
	return p.engine.system.Mark(p.device, p.number, stream, marked)
}

// refused returns why calls on the pass are refused, if they are.
func (p *Pass) refused() error {
	if p.over == nil && p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return p.over
}

// Backward says that the backward of the layer comes next on the pass's stream.
// It resets the slot whose backward came before, does what the plan has for
// this point, and returns the slot of the layer's last run whose backward has
// not run yet. Under a plan that is not manual its tensors can be popped then,
// whatever the order of the calls; what the plan had not reloaded is reloaded
// late, which Metrics counts. A reload that the plan has ahead of time is put off
// while there is no device memory for it; where there is none for this layer,
// Backward returns [ErrBudget], and works when memory has been given back.
func (p *Pass) Backward(layer int) (*Slot, error) {
	if err := p.lock("backward", layer); err != nil {
		return nil, err
	}
	defer p.unlock()
	if p.kind == Inference {
		return nil, fmt.Errorf("backward of layer %d: %w: pass %d keeps nothing; begin a training pass", layer, ErrInference, p.number)
	}
	if err := p.inTurn(true); err != nil {
		return nil, fmt.Errorf("backward of layer %d: %w", layer, err)
	}
	r := p.pending(layer)
	if last := p.runs[layer]; r == nil && last != nil {
		return nil, fmt.Errorf("backward of layer %d: %w: each of its %d runs in pass %d has had its backward, and what it saved is given back; "+
			"run a forward again, in this pass or another", layer, ErrSecondBackward, last.occurrence+1, p.number)
	}
	if r == nil {
		return nil, fmt.Errorf("backward of layer %d: %w: it has not run forward in pass %d; call Forward first", layer, ErrLayer, p.number)
	}
	p.turned = true
	if p.previous != nil {
		if err := p.close(p.previous); err != nil {
			return nil, err
		}
		p.previous = nil
	}
	if err := p.makeUp(); err != nil {
		return nil, err
	}
	if err := p.follow(schedule.Boundary{Phase: schedule.Backward, Layer: layer, Occurrence: r.occurrence}); err != nil {
		return nil, err
	}
	if !p.engine.opts.Plan.IsManual() {
		if err := p.ensure(r); err != nil {
			return nil, err
		}
	}
	r.backward = true
	p.previous = r
	return &r.view, nil
}

// pending returns the last run of the layer whose backward has not run.
func (p *Pass) pending(layer int) *run {
	for r := p.runs[layer]; r != nil; r = r.before {
		if !r.backward && !r.closed {
			return r
		}
	}
	return nil
}

// follow does what the plan has for the boundary, and for those before it that
// were skipped. A boundary that is not in the plan, or behind the cursor, has
// nothing to be done. Once the backward has begun, forwards that were skipped
// need no room: what they would have moved out would have to come back at once.
func (p *Pass) follow(b schedule.Boundary) error {
	plan := p.engine.opts.Plan
	to := plan.IndexOf(b)
	var errs []error
	for ; p.cursor <= to; p.cursor++ {
		if p.turned && plan.Boundary(p.cursor).Phase == schedule.Forward {
			continue
		}
		for _, d := range plan.At(p.cursor) {
			if err := p.direct(d); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// direct does one directive, unless its slot was skipped, revived or reset. A
// reset is for slots whose backward has run: another one may still be needed.
func (p *Pass) direct(d schedule.Directive) error {
	r := p.runs[d.Layer]
	for r != nil && r.occurrence != d.Occurrence {
		r = r.before
	}
	if r == nil || r.closed || r.revived && d.Action != schedule.Reset {
		return nil
	}
	switch {
	case d.Action == schedule.StartOffload && r.at() == fsm.Resident:
		return p.fire(r, fsm.StartOffload)
	case d.Action == schedule.Release && r.at() == fsm.Offloading:
		return p.fire(r, fsm.Release)
	case d.Action == schedule.Reload && len(p.putOff) > 0 && r.at() == fsm.Offloaded:
		p.putOff = append(p.putOff, r) // those before it come first
	case d.Action == schedule.Reload && (r.at() == fsm.Offloaded || r.at() == fsm.Offloading):
		err := p.bringBack(r)
		if shortOfDevice(err) {
			p.putOff = append(p.putOff, r)
			return nil
		}
		return err
	case d.Action == schedule.Reset && r.backward:
		return p.close(r)
	}
	return nil
}

// bringBack makes the tensors of r available: they are reloaded, or the offload
// is given up where the bytes have not left the device yet.
func (p *Pass) bringBack(r *run) error {
	if r.at() == fsm.Offloading {
		return p.fire(r, fsm.Revive)
	}
	return p.fire(r, fsm.Reload)
}

// shortOfDevice reports whether err says that there is no device memory now.
func shortOfDevice(err error) bool {
	full, ok := errors.AsType[*BudgetError](err)
	return ok && full.Place == device.OnDevice
}

// makeUp makes the reloads that were put off, in their order, as far as there is
// device memory for them.
func (p *Pass) makeUp() error {
	for len(p.putOff) > 0 {
		if r := p.putOff[0]; !r.closed {
			if err := p.ensure(r); shortOfDevice(err) {
				return nil
			} else if err != nil {
				return err
			}
		}
		p.putOff = p.putOff[1:]
	}
	return nil
}

// ensure brings back what the plan should have brought back by now.
func (p *Pass) ensure(r *run) error {
	if r.at() != fsm.Offloading && r.at() != fsm.Offloaded {
		return nil
	}
	err := p.bringBack(r)
	if err == nil {
		p.engine.counters.late.Add(1)
	}
	return err
}

// End ends the pass. What is still held is given back, used or not. If the
// context was cancelled, the pass is aborted and End returns why.
func (p *Pass) End() error {
	back, err := p.finish(false, p.ending(false))
	back.Run()
	return err
}

// Abort gives back what the pass holds, whatever state it is in. Copies that
// are under way are waited for in the order of the device's streams. Calling it
// again tries again what failed.
func (p *Pass) Abort() error {
	back, err := p.finish(true, p.ending(true))
	back.Run()
	return err
}

// ending returns why calls on the pass are refused once it has ended.
func (p *Pass) ending(abort bool) error {
	if abort {
		return fmt.Errorf("pass %d was aborted: %w", p.number, ErrStale)
	}
	return fmt.Errorf("pass %d has ended: %w", p.number, ErrStale)
}

// finish ends the pass. The caller tells the owners of what was given back when
// it holds no lock.
func (p *Pass) finish(abort bool, over error) (messages.GiveBacks, error) {
	if p.engine.notifier.reentrant() {
		return nil, fmt.Errorf("end of pass %d: %w", p.number, ErrReentrant)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil {
		if abort && len(p.live) == 0 && !p.unflushed {
			return nil, nil // aborting what is over is harmless, so that it can be deferred
		}
		if !abort {
			return nil, p.over
		}
	}
	first := p.over == nil
	var errs []error
	if err := p.ctx.Err(); err != nil && !abort {
		abort = true
		errs = append(errs, fmt.Errorf("pass %d was aborted: %w", p.number, context.Cause(p.ctx)))
	}
	p.over = over
	p.ended.Store(true)
	for i := len(p.live) - 1; i >= 0; i-- {
		if err := p.close(p.live[i]); err != nil {
			errs = append(errs, err)
		}
	}
	back, err := p.engine.system.Flush(p.device, p.number)
	if p.unflushed = err != nil && !errors.Is(err, actors.ErrStopped); err != nil {
		errs = append(errs, err)
	}
	p.returned = append(p.returned, back...)
	if first && !abort && p.engine.opts.Strict && p.started > 0 && p.moved == 0 && p.kind == Train {
		errs = append(errs, fmt.Errorf("end of pass %d: %w: %d offloads were started; "+
			"see Pass.Explain for the reasons, or lower MinElements", p.number, ErrNothingMoved, p.started))
	}
	err = errors.Join(errs...)
	if len(p.live) == 0 {
		p.engine.forget(p) // before the listener is told, which may panic
	}
	if first {
		c := &p.engine.counters
		if abort {
			c.aborted.Add(1)
		} else {
			c.ended.Add(1)
		}
		c.unused.Add(int64(p.unused))
		if p.moved == 0 && p.unfit > 0 {
			p.engine.unfit.Store(p.unfit)
		}
		info := p.info()
		info.Aborted, info.Unused, info.Err = abort, p.unused, err
		p.engine.notifier.passEnded(info)
	}
	return p.takeReturned(), err
}

// unlock ends a call on the pass. Then, with the call done and the pass open to
// others, it tells the owners of what the call has given back.
func (p *Pass) unlock() {
	back := p.takeReturned()
	p.mu.Unlock()
	back.Run()
}

// takeReturned returns those that have to be told, who are then no longer noted.
func (p *Pass) takeReturned() messages.GiveBacks {
	back := p.returned
	p.returned = nil
	return back
}

func (p *Pass) info() PassInfo { return PassInfo{Pass: p.number, Kind: p.kind} }

// lock begins a call on the pass about a layer. The caller calls unlock, unless
// there is an error.
func (p *Pass) lock(what string, layer int) error {
	if p.engine.notifier.reentrant() {
		return fmt.Errorf("%s of layer %d: %w", what, layer, ErrReentrant)
	}
	if layer < 0 || layer >= p.engine.opts.Layers {
		return fmt.Errorf("%s of layer %d: %w: the plan has layers 0 to %d", what, layer, ErrLayer, p.engine.opts.Layers-1)
	}
	p.mu.Lock()
	if err := p.refused(); err != nil {
		p.mu.Unlock()
		return fmt.Errorf("%s of layer %d: %w", what, layer, err)
	}
	return nil
}

// fire asks the layer's machine for an event that takes no arguments.
func (p *Pass) fire(r *run, e fsm.Event) error {
	p.fill(r, r.view.stream).Event = e
	return p.call(r)
}

// close resets the slot and forgets it.
func (p *Pass) close(r *run) error {
	q := p.fill(r, p.stream)
	q.Verb, q.Event = messages.Close, fsm.Reset
	if err := p.call(r); err != nil {
		return err
	}
	r.closed = true
	for i := len(p.live) - 1; i >= 0; i-- { // it is usually the last one
		if p.live[i] == r {
			p.live = append(p.live[:i], p.live[i+1:]...)
			break
		}
	}
	return nil
}

// fill makes the pass's one request ready for the slot.
func (p *Pass) fill(r *run, stream device.Stream) *messages.Request {
	q := &p.request
	q.Reset()
	q.Layer, q.Slot, q.Stream = r.layer, messages.SlotID{Pass: p.number, Occurrence: r.occurrence}, stream
	q.Explain = p.engine.opts.Explain
	return q
}

// call sends the request, awaits the answer and notes what it says of the slot.
func (p *Pass) call(r *run) error {
	q := &p.request
	p.engine.system.Call(q)
	p.returned = append(p.returned, q.GiveBacks...)
	r.state.Store(uint32(q.State))
	p.unused += q.Unused
	p.moved += q.Moved
	r.copied = r.copied || q.Moved > 0
	p.fits(q)
	if q.Err != nil {
		return q.Err
	}
	c := &p.engine.counters
	if q.Short {
		c.shorts.Add(1)
	}
	switch {
	case q.Verb == messages.Open:
	case q.Event == fsm.StartOffload:
		r.revived, r.offloaded = false, true
		p.started++
		if r.copied {
			c.offloads.Add(1)
			r.copied = false
		}
	case q.Event == fsm.Revive:
		r.revived, r.offloaded = true, false
	case q.Event == fsm.Reset:
		p.explain(r, q.Records)
		r.offloaded = false
		r.gen++
		r.revived, r.copied = false, false
	}
	return nil
}

// fits notes for how small a tensor the whole host budget was too small.
func (p *Pass) fits(q *messages.Request) {
	unfit := q.Unfit
	if q.Err != nil {
		var full *BudgetError
		if errors.As(q.Err, &full) && full.Place == device.OnHost && full.Asked > full.Limit {
			unfit = full.Asked
		}
	}
	if unfit > 0 && (p.unfit == 0 || unfit < p.unfit) {
		p.unfit = unfit
	}
}
