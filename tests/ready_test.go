package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// waits returns the events that the last batch of an action waits for, for one reason.
func (s *stage) waits(action string, why device.Reason) []device.Event {
	var events []device.Event
	for _, op := range s.last(action) {
		if op.Kind == device.Wait && op.Reason == why {
			events = append(events, op.Event)
		}
	}
	return events
}

// recorded returns the events that the last batch of an action records.
func (s *stage) recorded(action string) []device.Event {
	var events []device.Event
	for _, op := range s.last(action) {
		if op.Kind == device.Record {
			events = append(events, op.Event)
		}
	}
	return events
}

// L05: a mark is taken, three kernels follow, then comes the push. The copy waits
// for the mark, and the push records nothing.
func TestMarkIsWhatTheCopyWaitsFor(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		s.must(s.pass.MarkReady(s.Compute, x))
		for range 3 {
			s.Check(s.Compute, x, "x")
		}
		saved := s.push(slot, x)
		s.must(slot.StartOffload())
		mark := s.recorded("mark")
		if got := s.waits("start-offload", device.AfterProducer); len(mark) != 1 || !slices.Equal(got, mark) {
			s.t.Errorf("the copy waits for %v, want the mark %v", got, mark)
		}
		if ops := s.last("push"); len(ops) != 0 {
			s.t.Errorf("the push of a marked tensor did %v", ops)
		}
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, x)
	})
}

// L06: a mark is valid for the pass in which it was taken. The tensor lives on
// and is written again; the next pass waits for that.
func TestMarkOfAnEarlierPass(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		s.Keep(x)
		slot := s.forward(0)
		s.must(s.pass.MarkReady(s.Compute, x))
		s.push(slot, x)
		s.reach(fsm.Offloading, slot)
		first := s.recorded("mark")
		s.must(s.pass.End())
		s.begin()
		s.Fill(s.Compute, x, "x") // no Touch: between passes there is nothing to compare with
		slot = s.forward(0)
		saved := s.push(slot, x)
		s.reach(fsm.Offloading, slot)
		if got := s.waits("start-offload", device.AfterProducer); len(got) != 1 || got[0] == first[0] {
			s.t.Errorf("the copy of the second pass waits for %v; the mark of the first was %v", got, first)
		}
		s.comeBack(slot, saved, x)
		s.must(s.pass.End())
		s.Drop(s.Compute, x)
	})
}

// comeBack reloads a slot whose offload was started, and pops one tensor.
func (s *stage) comeBack(slot *offload.Slot, saved []offload.Saved, x device.Tensor) {
	s.t.Helper()
	s.reach(fsm.Reloading, slot)
	s.pop(slot, s.Compute, saved, x)
}

// A mark ends with the bytes that it was taken of.
func TestMarkOfAnEarlierVersion(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		side := s.Stream()
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		s.must(s.pass.MarkReady(s.Compute, x))
		s.Order(s.Compute, side)
		s.Fill(side, x, "x")
		x.Storage.Touch()
		saved, err := slot.On(side).Push(x)
		s.must(err)
		s.must(slot.StartOffload())
		if got := s.waits("start-offload", device.AfterProducer); !slices.Equal(got, s.recorded("push")) {
			s.t.Errorf("the copy waits for %v, want the push on the side stream %v", got, s.recorded("push"))
		}
		s.comeBack(slot, saved, x)
	})
}

// A mark says that a view is complete, and nothing of the rest of its storage.
func TestMarkOfOneView(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", 8192)
		left, right := bytesOf(base, 0, 4096), bytesOf(base, 4096, 4096)
		slot := s.forward(0)
		s.must(s.pass.MarkReady(s.Compute, left))
		s.FillView(s.Compute, right, "base")
		saved := s.push(slot, left, right)
		s.must(slot.StartOffload())
		if got := s.waits("start-offload", device.AfterProducer); !slices.Equal(got, s.recorded("push")) {
			s.t.Errorf("the copy waits for %v, want the push, %v, which has the mark before it", got, s.recorded("push"))
		}
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, left, right)
	})
}

// The same with both views marked: the later mark has the earlier one before it.
func TestMarksOfTwoViews(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		base := s.Tensor(s.Compute, "base", 8192)
		left, right := bytesOf(base, 0, 4096), bytesOf(base, 4096, 4096)
		slot := s.forward(0)
		s.must(s.pass.MarkReady(s.Compute, left))
		s.FillView(s.Compute, right, "base")
		s.must(s.pass.MarkReady(s.Compute, right))
		saved := s.push(slot, left, right)
		if ops := s.last("push"); len(ops) != 0 {
			s.t.Errorf("the push of marked tensors did %v", ops)
		}
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, left, right)
	})
}

