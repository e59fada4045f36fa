package offload_test

import (
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// A batch that the device refuses, or panics over, fails the slot whose batch it
// was. Others go on, and Abort gives everything back.
func TestDeviceFails(t *testing.T) {
	panics := func(e fsm.Event) func(*device.Batch) error {
		return func(batch *device.Batch) error {
			if batch.Origin.Action == e.String() {
				panic(errRefused)
			}
			return nil
		}
	}
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for _, how := range []struct {
			name string
			gate func(fsm.Event) func(*device.Batch) error
		}{{"refuses", refuse}, {"panics", panics}} {
			for _, tc := range []struct {
				event fsm.Event
				from  fsm.State
			}{
				{fsm.Push, fsm.Resident}, {fsm.StartOffload, fsm.Resident}, {fsm.Release, fsm.Offloading},
				{fsm.Reload, fsm.Offloaded}, {fsm.Pop, fsm.Reloading}, {fsm.Reset, fsm.Resident}, {fsm.Reset, fsm.Reloading},
			} {
				t.Run(fmt.Sprintf("%s %v when %v", how.name, tc.event, tc.from), func(t *testing.T) {
					b := manual(t, d)
					defer b.close()
					p := b.begin()
					slot, other := b.forward(p, 0), b.forward(p, 1)
					saved := b.push(slot, "x")
					kept := b.push(other, "y")
					extra := b.Tensor(b.Compute, "extra", 4096)
					b.reach(slot, tc.from)

					b.Gate.Before(how.gate(tc.event))
					var err error
					switch tc.event {
					case fsm.Push:
						_, err = slot.Push(extra)
					case fsm.StartOffload:
						err = slot.StartOffload()
					case fsm.Release:
						err = slot.Release()
					case fsm.Reload:
						err = slot.Reload()
					case fsm.Pop:
						_, err = slot.Pop(saved)
					case fsm.Reset:
						err = slot.Reset()
					}
					b.Gate.Before(nil)
					if !errors.Is(err, errRefused) {
						t.Errorf("got %v, want the device's error", err)
					}
					if got := slot.State(); got != fsm.Failed {
						t.Errorf("the slot is %v, want Failed", got)
					}
					if _, err := slot.Pop(saved); !errors.Is(err, offload.ErrOrder) {
						t.Errorf("pop after the failure: got %v, want an OrderError", err)
					}
					b.reach(other, fsm.Reloading) // goes on
					b.pop(other, kept, "y")
					if m := b.engine.Metrics(); m.Failures != 1 {
						t.Errorf("%d failures are counted, want 1", m.Failures)
					}
					b.must(p.Abort())
					if m := b.engine.Metrics(); m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
						t.Errorf("held after the abort: %+v", m)
					}
					if tc.event != fsm.Push { // Push took it over before the device failed
						b.Drop(b.Compute, extra)
					}
				})
			}
		}
	})
}

// Every operation of a pass fails once. Whatever was enqueued before it, nothing
// leaks and nothing is used too early.
func TestEveryOperationFails(t *testing.T) {
	const layers = 4
	pass := func(b *bench) error {
		p := b.begin()
		err := func() error {
			var saved [layers][]offload.Saved
			for i := range layers {
				s, err := p.Forward(i)
				if err != nil {
					return err
				}
				x := b.Tensor(b.Compute, fmt.Sprint("x", i), 4096)
				if saved[i], err = s.Push(x); err != nil {
					if s.State() != fsm.Failed {
						b.Drop(b.Compute, x)
					}
					return err
				}
			}
			for i := layers - 1; i >= 0; i-- {
				s, err := p.Backward(i)
				if err != nil {
					return err
				}
				ts, err := s.Pop(saved[i]...)
				if err != nil {
					return err
				}
				b.Check(b.Compute, ts[0], fmt.Sprint("x", i))
			}
			return p.End()
		}()
		return errors.Join(err, p.Abort())
	}
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for fails := 0; ; fails++ {
			b := window(t, d, layers, 2)
			at, reached, recovered := 0, false, false
			// The part of the batch before the operation reaches the device.
			b.Gate.Before(func(batch *device.Batch) error {
				if reached || at+len(batch.Ops) <= fails {
					at += len(batch.Ops)
					return nil
				}
				reached = true
				n := fails - at
				recovered = batch.Ops[n].Kind == device.Pin // it is tried again with less
				if err := b.Sim.Submit(&device.Batch{Origin: batch.Origin, Ops: batch.Ops[:n]}); err != nil {
					t.Error(err)
				}
				return &device.Error{Origin: batch.Origin, Index: n, Op: batch.Ops[n], Err: errRefused}
			})
			err := pass(b)
			b.Gate.Before(nil)
			if want := reached && !recovered; want != errors.Is(err, errRefused) {
				t.Errorf("operation %d: got %v, want the device's error: %v", fails, err, want)
			}
			if m := b.engine.Metrics(); m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
				t.Errorf("operation %d: held after the abort: %+v", fails, m)
			}
			b.must(pass(b)) // the engine is as good as new
			b.close()
			if !reached {
				if fails < 20 {
					t.Errorf("a pass had %d operations only", fails)
				}
				return
			}
		}
	})
}

// A lost device fails every call with its error until Close, which does not hang.
func TestDeviceLost(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		p := b.begin()
		slot, other := b.forward(p, 0), b.forward(p, 1)
		b.push(slot, "x")
		b.push(other, "y")
		b.Gate.Before(func(batch *device.Batch) error {
			return &device.Error{Origin: batch.Origin, Op: batch.Ops[0], Err: device.ErrLost}
		})
		if err := slot.StartOffload(); !errors.Is(err, device.ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
		if err := other.StartOffload(); !errors.Is(err, device.ErrLost) {
			t.Errorf("another layer: got %v, want ErrLost", err)
		}
		if got := other.State(); got != fsm.Failed {
			t.Errorf("another layer is %v, want Failed", got)
		}
		before := b.engine.Metrics()
		b.must(p.Abort())
		if err := b.engine.Close(); !errors.Is(err, device.ErrLost) {
			t.Errorf("close: got %v, want ErrLost", err)
		}
		m := b.engine.Metrics()
		if m.StoragesHeld != 0 || m.SlotsHeld != 0 {
			t.Errorf("held after Close: %+v", m)
		}
		if m.Batches != before.Batches {
			t.Errorf("%d batches were sent to a lost device", m.Batches-before.Batches)
		}
	})
}
