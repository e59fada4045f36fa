package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/fault"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

// faulty is an engine on a device of which operations fail. What the test itself
// submits goes past the faults.
type faulty struct {
	*rig.Rig
	t      *testing.T
	faults *fault.Device
	engine *offload.Engine
	retain bool        // host memory stays with the layers
	enough func() bool // asked before every call; true: the caller stops here
}

// errEnough is that of a part of a program that was stopped.
var errEnough = errors.New("stopped half-way")

func (f *faulty) stopped() error {
	if f.enough != nil && f.enough() {
		return errEnough
	}
	return nil
}

// newFaulty opens an engine for the program.
func newFaulty(t *testing.T, p program, d offload.Dispatch) *faulty {
	t.Helper()
	f := &faulty{Rig: rig.New(t, sim.Config{}), t: t, retain: p.options.RetainHost}
	f.faults = fault.Wrap(f.Sim, nil)
	opts := p.options
	opts.Dispatch, opts.SlabBytes = d, 16<<10
	if opts.MinElements == 0 {
		opts.MinElements = 1
	}
	var err error
	if f.engine, err = offload.Open(f.faults, opts); err != nil {
		t.Fatal(err)
	}
	f.faults.Arm(nil)
	return f
}

// eachDispatch is rig.EachDispatch for tests that run very often. With inline
// dispatch they are all on one goroutine, where the race detector has nothing to
// find and makes them slow.
func eachDispatch(t *testing.T, f func(t *testing.T, d offload.Dispatch)) {
	t.Helper()
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		if racing && d == offload.Inline {
			t.Skip("one goroutine has no races")
		}
		f(t, d)
	})
}

// held reports what the engine holds although no pass is in flight.
func (f *faulty) held(when string) {
	f.t.Helper()
	if m := f.engine.Metrics(); m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 && !f.retain {
		f.t.Errorf("%s: the engine holds %d storages, %d slots and %d bytes of host memory; want none",
			when, m.StoragesHeld, m.SlotsHeld, m.HostInUse)
	}
}

// close closes the engine and the device, on which nothing may be left.
func (f *faulty) close(when string) {
	f.t.Helper()
	if err := f.engine.Close(); err != nil {
		f.t.Errorf("%s: close: %v", when, err)
	}
	f.held(when)
	if m := f.engine.Metrics(); m.EventsLive != 0 || m.HostHeld != 0 {
		f.t.Errorf("%s: %d events and %d bytes of host memory are left after Close, want none", when, m.EventsLive, m.HostHeld)
	}
	f.Rig.Close()
}

// run runs the program and returns the errors of its parts. Passes that did not
// end are aborted; that a fault strikes then is among the errors, and the abort
// is tried again, which has to work.
func (f *faulty) run(p program) []error {
	f.t.Helper()
	var passes []*offload.Pass
	errs := p.run(f, func() *offload.Pass {
		pass, err := f.engine.Begin(context.Background(), offload.Train, f.Compute)
		if err != nil {
			f.t.Fatal(err) // it asks nothing of the device
		}
		passes = append(passes, pass)
		return pass
	})
	var failed []error
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	for _, pass := range passes {
		if err := pass.Abort(); err != nil {
			failed = append(failed, err)
		}
		if err := pass.Abort(); err != nil {
			f.t.Errorf("abort, tried again: %v", err)
		}
	}
	return failed
}

// A program runs passes. Each of the errors it returns is of a part of it that
// goes on without the others: a pass, or a slot of a pass that the caller drives.
type program struct {
	name    string
	options offload.Options
	run     func(f *faulty, begin func() *offload.Pass) []error
}

