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
	"offload/tests/rig"
)

// With fixed shapes nothing is pinned after the first step (A4-04); with shapes
// that change, the pins are bounded.
func TestNoPinAfterWarmUp(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes []int64
		most  int64 // pins after the second step
	}{
		{"fixed shapes", []int64{8 << 10}, 0},
		{"changing shapes", []int64{4 << 10, 24 << 10, 8 << 10, 16 << 10}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rig.New(t, sim.Config{})
			e := r.Open(offload.Options{Plan: window(t, 6, 4), MinElements: 1, SlabBytes: 64 << 10})
			l := newLoop(r, e, 6)
			var warm int64
			for step := range 100 {
				l.bytes = tc.bytes[step%len(tc.bytes)]
				if err := l.turns(context.Background(), "F0 F1 B0 B1"); err != nil {
					t.Fatal(err)
				}
				if step == 1 {
					warm = e.Metrics().Pins
				}
			}
			m := e.Metrics()
			if m.Pins-warm > tc.most {
				t.Errorf("%d pins after the second step, want at most %d", m.Pins-warm, tc.most)
			}
			if m.HostHighWater < 4*2*4<<10 || m.HostHighWater > m.HostHeld || m.HostHeld != hostBytes(r.Sim) {
				t.Errorf("high water %d, held %d, the device says %d", m.HostHighWater, m.HostHeld, hostBytes(r.Sim))
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if hostBytes(r.Sim) != 0 {
				t.Errorf("%d bytes are pinned after Close", hostBytes(r.Sim))
			}
			r.Close()
		})
	}
}

// A tensor that is larger than a slab consists of several copies, and layers of
// different sizes share slabs (A1-07, A4-07).
func TestSizes(t *testing.T) {
	eachOrder(t, offload.Options{SlabBytes: 16 << 10}, func(s *stage) {
		var slots []*offload.Slot
		var saved [][]offload.Saved
		var xs []device.Tensor
		for i, n := range []int64{4 << 10, 100 << 10, 12 << 10, 28 << 10} {
			x := s.Tensor(s.Compute, fmt.Sprintf("x%d", i), n)
			slot := s.forward(i)
			slots, saved, xs = append(slots, slot), append(saved, s.push(slot, x)), append(xs, x)
		}
		s.reach(fsm.Reloading, slots...)
		for i, slot := range slots {
			s.pop(slot, s.Compute, saved[i], xs[i])
		}
		if m := s.engine.Metrics(); m.BytesOut != 144<<10 || m.CopiesOut <= 4 {
			t.Errorf("%d bytes by %d copies, want %d by more than one for each tensor", m.BytesOut, m.CopiesOut, 144<<10)
		}
	})
}

// What is pinned is little more than what was asked for (A4-01).
func TestPinnedForAsked(t *testing.T) {
	const pieces, piece = 12, 330 << 10
	s := newStage(t, offload.Options{Layers: pieces, SlabBytes: 1 << 20}, sim.Config{})
	for i := range pieces {
		slot := s.forward(i)
		s.push(slot, s.Tensor(s.Compute, fmt.Sprintf("x%d", i), piece))
		s.must(slot.StartOffload())
	}
	if m := s.engine.Metrics(); float64(m.HostHeld) > 1.05*pieces*piece {
		t.Errorf("%d bytes are pinned for %d", m.HostHeld, pieces*piece)
	}
	s.close()
}

// One block of host memory for two slots, while the copy in of the first one may
// be slow: the copy out of the second waits for it (I-01, W30).
func TestHostMemoryUsedAgain(t *testing.T) {
	eachOrder(t, offload.Options{HostBudget: 4 << 10, SlabBytes: 4 << 10}, func(s *stage) {
		s0, s1 := s.forward(0), s.forward(1)
		x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
		v0, v1 := s.push(s0, x), s.push(s1, y)
		s.reach(fsm.Reloading, s0)
		s.reach(fsm.Offloaded, s1)
		if m := s.engine.Metrics(); m.Pins != 1 || m.CopiesOut != 2 {
			t.Errorf("%d pins and %d copies out, want 1 and 2", m.Pins, m.CopiesOut)
		}
		s.pop(s0, s.Compute, v0, x)
		s.reach(fsm.Reloading, s1)
		s.pop(s1, s.Compute, v1, y)
	})
}

// Trim gives back what is not in use, and nothing else (A4-03).
func TestTrim(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		s := newStage(t, offload.Options{Dispatch: d, SlabBytes: 4 << 10}, sim.Config{})
		slots, saved, xs := make([]*offload.Slot, 2), make([][]offload.Saved, 2), make([]device.Tensor, 2)
		for i := range 2 {
			xs[i] = s.Tensor(s.Compute, fmt.Sprintf("x%d", i), 4096)
			slots[i] = s.forward(i)
			saved[i] = s.push(slots[i], xs[i])
		}
		s.reach(fsm.Offloaded, slots...)
		s.must(s.engine.Trim())
		if got := hostBytes(s.Sim); got != 2*4096 {
			t.Errorf("%d bytes are pinned, want those in use: %d", got, 2*4096)
		}
		s.reach(fsm.Reloading, slots[0])
		s.pop(slots[0], s.Compute, saved[0], xs[0])
		s.must(s.engine.Trim())
		if got := hostBytes(s.Sim); got != 4096 {
			t.Errorf("%d bytes are pinned, want those of the slot that is away: 4096", got)
		}
		s.reach(fsm.Reloading, slots[1])
		s.pop(slots[1], s.Compute, saved[1], xs[1])
		s.must(s.pass.End())
		s.must(s.engine.Trim())
		if got := hostBytes(s.Sim); got != 0 {
			t.Errorf("%d bytes are pinned after the pass, want none", got)
		}
		s.close()
		if err := s.engine.Trim(); !errors.Is(err, offload.ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
	})
}

// hostRanges returns where the copies out of the last offload went.
func (s *stage) hostRanges() (list []device.Range) {
	for _, op := range s.last("start-offload") {
		if op.Kind == device.CopyOut {
			list = append(list, op.Dst)
		}
	}
	return list
}
