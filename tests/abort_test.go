package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"offload"
	"offload/device"
	"offload/device/fault"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// A device that is lost while goroutines train on it fails all of them with one
// error, that of the operation that lost it. Nobody hangs (I-11, I-16).
func TestLostDeviceTellsEveryone(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const loops, layers = 4, 3
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for _, how := range []fault.How{fault.Lose, fault.LoseLate} {
			for _, nth := range []int{40, 77, 150, 301} {
				r := rig.New(t, sim.Config{Seed: uint64(nth)})
				faults := fault.Wrap(r.Sim, nil)
				e, err := offload.Open(faults, offload.Options{Plan: window(t, layers, 2), MinElements: 1, SlabBytes: 64 << 10, Dispatch: d})
				if err != nil {
					t.Fatal(err)
				}
				faults.Arm(fault.Plan{{Nth: nth, How: how}})
				errs := make([]error, loops)
				var all sync.WaitGroup
				for i := range loops {
					stream := r.Stream()
					all.Go(func() {
						l := newLoop(r, e, layers)
						l.stream, l.batch = stream, 1000*i
						errs[i] = l.untilItFails()
					})
				}
				all.Wait()
				struck := faults.Struck()
				for i, err := range errs {
					if !errors.Is(err, device.ErrLost) || !errors.Is(err, fault.ErrInjected) {
						t.Errorf("loop %d: got %v, want ErrLost and what lost it: %v", i, err, struck[0])
					}
				}
				if m := e.Metrics(); m.PassesOpen != 0 || m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
					t.Errorf("held after the aborts: %+v", m)
				}
				if err := e.Close(); !errors.Is(err, device.ErrLost) {
					t.Errorf("close: got %v, want ErrLost", err)
				}
				if _, err := e.Begin(t.Context(), offload.Train, r.Compute); !errors.Is(err, offload.ErrClosed) {
					t.Errorf("begin: got %v, want ErrClosed", err)
				}
				for _, f := range r.Sim.Findings() {
					t.Errorf("struck %v: %v", struck[0], f)
				}
			}
		}
	})
}

// untilItFails trains until a call returns an error, and gives up then.
func (l *loop) untilItFails() error {
	for {
		if err := l.turns(context.Background(), "F0 F1 B0 B1"); err != nil {
			for _, f := range l.flight {
				if failed := f.pass.Abort(); failed != nil { // it is what loses the device, or notices
					err = errors.Join(err, f.pass.Abort())
				}
			}
			return err
		}
	}
}

// Of two devices of one engine one is lost: the other one goes on, and what it
// has is given back when the engine is closed.
func TestOneOfTwoDevicesIsLost(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const layers = 3
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for nth := 1; nth <= 60; nth += 7 {
			bad, good := rig.New(t, sim.Config{}), rig.New(t, sim.Config{})
			faults := fault.Wrap(bad.Sim, nil)
			e, err := offload.OpenAll([]device.Device{faults, good.Gate},
				offload.Options{Plan: window(t, layers, 2), MinElements: 1, SlabBytes: 64 << 10, Dispatch: d})
			if err != nil {
				t.Fatal(err)
			}
			faults.Arm(fault.Plan{{Nth: nth, How: fault.Lose}})
			loops := []*loop{newLoop(bad, e, layers), newLoop(good, e, layers)}
			lost := false
			for range 4 {
				for _, l := range loops {
					err := l.turns(t.Context(), "F0 F1 B1 B0")
					if l.Rig == good && err != nil {
						t.Fatalf("the other device: %v", err)
					}
					if l.Rig == bad {
						lost = lost || errors.Is(err, device.ErrLost)
						for _, f := range l.flight {
							_ = f.pass.Abort() // may be what loses the device
						}
						if err := l.abort(); err != nil {
							t.Errorf("operation %d: abort, tried again: %v", nth, err)
						}
					}
				}
			}
			if !lost {
				t.Errorf("operation %d: nobody was told that the device is lost", nth)
			}
			if m := e.Metrics(); m.PassesOpen != 0 || m.StoragesHeld != 0 || m.HostInUse != 0 {
				t.Errorf("operation %d: held between steps: %+v", nth, m)
			}
			if err := e.Close(); !errors.Is(err, device.ErrLost) {
				t.Errorf("close: got %v, want ErrLost", err)
			}
			good.Close() // reports what is left there
		}
	})
}

