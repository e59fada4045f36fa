package offload_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/tests/rig"
)

// What stands for a tensor is good for one slot, between its push and its reset.
func TestSavedMisuse(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		other := b.Open(offload.Options{Layers: 3, Dispatch: d, MinElements: 1, SlabBytes: 64 << 10})
		otherPass, err := other.Begin(context.Background(), offload.Train, b.Compute)
		b.must(err)
		otherEngine := b.push(b.forward(otherPass, 0), "other engine")

		ended := b.begin()
		endedPass := b.push(b.forward(ended, 0), "ended")
		b.must(ended.End())

		inFlight := b.begin()
		flightPass := b.push(b.forward(inFlight, 0), "in flight")

		p := b.begin()
		slot := b.forward(p, 0)
		beforeReset := b.push(slot, "before reset")
		b.must(slot.Reset())
		good := b.push(slot, "good")
		otherLayer := b.push(b.forward(p, 1), "other layer")
		secondRun := b.push(b.forward(p, 0), "second run")

		for _, tc := range []struct {
			name  string
			saved offload.Saved
			want  error
		}{
			{"the zero value", offload.Saved{}, offload.ErrForeign},
			{"another run of the layer", secondRun, offload.ErrForeign},
			{"another layer", otherLayer, offload.ErrForeign},
			{"another pass in flight", flightPass, offload.ErrForeign},
			{"a pass that has ended", endedPass, offload.ErrStale},
			{"another engine", otherEngine, offload.ErrForeign},
			{"before the slot was reset", beforeReset, offload.ErrStale},
		} {
			for _, saved := range [][]offload.Saved{{tc.saved}, {good, tc.saved}} {
				err := b.unchanged(tc.name, slot, func() error { _, err := slot.Pop(saved...); return err })
				if !errors.Is(err, tc.want) {
					t.Errorf("%s, %d at a time: got %v, want %v", tc.name, len(saved), err, tc.want)
				}
			}
		}
		if good == beforeReset {
			t.Error("what is saved after a reset equals what was saved before it")
		}
		b.pop(slot, good, "good")
		b.must(p.End())
		if _, err := slot.Pop(good); !errors.Is(err, offload.ErrStale) {
			t.Errorf("after the end: got %v, want ErrStale", err)
		}
		b.must(inFlight.End())
		b.must(otherPass.End())
		b.must(other.Close())
	})
}

func TestPassMisuse(t *testing.T) {
	type step func(b *bench, p *offload.Pass) error
	forward := func(layer int) step {
		return func(_ *bench, p *offload.Pass) error { _, err := p.Forward(layer); return err }
	}
	backward := func(layer int) step {
		return func(_ *bench, p *offload.Pass) error { _, err := p.Backward(layer); return err }
	}
	end := func(_ *bench, p *offload.Pass) error { return p.End() }
	abort := func(_ *bench, p *offload.Pass) error { return p.Abort() }
	for _, tc := range []struct {
		name   string
		kind   offload.PassKind
		before []step // must succeed
		call   step
		want   error // nil: the call is legal
	}{
		{"a layer below the first", offload.Train, nil, forward(-1), offload.ErrLayer},
		{"a layer behind the last", offload.Train, nil, forward(3), offload.ErrLayer},
		{"the backward of a layer behind the last", offload.Train, nil, backward(3), offload.ErrLayer},
		{"a backward without a forward", offload.Train, []step{forward(0)}, backward(1), offload.ErrLayer},
		{"a second backward", offload.Train, []step{forward(0), backward(0)}, backward(0), offload.ErrSecondBackward},
		{"a third backward of two runs", offload.Train, []step{forward(0), forward(0), backward(0), backward(0)}, backward(0), offload.ErrSecondBackward},
		{"a backward of an inference", offload.Inference, []step{forward(0)}, backward(0), offload.ErrInference},
		{"a forward after the end", offload.Train, []step{end}, forward(0), offload.ErrStale},
		{"a backward after the end", offload.Train, []step{forward(0), end}, backward(0), offload.ErrStale},
		{"a second end", offload.Train, []step{forward(0), end}, end, offload.ErrStale},
		{"an end after an abort", offload.Train, []step{forward(0), abort}, end, offload.ErrStale},
		{"a forward after an abort", offload.Train, []step{abort}, forward(0), offload.ErrStale},
		{"a second abort", offload.Train, []step{forward(0), abort}, abort, nil},
		{"an abort after the end", offload.Train, []step{forward(0), end}, abort, nil},
		{"a forward in the backward", offload.Train, []step{forward(0), forward(1), backward(1)}, forward(1), nil},
		{"no layers at all", offload.Train, nil, end, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := manual(t, offload.Inline)
			defer b.close()
			p, err := b.engine.Begin(context.Background(), tc.kind, b.Compute)
			b.must(err)
			for _, s := range tc.before {
				b.must(s(b, p))
			}
			if tc.want == nil {
				b.must(tc.call(b, p))
			} else if err := b.unchanged(tc.name, nil, func() error { return tc.call(b, p) }); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			b.must(p.Abort())
		})
	}
}

