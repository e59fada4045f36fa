package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

// loop is a training loop on a rig: what a layer of a micro-batch saves has bytes
// of its own, so that another one's are noticed.
type loop struct {
	*rig.Rig
	engine *offload.Engine
	layers int
	stream device.Stream // of its passes
	bytes  int64
	skip   map[int]bool // layers that do not run
	unused func(name string) bool

	calls  int          // on the engine so far
	stop   func() error // asked before every call; an error ends the loop
	batch  int          // distinguishes the bytes of one pass from those of another
	flight map[int]*flight
}

// flight is a micro-batch that is in flight.
type flight struct {
	pass  *offload.Pass
	batch int
	slots []*offload.Slot
	saved [][]offload.Saved
}

func newLoop(r *rig.Rig, e *offload.Engine, layers int) *loop {
	return &loop{Rig: r, engine: e, layers: layers, stream: r.Compute, bytes: 4096, flight: make(map[int]*flight)}
}

// call counts a call on the engine, and ends the loop where that is asked for.
func (l *loop) call() error {
	l.calls++
	if l.stop != nil {
		return l.stop()
	}
	return nil
}

func name(batch, layer, i int) string {
	return fmt.Sprintf("batch %d layer %d tensor %d", batch, layer, i)
}

// forward runs the forward of a micro-batch.
func (l *loop) forward(ctx context.Context, n int) error {
	if err := l.call(); err != nil {
		return err
	}
	p, err := l.engine.Begin(ctx, offload.Train, l.stream)
	if err != nil {
		return err
	}
	l.batch++
	f := &flight{pass: p, batch: l.batch, saved: make([][]offload.Saved, l.layers)}
	l.flight[n] = f
	for i := range l.layers {
		if l.skip[i] {
			continue
		}
		if err := l.save(f, i); err != nil {
			return err
		}
	}
	return nil
}

func (l *loop) save(f *flight, layer int) error {
	if err := l.call(); err != nil {
		return err
	}
	slot, err := f.pass.Forward(layer)
	if err != nil {
		return err
	}
	f.slots = append(f.slots, slot)
	if err := l.call(); err != nil {
		return err
	}
	x := l.Tensor(l.stream, name(f.batch, layer, 0), l.bytes)
	y := l.Tensor(l.stream, name(f.batch, layer, 1), l.bytes)
	saved, err := slot.Push(x, y)
	if err != nil {
		if slot.State() != fsm.Failed { // a push that is refused takes nothing over
			l.Drop(l.stream, x)
			l.Drop(l.stream, y)
		}
		return err
	}
	f.saved[layer] = saved
	return nil
}

// backward runs the backward of a micro-batch and ends its pass.
func (l *loop) backward(n int) error {
	f := l.flight[n]
	for i := l.layers - 1; i >= 0; i-- {
		if l.skip[i] {
			continue
		}
		if err := l.call(); err != nil {
			return err
		}
		slot, err := f.pass.Backward(i)
		if err != nil {
			return err
		}
		for k, v := range f.saved[i] {
			if l.unused != nil && l.unused(name(f.batch, i, k)) {
				continue
			}
			if err := l.call(); err != nil {
				return err
			}
			back, err := slot.Pop(v)
			if err != nil {
				return err
			}
			l.Check(l.stream, back[0], name(f.batch, i, k))
		}
	}
	if err := f.pass.End(); err != nil {
		return err
	}
	delete(l.flight, n)
	return nil
}

// turns runs a step in the given order.
func (l *loop) turns(ctx context.Context, order string) error {
	turns, err := offload.Turns(order)
	if err != nil {
		return err
	}
	for _, t := range turns {
		run := func() error { return l.forward(ctx, t.MicroBatch) }
		if t.Backward {
			run = func() error { return l.backward(t.MicroBatch) }
		}
		if err := run(); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
	}
	return nil
}

// abort gives up what is in flight.
func (l *loop) abort() error {
	var errs []error
	for n, f := range l.flight {
		errs = append(errs, f.pass.Abort())
		delete(l.flight, n)
	}
	return errors.Join(errs...)
}

// idle checks that nothing is held between steps.
func (l *loop) idle(when string) {
	l.T.Helper()
	if m := l.engine.Metrics(); m.PassesOpen != 0 || m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
		l.T.Errorf("%s: %d passes are open, %d storages, %d slots and %d host bytes are held",
			when, m.PassesOpen, m.StoragesHeld, m.SlotsHeld, m.HostInUse)
	}
	if in := l.Sim.Usage().InUse; in != 0 {
		l.T.Errorf("%s: %d bytes of device memory are in use", when, in)
	}
}

// eachLoop runs a scenario under several orders of the device's work and both
// dispatches, with an engine that follows the plan.
func eachLoop(t *testing.T, plan *schedule.Plan, opts offload.Options, scenario func(l *loop)) {
	t.Helper()
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for seed := range uint64(4) {
			r := rig.New(t, sim.Config{Seed: seed})
			o := opts
			o.Plan, o.Dispatch = plan, d
			if o.MinElements == 0 {
				o.MinElements = 1
			}
			if o.SlabBytes == 0 {
				o.SlabBytes = 32 << 10
			}
			l := newLoop(r, r.Open(o), plan.Layers())
			scenario(l)
			if err := l.engine.Close(); err != nil {
				t.Error(err)
			}
			r.Close()
			if t.Failed() {
				t.Fatalf("under seed %d", seed)
			}
		}
	})
}

func window(t testing.TB, layers, offloaded int) *schedule.Plan {
	t.Helper()
	plan, err := schedule.Window(layers, offloaded)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// hostBytes returns the pinned memory in use on the simulator.
func hostBytes(d *sim.Device) int64 { return d.HostUsage().InUse }

var _ device.Device = (*sim.Device)(nil)
