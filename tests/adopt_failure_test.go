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

// Wherever a batch that gives memory back breaks off, nobody is told before the
// streams are drained, and everybody once after it.
func TestAdoptedMemoryOfEveryBrokenBatch(t *testing.T) {
	for _, tc := range []struct {
		from fsm.State
		do   func(*offload.Slot) error
	}{
		{fsm.Offloading, (*offload.Slot).Release},
		{fsm.Offloading, (*offload.Slot).Reset},
		{fsm.Resident, (*offload.Slot).Reset},
	} {
		t.Run(fmt.Sprintf("from %v", tc.from), func(t *testing.T) {
			rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				length := 1
				for at := 0; at < length; at++ {
					s := newStage(t, offload.Options{Dispatch: d}, sim.Config{Seed: uint64(at)})
					a, b := s.adopt("one", 4096, nil), s.adopt("two", 512, nil)
					slot := s.forward(0)
					s.push(slot, a.tensor, b.tensor)
					s.reach(tc.from, slot)
					broken := errors.New("broken")
					s.Gate.Before(func(batch *device.Batch) error {
						length = len(batch.Ops)
						s.must(s.Sim.Submit(&device.Batch{Origin: batch.Origin, Ops: batch.Ops[:at]}))
						return &device.Error{Origin: batch.Origin, Index: at, Op: batch.Ops[at], Err: broken}
					})
					if err := tc.do(slot); !errors.Is(err, broken) {
						t.Fatalf("got %v, want the device's error", err)
					}
					s.Gate.Before(nil)
					a.given("after the failure", 0)
					b.given("after the failure", 0)
					s.must(s.pass.Abort())
					a.given("after the abort", 1)
					b.given("after the abort", 1)
					s.close()
				}
				if length < 2 {
					t.Errorf("the batch has %d operations, want two disowns at least", length)
				}
			})
		})
	}
}

// On a lost device nothing runs any more: the owner is told at the reset.
func TestAdoptedMemoryOfALostDevice(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for _, state := range []fsm.State{fsm.Resident, fsm.Offloading} {
			dev := sim.New(sim.Config{})
			dev.Register("test.broken", func(*sim.Call) error { return errors.New("broken") })
			engine, err := offload.Open(dev, offload.Options{Layers: 1, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
			if err != nil {
				t.Fatal(err)
			}
			ids := device.NewIDs(dev)
			stream := ids.Stream()
			told := 0
			storage, adopt := ids.AdoptStorage("theirs", device.Activation, dev.External(4096), stream, func(device.Stream) { told++ })
			x := device.Tensor{Storage: storage, DType: device.Uint8, Shape: []int{4096}}
			submit := func(ops ...device.Op) error { return dev.Submit(&device.Batch{Ops: ops}) }
			if err := submit(device.Op{Kind: device.OpenStream, Stream: stream}, adopt); err != nil {
				t.Fatal(err)
			}
			pass, err := engine.Begin(context.Background(), offload.Train, stream)
			if err != nil {
				t.Fatal(err)
			}
			slot, err := pass.Forward(0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := slot.Push(x); err != nil {
				t.Fatal(err)
			}
			if state == fsm.Offloading {
				if err := slot.StartOffload(); err != nil {
					t.Fatal(err)
				}
			}
			err = submit(device.Op{Kind: device.Launch, Stream: stream, Kernel: &device.Kernel{Name: "test.broken"}},
				device.Op{Kind: device.SyncStream, Stream: stream})
			if !errors.Is(err, device.ErrLost) {
				t.Fatalf("got %v, want a lost device", err)
			}
			if err := slot.Reset(); err == nil {
				t.Error("the reset of a lost device succeeded before the engine could know")
			}
			if told != 0 {
				t.Error("the owner was told by a batch that failed")
			}
			if err := pass.Abort(); err != nil {
				t.Errorf("abort: %v", err)
			}
			if told != 1 {
				t.Errorf("the owner was told %d times, want once", told)
			}
			if err := engine.Close(); !errors.Is(err, device.ErrLost) {
				t.Errorf("close: got %v, want ErrLost", err)
			}
			if told != 1 {
				t.Errorf("the owner was told %d times in the end, want once", told)
			}
			_ = dev.Close() // returns once more why it was lost
		}
	})
}

// A function that panics does so in the caller, when the call is done: the other
// owners are told, and the engine goes on.
func TestGiveBackPanics(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		bad := s.adopt("bad", 4096, func() { panic("of the owner") })
		good := s.adopt("good", 4096, nil)
		slot := s.forward(0)
		s.push(slot, bad.tensor, good.tensor)
		s.reach(fsm.Offloading, slot)
		func() {
			defer func() {
				if v := recover(); v != "of the owner" {
					t.Errorf("recovered %v, want the owner's panic", v)
				}
			}()
			_ = slot.Release()
		}()
		bad.given("with a panic", 1)
		good.given("behind the panic", 1)
		if got := slot.State(); got != fsm.Offloaded {
			t.Errorf("the slot is %v, want Offloaded", got)
		}
		s.reach(fsm.Reloading, slot)
	})
}

// The owner's function may call whatever gave the memory back: nothing is locked.
func TestGiveBackHoldsNoLock(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		ctx := context.Background()
		step, err := s.engine.BeginStep(ctx, s.Compute, offload.Turn{}, offload.Turn{Backward: true})
		s.must(err)
		p, err := step.Forward(0)
		s.must(err)
		slot, err := p.Forward(0)
		s.must(err)
		ended := s.adopt("ended", 4096, func() {
			if _, err := step.Backward(0); !errors.Is(err, offload.ErrStepOrder) {
				t.Errorf("a call of the step: got %v, want ErrStepOrder", err)
			}
			if _, err := p.Forward(0); !errors.Is(err, offload.ErrStale) {
				t.Errorf("a call of the pass: got %v, want ErrStale", err)
			}
			other, err := s.engine.Begin(ctx, offload.Train, s.Compute)
			if err != nil {
				t.Error(err)
				return
			}
			if err := other.End(); err != nil {
				t.Error(err)
			}
		})
		s.push(slot, ended.tensor)
		_, err = step.Backward(0)
		s.must(err)
		s.must(step.End())
		ended.given("by the end of the step", 1)

		closed := s.adopt("closed", 4096, func() {
			if _, err := s.engine.Begin(ctx, offload.Train, s.Compute); !errors.Is(err, offload.ErrClosed) {
				t.Errorf("begin: got %v, want ErrClosed", err)
			}
			if m := s.engine.Metrics(); m.StoragesHeld != 0 {
				t.Errorf("%d storages are held, want none", m.StoragesHeld)
			}
			if err := s.engine.Close(); err != nil {
				t.Errorf("a second close: %v", err)
			}
		})
		s.push(s.forward(0), closed.tensor)
		s.must(s.engine.Close())
		closed.given("by the close", 1)
	})
}
