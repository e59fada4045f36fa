package tests

import (
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// A pin that failed is not tried again in every step: the engine does with what
// it has. It tries again after Trim.
func TestPinTriedAgainAfterTrim(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		s := newStage(t, offload.Options{Dispatch: d, SlabBytes: 64 << 10}, sim.Config{})
		refused := 0
		s.Gate.Before(func(b *device.Batch) error {
			for i, op := range b.Ops {
				if op.Kind == device.Pin {
					refused++
					return &device.Error{Origin: b.Origin, Index: i, Op: op, Err: device.ErrOutOfMemory}
				}
			}
			return nil
		})
		r := &retained{stage: s}
		pass := func(moves int64) {
			t.Helper()
			before := s.engine.Metrics()
			r.save([]int64{4096}, []int64{4096})
			r.offload()
			r.finish()
			m := s.engine.Metrics()
			if out, kept := m.CopiesOut-before.CopiesOut, m.KeptForBudget-before.KeptForBudget; out != moves || kept != 2-moves {
				t.Errorf("%d copied out and %d kept, want %d and %d", out, kept, moves, 2-moves)
			}
		}
		pass(0)
		pass(0)
		if refused != 2 { // the slab, and one for just the tensor
			t.Errorf("%d pins were tried, want 2", refused)
		}
		s.Gate.Before(nil)
		pass(0)
		s.must(s.engine.Trim())
		pass(2)
		s.close()
	})
}

// The buffer through which pieces are packed counts against the device budget:
// where there is no room for it, they are copied one by one.
func TestPackingWithinTheDeviceBudget(t *testing.T) {
	const bytes, budget = 64 << 10, 1 << 20
	eachOrder(t, offload.Options{DeviceBudget: budget}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", bytes)
		v := view(base, device.Uint8, 0, []int{64, 256}, []int{1024, 1}) // a quarter, in 64 pieces
		slot := s.forward(0)
		saved := s.push(slot, v)
		s.reach(fsm.Offloaded, slot)
		s.use("when it is away", 0)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, v)
		if m := s.engine.Metrics(); m.BytesOut != 16<<10 || m.CopiesOut != 64 {
			t.Errorf("%d bytes by %d copies, want %d by 64", m.BytesOut, m.CopiesOut, 16<<10)
		}
		if peak := s.Sim.Usage().Peak; peak > budget {
			t.Errorf("%d bytes of device memory were in use, the budget is %d", peak, budget)
		}
	})
}

// Reloads that the plan has ahead of time are put off while there is no device
// memory for them, and made when there is, at the latest at the layer's own
// backward (I-07). The budget is one layer, or two, and one byte.
func TestReloadPutOff(t *testing.T) {
	const layers, offloaded, bytes = 6, 4, 4096
	set := int64(2 * bytes) // what a layer saves
	for _, tc := range []struct {
		name string
		opts offload.Options
		sets int64 // for which there is room beside what the loop holds itself
		late int64
	}{
		{"room for all", offload.Options{DeviceBudget: 2 * set}, 2, 0},
		{"one layer and one byte", offload.Options{DeviceBudget: set + 1}, 1, offloaded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachLoop(t, window(t, layers, offloaded), tc.opts, func(l *loop) {
				for range 2 {
					before := l.engine.Metrics().LateReloads
					if err := l.forward(t.Context(), 0); err != nil {
						t.Fatal(err)
					}
					l.Sim.ResetPeak()
					if err := l.backward(0); err != nil {
						t.Fatal(err)
					}
					if got := l.engine.Metrics().LateReloads - before; got != tc.late {
						t.Errorf("%d reloads were late, want %d", got, tc.late)
					}
					// The forward leaves two sets, whatever the budget of reloads.
					if peak := l.Sim.Usage().Peak; peak > 2*set {
						t.Errorf("%d bytes were in use in the backward, want at most %d", peak, 2*set)
					}
					l.idle("after a pass")
				}
			})
		})
	}
}

// What was put off is made up for as soon as the loop gives memory back, and not
// only when it is needed.
func TestReloadPutOffComesFirst(t *testing.T) {
	const layers, offloaded = 6, 3
	eachLoop(t, window(t, layers, offloaded), offload.Options{DeviceBudget: 5 * 8192}, func(l *loop) {
		if err := l.forward(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		other := l.Tensor(l.Compute, "of the loop", 3*8192)
		f := l.flight[0]
		states := func(when string, want ...fsm.State) {
			t.Helper()
			for i, slot := range f.slots[:offloaded] {
				if got := slot.State(); got != want[i] {
					t.Errorf("%s: layer %d is %v, want %v", when, i, got, want[i])
				}
			}
		}
		back := func(layer int) {
			t.Helper()
			slot, err := f.pass.Backward(layer)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := slot.Pop(f.saved[layer]...); err != nil {
				t.Fatal(err)
			}
		}
		back(5)
		back(4) // the plan has the reload of layer 2 here
		states("without room", fsm.Offloaded, fsm.Offloaded, fsm.Offloaded)
		l.Drop(l.Compute, other)
		back(3) // and of layer 1 here
		states("with room", fsm.Offloaded, fsm.Reloading, fsm.Reloading)
		if m := l.engine.Metrics(); m.LateReloads != 1 {
			t.Errorf("%d reloads were late, want 1", m.LateReloads)
		}
		for layer := 2; layer >= 0; layer-- {
			back(layer)
		}
		if err := f.pass.End(); err != nil {
			t.Fatal(err)
		}
		l.idle("after the pass")
	})
}

// Where not even the layer whose backward runs can come back, Backward says so.
// The pass is as it was, and the same call works when memory is given back.
func TestReloadThatCannotBePutOff(t *testing.T) {
	eachLoop(t, window(t, 4, 3), offload.Options{DeviceBudget: 3 * 8192}, func(l *loop) {
		if err := l.forward(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		f := l.flight[0]
		for layer := 3; layer >= 0; layer-- {
			other := l.Tensor(l.Compute, fmt.Sprint("of the loop ", layer), 3*8192)
			before := l.engine.Metrics()
			slot, err := f.pass.Backward(layer)
			var full *offload.BudgetError
			if layer < 3 { // layer 3 has not left
				if !errors.Is(err, offload.ErrBudget) || !errors.As(err, &full) {
					t.Fatalf("layer %d: got %v, want ErrBudget", layer, err)
				}
				if full.Place != device.OnDevice || full.Asked != 8192 || full.InUse != 3*8192 || full.Limit != 3*8192 || full.Fits != 0 {
					t.Errorf("layer %d: got %+v", layer, *full)
				}
				if m := l.engine.Metrics(); m.CopiesIn != before.CopiesIn || m.Failures != before.Failures {
					t.Errorf("layer %d: the refusal cost copies or failures", layer)
				}
				if got := f.slots[layer].State(); got != fsm.Offloaded {
					t.Errorf("layer %d is %v after the refusal, want Offloaded", layer, got)
				}
			}
			l.Drop(l.Compute, other)
			if layer < 3 {
				slot, err = f.pass.Backward(layer)
			}
			if err != nil {
				t.Fatalf("layer %d, with memory: %v", layer, err)
			}
			back, err := slot.Pop(f.saved[layer]...)
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range back {
				l.Check(l.Compute, x, name(f.batch, layer, i))
			}
		}
		if err := f.pass.End(); err != nil {
			t.Fatal(err)
		}
		l.idle("after the pass")
	})
}
