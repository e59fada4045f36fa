package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
)

// retained plays passes on an engine with Options.RetainHost and notes where on
// the host their copies go.
type retained struct {
	*stage
	passes int
	saved  [][]offload.Saved
	slots  []*offload.Slot
	pushed [][]device.Tensor
	places []device.Range // of the copies out of the pass, in order
}

// eachRetained plays a scenario on an engine that retains host memory, of which
// nothing is left when it is trimmed.
func eachRetained(t *testing.T, opts offload.Options, scenario func(r *retained)) {
	t.Helper()
	opts.RetainHost = true
	eachOrder(t, opts, func(s *stage) {
		scenario(&retained{stage: s})
		s.must(s.engine.Trim())
		if got := hostBytes(s.Sim); got != 0 {
			t.Errorf("%d bytes are pinned after Trim, want none", got)
		}
	})
}

// save pushes tensors of the given sizes to a slot of each layer.
func (r *retained) save(layers ...[]int64) {
	r.t.Helper()
	r.passes++
	r.slots, r.saved, r.pushed = nil, nil, nil
	for layer, sizes := range layers {
		var ts []device.Tensor
		for i, n := range sizes {
			ts = append(ts, r.Tensor(r.Compute, fmt.Sprintf("pass %d layer %d tensor %d", r.passes, layer, i), n))
		}
		slot := r.forward(layer)
		r.slots, r.saved, r.pushed = append(r.slots, slot), append(r.saved, r.push(slot, ts...)), append(r.pushed, ts)
	}
}

// offload starts the offload of every slot and notes where the bytes go.
func (r *retained) offload() {
	r.t.Helper()
	r.places = nil
	for _, slot := range r.slots {
		r.must(slot.StartOffload())
		if slot.State() != fsm.Offloading {
			r.t.Fatalf("layer %d is %v, want Offloading", slot.Layer(), slot.State())
		}
		for _, op := range r.last("start-offload") {
			if op.Kind == device.CopyOut {
				r.places = append(r.places, op.Dst)
			}
		}
	}
}

// finish brings everything back, checks it and ends the pass.
func (r *retained) finish() {
	r.t.Helper()
	r.reach(fsm.Reloading, r.slots...)
	for i, slot := range r.slots {
		r.pop(slot, r.Compute, r.saved[i], r.pushed[i]...)
	}
	r.end()
}

// end ends the pass and begins the next one.
func (r *retained) end() {
	r.t.Helper()
	r.must(r.pass.End())
	r.begin()
}

// A layer that saves the same shapes pass after pass has the same addresses, and
// memory is pinned in the first pass only (R01, A4-04).
func TestRetainedAddresses(t *testing.T) {
	eachRetained(t, offload.Options{}, func(r *retained) {
		layers := [][]int64{{4096, 12 << 10}, {100}, {70 << 10, 1, 4096}} // one larger than a slab
		var first []device.Range
		var pins int64
		for pass := range 10 {
			r.save(layers...)
			r.offload()
			if pass == 0 {
				first, pins = r.places, r.engine.Metrics().Pins
			}
			if !slices.Equal(r.places, first) {
				t.Errorf("pass %d: the copies go to %v, want %v as in the first", pass, r.places, first)
			}
			r.finish()
			if got := r.engine.Metrics().Pins; got != pins {
				t.Errorf("pass %d: pinned %d times, want %d", pass, got, pins)
			}
		}
		if len(first) != 7 { // 70 KiB in slabs of 64 KiB are two ranges
			t.Errorf("a pass had %d copies, want 7", len(first))
		}
	})
}