// Everything on a slot of a pass that is over is refused.
func TestSlotAfterThePass(t *testing.T) {
	b := manual(t, offload.Inline)
	defer b.close()
	p := b.begin()
	slot := b.forward(p, 0)
	saved := b.push(slot, "x")
	b.must(p.End())
	x := b.Tensor(b.Compute, "late", 4096)
	for name, call := range map[string]func() error{
		"push":          func() error { _, err := slot.Push(x); return err },
		"pop":           func() error { _, err := slot.Pop(saved); return err },
		"start-offload": slot.StartOffload, "release": slot.Release, "reload": slot.Reload,
		"revive": slot.Revive, "reset": slot.Reset,
	} {
		if err := b.unchanged(name, slot, call); !errors.Is(err, offload.ErrStale) {
			t.Errorf("%s: got %v, want ErrStale", name, err)
		}
	}
	b.Drop(b.Compute, x)
}

func TestBeginMisuse(t *testing.T) {
	b := manual(t, offload.Inline)
	defer b.close()
	elsewhere := rig.New(t, sim.Config{})
	defer elsewhere.Close()
	cancelled, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the loop was told to stop")
	cancel(why)
	for _, tc := range []struct {
		name   string
		ctx    context.Context
		kind   offload.PassKind
		stream device.Stream
		want   error
	}{
		{"no stream", context.Background(), offload.Train, device.Stream{}, offload.ErrForeign},
		{"a stream of another device", context.Background(), offload.Train, elsewhere.Compute, offload.ErrForeign},
		{"a cancelled context", cancelled, offload.Train, b.Compute, why},
		{"an unknown kind", context.Background(), offload.Inference + 1, b.Compute, nil},
	} {
		err := b.unchanged(tc.name, nil, func() error { _, err := b.engine.Begin(tc.ctx, tc.kind, tc.stream); return err })
		if tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
}

// What cannot be right is refused by Push whole: nothing is taken over, also of
// the tensors before it.
func TestPushMisuse(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := manual(t, d)
		defer b.close()
		elsewhere := rig.New(t, sim.Config{})
		defer elsewhere.Close()
		p := b.begin()
		slot := b.forward(p, 0)
		good := b.Tensor(b.Compute, "good", 4096)
		foreign := elsewhere.Tensor(elsewhere.Compute, "foreign", 4096)
		freed := b.Tensor(b.Compute, "freed", 4096)
		b.Drop(b.Compute, freed)
		long, short := good, good
		long.Shape = []int{4097}
		short.Shape, short.Strides = []int{64, 64}, []int{1}
		for _, tc := range []struct {
			name string
			x    device.Tensor
			want error
		}{
			{"a tensor of another device", foreign, offload.ErrForeign},
			{"a tensor that was freed", freed, offload.ErrMoved},
			{"elements outside of the storage", long, nil},
			{"strides that do not fit", short, nil},
		} {
			err := b.unchanged(tc.name, slot, func() error { _, err := slot.Push(good, tc.x); return err })
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
			}
			if n := good.Storage.Holders(); n != 1 {
				t.Fatalf("%s: %d hold the tensor before it, want 1", tc.name, n)
			}
		}
		for name, stream := range map[string]device.Stream{"no stream": {}, "another device": elsewhere.Compute} {
			err := b.unchanged(name, slot, func() error { _, err := slot.On(stream).Push(good); return err })
			if !errors.Is(err, offload.ErrForeign) {
				t.Errorf("push on %s: got %v, want ErrForeign", name, err)
			}
		}
		b.pop(slot, b.pushTensor(slot, good), "good")
		b.must(p.End())
		elsewhere.Drop(elsewhere.Compute, foreign)
	})
}

