package offload_test

import (
	"context"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

// A slot with nothing to move walks its states, and the device hears nothing of
// it: no batch, no event, no wait, no allocation. It is reset all the same.
func TestEmptyGroupCostsNothing(t *testing.T) {
	const layers, offloaded = 5, 2
	type engine func(t *testing.T, d offload.Dispatch, walked *int) *bench
	opened := func(plan func() (*schedule.Plan, error)) engine {
		return func(t *testing.T, d offload.Dispatch, walked *int) *bench {
			p, err := plan()
			if err != nil {
				t.Fatal(err)
			}
			return open(t, offload.Options{Plan: p, Dispatch: d, MinElements: 4096, Listener: &offload.EventListener{
				Transition: func(i offload.TransitionInfo) {
					if i.Ops != 0 {
						t.Errorf("%v", i)
					}
					if i.From != i.To {
						*walked++
					}
				}}})
		}
	}
	windowed := opened(func() (*schedule.Plan, error) { return schedule.Window(layers, offloaded) })
	driven := opened(func() (*schedule.Plan, error) { return schedule.Manual(layers) })
	resident := opened(func() (*schedule.Plan, error) { return schedule.Window(layers, 0) })
	for _, tc := range []struct {
		name   string
		open   engine
		kind   offload.PassKind
		class  device.Class
		bytes  int64 // of what each layer pushes; zero: nothing
		walked int   // transitions to another state
		frees  uint64
	}{
		{"inference with large tensors", windowed, offload.Inference, device.Activation, 8192, 6, 0},
		{"inference with small tensors", windowed, offload.Inference, device.Activation, 64, 6, 0},
		{"inference, manual plan", driven, offload.Inference, device.Activation, 8192, 4 * layers, 0},
		{"training below the limit", windowed, offload.Train, device.Activation, 4095, 8, layers},
		{"training below the limit, manual plan", driven, offload.Train, device.Activation, 4095, 4 * layers, layers},
		{"training with weights", windowed, offload.Train, device.Weight, 8192, 8, 0},
		{"training that saves nothing", windowed, offload.Train, device.Activation, 0, 8, 0},
		{"training below the limit, nothing offloaded", resident, offload.Train, device.Activation, 4095, 0, layers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				walked := 0
				b := tc.open(t, d, &walked)
				defer b.close()
				var xs [layers]device.Tensor
				if tc.bytes > 0 {
					for i := range xs {
						xs[i] = b.TensorOf(b.Compute, fmt.Sprint("x", i), tc.class, tc.bytes)
					}
				}
				before := b.Sim.Stats()
				p, err := b.engine.Begin(context.Background(), tc.kind, b.Compute)
				b.must(err)
				var saved [layers]offload.Saved
				var slots [layers]*offload.Slot
				for i := range layers {
					slots[i] = b.forward(p, i)
					saved[i] = b.pushTensor(slots[i], xs[i])
				}
				if b.engine.Plan().IsManual() {
					for _, s := range slots {
						b.must(s.StartOffload())
						b.must(s.Release())
						b.must(s.Reload())
					}
				}
				if tc.kind == offload.Train {
					for i := layers - 1; i >= 0; i-- {
						s := b.backward(p, i)
						if ts, err := s.Pop(saved[i]); err != nil || ts[0].Storage != xs[i].Storage {
							t.Errorf("layer %d gave %v, %v; want %v", i, ts, err, xs[i])
						}
					}
				}
				if got := b.Sim.Stats(); got != before {
					t.Errorf("before the end the device was asked for something:\ngot  %v\nwant %v", got, before)
				}
				b.must(p.End())
				if walked != tc.walked {
					t.Errorf("%d transitions to another state, want %d", walked, tc.walked)
				}
				for i, s := range slots {
					if got := s.State(); got != fsm.Resident {
						t.Errorf("layer %d is %v after the end, want Resident", i, got)
					}
				}
				// What the engine took over is given back by one batch at the end.
				want := before
				if tc.frees > 0 {
					want.Batches++
					want.Ops[device.Free] += tc.frees
				}
				if got := b.Sim.Stats(); got != want {
					t.Errorf("after the end:\ngot  %v\nwant %v", got, want)
				}
				if m := b.engine.Metrics(); m.EventsRecorded != 0 || m.WaitsIssued != 0 || m.Pins != 0 || m.Offloads != 0 || m.StoragesHeld != 0 {
					t.Errorf("got %+v", m)
				}
				if tc.bytes > 0 && tc.frees == 0 {
					for i, x := range xs {
						if n := x.Storage.Holders(); n != 1 {
							t.Errorf("%d hold tensor %d, want its owner alone", n, i)
						}
						b.Check(b.Compute, x, fmt.Sprint("x", i))
						b.Drop(b.Compute, x)
					}
				}
			})
		})
	}
}

// A pass that saves nothing leaves nothing behind for the one that follows.
func TestValidationBetweenTraining(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		const layers = 5
		b := window(t, d, layers, 2)
		defer b.close()
		train := func(round int) sim.Stats {
			b.Sim.ResetStats()
			p := b.begin()
			var saved [layers]offload.Saved
			name := func(i int) string { return fmt.Sprintf("round %d x%d", round, i) }
			for i := range layers {
				saved[i] = b.push(b.forward(p, i), name(i))
			}
			for i := layers - 1; i >= 0; i-- {
				b.pop(b.backward(p, i), saved[i], name(i))
			}
			b.must(p.End())
			return b.Sim.Stats()
		}
		train(0) // pins
		first := train(1)
		b.Sim.ResetStats()
		p, err := b.engine.Begin(context.Background(), offload.Inference, b.Compute)
		b.must(err)
		for i := range layers {
			b.forward(p, i)
		}
		b.must(p.End())
		if got := b.Sim.Stats(); got != (sim.Stats{}) {
			t.Errorf("the validation asked the device for %v", got)
		}
		if second := train(2); second != first {
			t.Errorf("training after the validation:\ngot  %v\nwant %v", second, first)
		}
	})
}