// L07, W9: two views of one base, written at different times on different
// streams. There is one copy, which waits for both, whichever was pushed first.
func TestViewsWrittenAtDifferentTimes(t *testing.T) {
	for _, marked := range []bool{false, true} {
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprintf("marked=%v,order=%v", marked, order), func(t *testing.T) {
				eachOrder(t, offload.Options{}, func(s *stage) {
					side := s.Stream()
					base := s.Tensor(s.Compute, "base", 8192)
					s.Order(s.Compute, side)
					views := []device.Tensor{bytesOf(base, 0, 4096), bytesOf(base, 4096, 4096)}
					streams := []device.Stream{s.Compute, side}
					slot := s.forward(0)
					var saved []offload.Saved
					var pushed []device.Tensor
					for _, i := range order {
						s.FillView(streams[i], views[i], "base")
						if marked {
							s.must(s.pass.MarkReady(streams[i], views[i]))
						}
						v, err := slot.On(streams[i]).Push(views[i])
						s.must(err)
						saved, pushed = append(saved, v...), append(pushed, views[i])
					}
					s.must(slot.StartOffload())
					if got := s.waits("start-offload", device.AfterProducer); len(got) != 2 {
						s.t.Errorf("the copy waits for %d producers, want both", len(got))
					}
					s.moved(1, 8192)
					s.reach(fsm.Reloading, slot)
					s.pop(slot, s.Compute, saved, pushed...)
				})
			})
		}
	}
}

// A1-09: a tensor is written half by the compute stream and half by the stream
// of a collective. It is marked on each of them, or on the other one than it is
// pushed on; the copy waits for both.
func TestSeveralProducers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		marks func(s *stage, network device.Stream, x, left, right device.Tensor) error
	}{
		{"each stream marks the tensor", func(s *stage, network device.Stream, x, _, _ device.Tensor) error {
			return errors.Join(s.pass.MarkReady(s.Compute, x), s.pass.MarkReady(network, x))
		}},
		{"each stream marks its half", func(s *stage, network device.Stream, _, left, right device.Tensor) error {
			return errors.Join(s.pass.MarkReady(s.Compute, left), s.pass.MarkReady(network, right))
		}},
		{"the other stream marks it", func(s *stage, network device.Stream, x, _, _ device.Tensor) error {
			return s.pass.MarkReady(network, x)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachOrder(t, offload.Options{}, func(s *stage) {
				network := s.Stream()
				x := s.Tensor(s.Compute, "x", 8192)
				left, right := bytesOf(x, 0, 4096), bytesOf(x, 4096, 4096)
				s.Order(s.Compute, network)
				s.FillView(network, right, "x")
				s.FillView(s.Compute, left, "x")
				s.must(tc.marks(s, network, x, left, right))
				slot := s.forward(0)
				saved := s.push(slot, x)
				s.must(slot.StartOffload())
				if got := s.waits("start-offload", device.AfterProducer); len(got) != 2 {
					s.t.Errorf("the copy waits for %d producers, want 2", len(got))
				}
				s.comeBack(slot, saved, x)
			})
		})
	}
}

// A1-02, A1-10: the stream of a save is the one it is given, whatever stream the
// pass was begun on and whatever passes run beside it.
func TestStreamsAreValues(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		other := s.Stream()
		p, err := s.engine.Begin(context.Background(), offload.Train, other)
		s.must(err)
		type kept struct {
			slot   *offload.Slot
			stream device.Stream
			saved  []offload.Saved
			x      device.Tensor
		}
		var all []kept
		for layer := range 3 {
			for i, pass := range []*offload.Pass{s.pass, p} {
				// The stream that wrote the tensor is now that of the pass, now the other.
				on := []device.Stream{s.Compute, other}[(layer+i)%2]
				x := s.Tensor(on, fmt.Sprintf("x%d.%d", layer, i), 4096)
				slot, err := pass.Forward(layer)
				s.must(err)
				saved, err := slot.On(on).Push(x)
				s.must(err)
				s.must(slot.StartOffload())
				all = append(all, kept{slot, on, saved, x})
			}
		}
		for _, k := range all {
			s.must(k.slot.Release())
		}
		for _, k := range slices.Backward(all) {
			s.must(k.slot.Reload())
			s.pop(k.slot, k.stream, k.saved, k.x)
		}
		s.must(p.End())
	})
}

