package nn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/nn/ops"
	opssim "offload/nn/ops/sim"
)

// TestOutOfMemoryAnywhere refuses each allocation of a step in turn, those of the
// engine included. The step returns the error, nothing of it is left, and the
// model trains on as if it had never failed. Only a reload ahead of its time is
// put off by the engine, and the step does not notice.
func TestOutOfMemoryAnywhere(t *testing.T) {
	for _, offloaded := range []int{0, 3} {
		seed := rand.Uint64()
		t.Logf("%d offloaded: seed %d", offloaded, seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		first, second := small.random(rng, 9), small.random(rng, 9)

		want := open(t, setting{config: small, offloaded: offloaded})
		want.step(first)
		wantResult := want.step(second)
		wantWeights := want.weights()
		want.close()

		for n := 0; ; n++ {
			w := open(t, setting{config: small, offloaded: offloaded})
			w.step(first)
			before, pinned := w.sim.Usage().InUse, w.sim.HostUsage().InUse
			var struck device.Origin
			seen := 0
			came := w.gate.only(n, device.ErrOutOfMemory, func(o device.Origin, op device.Op) bool {
				if op.Kind != device.Alloc {
					return false
				}
				if seen == n {
					struck = o
				}
				seen++
				return true
			})
			result, err := w.model.Step(context.Background(), w.engine, second)
			w.gate.refuse = nil
			if !came() {
				w.must(err)
				w.close()
				if n < 3*small.Blocks {
					t.Errorf("a step made %d allocations; that is too few", n)
				}
				break
			}
			if struck.Action == "reload" && err == nil {
				if result != wantResult || !slices.Equal(w.weights(), wantWeights) {
					t.Errorf("allocation %d refused: the step gives %v and other bits, want %v", n, result, wantResult)
				}
				w.close()
				continue
			}
			var at *Error
			if !errors.Is(err, device.ErrOutOfMemory) || !errors.As(err, &at) || at.Name != small.LayerName(at.Layer) {
				t.Errorf("allocation %d refused: error %v, want an *Error about the layer that wraps ErrOutOfMemory", n, err)
			}
			if got := w.sim.Usage().InUse; got != before {
				t.Errorf("allocation %d refused: %d bytes of device memory in use, want the %d of before", n, got, before)
			}
			if got := w.sim.HostUsage().InUse; got != pinned {
				t.Errorf("allocation %d refused: %d bytes of host memory pinned, want the %d of before", n, got, pinned)
			}
			if got := w.step(second); got != wantResult || !slices.Equal(w.weights(), wantWeights) {
				t.Errorf("allocation %d refused: the next step gives %v and other bits, want %v", n, got, wantResult)
			}
			w.close()
		}
	}
}

// TestRefusedAnywhere refuses each operation of a step in turn, those of the
// engine included.
func TestRefusedAnywhere(t *testing.T) {
	rng := fresh(t)
	b := small.random(rng, 9)
	for n := 0; ; n++ {
		w := open(t, setting{config: small, offloaded: 2})
		w.step(b)
		before := w.sim.Usage().InUse
		came := w.gate.only(n, errRefused, func(device.Origin, device.Op) bool { return true })
		_, err := w.model.Step(context.Background(), w.engine, b)
		w.gate.refuse = nil
		if !came() {
			w.must(err)
			w.close()
			if n < 60 {
				t.Errorf("a step made %d operations; that is too few", n)
			}
			return
		}
		if !errors.Is(err, errRefused) {
			t.Errorf("operation %d refused: error %v", n, err)
		}
		if got := w.sim.Usage().InUse; got != before {
			t.Errorf("operation %d refused (%v): %d bytes in use, want the %d of before", n, err, got, before)
		}
		w.step(b)
		w.close()
	}
}

// TestMemoryLimit runs a step under ever higher limits of the device itself,
// until it fits.
func TestMemoryLimit(t *testing.T) {
	rng := fresh(t)
	b := small.random(rng, 9)
	w := open(t, setting{config: small})
	weights := w.sim.Usage().InUse
	w.step(b)
	peak := w.sim.Usage().Peak
	w.close()
	for limit := weights; limit <= peak; limit += 256 {
		w := open(t, setting{config: small, limit: limit})
		_, err := w.model.Step(context.Background(), w.engine, b)
		if fits := limit == peak; fits != (err == nil) {
			t.Errorf("limit %d, peak without limit %d: error %v", limit, peak, err)
		}
		var m *ops.MemoryError
		if err != nil && (!errors.As(err, &m) || m.Limit != limit || m.InUse > limit || m.Need <= 0) {
			t.Errorf("limit %d: error %v, want a *MemoryError with need, use and limit", limit, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "layer ") || !strings.Contains(err.Error(), fmt.Sprint("the limit is ", limit))) {
			t.Errorf("limit %d: message %q names no layer, or not the limit", limit, err)
		}
		if got := w.sim.Usage().InUse; got != weights {
			t.Errorf("limit %d: %d bytes in use after the step, want the %d of the weights", limit, got, weights)
		}
		w.close()
	}
}

func TestNewOutOfMemory(t *testing.T) {
	for n := 0; ; n++ {
		d := sim.New(sim.Config{})
		opssim.Register(d)
		g := &gate{Device: d}
		ids := device.NewIDs(d)
		stream := ids.Stream()
		open := &device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: stream}}}
		if err := d.Submit(open); err != nil {
			t.Fatal(err)
		}
		came := g.only(n, device.ErrOutOfMemory, func(_ device.Origin, op device.Op) bool {
			return op.Kind == device.Alloc || op.Kind == device.Pin
		})
		m, err := New(g, stream, small)
		if came() != errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("allocation %d refused %t: error %v", n, came(), err)
		}
		if err == nil {
			err = m.Close()
			if err != nil {
				t.Error(err)
			}
		}
		closing := &device.Batch{Ops: []device.Op{{Kind: device.CloseStream, Stream: stream}}}
		if err := d.Submit(closing); err != nil {
			t.Error(err)
		}
		for _, l := range d.Leaks() {
			t.Errorf("allocation %d refused: left on the device: %v", n, l)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if !came() {
			if n != 5 {
				t.Errorf("New made %d allocations, want 5: weights, gradients, norm, and two on the host", n)
			}
			return
		}
	}
}

