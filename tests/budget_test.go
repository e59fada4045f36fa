package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

const oneBlock = 32 << 10 // bytes of a tensor of these tests, a multiple of a page

// pushEach opens a slot for each of n layers and saves one tensor in it.
func (s *stage) pushEach(n int) (slots []*offload.Slot, saved [][]offload.Saved, xs []device.Tensor) {
	for i := range n {
		x := s.Tensor(s.Compute, fmt.Sprintf("x%d", i), oneBlock)
		slot := s.forward(i)
		slots, saved, xs = append(slots, slot), append(saved, s.push(slot, x)), append(xs, x)
	}
	return slots, saved, xs
}

// A third slot that offloads when the host budget has room for two (R06).
func TestHostBudget(t *testing.T) {
	budget := offload.Options{HostBudget: 2 * oneBlock, SlabBytes: 2 * oneBlock}
	t.Run("keep on the device", func(t *testing.T) {
		opts := budget
		opts.Explain = true
		eachOrder(t, opts, func(s *stage) {
			slots, saved, xs := s.pushEach(3)
			s.reach(fsm.Offloaded, slots...)
			s.use("one has stayed", oneBlock)
			if m := s.engine.Metrics(); m.KeptForBudget != 1 || m.CopiesOut != 2 || m.HostHeld > 2*oneBlock {
				t.Errorf("%d kept, %d copied out, %d bytes pinned; want 1, 2 and at most %d", m.KeptForBudget, m.CopiesOut, m.HostHeld, 2*oneBlock)
			}
			s.reach(fsm.Reloading, slots...)
			for i, slot := range slots {
				s.pop(slot, s.Compute, saved[i], xs[i])
			}
			s.must(s.pass.End())
			kept := 0
			for _, r := range s.pass.Explain() {
				if r.Outcome == offload.Kept {
					kept++
					if r.Why == "" {
						t.Errorf("no reason: %v", r)
					}
				}
			}
			if kept != 1 {
				t.Errorf("%d records say that the tensor was kept, want 1", kept)
			}
		})
	})
	for _, policy := range []offload.HostPolicy{offload.WaitForHost, offload.RefuseOffload} {
		t.Run(policy.String(), func(t *testing.T) {
			opts := budget
			opts.HostPolicy = policy
			eachOrder(t, opts, func(s *stage) {
				slots, saved, xs := s.pushEach(3)
				s.reach(fsm.Offloaded, slots[0], slots[1])
				before := s.Sim.Stats().Total()
				err := slots[2].StartOffload()
				var full *offload.BudgetError
				if !errors.Is(err, offload.ErrBudget) || !errors.As(err, &full) {
					t.Fatalf("got %v, want ErrBudget", err)
				}
				if full.Place != device.OnHost || full.Asked != oneBlock || full.Limit != 2*oneBlock || full.InUse != 2*oneBlock || full.Fits != 0 || len(full.Top) != 2 {
					t.Errorf("got %+v", *full)
				}
				if got := s.Sim.Stats().Total(); got != before || slots[2].State() != fsm.Resident {
					t.Errorf("%d operations for a refusal, and the slot is %v", got-before, slots[2].State())
				}
				// The first one comes back: its host memory is free after the copy in.
				s.must(slots[0].Reload())
				err = slots[2].StartOffload()
				if policy == offload.RefuseOffload {
					if !errors.Is(err, offload.ErrBudget) {
						t.Fatalf("while it is being read: got %v, want ErrBudget", err)
					}
					s.pop(slots[2], s.Compute, saved[2], xs[2])
				} else {
					s.must(err)
					waits := 0
					for _, op := range s.last("start-offload") {
						if op.Kind == device.Wait && op.Reason == device.AfterHostReader {
							waits++
						}
					}
					if waits != 1 {
						t.Errorf("%d waits for the reader of the host memory, want 1", waits)
					}
					s.reach(fsm.Reloading, slots[2])
					s.pop(slots[2], s.Compute, saved[2], xs[2])
				}
				s.pop(slots[0], s.Compute, saved[0], xs[0])
				s.must(slots[1].Reload())
				s.pop(slots[1], s.Compute, saved[1], xs[1])
			})
		})
	}
}

