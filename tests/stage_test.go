package tests

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// seeds is the number of orders in which the simulated device runs a scenario; in
// short tests, two.
const seeds = 8

// theDefault, as a limit of a stage's engine, is what the engine takes by itself.
const theDefault = -1

// stage is an engine on a rig, with a training pass, for scenarios.
type stage struct {
	*rig.Rig
	t      *testing.T
	engine *offload.Engine
	pass   *offload.Pass

	mu      sync.Mutex
	batches map[string][]device.Op // the last one of the engine by action
}

// eachOrder plays a scenario under several orders of the device's work, for
// every way in which actors can run. Options are those given; zero limits and
// layers are filled in so that everything moves.
func eachOrder(t *testing.T, opts offload.Options, scenario func(s *stage)) {
	t.Helper()
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		opts.Dispatch = d
		for seed := range uint64(seeds) {
			if testing.Short() && seed > 1 {
				break
			}
			play := newStage(t, opts, sim.Config{Seed: seed})
			scenario(play)
			play.close()
			if t.Failed() {
				t.Fatalf("under seed %d", seed)
			}
		}
	})
}

// newStage opens an engine whose first pass has begun.
func newStage(t *testing.T, opts offload.Options, cfg sim.Config) *stage {
	t.Helper()
	s := &stage{Rig: rig.New(t, cfg), t: t}
	s.open(opts)
	return s
}

func (s *stage) open(opts offload.Options) {
	s.t.Helper()
	if opts.Plan == nil && opts.Layers == 0 {
		opts.Layers = 4
	}
	switch opts.MinElements {
	case 0:
		opts.MinElements = 1
	case theDefault:
		opts.MinElements = 0
	}
	if opts.SlabBytes == 0 {
		opts.SlabBytes = 64 << 10
	}
	s.batches = make(map[string][]device.Op)
	opts.Listener = &offload.EventListener{Batch: func(i offload.BatchInfo) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.batches[i.Batch.Origin.Action] = slices.Clone(i.Batch.Ops)
	}}
	s.engine = s.Open(opts)
	s.begin()
}

func (s *stage) begin() {
	s.t.Helper()
	p, err := s.engine.Begin(context.Background(), offload.Train, s.Compute)
	s.must(err)
	s.pass = p
}

// last returns the operations of the engine's last batch for an action.
func (s *stage) last(action string) []device.Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batches[action]
}

// close ends what is under way. Nothing may be left.
func (s *stage) close() {
	s.t.Helper()
	if !s.pass.Ended() {
		s.must(s.pass.End())
	}
	if m := s.engine.Metrics(); m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
		s.t.Errorf("held after the pass: %+v", m)
	}
	s.must(s.engine.Close())
	s.Rig.Close()
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) forward(layer int) *offload.Slot {
	s.t.Helper()
	slot, err := s.pass.Forward(layer)
	s.must(err)
	return slot
}

func (s *stage) push(slot *offload.Slot, ts ...device.Tensor) []offload.Saved {
	s.t.Helper()
	saved, err := slot.Push(ts...)
	s.must(err)
	return saved
}

// reach drives slots of a manual plan to a state, all of them through one step
// before any of them takes the next.
func (s *stage) reach(to fsm.State, slots ...*offload.Slot) {
	s.t.Helper()
	for _, step := range []struct {
		from, to fsm.State
		do       func(*offload.Slot) error
	}{
		{fsm.Resident, fsm.Offloading, (*offload.Slot).StartOffload},
		{fsm.Offloading, fsm.Offloaded, (*offload.Slot).Release},
		{fsm.Offloaded, fsm.Reloading, (*offload.Slot).Reload},
	} {
		for _, slot := range slots {
			if slot.State() == step.from && slot.State() != to {
				s.must(step.do(slot))
			}
		}
	}
	for _, slot := range slots {
		if slot.State() != to {
			s.t.Fatalf("layer %d is %v, want %v", slot.Layer(), slot.State(), to)
		}
	}
}

// pop takes tensors back on a stream, and checks that they are the views that
// were pushed, of storages whose bytes have the pattern of the storage's name.
func (s *stage) pop(slot *offload.Slot, on device.Stream, saved []offload.Saved, pushed ...device.Tensor) []device.Tensor {
	s.t.Helper()
	ts, err := slot.On(on).Pop(saved...)
	s.must(err)
	for i, x := range ts {
		if want := pushed[i]; fmt.Sprint(x) != fmt.Sprint(want) || x.Storage != want.Storage || x.Keep != want.Keep {
			s.t.Errorf("tensor %d came back as %v, want %v", i, x, want)
		}
		if !x.IsNil() && x.Elements() > 0 {
			s.CheckView(on, x, x.Storage.Name())
		}
	}
	return ts
}

// use compares device memory in use with what it should be.
func (s *stage) use(when string, want int64) {
	s.t.Helper()
	if got := s.Sim.Usage().InUse; got != want {
		s.t.Errorf("%s: %d bytes of device memory are in use, want %d", when, got, want)
	}
}

// moved compares what was copied out so far.
func (s *stage) moved(copies, bytes int64) {
	s.t.Helper()
	if m := s.engine.Metrics(); m.CopiesOut != copies || m.BytesOut != bytes {
		s.t.Errorf("%d bytes were copied out by %d copies, want %d by %d", m.BytesOut, m.CopiesOut, bytes, copies)
	}
}

// view returns a view of the storage of x.
func view(x device.Tensor, t device.DType, offset int64, shape, strides []int) device.Tensor {
	return device.Tensor{Storage: x.Storage, DType: t, Shape: shape, Strides: strides, Offset: offset}
}

// bytesOf returns the view of n bytes of x from byte lo on.
func bytesOf(x device.Tensor, lo, n int64) device.Tensor {
	return view(x, device.Uint8, lo, []int{int(n)}, nil)
}
