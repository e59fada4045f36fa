package nn

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"offload"
	"offload/device"
)

// parts cuts a batch into micro-batches of n images.
func (c Config) parts(whole Batch, n int) (list []Batch) {
	for lo := 0; lo < len(whole.Labels); lo += n {
		list = append(list, Batch{
			Images: whole.Images[lo*c.Inputs : (lo+n)*c.Inputs], Labels: whole.Labels[lo : lo+n], Whole: len(whole.Labels)})
	}
	return list
}

// inTurns makes a step of the micro-batches in the given order.
func (w *world) inTurns(order string, parts []Batch) (Result, error) {
	w.t.Helper()
	turns, err := offload.Turns(order)
	w.must(err)
	return w.model.StepInTurns(context.Background(), w.engine, turns, func(n int) Batch { return parts[n] })
}

// TestMicroBatches sums up gradients over micro-batches in several orders.
func TestMicroBatches(t *testing.T) {
	rng := fresh(t)
	whole := small.random(rng, 9)
	parts := small.parts(whole, 3)
	train := func(order string, offloaded int) ([]float32, Result) {
		w := open(t, setting{config: small, offloaded: offloaded})
		defer w.close()
		result, err := w.inTurns(order, parts)
		w.must(err)
		return w.weights(), result
	}
	weights, result := train("F0 F1 F2 B0 B1 B2", 2)
	for _, order := range []string{"F0 B0 F1 B1 F2 B2", "F0 F1 B0 F2 B1 B2"} {
		if got, r := train(order, 2); !slices.Equal(got, weights) || r != result {
			t.Errorf("order %s: %v and other weights than with all forwards first, %v", order, r, result)
		}
	}
	const reversed = "F0 F1 F2 B2 B1 B0" // adds up the gradients in another order
	resident, wantResult := train(reversed, 0)
	if got, r := train(reversed, 3); !slices.Equal(got, resident) || r != wantResult {
		t.Errorf("order %s: offloading gives %v and other weights, want %v", reversed, r, wantResult)
	}
	w := open(t, setting{config: small})
	defer w.close()
	want := w.step(whole)
	if d := result.Loss - want.Loss; d > 1e-6 || d < -1e-6 || result.Samples != 9 || result.Accuracy != want.Accuracy {
		t.Errorf("the micro-batches give %v, want %v", result, want)
	}
	for i, x := range w.weights() {
		if d := x - weights[i]; d > 1e-5 || d < -1e-5 {
			t.Errorf("weight %d is %v with micro-batches, %v without", i, weights[i], x)
		}
	}
}

// TestMicroBatchesRefusedAnywhere refuses each operation in turn of a step with three
// passes in flight, those of the engine included.
func TestMicroBatchesRefusedAnywhere(t *testing.T) {
	const order = "F0 F1 B0 F2 B2 B1"
	rng := fresh(t)
	parts := small.parts(small.random(rng, 9), 3)
	for n := 0; ; n++ {
		w := open(t, setting{config: small, offloaded: 2})
		_, err := w.inTurns(order, parts)
		w.must(err)
		before := w.sim.Usage().InUse
		came := w.gate.only(n, errRefused, func(device.Origin, device.Op) bool { return true })
		_, err = w.inTurns(order, parts)
		w.gate.refuse = nil
		if !came() {
			w.must(err)
			w.close()
			if n < 180 {
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
		_, err = w.inTurns(order, parts)
		w.must(err)
		w.close()
	}
}

// TestMicroBatchShortage fails in the forward of the third micro-batch, when the
// first one's gradients are there already: the next step starts without them.
func TestMicroBatchShortage(t *testing.T) {
	const order = "F0 B0 F1 F2 B1 B2"
	rng := fresh(t)
	parts := small.parts(small.random(rng, 9), 3)
	want := open(t, setting{config: small, offloaded: 2})
	wantResult, err := want.inTurns(order, parts)
	want.must(err)
	wantWeights := want.weights()
	want.close()

	w := open(t, setting{config: small, offloaded: 2})
	defer w.close()
	firsts := 0 // forwards of the first layer
	w.gate.refuse = func(o device.Origin, op device.Op) error {
		if o.Action == "forward" && o.Layer == 0 && op.Kind == device.Launch {
			if firsts++; firsts == 3 {
				return device.ErrOutOfMemory
			}
		}
		return nil
	}
	if _, err := w.inTurns(order, parts); !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "micro-batch 2: layer 0 (input), forward: ") {
		t.Errorf("error is %v, want one about layer 0 of micro-batch 2 that wraps ErrOutOfMemory", err)
	}
	w.gate.refuse = nil
	got, err := w.inTurns(order, parts)
	w.must(err)
	if got != wantResult || !slices.Equal(w.weights(), wantWeights) {
		t.Errorf("the next step gives %v and other weights, want %v", got, wantResult)
	}
	if _, err := w.inTurns("B0 F0", parts); err == nil || !strings.Contains(err.Error(), "nn: begin: order of a step: ") {
		t.Errorf("a backward before its forward: error %v", err)
	}
}