// A pass whose context is cancelled is refused everything but its end.
func TestCancel(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := window(t, d, 3, 1)
		defer b.close()
		ctx, cancel := context.WithCancelCause(context.Background())
		p, err := b.engine.Begin(ctx, offload.Train, b.Compute)
		b.must(err)
		slot := b.forward(p, 0)
		saved := b.push(slot, "x")
		b.forward(p, 1)
		why := errors.New("the loop was told to stop")
		cancel(why)
		for name, call := range map[string]func() error{
			"forward":  func() error { _, err := p.Forward(2); return err },
			"backward": func() error { _, err := p.Backward(1); return err },
			"pop":      func() error { _, err := slot.Pop(saved); return err },
		} {
			if err := b.unchanged(name, slot, call); !errors.Is(err, why) {
				t.Errorf("%s: got %v, want the cause of the cancellation", name, err)
			}
		}
		if err := p.End(); !errors.Is(err, why) {
			t.Errorf("end: got %v, want the cause of the cancellation", err)
		}
		m := b.engine.Metrics()
		if m.PassesAborted != 1 || m.PassesEnded != 0 || m.PassesOpen != 0 || m.StoragesHeld != 0 || m.HostInUse != 0 {
			t.Errorf("after the end: %+v", m)
		}
	})
}

func TestOpenMisuse(t *testing.T) {
	r := rig.New(t, sim.Config{})
	defer r.Close()
	for name, devs := range map[string][]device.Device{
		"no device": nil, "a nil device": {r.Sim, nil}, "one device twice": {r.Sim, r.Gate},
	} {
		if _, err := offload.OpenAll(devs, offload.Options{}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	r.Gate.Before(func(*device.Batch) error { return errRefused })
	if _, err := offload.Open(r.Gate, offload.Options{}); !errors.Is(err, errRefused) {
		t.Errorf("a device that opens no stream: got %v, want its error", err)
	}
	r.Gate.Before(nil)
}

func TestPassesAreIndependent(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		const passes, layers = 3, 4
		b := window(t, d, layers, 2)
		defer b.close()
		var all [passes]*offload.Pass
		var saved [passes][layers]offload.Saved
		name := func(p, layer int) string { return fmt.Sprintf("pass %d layer %d", p, layer) }
		for i := range all {
			all[i] = b.begin()
		}
		for layer := range layers {
			for i, p := range all {
				saved[i][layer] = b.push(b.forward(p, layer), name(i, layer))
			}
		}
		for i, p := range all { // the first pass ends before the others turn round
			for layer := layers - 1; layer >= 0; layer-- {
				b.pop(b.backward(p, layer), saved[i][layer], name(i, layer))
			}
			b.must(p.End())
		}
		if m := b.engine.Metrics(); m.PassesEnded != passes || m.CopiesOut != 2*passes || m.CopiesIn != 2*passes || m.LateReloads != 0 {
			t.Errorf("got %+v, want 3 passes with 2 copies each way", m)
		}
	})
}
