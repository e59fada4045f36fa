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
	"offload/schedule"
	"offload/tests/rig"
)

// explained compares the records of the pass, which has ended, with lines of the
// form "layer.index outcome moved/bytes: why".
func (s *stage) explained(want ...string) {
	s.t.Helper()
	var got []string
	for _, r := range s.pass.Explain() {
		line := fmt.Sprintf("%d.%d %v %d/%d", r.Layer, r.Index, r.Outcome, r.MovedBytes, r.Bytes)
		if r.Why != "" {
			line += ": " + r.Why
		}
		got = append(got, line)
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		s.t.Errorf("records\ngot\n%s\nwant\n%s", g, w)
	}
}

// One record for every tensor: what became of it, why, and its bytes.
func TestExplainEveryVerdict(t *testing.T) {
	eachOrder(t, offload.Options{MinElements: 100, Explain: true}, func(s *stage) {
		moves := s.Tensor(s.Compute, "moves", 1000)
		small := s.Tensor(s.Compute, "small", 99)
		opted := s.Tensor(s.Compute, "opted out", 1000)
		opted.Keep = true
		weight, index := s.TensorOf(s.Compute, "weight", device.Weight, 1000), s.TensorOf(s.Compute, "index", device.Index, 1000)
		scratch := s.TensorOf(s.Compute, "scratch", device.Workspace, 1000)
		host := s.hostTensor("host", 1000)
		shared := s.Tensor(s.Compute, "shared", 1000)
		kept := shared
		kept.Keep = true
		slot := s.forward(0)
		saved := s.push(slot, moves, device.Tensor{}, weight, index, scratch, host, small, opted,
			view(moves, device.Float32, 0, []int{0, 100}, nil), bytesOf(moves, 500, 200), shared, kept)
		given, never := s.Tensor(s.Compute, "given up", 1000), s.Tensor(s.Compute, "never started", 1000)
		up, other := s.forward(1), s.forward(2)
		s.push(up, given)
		s.push(other, never)
		s.must(up.StartOffload())
		s.must(up.Revive())
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved[:1], moves)
		s.must(s.pass.End())
		s.explained(
			"2.0 kept 0/1000: its slot was not offloaded",
			"1.0 kept 1000/1000: its offload was given up",
			"0.0 moved 1000/1000",
			"0.1 skipped 0/0: absent",
			"0.2 skipped 0/1000: weight or index data",
			"0.3 skipped 0/1000: weight or index data",
			"0.4 kept 0/1000: a workspace",
			"0.5 skipped 0/1000: a host tensor",
			"0.6 kept 0/99: below the size limit",
			"0.7 kept 0/1000: opted out",
			"0.8 skipped 0/0: no elements",
			"0.9 moved 0/200: with another tensor of the same storage",
			"0.10 kept 0/1000: another tensor of the storage stays",
			"0.11 kept 0/1000: opted out",
		)
		s.Drop(s.Compute, weight)
		s.Drop(s.Compute, index)
		s.unpin(host)
	})
}

// hostTensor returns a tensor in pinned host memory; unpin gives it back.
func (s *stage) hostTensor(name string, n int64) device.Tensor {
	s.t.Helper()
	b := s.IDs.Buffer(device.OnHost)
	s.Submit(device.Op{Kind: device.Pin, Dst: device.Range{Buffer: b, Bytes: n}})
	return device.Tensor{Storage: device.NewStorage(name, device.Activation, b, n, device.Stream{}), DType: device.Uint8, Shape: []int{int(n)}}
}

func (s *stage) unpin(x device.Tensor) {
	s.t.Helper()
	s.Sync()
	s.Submit(device.Op{Kind: device.Unpin, Dst: x.Range()})
	s.IDs.PutBuffer(x.Storage.Buffer())
}

