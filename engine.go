package offload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"offload/actors"
	"offload/device"
	"offload/internal/hostmem"
	"offload/messages"
	"offload/schedule"
)

// Engine offloads the activations of one training loop. Engines are independent
// of each other, also on one device.
type Engine struct {
	opts     Options
	devices  []device.Device
	system   *actors.System
	notifier notifier
	counters counters
	unfit    atomic.Int64 // smallest tensor of a pass for none of which the host budget was enough

	mu     sync.Mutex
	passes map[*Pass]struct{} // in flight
	last   uint64             // number of the last pass
	closed bool
	done   chan struct{}  // closed when Close is through; final is written before
	final  messages.Stats // of a closed engine
}

// Open returns an engine for dev, which stays the caller's and has to be open
// until after Close.
func Open(dev device.Device, opts Options) (*Engine, error) {
	return OpenAll([]device.Device{dev}, opts)
}

// OpenAll returns an engine for several devices. A pass runs on the device of
// the stream that it is begun with.
func OpenAll(devs []device.Device, opts Options) (*Engine, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if len(devs) == 0 {
		return nil, errors.New("open: no device was given; an engine needs at least one")
	}
	seen := make(map[device.ID]bool)
	for i, d := range devs {
		if d == nil {
			return nil, fmt.Errorf("open: device %d of %d is nil", i, len(devs))
		}
		if seen[d.Info().ID] {
			return nil, fmt.Errorf("open: device %d of %d is there twice (%s); an engine has one actor for each", i, len(devs), d.Info().Name)
		}
		seen[d.Info().ID] = true
	}
	e := &Engine{opts: opts, devices: devs, passes: make(map[*Pass]struct{}), done: make(chan struct{})}
	if opts.Listener != nil {
		e.notifier.listener = *opts.Listener
	}
	var err error
	e.system, err = actors.New(actors.Config{
		Devices: devs, Layers: opts.Layers, Dispatch: opts.Dispatch,
		Limits: actors.Limits{MinElements: opts.MinElements, MinBytes: opts.MinBytes,
			Coalesce: opts.CoalesceBytes, KeepStrided: opts.KeepStrided},
		Host:        hostmem.Config{SlabBytes: opts.SlabBytes, Budget: opts.hostBudget(len(devs)), PageBytes: hostPage},
		Hooks:       e.notifier.hooks(),
		EarlyCopies: opts.CopyAtPush, HostPolicy: opts.HostPolicy, RetainHost: opts.RetainHost, DeviceBudget: opts.DeviceBudget,
	})
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return e, nil
}

// Plan returns the plan that the engine follows.
func (e *Engine) Plan() *schedule.Plan { return e.opts.Plan }

// PassKind says whether a pass has a backward.
type PassKind uint8

const (
	// Train is a pass with forward and backward.
	Train PassKind = iota
	// Inference is a forward whose activations nobody needs again. Push keeps
	// no reference: what is pushed stays the caller's.
	Inference
)

// String returns "train" or "inference".
func (k PassKind) String() string {
	switch k {
	case Train:
		return "train"
	case Inference:
		return "inference"
	}
	return fmt.Sprintf("pass kind(%d)", uint8(k))
}

// Begin starts a pass whose work is enqueued on stream, which also says on
// which device it runs. When ctx is cancelled, calls on the pass return its
// error, and End aborts. Several passes may be in flight.
func (e *Engine) Begin(ctx context.Context, kind PassKind, stream device.Stream) (*Pass, error) {
	if e.notifier.reentrant() {
		return nil, fmt.Errorf("begin: %w", ErrReentrant)
	}
	if kind > Inference {
		return nil, fmt.Errorf("begin: %v is unknown; it is Train or Inference", kind)
	}
	dev := -1
	for i, d := range e.devices {
		if d.Info().ID == stream.Device {
			dev = i
		}
	}
	if dev < 0 {
		return nil, fmt.Errorf("begin: %w: %v is on a device that the engine was not opened with", ErrForeign, stream)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin: %w", context.Cause(ctx))
	}
	if unfit := e.unfit.Load(); unfit > 0 && kind == Train {
		// Where memory could not be pinned, less than the budget was there; that may pass.
		if limit := e.opts.hostBudget(len(e.devices)); limit > 0 && unfit > limit {
			return nil, fmt.Errorf("begin: nothing of an earlier pass fitted: %w",
				&BudgetError{Place: device.OnHost, Asked: unfit, Limit: limit, Fits: limit / hostPage * hostPage})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("begin: %w", ErrClosed)
	}
	e.last++
	p := newPass(e, ctx, kind, e.last, stream, dev)
	e.passes[p] = struct{}{}
	e.counters.begun.Add(1)
	e.notifier.passBegun(p.info())
	return p, nil
}

// Metrics returns the counters as of now. After Close they are those at the end.
func (e *Engine) Metrics() Metrics {
	if e.notifier.reentrant() {
		return e.counters.metrics(messages.Stats{}) // the actors' part cannot be asked for from inside
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.done
		return e.counters.metrics(e.final)
	}
	defer e.mu.Unlock()
	stats, _ := e.system.Stats() // asking for counters cannot fail while the actors run
	return e.counters.metrics(stats)
}

// Trim gives pinned host memory that is not in use back to the system. It waits
// for the copies that are under way. Pinning it again takes time; call it
// between phases of a program, not between steps. An engine that does with the
// host memory it has, since more could not be pinned, tries again after it.
func (e *Engine) Trim() error {
	if e.notifier.reentrant() {
		return fmt.Errorf("trim: %w", ErrReentrant)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("trim: %w", ErrClosed)
	}
	return e.system.Trim()
}

// Close aborts the passes in flight, waits for the copies, gives everything
// back and ends the actors. The device stays open. Closing again waits for the
// first Close and does nothing.
func (e *Engine) Close() error {
	if e.notifier.reentrant() {
		return fmt.Errorf("close: %w", ErrReentrant)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.done
		return nil
	}
	e.closed = true // nothing begins from here on
	var returned messages.GiveBacks
	defer func() { returned.Run() }() // last: it may ask for the metrics
	defer close(e.done)
	var passes []*Pass
	for p := range e.passes {
		passes = append(passes, p)
	}
	e.mu.Unlock()

	var errs []error
	for _, p := range passes {
		back, err := p.finish(true, ErrClosed)
		returned = append(returned, back...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	final, back, err := e.system.Stop()
	e.final, returned = final, append(returned, back...)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return fmt.Errorf("close: %w", errors.Join(errs...))
	}
	return nil
}

func (e *Engine) forget(p *Pass) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.passes, p)
}
