package tests

import (
	"errors"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// adopted is memory of the caller, adopted as a tensor whose bytes are known.
type adopted struct {
	s      *stage
	tensor device.Tensor
	back   []device.Stream // the streams on which it was given back
}

// adopt makes memory that belongs to the test and not to the device's allocator.
// Its owner writes to it as soon as it is given back, which is a race unless the
// give-back is ordered after all uses.
func (s *stage) adopt(name string, bytes int64, then func()) *adopted {
	return s.adoptOn(s.Compute, name, bytes, then)
}

// adoptOn is adopt for memory that is filled on another stream.
func (s *stage) adoptOn(home device.Stream, name string, bytes int64, then func()) *adopted {
	a := &adopted{s: s}
	memory := s.Sim.External(bytes)
	storage, op := s.IDs.AdoptStorage(name, device.Activation, memory, home, func(stream device.Stream) {
		a.back = append(a.back, stream)
		again, op := s.IDs.AdoptStorage(name+" again", device.Activation, memory, stream, nil)
		s.Submit(op)
		t := device.Tensor{Storage: again, DType: device.Uint8, Shape: []int{int(bytes)}}
		s.Fill(stream, t, name+" overwritten")
		s.Submit(again.FreeOn(stream))
		again.Freed()
		if then != nil {
			then()
		}
	})
	s.Submit(op)
	a.tensor = device.Tensor{Storage: storage, DType: device.Uint8, Shape: []int{int(bytes)}}
	s.Fill(home, a.tensor, name)
	return a
}

// given checks how often the memory was given back, always on the pass's stream.
func (a *adopted) given(when string, times int) {
	a.s.t.Helper()
	if len(a.back) != times {
		a.s.t.Errorf("%s: given back %d times, want %d", when, len(a.back), times)
	}
	for _, stream := range a.back {
		if stream != a.s.Compute {
			a.s.t.Errorf("%s: given back on %v, want %v", when, stream, a.s.Compute)
		}
	}
}

func TestAdoptedMemoryMoves(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		slot := s.forward(0)
		saved := s.push(slot, a.tensor)
		s.reach(fsm.Offloading, slot)
		a.given("while it is copied out", 0)
		s.reach(fsm.Offloaded, slot)
		a.given("after the release", 1)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, a.tensor)
		if a.tensor.Storage.Adopted() {
			t.Error("what was reloaded is memory of the device, not of the caller")
		}
	})
}

func TestAdoptedMemoryStays(t *testing.T) {
	for _, tc := range []struct {
		name string
		keep bool
		opts offload.Options
	}{
		{"opted out", true, offload.Options{}},
		{"too small", false, offload.Options{MinElements: 1 << 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, tc.opts, func(s *stage) {
				a := s.adopt("theirs", 4096, nil)
				a.tensor.Keep = tc.keep
				slot := s.forward(0)
				saved := s.push(slot, a.tensor)
				s.reach(fsm.Reloading, slot)
				s.pop(slot, s.Compute, saved, a.tensor)
				a.given("before the reset", 0)
				if err := slot.Reset(); err != nil {
					t.Fatal(err)
				}
				a.given("after the reset", 1)
			})
		})
	}
}

// It is given back once, by the last of the slots that saved it.
func TestAdoptedMemoryOfTwoLayers(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		s0, s1 := s.forward(0), s.forward(1)
		v0, v1 := s.push(s0, a.tensor), s.push(s1, a.tensor)
		s.reach(fsm.Offloaded, s0)
		a.given("after one release", 0)
		s.reach(fsm.Offloaded, s1)
		a.given("after both", 1)
		s.reach(fsm.Reloading, s0, s1)
		s.pop(s1, s.Compute, v1, a.tensor)
		s.pop(s0, s.Compute, v0, a.tensor)
	})
}

func TestAdoptedMemoryThatIsRetained(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		a.tensor.Storage.Retain(rig.Holder)
		slot := s.forward(0)
		s.push(slot, a.tensor)
		s.reach(fsm.Reloading, slot)
		if err := slot.Reset(); err != nil {
			t.Fatal(err)
		}
		a.given("while the caller holds it", 0)
		s.Drop(s.Compute, a.tensor)
		a.given("when the caller lets go", 1)
	})
}

// The owner's function runs outside the engine, and may call it.
func TestGiveBackMayCallTheEngine(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		var slot *offload.Slot
		called := false
		a := s.adopt("theirs", 4096, func() {
			called = true
			if got := slot.State(); got != fsm.Offloaded {
				t.Errorf("the slot is %v, want Offloaded: the transition is over", got)
			}
			if m := s.engine.Metrics(); m.CopiesOut != 1 {
				t.Errorf("%d copies out, want 1", m.CopiesOut)
			}
		})
		slot = s.forward(0)
		s.push(slot, a.tensor)
		s.reach(fsm.Offloaded, slot)
		if !called {
			t.Error("the owner was not told")
		}
	})
}

// A pass that is given up gives everything back, in whatever state it is.
func TestAdoptedMemoryOfAnAbortedPass(t *testing.T) {
	for _, state := range []fsm.State{fsm.Resident, fsm.Offloading, fsm.Offloaded, fsm.Reloading} {
		for _, how := range []string{"abort", "close"} {
			t.Run(state.String()+" "+how, func(t *testing.T) {
				eachOrder(t, offload.Options{}, func(s *stage) {
					a := s.adopt("theirs", 4096, nil)
					slot := s.forward(0)
					s.push(slot, a.tensor)
					s.reach(state, slot)
					end := s.pass.Abort
					if how == "close" {
						end = s.engine.Close
					}
					if err := end(); err != nil {
						t.Fatal(err)
					}
					a.given("at the end", 1)
				})
			})
		}
	}
}

// A batch that was not enqueued whole tells nobody before the drain.
func TestAdoptedMemoryOfAFailedBatch(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		a := s.adopt("theirs", 4096, nil)
		slot := s.forward(0)
		s.push(slot, a.tensor)
		s.reach(fsm.Offloading, slot)
		broken := errors.New("broken")
		s.Gate.Before(func(b *device.Batch) error {
			return &device.Error{Origin: b.Origin, Index: 0, Op: b.Ops[0], Err: broken}
		})
		if err := slot.Release(); !errors.Is(err, broken) {
			t.Fatalf("got %v", err)
		}
		s.Gate.Before(nil)
		a.given("after the failure", 0)
		if err := s.pass.Abort(); err != nil {
			t.Fatal(err)
		}
		a.given("after the abort", 1)
	})
}