// What the host budget has no memory for is kept, and the record says so.
func TestExplainHostBudget(t *testing.T) {
	eachOrder(t, offload.Options{HostBudget: 64 << 10, Explain: true}, func(s *stage) {
		x, y := s.Tensor(s.Compute, "x", 40<<10), s.Tensor(s.Compute, "y", 40<<10)
		slot := s.forward(0)
		saved := s.push(slot, x, y)
		s.reach(fsm.Offloaded, slot)
		s.use("with one of the two tensors away", 40<<10)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, x, y)
		s.must(s.pass.End())
		s.explained("0.0 moved 40960/40960", "0.1 kept 0/40960: no host memory within the budget")
	})
}

// What the plan keeps is kept by the plan; what an inference pass forgets, by nobody.
func TestExplainPlan(t *testing.T) {
	plan, err := schedule.Window(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	eachOrder(t, offload.Options{Plan: plan, Explain: true}, func(s *stage) {
		x, y := s.Tensor(s.Compute, "x", 4096), s.Tensor(s.Compute, "y", 4096)
		s.push(s.forward(0), x)
		s.push(s.forward(1), y)
		for _, layer := range []int{1, 0} {
			_, err := s.pass.Backward(layer)
			s.must(err)
		}
		s.must(s.pass.End())
		s.explained("1.0 kept 0/4096: kept by the plan", "0.0 moved 4096/4096")

		p, err := s.engine.Begin(context.Background(), offload.Inference, s.Compute)
		s.must(err)
		s.pass = p
		z := s.Tensor(s.Compute, "z", 4096)
		s.push(s.forward(0), z)
		s.must(p.End())
		s.explained("0.0 skipped 0/0: no backward")
		s.Drop(s.Compute, z)
	})
}

// L12, W24: what somebody holds on the device is copied for nothing. The record
// and the metric say so, the next pass leaves it alone, and the one after the
// holder has let go moves it again.
func TestNoGain(t *testing.T) {
	eachOrder(t, offload.Options{Explain: true}, func(s *stage) {
		pass := func(hold bool) device.Tensor {
			base := s.Tensor(s.Compute, "base", 4096)
			if hold {
				base.Storage.Retain("the cache")
			}
			slice := bytesOf(base, 1024, 512) // contiguous, less than half
			slot := s.forward(0)
			saved := s.push(slot, slice)
			s.reach(fsm.Reloading, slot)
			s.pop(slot, s.Compute, saved, slice)
			s.must(s.pass.End())
			return base
		}
		letGo := func(x device.Tensor) {
			if last := x.Storage.Drop("the cache"); !last {
				s.t.Error("the cache was not the last holder")
			}
			s.Free(s.Compute, x)
		}
		base := pass(true)
		s.explained("0.0 moved 512/512: no gain: the storage is held by the cache")
		if got := s.engine.Metrics().NoGain; got != 1 {
			s.t.Errorf("%d storages were moved for nothing, want 1", got)
		}
		s.use("while the cache holds the storage", 4096)
		letGo(base)

		s.begin()
		base = pass(true)
		s.explained("0.0 kept 0/512: no gain in an earlier pass: the storage is held by the cache")
		s.moved(1, 512)
		letGo(base)

		s.begin()
		pass(false)
		s.explained("0.0 moved 512/512")
		s.moved(2, 1024)
		if got := s.engine.Metrics().NoGain; got != 1 {
			s.t.Errorf("%d storages were moved for nothing, want still 1", got)
		}
		s.use("at the end", 0)
	})
}

// A storage that another layer keeps while it is away from this one gains nothing
// either, even if that layer has let go of it by the time it is reported.
func TestNoGainBecauseOfALayer(t *testing.T) {
	eachOrder(t, offload.Options{Explain: true}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		s0, s1 := s.forward(0), s.forward(1)
		v0 := s.push(s0, x)
		s.push(s1, x)
		s.reach(fsm.Reloading, s0)
		s.must(s1.Reset())
		s.pop(s0, s.Compute, v0, x)
		s.must(s.pass.End())
		s.explained(
			"1.0 kept 0/4096: its slot was not offloaded",
			"0.0 moved 4096/4096: no gain: the storage is held by layer 1",
		)
	})
}

