package nn

import (
	"context"
	"errors"
	"fmt"

	"offload"
)

// Step trains on one batch: a training pass of engine, forward and backward,
// then one update of the weights. It waits for the forward alone; the rest of
// the step may still be running on the device when it returns. Errors are as
// with [MLP.StepInTurns].
func (m *MLP) Step(ctx context.Context, engine *offload.Engine, b Batch) (Result, error) {
	return m.StepInTurns(ctx, engine, []offload.Turn{{}, {Backward: true}}, func(int) Batch { return b })
}

// Evaluate runs images through the network in inference passes of engine, at
// most Config.Batch at a time, and returns the result over all of them. The
// weights stay as they are. It may be called between the forward and the
// backward of a training pass.
func (m *MLP) Evaluate(ctx context.Context, engine *offload.Engine, images []float32, labels []int32) (Result, error) {
	c := m.config
	if len(images) != len(labels)*c.Inputs || len(labels) == 0 {
		return Result{}, fmt.Errorf("nn: evaluate: %d labels and %d image elements; %d elements for each label, and at least one label, are needed",
			len(labels), len(images), c.Inputs)
	}
	var total tally
	for lo := 0; lo < len(labels); lo += c.Batch {
		hi := min(lo+c.Batch, len(labels))
		r, err := m.infer(ctx, engine, Batch{Images: images[lo*c.Inputs : hi*c.Inputs], Labels: labels[lo:hi]})
		if err != nil {
			return Result{}, err
		}
		total.add(r)
	}
	return total.result(), nil
}

func (m *MLP) infer(ctx context.Context, engine *offload.Engine, b Batch) (Result, error) {
	pass, err := engine.Begin(ctx, offload.Inference, m.arena.Stream())
	if err != nil {
		return Result{}, fmt.Errorf("nn: begin: %w", err)
	}
	r, err := m.Forward(pass, b)
	if err != nil {
		return Result{}, errors.Join(err, pass.Abort())
	}
	if err := pass.End(); err != nil {
		return Result{}, errors.Join(fmt.Errorf("nn: end: %w", err), r.Discard(), pass.Abort())
	}
	return r.Result()
}

// tally adds up the results of several runs.
type tally struct {
	samples    int
	loss, hits float64 // sums over the samples
}

func (t *tally) add(r Result) {
	t.samples += r.Samples
	t.loss += r.Loss * float64(r.Samples)
	t.hits += r.Accuracy * float64(r.Samples)
}

func (t *tally) result() Result {
	n := float64(t.samples)
	return Result{Samples: t.samples, Loss: t.loss / n, Accuracy: t.hits / n}
}