// What changes between passes is served where a retained buffer is large enough,
// and else refused before anything is enqueued (R02, W7, W8). Only what is saved
// is copied back.
func TestRetainedChanges(t *testing.T) {
	first := []int64{8 << 10, 16 << 10}
	for _, tc := range []struct {
		name  string
		sizes []int64
		fits  bool
	}{
		{"smaller", []int64{8000, 9000}, true},
		{"the other way round", []int64{16 << 10, 8 << 10}, true},
		{"fewer", []int64{16 << 10}, true},
		{"none", nil, true},
		{"larger within the same pages", []int64{8 << 10, 16<<10 - 1}, true},
		{"larger", []int64{8 << 10, 16<<10 + 1}, false},
		{"one more", []int64{8 << 10, 16 << 10, 1}, false},
		{"two that need the one large buffer", []int64{9 << 10, 9 << 10}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachRetained(t, offload.Options{}, func(r *retained) {
				r.save(first)
				r.offload()
				places := r.places
				r.finish()

				r.save(tc.sizes)
				in := r.engine.Metrics().CopiesIn
				if tc.fits {
					r.offload()
					for _, p := range r.places {
						if !slices.ContainsFunc(places, func(o device.Range) bool { return o.Buffer == p.Buffer && o.Offset == p.Offset }) {
							t.Errorf("a copy goes to %v, want one of %v", p, places)
						}
					}
					r.finish()
					if got := r.engine.Metrics().CopiesIn - in; got != int64(len(tc.sizes)) {
						t.Errorf("%d copies back for %d tensors", got, len(tc.sizes))
					}
				} else {
					before := r.Sim.Stats().Total()
					err := r.slots[0].StartOffload()
					if !errors.Is(err, offload.ErrShape) {
						t.Fatalf("got %v, want ErrShape", err)
					}
					if got := r.Sim.Stats().Total(); got != before || r.slots[0].State() != fsm.Resident {
						t.Errorf("%d operations for a refusal, and the slot is %v", got-before, r.slots[0].State())
					}
					r.pop(r.slots[0], r.Compute, r.saved[0], r.pushed[0]...)
					r.must(r.slots[0].Reset())
					r.slots[0] = nil
					r.must(r.pass.End())
					r.begin()
				}
				r.save(first) // as if nothing had happened
				r.offload()
				if !slices.Equal(r.places, places) {
					t.Errorf("the next pass copies to %v, want %v", r.places, places)
				}
				r.finish()
			})
		})
	}
}

// Bytes are what counts, and not what they mean: another type is served.
func TestRetainedAnotherType(t *testing.T) {
	eachRetained(t, offload.Options{}, func(r *retained) {
		for _, x := range []struct {
			dtype device.DType
			shape []int
		}{{device.Uint8, []int{8192}}, {device.BFloat16, []int{64, 64}}, {device.Float32, []int{2048}}} {
			base := r.Tensor(r.Compute, x.dtype.String(), 8192)
			v := view(base, x.dtype, 0, x.shape, nil)
			slot := r.forward(0)
			saved := r.push(slot, v)
			r.reach(fsm.Reloading, slot)
			r.pop(slot, r.Compute, saved, v)
			r.must(r.pass.End())
			r.begin()
		}
		if m := r.engine.Metrics(); m.Pins != 1 || m.CopiesIn != 3 {
			t.Errorf("pinned %d times, %d copies back; want 1 and 3", m.Pins, m.CopiesIn)
		}
	})
}

// A layer that saved nothing in the first passes gets its buffers when it does (R04).
func TestRetainedEmptyAtFirst(t *testing.T) {
	eachRetained(t, offload.Options{}, func(r *retained) {
		for range 2 {
			r.save(nil)
			r.offload()
			r.finish()
		}
		if m := r.engine.Metrics(); m.Pins != 0 || m.HostInUse != 0 {
			t.Errorf("pinned %d times and %d bytes in use for nothing", m.Pins, m.HostInUse)
		}
		for range 2 {
			r.save([]int64{4096})
			r.offload()
			r.finish()
		}
		if m := r.engine.Metrics(); m.Pins != 1 || m.HostInUse != 4096 {
			t.Errorf("pinned %d times and %d bytes in use, want 1 and 4096", m.Pins, m.HostInUse)
		}
	})
}

// Without it, what a pass used is free when the pass is over (R05).
func TestNotRetained(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		r := &retained{stage: s}
		r.save([]int64{4096, 8192}, []int64{4096})
		r.offload()
		if got := s.engine.Metrics().HostInUse; got != 16<<10 {
			t.Errorf("%d bytes are in use, want %d", got, 16<<10)
		}
		r.finish()
		if got := s.engine.Metrics().HostInUse; got != 0 {
			t.Errorf("%d bytes are in use after the pass, want none", got)
		}
		s.must(s.engine.Trim())
		if got := hostBytes(s.Sim); got != 0 {
			t.Errorf("%d bytes are pinned after Trim, want none", got)
		}
	})
}

