package nn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"offload"
)

// clusters returns images around one centre for each class.
func (c Config) clusters(rng *rand.Rand, centres []float32, n int) Batch {
	b := c.random(rng, n)
	for i, label := range b.Labels {
		for j := range c.Inputs {
			x := &b.Images[i*c.Inputs+j]
			*x = centres[int(label)*c.Inputs+j] + 0.5**x
		}
	}
	return b
}

func TestTrainingLearns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := Config{Inputs: 12, Width: 16, Blocks: 3, Classes: 4, Batch: 64, Seed: 5}
	w := open(t, setting{config: c, offloaded: 3})
	defer w.close()
	centres := c.random(rng, c.Classes).Images
	test := c.clusters(rng, centres, 3*c.Batch+17)
	evaluate := func() Result {
		r, err := w.model.Evaluate(context.Background(), w.engine, test.Images, test.Labels)
		w.must(err)
		return r
	}
	before := evaluate()
	var first, last Result
	for i := range 60 {
		last = w.step(c.clusters(rng, centres, c.Batch))
		if i == 0 {
			first = last
		}
	}
	after := evaluate()
	t.Logf("training: %v, then %v; test: %v, then %v", first, last, before, after)
	if last.Loss > first.Loss/3 || after.Loss > before.Loss/3 || after.Accuracy < 0.95 {
		t.Errorf("training: %v, then %v; test: %v, then %v: that is not learning", first, last, before, after)
	}
	if after.Samples != len(test.Labels) {
		t.Errorf("%d samples evaluated, want %d", after.Samples, len(test.Labels))
	}
}

// TestSameBits trains with everything on the device and with every number of
// offloaded layers, under several orders of the simulated device and both ways
// of dispatch. Losses and weights must be the same bits.
func TestSameBits(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	train := func(t *testing.T, s setting) (losses []Result, weights []float32, moved int64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := open(t, s)
		defer w.close()
		for range 4 {
			losses = append(losses, w.step(small.random(rng, 1+rng.IntN(small.Batch))))
		}
		return losses, w.weights(), w.sim.Stats().BytesOut
	}
	wantLosses, wantWeights, resident := train(t, setting{config: small})
	for offloaded := range small.Layers() {
		for order := range uint64(4) {
			s := setting{config: small, offloaded: offloaded, order: order, dispatch: offload.Dispatch(order % 2)}
			t.Run(fmt.Sprintf("%d offloaded, order %d, %v", offloaded, order, s.dispatch), func(t *testing.T) {
				losses, weights, moved := train(t, s)
				if !slices.Equal(losses, wantLosses) {
					t.Errorf("losses are %v, want %v", losses, wantLosses)
				}
				if !slices.Equal(weights, wantWeights) {
					t.Error("weights differ from those of the resident run")
				}
				if offloaded > 0 && moved <= resident {
					t.Errorf("%d bytes moved out, no more than in the resident run", moved)
				}
			})
		}
	}
}

func TestSeedMakesWeights(t *testing.T) {
	weights := func(seed uint64) []float32 {
		c := small
		c.Seed = seed
		w := open(t, setting{config: c})
		defer w.close()
		return w.weights()
	}
	one, again, two := weights(1), weights(1), weights(2)
	if !slices.Equal(one, again) || slices.Equal(one, two) {
		t.Errorf("first weights: equal for equal seeds %t, for others %t; want true, false",
			slices.Equal(one, again), slices.Equal(one, two))
	}
}

// TestEvaluateBetween runs inference between forward and backward of a training
// pass: it changes nothing there.
func TestEvaluateBetween(t *testing.T) {
	seed := rand.Uint64()
	train := func(between bool) []float32 {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := open(t, setting{config: small, offloaded: 2})
		defer w.close()
		b, test := small.random(rng, 9), small.random(rng, 30)
		pass := w.begin(offload.Train)
		run, err := w.model.Forward(pass, b)
		w.must(err)
		if between {
			r, err := w.model.Evaluate(context.Background(), w.engine, test.Images, test.Labels)
			w.must(err)
			loss, hits := w.model.Config().reference(wide(w.weights()), test)
			if d := r.Loss - loss/30; d > 1e-5 || d < -1e-5 || r.Accuracy != float64(hits)/30 || r.Samples != 30 {
				t.Errorf("result is %v, want loss %v and %d hits of 30", r, loss/30, hits)
			}
		}
		w.must(w.model.Backward(pass, run))
		w.must(pass.End())
		w.must(w.model.Update())
		_, err = run.Result()
		w.must(err)
		return w.weights()
	}
	if !slices.Equal(train(true), train(false)) {
		t.Errorf("seed %d: inference in between changes the weights", seed)
	}
}

func TestConfig(t *testing.T) {
	var c Config
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Errorf("the zero configuration: %v", err)
	}
	if got, want := c.String(), "mlp 784-128-10, 6 blocks of 128, batch 2048, learning rate 0.3, clip 0.5, seed 0"; got != want {
		t.Errorf("defaults are %q, want %q", got, want)
	}
	bad := Config{Inputs: -1, Width: 1, Hidden: 1, Blocks: -2, Classes: 1, Batch: 1, LearningRate: -1, Clip: 1}
	err := bad.Validate()
	if err == nil {
		t.Fatal("three faults: no error")
	}
	for _, want := range []string{"Inputs is -1", "Blocks is -2", "LearningRate is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	var names []string
	for layer := range small.Layers() {
		names = append(names, small.LayerName(layer))
	}
	if want := []string{"input", "block 1", "block 2", "block 3", "head"}; !slices.Equal(names, want) {
		t.Errorf("layers are %v, want %v", names, want)
	}
}