// A1-12: what is on its way back is given out with a wait for it on the stream of
// the pop, and there is no way to get it before its reload has begun.
func TestNothingIsGivenOutBeforeItArrives(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 64<<10)
		slot := s.forward(0)
		saved := s.push(slot, x)
		for _, to := range []fsm.State{fsm.Offloading, fsm.Offloaded} {
			s.reach(to, slot)
			var refused *offload.OrderError
			if _, err := slot.Pop(saved...); !errors.As(err, &refused) || refused.State != to {
				s.t.Errorf("popping what is %v: got %v, want an OrderError", to, err)
			}
		}
		s.comeBack(slot, saved, x)
		if got := s.waits("pop", device.AfterCopyIn); !slices.Equal(got, s.recorded("reload")[len(s.recorded("reload"))-1:]) {
			s.t.Errorf("the pop waits for %v, want the last event of the reload, %v", got, s.recorded("reload"))
		}
	})
}

// Each wait that readiness asks for is needed: without it the checker finds a
// race, whether or not the bytes came out right.
func TestReadinessWaitsAreNeeded(t *testing.T) {
	for _, why := range []device.Reason{device.AfterProducer, device.AfterCopyIn, device.AfterCopyOut, device.AfterAlloc, device.AfterConsumer} {
		t.Run(fmt.Sprint(why), func(t *testing.T) {
			quiet := &recorder{T: t}
			r := rig.New(quiet, sim.Config{})
			s := &stage{Rig: r, t: t}
			s.open(offload.Options{})
			dropped := 0
			r.Gate.Before(func(b *device.Batch) error {
				for i, op := range b.Ops {
					if op.Kind == device.Wait && op.Reason == why {
						b.Ops[i] = device.Op{Kind: device.Access, Stream: op.Stream, Kernel: &device.Kernel{Name: "nothing"}}
						dropped++
					}
				}
				return nil
			})
			side := r.Stream()
			x := r.Tensor(side, "x", 4096)
			r.Order(side, r.Compute)
			slot := s.forward(0)
			saved, err := slot.On(side).Push(x)
			s.must(err)
			s.reach(fsm.Reloading, slot)
			s.pop(slot, side, saved, x)
			s.must(s.pass.End())
			s.must(s.engine.Close())
			r.Close()
			if dropped == 0 || len(r.Sim.Findings()) == 0 {
				s.t.Errorf("%d waits (%v) were dropped, and there are %d findings", dropped, why, len(r.Sim.Findings()))
			}
		})
	}
}

// recorder is a test in which errors are expected.
type recorder struct{ *testing.T }

func (r *recorder) Error(args ...any)                 {}
func (r *recorder) Errorf(format string, args ...any) {}

// What cannot be marked is refused, and what need not be is left alone.
func TestMarksThatAreRefused(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		s := newStage(t, offload.Options{Dispatch: d}, sim.Config{})
		defer s.close()
		other := rig.New(t, sim.Config{})
		defer other.Close()
		x := s.Tensor(s.Compute, "x", 4096)
		elsewhere := other.Tensor(other.Compute, "elsewhere", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		s.reach(fsm.Offloaded, slot)
		before := s.Sim.Stats()
		for _, tc := range []struct {
			name   string
			stream device.Stream
			x      device.Tensor
			want   error
		}{
			{"a stream of another device", other.Compute, x, offload.ErrForeign},
			{"a tensor of another device", s.Compute, elsewhere, offload.ErrForeign},
			{"bytes that are on the host", s.Compute, x, offload.ErrMoved},
			{"an absent tensor", s.Compute, device.Tensor{}, nil},
			{"a tensor without elements", s.Compute, bytesOf(elsewhere, 0, 0), nil},
		} {
			if err := s.pass.MarkReady(tc.stream, tc.x); !errors.Is(err, tc.want) {
				s.t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
			}
		}
		if got := s.Sim.Stats(); got != before {
			s.t.Errorf("the device was asked for something:\ngot  %v\nwant %v", got, before)
		}
		s.comeBack(slot, saved, x)
		s.must(s.pass.End())
		if err := s.pass.MarkReady(s.Compute, elsewhere); !errors.Is(err, offload.ErrStale) {
			s.t.Errorf("after the pass: got %v, want ErrStale", err)
		}
		other.Drop(other.Compute, elsewhere)
	})
}