// A storage that two layers move is no loss, although the first release frees nothing.
func TestGainOfTwoLayers(t *testing.T) {
	eachOrder(t, offload.Options{Explain: true}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		s0, s1 := s.forward(0), s.forward(1)
		v0, v1 := s.push(s0, x), s.push(s1, x)
		s.reach(fsm.Reloading, s0, s1)
		s.pop(s1, s.Compute, v1, x)
		s.pop(s0, s.Compute, v0, x)
		s.must(s.pass.End())
		s.explained("1.0 moved 0/4096: with another tensor of the same storage", "0.0 moved 4096/4096")
		if got := s.engine.Metrics().NoGain; got != 0 {
			s.t.Errorf("%d storages were moved for nothing, want 0", got)
		}
	})
}

// Another engine is a holder like any other.
func TestNoGainBecauseOfAnotherEngine(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		s := newStage(t, offload.Options{Explain: true, Dispatch: d}, sim.Config{})
		defer s.close()
		second := s.Open(offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10, Dispatch: d})
		p, err := second.Begin(context.Background(), offload.Train, s.Compute)
		s.must(err)
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		other, err := p.Forward(0)
		s.must(err)
		s.push(other, x)
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, x)
		s.must(s.pass.End())
		s.explained("0.0 moved 4096/4096: no gain: the storage is held by another engine")
		s.must(p.End())
		s.must(second.Close())
	})
}

// After the release the device has got back what the records say has moved and
// nobody holds, rounded as its allocator rounds.
func TestReleaseGivesBackWhatTheRecordsSay(t *testing.T) {
	eachOrder(t, offload.Options{MinElements: 1000, Explain: true}, func(s *stage) {
		var ts []device.Tensor
		for i, n := range []int64{999, 1000, 4096, 5000, 10000} {
			ts = append(ts, s.Tensor(s.Compute, fmt.Sprint(i), n))
		}
		s.Keep(ts[3])
		slot := s.forward(0)
		saved := s.push(slot, ts...)
		s.must(slot.StartOffload())
		before := s.Sim.Usage().InUse
		s.must(slot.Release())
		back := before - s.Sim.Usage().InUse
		s.reach(fsm.Reloading, slot)
		s.pop(slot, s.Compute, saved, ts...)
		s.must(s.pass.End())
		want := int64(0)
		for _, r := range s.pass.Explain() {
			if r.Outcome == offload.Moved && r.Holder == "" {
				want += (r.Tensor.Storage.Bytes() + sim.Align - 1) / sim.Align * sim.Align
			}
		}
		if back != want || want == 0 {
			s.t.Errorf("the device got %d bytes back, and by the records it should be %d", back, want)
		}
		s.Drop(s.Compute, ts[3])
	})
}

// Strict: offloads that move nothing are an error at the end of the pass, which
// has ended all the same.
func TestStrict(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes int64
		start bool
		opts  offload.Options
		want  error
	}{
		{"something moved", 4096, true, offload.Options{}, nil},
		{"something moved at its push", 4096, true, offload.Options{CopyAtPush: true}, nil},
		{"all was too small", 99, true, offload.Options{}, offload.ErrNothingMoved},
		{"no host memory", 8192, true, offload.Options{HostBudget: 4096}, offload.ErrNothingMoved},
		{"nothing was asked for", 99, false, offload.Options{}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opts.Strict, tc.opts.MinElements = true, 100
			eachOrder(t, tc.opts, func(s *stage) {
				slot := s.forward(0)
				s.push(slot, s.Tensor(s.Compute, "x", tc.bytes))
				if tc.start {
					s.must(slot.StartOffload())
				}
				if err := s.pass.End(); !errors.Is(err, tc.want) {
					s.t.Errorf("got %v, want %v", err, tc.want)
				}
				if !s.pass.Ended() {
					s.t.Error("the pass goes on")
				}
			})
		})
	}
	t.Run("an aborted pass", func(t *testing.T) {
		eachOrder(t, offload.Options{Strict: true, MinElements: 100}, func(s *stage) {
			slot := s.forward(0)
			s.push(slot, s.Tensor(s.Compute, "x", 99))
			s.must(slot.StartOffload())
			s.must(s.pass.Abort())
		})
	})
}