// Two models take turns on one device, each with an engine, a plan and budgets of
// its own (A3-12). One is aborted all the time, and closed in the middle; the
// other one does not notice.
func TestTwoModels(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for seed := range uint64(4) {
			r := rig.New(t, sim.Config{Seed: seed})
			open := func(layers, offloaded int, budget int64) *loop {
				return newLoop(r, r.Open(offload.Options{Plan: window(t, layers, offloaded), MinElements: 1,
					SlabBytes: 16 << 10, HostBudget: budget, Dispatch: d}), layers)
			}
			a, b := open(6, 4, 0), open(4, 3, 16<<10)
			b.batch = 1000
			var perPass int64
			for step := range 6 {
				before := a.engine.Metrics()
				for _, n := range []int{0, 1} {
					if err := errors.Join(a.forward(t.Context(), n), b.forward(t.Context(), n)); err != nil {
						t.Fatal(err)
					}
				}
				if step == 3 {
					if err := b.engine.Close(); err != nil {
						t.Error(err)
					}
					clear(b.flight)
					b.engine = r.Open(offload.Options{Plan: window(t, 4, 3), MinElements: 1, SlabBytes: 16 << 10, HostBudget: 16 << 10, Dispatch: d})
				}
				if err := a.backward(1); err != nil {
					t.Fatal(err)
				}
				if err := b.abort(); err != nil {
					t.Fatal(err)
				}
				if err := a.backward(0); err != nil {
					t.Fatal(err)
				}
				m := a.engine.Metrics()
				moved := m.BytesOut - before.BytesOut
				if step == 0 {
					perPass = moved
				}
				if moved != perPass || moved != 2*4*2*4096 || m.BytesIn != m.BytesOut || m.KeptForBudget != 0 {
					t.Errorf("step %d: %d bytes moved, want %d as without the other model", step, moved, 2*4*2*4096)
				}
				if m := b.engine.Metrics(); m.HostHeld > 16<<10 {
					t.Errorf("step %d: the other model holds %d bytes of host memory, its budget is %d", step, m.HostHeld, 16<<10)
				}
				a.idle(fmt.Sprint("after step ", step))
			}
			for _, l := range []*loop{a, b} {
				if err := l.engine.Close(); err != nil {
					t.Error(err)
				}
			}
			r.Close()
		}
	})
}

// Layers 0, 1, 3 and 6 of 8 are offloaded by the caller. At each boundary of the
// backward exactly the layers that should be are on the device (A3-06).
func TestSomeLayersByHand(t *testing.T) {
	const layers = 8
	away := map[int]bool{0: true, 1: true, 3: true, 6: true}
	eachOrder(t, offload.Options{Layers: layers}, func(s *stage) {
		var slots []*offload.Slot
		var saved [][]offload.Saved
		var xs []device.Tensor
		for i := range layers {
			x := s.Tensor(s.Compute, fmt.Sprint("x", i), 4096)
			slots, xs = append(slots, s.forward(i)), append(xs, x)
			saved = append(saved, s.push(slots[i], x))
			if away[i] {
				s.must(slots[i].StartOffload())
			}
		}
		left := int64(layers)
		for i := range away {
			s.must(slots[i].Release())
			left--
		}
		s.use("when four layers are away", left*4096)
		for i := layers - 1; i >= 0; i-- {
			slot, err := s.pass.Backward(i) // gives the layer above back
			s.must(err)
			if i < layers-1 {
				left--
			}
			if away[i] {
				s.must(slot.Reload())
				left++
			}
			s.use(fmt.Sprintf("in the backward of layer %d", i), left*4096)
			s.pop(slot, s.Compute, saved[i], xs[i])
		}
		s.must(s.pass.End())
		s.use("at the end", 0)
	})
}

// What is pushed to a device that is known to be lost is the engine's, as after
// every push that failed: the abort lets go of it, and tells whose memory it was.
func TestPushOnALostDevice(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		r := rig.New(t, sim.Config{})
		faults := fault.Wrap(r.Sim, nil)
		e, err := offload.Open(faults, offload.Options{Layers: 3, MinElements: 1, Dispatch: d})
		must(t, err)
		pass, err := e.Begin(t.Context(), offload.Train, r.Compute)
		must(t, err)
		var slots []*offload.Slot
		for i := range 3 {
			slot, err := pass.Forward(i)
			must(t, err)
			slots = append(slots, slot)
		}
		faults.Arm(fault.Plan{{How: fault.Lose}})
		first := r.Tensor(r.Compute, "first", 4096)
		told := 0
		storage, adopt := r.IDs.AdoptStorage("theirs", device.Activation, r.Sim.External(4096), r.Compute, func(device.Stream) { told++ })
		r.Submit(adopt)
		theirs := device.Tensor{Storage: storage, DType: device.Uint8, Shape: []int{4096}}
		for i, x := range []device.Tensor{first, theirs} { // the first one loses the device
			if _, err := slots[i].Push(x); !errors.Is(err, device.ErrLost) {
				t.Errorf("push %d: got %v, want ErrLost", i, err)
			}
			if got := slots[i].State(); got != fsm.Failed {
				t.Errorf("push %d: the slot is %v, want Failed", i, got)
			}
		}
		// What would be refused in any case is not taken over.
		elsewhere := rig.New(t, sim.Config{})
		foreign := elsewhere.Tensor(elsewhere.Compute, "foreign", 4096)
		if _, err := slots[2].Push(foreign); !errors.Is(err, device.ErrLost) {
			t.Errorf("a foreign tensor: got %v, want ErrLost", err)
		}
		if got := slots[2].State(); got == fsm.Failed {
			t.Error("the slot of a tensor that was not taken over has failed")
		}
		if told != 0 {
			t.Error("the owner was told before the abort")
		}
		must(t, pass.Abort())
		if told != 1 || first.Storage.Holders() != 0 {
			t.Errorf("the owner was told %d times and %d hold the other tensor, want once and none", told, first.Storage.Holders())
		}
		if err := e.Close(); !errors.Is(err, device.ErrLost) {
			t.Errorf("close: got %v, want ErrLost", err)
		}
		elsewhere.Drop(elsewhere.Compute, foreign)
		elsewhere.Close()
	})
}