func TestCancelled(t *testing.T) {
	rng := fresh(t)
	w := open(t, setting{config: small, offloaded: 2})
	defer w.close()
	b := small.random(rng, 9)
	before := w.sim.Usage().InUse
	ctx, cancel := context.WithCancel(context.Background())
	// The context ends in the middle of the forward.
	w.gate.refuse = func(o device.Origin, op device.Op) error {
		if o.Action == "forward" && o.Layer == 2 {
			cancel()
		}
		return nil
	}
	_, err := w.model.Step(ctx, w.engine, b)
	w.gate.refuse = nil
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	if got := w.sim.Usage().InUse; got != before {
		t.Errorf("%d bytes in use, want the %d of before", got, before)
	}
	w.step(b)
}

func TestMisuse(t *testing.T) {
	rng := fresh(t)
	w := open(t, setting{config: small})
	defer w.close()
	b := small.random(rng, 9)
	edit := func(f func(*Batch)) Batch {
		c := Batch{Images: slices.Clone(b.Images), Labels: slices.Clone(b.Labels)}
		f(&c)
		return c
	}
	for _, row := range []struct {
		name  string
		batch Batch
		want  string
	}{
		{"empty", Batch{}, "1 to 9"},
		{"too large", small.random(rng, 10), "allows 9"},
		{"an element too few", edit(func(b *Batch) { b.Images = b.Images[1:] }), "make 63"},
		{"label too high", edit(func(b *Batch) { b.Labels[4] = 4 }), "image 4 has label 4"},
		{"label negative", edit(func(b *Batch) { b.Labels[0] = -1 }), "label -1"},
		{"part larger than the whole", edit(func(b *Batch) { b.Whole = 8 }), "whole is 8"},
	} {
		if _, err := w.model.Step(context.Background(), w.engine, row.batch); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error %v, want one with %q", row.name, err, row.want)
		}
	}
	if err := w.model.Update(); err == nil {
		t.Error("update without gradients: no error")
	}
	pass := w.begin(offload.Train)
	run, err := w.model.Forward(pass, b)
	w.must(err)
	w.must(w.model.Backward(pass, run))
	if err := w.model.Backward(pass, run); err == nil {
		t.Error("second backward: no error")
	}
	w.must(pass.End())
	_, err = run.Result()
	w.must(err)
	if _, err := run.Result(); err == nil {
		t.Error("second result: no error")
	}
	w.must(run.Discard())

	pass = w.begin(offload.Inference)
	run, err = w.model.Forward(pass, b)
	w.must(err)
	if err := w.model.Backward(pass, run); err == nil {
		t.Error("backward of an inference: no error")
	}
	w.must(pass.End())
	w.must(run.Discard())
	w.step(b)
}

// TestDiscard gives a run up between forward and backward.
func TestDiscard(t *testing.T) {
	rng := fresh(t)
	w := open(t, setting{config: small, offloaded: 3})
	defer w.close()
	b := small.random(rng, 9)
	before := w.sim.Usage().InUse
	pass := w.begin(offload.Train)
	run, err := w.model.Forward(pass, b)
	w.must(err)
	w.must(run.Discard())
	w.must(pass.Abort())
	if got := w.sim.Usage().InUse; got != before {
		t.Errorf("%d bytes in use, want the %d of before", got, before)
	}
	if _, err := run.Result(); err == nil {
		t.Error("result of a discarded run: no error")
	}
	w.step(b)
}