func programs(t *testing.T) []program {
	plan := func(layers, offloaded int) *schedule.Plan {
		p, err := schedule.Window(layers, offloaded)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	window, short := plan(5, 2), plan(3, 1)
	alone := func(save saver) func(*faulty, func() *offload.Pass) []error {
		return func(f *faulty, begin func() *offload.Pass) []error {
			m := &model{f: f, pass: begin(), save: save}
			m.forward()
			m.backward()
			return []error{m.err}
		}
	}
	return []program{
		{"window", offload.Options{Plan: window}, alone(saveTwo)},
		{"copies at push", offload.Options{Plan: window, CopyAtPush: true}, alone(saveTwo)},
		{"host memory retained", offload.Options{Plan: window, RetainHost: true}, alone(saveTwo)},
		{"shared storages", offload.Options{Plan: window}, alone(saveShared)},
		{"packed pieces", offload.Options{Plan: short}, alone(savePieces)},
		{"small tensors together", offload.Options{Plan: short, MinElements: 1 << 16, CoalesceBytes: 1}, alone(saveTwo)},
		{"two passes in flight", offload.Options{Plan: window}, func(f *faulty, begin func() *offload.Pass) []error {
			a := &model{f: f, pass: begin(), name: "a", save: saveTwo}
			b := &model{f: f, pass: begin(), name: "b", save: saveShared}
			a.forward()
			b.forward()
			a.backward()
			b.backward()
			return []error{a.err, b.err}
		}},
		{"aborted after the forward", offload.Options{Plan: window}, func(f *faulty, begin func() *offload.Pass) []error {
			m := &model{f: f, pass: begin(), save: saveShared}
			m.forward()
			return []error{m.err}
		}},
		{"manual", offload.Options{Layers: 3}, driveSlots},
		{"manual, revived", offload.Options{Layers: 3}, reviveSlots},
	}
}

// stride is the distance between the operations that fail: 1, and 3 under -short.
func stride() int {
	if testing.Short() {
		return 3
	}
	return 1
}

// A saver makes what a layer saves.
type saver func(m *model, layer int) []piece

// A piece is a tensor with the name of the pattern of its storage.
type piece struct {
	device.Tensor
	pattern string
	again   bool // an earlier layer has pushed the storage
}

// model is a pass that a plan drives. After an error it does nothing more.
type model struct {
	f    *faulty
	pass *offload.Pass
	name string
	save saver
	err  error
	kept []kept // by layer
}

// kept is what one layer has saved.
type kept struct {
	pieces []piece
	saved  []offload.Saved
}

func (m *model) forward() {
	for i := range m.f.engine.Plan().Layers() {
		if m.err = m.f.stopped(); m.err != nil {
			return
		}
		slot, err := m.pass.Forward(i)
		if err != nil {
			m.err = err
			return
		}
		if m.err = m.f.stopped(); m.err != nil {
			return
		}
		k := kept{pieces: m.save(m, i)}
		if k.saved, m.err = push(m.f, slot, k.pieces); m.err != nil {
			return
		}
		m.kept = append(m.kept, k)
	}
}

func (m *model) backward() {
	for i := len(m.kept) - 1; i >= 0 && m.err == nil; i-- {
		if m.err = m.f.stopped(); m.err != nil {
			return
		}
		slot, err := m.pass.Backward(i)
		if err != nil {
			m.err = err
			return
		}
		if m.err = m.f.stopped(); m.err != nil {
			return
		}
		m.err = pop(m.f, slot, m.kept[i])
	}
	if m.err == nil {
		m.err = m.pass.End()
	}
}

// push saves the pieces. What a refused push does not take over is given back.
func push(f *faulty, slot *offload.Slot, pieces []piece) ([]offload.Saved, error) {
	f.t.Helper()
	var ts []device.Tensor
	for _, p := range pieces {
		ts = append(ts, p.Tensor)
	}
	saved, err := slot.Push(ts...)
	if err != nil && slot.State() != fsm.Failed {
		for _, p := range pieces {
			if !p.again {
				f.Drop(f.Compute, p.Tensor)
			}
		}
	}
	return saved, err
}

// pop takes the pieces back and has their bytes checked.
func pop(f *faulty, slot *offload.Slot, k kept) error {
	f.t.Helper()
	ts, err := slot.Pop(k.saved...)
	if err != nil {
		return err
	}
	for i, p := range k.pieces {
		f.CheckView(f.Compute, ts[i], p.pattern)
	}
	return nil
}

// saveTwo saves two tensors.
func saveTwo(m *model, layer int) []piece {
	return []piece{m.tensor(fmt.Sprint("x", layer)), m.tensor(fmt.Sprint("y", layer))}
}

func (m *model) tensor(name string) piece {
	name = m.name + name
	return piece{Tensor: m.f.Tensor(m.f.Compute, name, 4096), pattern: name}
}

// saveShared saves a tensor of its own and that of the layer before, which its
// own slot may move, too.
func saveShared(m *model, layer int) []piece {
	pieces := []piece{m.tensor(fmt.Sprint("x", layer))}
	if layer > 0 {
		before := m.kept[layer-1].pieces[0]
		before.again = true
		pieces = append(pieces, before)
	}
	return pieces
}

// savePieces saves some columns of a matrix, which are packed on their way.
func savePieces(m *model, layer int) []piece {
	p := m.tensor(fmt.Sprint("x", layer))
	p.Shape, p.Strides, p.Offset = []int{64, 8}, []int{64, 1}, 16
	return []piece{p}
}

// driveSlots takes three slots through their whole life, one phase after the
// other. A slot that fails does not keep the others from going on.
func driveSlots(f *faulty, begin func() *offload.Pass) []error {
	return manually(f, begin(), []func(*offload.Slot) error{
		(*offload.Slot).StartOffload, (*offload.Slot).Release, (*offload.Slot).Reload})
}

// reviveSlots gives the offload up and starts it again.
func reviveSlots(f *faulty, begin func() *offload.Pass) []error {
	return manually(f, begin(), []func(*offload.Slot) error{
		(*offload.Slot).StartOffload, (*offload.Slot).Revive, (*offload.Slot).StartOffload, (*offload.Slot).Release, (*offload.Slot).Reload})
}

func manually(f *faulty, pass *offload.Pass, phases []func(*offload.Slot) error) []error {
	const slots = 3
	var slot [slots]*offload.Slot
	var keep [slots]kept
	errs := make([]error, slots, slots+1)
	each := func(do func(i int) error) {
		for i := range slots {
			if errs[i] == nil {
				errs[i] = f.stopped()
			}
			if errs[i] == nil {
				errs[i] = do(i)
			}
		}
	}
	each(func(i int) (err error) {
		if slot[i], err = pass.Forward(i); err != nil {
			return err
		}
		keep[i].pieces = saveTwo(&model{f: f}, i)
		keep[i].saved, err = push(f, slot[i], keep[i].pieces)
		return err
	})
	for _, phase := range phases {
		each(func(i int) error { return phase(slot[i]) })
	}
	each(func(i int) error { return pop(f, slot[i], keep[i]) })
	if errors.Join(errs...) == nil {
		each(func(i int) error { return slot[i].Reset() })
	}
	return append(errs, pass.End())
}