// The budget holds at every instant, for random sizes and several steps (A4-05).
func TestHostBudgetAtEveryInstant(t *testing.T) {
	const limit = 96 << 10
	for seed := range uint64(4) {
		r := rig.New(t, sim.Config{Seed: seed})
		e := r.Open(offload.Options{Plan: window(t, 6, 5), MinElements: 1, HostBudget: limit, SlabBytes: 32 << 10})
		l := newLoop(r, e, 6)
		r.Gate.Before(func(*device.Batch) error {
			if got := hostBytes(r.Sim); got > limit {
				t.Errorf("%d bytes are pinned, the budget is %d", got, limit)
			}
			return nil
		})
		for step := range 12 {
			l.bytes = []int64{4 << 10, 12 << 10, 40 << 10, 20 << 10}[step%4]
			if err := l.turns(context.Background(), "F0 F1 B0 B1"); err != nil {
				t.Fatal(err)
			}
			l.idle("after a step")
		}
		if m := e.Metrics(); m.KeptForBudget == 0 || m.CopiesOut == 0 {
			t.Errorf("%d kept and %d copied out, want some of both", m.KeptForBudget, m.CopiesOut)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		r.Close()
	}
}

// A reload that finds no device memory is refused and works when there is some
// again: with the engine's budget and with the device's own limit.
func TestDeviceBudget(t *testing.T) {
	for _, tc := range []struct {
		name  string
		opts  offload.Options
		limit int64
	}{
		{"budget of the engine", offload.Options{DeviceBudget: 3 * oneBlock}, 0},
		{"limit of the device", offload.Options{}, 3 * oneBlock},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				opts := tc.opts
				opts.Dispatch = d
				s := newStage(t, opts, sim.Config{MemoryLimit: tc.limit})
				x, y := s.Tensor(s.Compute, "x", oneBlock), s.Tensor(s.Compute, "y", oneBlock)
				slot := s.forward(0)
				saved := s.push(slot, x, y)
				s.reach(fsm.Offloaded, slot)
				other, third := s.Tensor(s.Compute, "other", oneBlock), s.Tensor(s.Compute, "third", oneBlock)
				err := slot.Reload()
				var full *offload.BudgetError
				if !errors.As(err, &full) || full.Place != device.OnDevice || full.Asked != 2*oneBlock || full.Limit != 3*oneBlock {
					t.Fatalf("got %v, want a budget error for %d bytes", err, 2*oneBlock)
				}
				if slot.State() != fsm.Offloaded {
					t.Fatalf("the slot is %v after the refusal, want Offloaded", slot.State())
				}
				s.use("after the refusal", 2*oneBlock)
				s.Drop(s.Compute, other)
				s.must(slot.Reload())
				s.pop(slot, s.Compute, saved, x, y)
				s.Drop(s.Compute, third)
				s.close()
			})
		})
	}
}

// A pin that the device refuses is tried smaller once; then what finds no memory
// stays on the device (A4-08).
func TestPinRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		limit int64 // of the host memory that the device pins
		moved int64
	}{
		{"a slab for just the tensor", oneBlock, 1},
		{"none at all", 4096, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t, offload.Options{SlabBytes: 16 * oneBlock}, sim.Config{HostLimit: tc.limit})
			slots, saved, xs := s.pushEach(2)
			s.reach(fsm.Reloading, slots...)
			for i, slot := range slots {
				s.pop(slot, s.Compute, saved[i], xs[i])
			}
			if m := s.engine.Metrics(); m.CopiesOut != tc.moved || m.KeptForBudget != 2-tc.moved {
				t.Errorf("%d copied out and %d kept, want %d and %d", m.CopiesOut, m.KeptForBudget, tc.moved, 2-tc.moved)
			}
			s.close()
		})
	}
}

// A budget that is too small for one layer is refused as soon as that is known.
func TestBudgetForOneLayer(t *testing.T) {
	r := rig.New(t, sim.Config{})
	for name, opts := range map[string]offload.Options{
		"host":          {HostBudget: 64 << 10, LayerBytes: 1 << 20},
		"device":        {DeviceBudget: 64 << 10, LayerBytes: 1 << 20},
		"not even page": {HostBudget: 100},
	} {
		_, err := offload.Open(r.Sim, opts)
		if !errors.Is(err, offload.ErrBudget) {
			t.Errorf("%s: got %v, want ErrBudget", name, err)
		}
		if err != nil && name != "not even page" && !strings.Contains(err.Error(), "1048576") {
			t.Errorf("%s: %q does not say what would be enough", name, err)
		}
	}
	r.Close()

	// Where it is not declared, the first pass shows it.
	s := newStage(t, offload.Options{HostBudget: oneBlock / 2, SlabBytes: oneBlock / 2}, sim.Config{})
	slots, _, _ := s.pushEach(1)
	s.reach(fsm.Reloading, slots...)
	s.must(s.pass.End())
	_, err := s.engine.Begin(context.Background(), offload.Train, s.Compute)
	var full *offload.BudgetError
	if !errors.As(err, &full) || full.Asked != oneBlock || full.Fits != oneBlock/2 {
		t.Errorf("got %v, want a budget error for %d bytes with %d that fit", err, oneBlock, oneBlock/2)
	}
	if _, err := s.engine.Begin(context.Background(), offload.Inference, s.Compute); err != nil {
		t.Errorf("an inference needs no host memory: %v", err)
	}
	s.must(s.engine.Close())
	s.Rig.Close()
}
