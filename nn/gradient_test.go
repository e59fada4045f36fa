package nn

import (
	"math"
	"testing"

	"offload"
)

// reference is the network in float64, written from the package comment and not
// from the kernels. It returns the sum of the losses and the number of hits.
func (c Config) reference(weights []float64, b Batch) (loss float64, hits int) {
	multiply := func(x []float64, w []float64, columns int) []float64 {
		y := make([]float64, columns)
		for i, v := range x {
			for j := range y {
				y[j] += v * w[i*columns+j]
			}
		}
		return y
	}
	for i, label := range b.Labels {
		w := weights
		take := func(n int) []float64 {
			head := w[:n]
			w = w[n:]
			return head
		}
		image := make([]float64, c.Inputs)
		for j := range image {
			image[j] = float64(b.Images[i*c.Inputs+j])
		}
		x := multiply(image, take(c.Inputs*c.Width), c.Width)
		for range c.Blocks {
			h := multiply(x, take(c.Width*c.Hidden), c.Hidden)
			for j, v := range h {
				h[j] = max(v, 0) * max(v, 0)
			}
			for j, v := range multiply(h, take(c.Hidden*c.Width), c.Width) {
				x[j] += v
			}
		}
		scores := multiply(x, take(c.Width*c.Classes), c.Classes)
		total, best := 0.0, 0
		for j, v := range scores {
			total += math.Exp(v)
			if v > scores[best] {
				best = j
			}
		}
		loss += math.Log(total) - scores[label]
		if best == int(label) {
			hits++
		}
	}
	return loss, hits
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// TestGradients compares every gradient of the network with the slope of the
// reference loss.
func TestGradients(t *testing.T) {
	rng := fresh(t)
	w := open(t, setting{config: small, offloaded: 3})
	defer w.close()
	// With its small first W2 a block hardly shows in the loss; one step changes that.
	for range 3 {
		w.step(small.random(rng, small.Batch))
	}
	c, b := w.model.Config(), small.random(rng, 8)
	values := wide(w.weights())
	want, hits := c.reference(values, b)

	pass := w.begin(offload.Train)
	run, err := w.model.Forward(pass, b)
	w.must(err)
	w.must(w.model.Backward(pass, run))
	w.must(pass.End())
	got, err := run.Result()
	w.must(err)

	n := len(b.Labels)
	if math.Abs(got.Loss-want/float64(n)) > 1e-5 || got.Accuracy != float64(hits)/float64(n) || got.Samples != n {
		t.Errorf("result is %v, want loss %v and %d hits of %d", got, want/float64(n), hits, n)
	}
	grads := w.gradients()
	if len(grads) != c.Parameters() || len(values) != len(grads) {
		t.Fatalf("%d weights and %d gradients, want %d", len(values), len(grads), c.Parameters())
	}
	const h = 1e-5
	largest := 0.0
	for i := range grads {
		at := values[i]
		values[i] = at + h
		up, _ := c.reference(values, b)
		values[i] = at - h
		down, _ := c.reference(values, b)
		values[i] = at
		slope := (up - down) / (2 * h) / float64(n)
		if d := math.Abs(float64(grads[i]) - slope); !(d <= 1e-5*(1+math.Abs(slope))) {
			t.Errorf("gradient %d is %v, want %v", i, grads[i], slope)
		}
		largest = max(largest, math.Abs(slope))
	}
	if largest < 1e-2 {
		t.Errorf("the largest slope is %v: too flat for a test", largest)
	}
}

// TestUpdate holds the update against its definition: gradients clipped to the
// global norm, times the rate.
func TestUpdate(t *testing.T) {
	for _, clip := range []float64{0.01, 100} {
		rng := fresh(t)
		config := small
		config.Clip, config.LearningRate = clip, 0.7
		w := open(t, setting{config: config})
		before := w.weights()
		w.step(config.random(rng, config.Batch))
		after, grads := w.weights(), w.gradients()
		norm := 0.0
		for _, g := range wide(grads) {
			norm += g * g
		}
		norm = math.Sqrt(norm)
		if norm <= 0.01 || norm >= 100 {
			t.Errorf("the norm is %v; both clips of this test must matter", norm)
		}
		scale := min(1, clip/norm)
		for i := range after {
			want := float64(before[i]) - 0.7*scale*float64(grads[i])
			if math.Abs(float64(after[i])-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("clip %v: weight %d is %v, want %v", clip, i, after[i], want)
			}
		}
		w.close()
	}
}