// Slots of one layer that are in flight together have buffers of their own; in
// the next step both are used again.
func TestRetainedByPassesInFlight(t *testing.T) {
	eachLoop(t, window(t, 4, 2), offload.Options{RetainHost: true}, func(l *loop) {
		var pins int64
		for step := range 4 {
			if err := l.turns(context.Background(), "F0 F1 B0 B1"); err != nil {
				t.Fatal(err)
			}
			m := l.engine.Metrics()
			if step == 0 {
				pins = m.Pins
			}
			if want := int64(2 * 2 * 2 * 4096); m.HostInUse != want || m.Pins != pins {
				t.Errorf("step %d: %d bytes are retained by %d pins, want %d by %d", step, m.HostInUse, m.Pins, want, pins)
			}
		}
	})
}

// What a layer pushes by several calls is retained as a whole, also where every
// push begins its own copy.
func TestRetainedAndCopiedAtPush(t *testing.T) {
	eachRetained(t, offload.Options{CopyAtPush: true}, func(r *retained) {
		sizes := []int64{4096, 16 << 10, 8192}
		for pass := range 4 {
			var saved [][]offload.Saved
			var xs []device.Tensor
			slot := r.forward(0)
			for i, n := range sizes {
				x := r.Tensor(r.Compute, fmt.Sprintf("pass %d tensor %d", pass, i), n)
				xs, saved = append(xs, x), append(saved, r.push(slot, x))
				if pass == 1 && i == 1 {
					break // the loop fails here
				}
			}
			if pass == 1 {
				r.must(r.pass.Abort())
				r.begin()
				continue
			}
			r.reach(fsm.Reloading, slot)
			for i, x := range xs {
				r.pop(slot, r.Compute, saved[i], x)
			}
			r.must(r.pass.End())
			r.begin()
			if got := r.engine.Metrics().HostInUse; got != 28<<10 {
				t.Errorf("pass %d: %d bytes are retained, want %d", pass, got, 28<<10)
			}
		}
	})
	// The very first pass is given up between two pushes.
	eachRetained(t, offload.Options{CopyAtPush: true}, func(r *retained) {
		r.push(r.forward(0), r.Tensor(r.Compute, "given up", 4096))
		r.must(r.pass.Abort())
		r.begin()
		r.save([]int64{16 << 10, 4096})
		r.offload()
		r.finish()
	})
}

// Where the host budget has no room for all that a layer saves, the same part
// stays on the device in every pass.
func TestRetainedWithinABudget(t *testing.T) {
	eachRetained(t, offload.Options{HostBudget: 12 << 10, SlabBytes: 4096}, func(r *retained) {
		for pass := range 3 {
			r.save([]int64{4096, 16 << 10, 8192})
			r.offload()
			r.finish()
			n := int64(pass + 1)
			if m := r.engine.Metrics(); m.CopiesIn != 3*n || m.BytesIn != 12<<10*n || m.KeptForBudget != n {
				t.Errorf("pass %d: %d bytes came back and %d tensors were kept, want %d and %d", pass, m.BytesIn, m.KeptForBudget, 12<<10*n, n)
			}
		}
	})
}

// A slot that is revived and offloaded again, with more in it, retains all of it.
func TestRetainedAndRevived(t *testing.T) {
	eachRetained(t, offload.Options{}, func(r *retained) {
		for pass := range 3 {
			slot := r.forward(0)
			x := r.Tensor(r.Compute, fmt.Sprint("x", pass), 4096)
			saved := r.push(slot, x)
			r.must(slot.StartOffload())
			r.must(slot.Revive())
			y := r.Tensor(r.Compute, fmt.Sprint("y", pass), 8192)
			saved = append(saved, r.push(slot, y)...)
			r.reach(fsm.Reloading, slot)
			r.pop(slot, r.Compute, saved, x, y)
			r.must(r.pass.End())
			r.begin()
			if got := r.engine.Metrics().HostInUse; got != 12<<10 {
				t.Errorf("pass %d: %d bytes are retained, want %d", pass, got, 12<<10)
			}
		}
	})
}
