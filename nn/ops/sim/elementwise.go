package sim

import (
	"fmt"
	"math"
)

// squaredReLU writes max(x, 0)² to y.
func squaredReLU(y, x []float32) {
	for i, v := range x[:len(y)] {
		v = max(v, 0)
		y[i] = v * v
	}
}

// squaredReLUGrad multiplies grad by the derivative of max(x, 0)².
func squaredReLUGrad(grad, x []float32) {
	for i, v := range x[:len(grad)] {
		grad[i] *= 2 * max(v, 0)
	}
}

// addScaled adds scale·x to y. The product is rounded by itself, so that
// machines with a fused multiply-add give the same bits.
func addScaled(y, x []float32, scale float32) {
	for i, v := range x[:len(y)] {
		y[i] += float32(scale * v)
	}
}

func fill(x []float32, value float32) {
	for i := range x {
		x[i] = value
	}
}

// sumSquares adds up in float64, in the order of the elements.
func sumSquares(x []float32) float32 {
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v) // exact: 48 bits of 53
	}
	return float32(sum)
}

// sgd moves w against its gradient; sum is the square of the norm of all gradients.
func sgd(w, grad []float32, sum, rate, clip float32) {
	step := rate
	if norm := math.Sqrt(float64(sum)); clip > 0 && norm > float64(clip) {
		step = float32(float64(rate) * float64(clip) / norm)
	}
	for i, g := range grad[:len(w)] {
		w[i] -= float32(step * g)
	}
}

// crossEntropy compares the softmax of each row of logits with its label. It
// returns the sum of the losses and the number of rows whose largest logit is
// at the label. If grad is not nil it gets scale times the gradient; it may be
// logits itself.
func crossEntropy(grad, logits []float32, labels []int32, classes int, scale float32) (loss, hits float32, err error) {
	var sum float64
	var correct int
	for i, label := range labels {
		if label < 0 || int(label) >= classes {
			return 0, 0, fmt.Errorf("row %d has label %d; there are %d classes", i, label, classes)
		}
		row := logits[i*classes : (i+1)*classes]
		best := 0
		for j, v := range row {
			if v > row[best] {
				best = j
			}
		}
		if best == int(label) {
			correct++
		}
		top, at := float64(row[best]), float64(row[label])
		var total float64
		for _, v := range row {
			total += math.Exp(float64(v) - top) // at most 1: nothing overflows
		}
		sum += math.Log(total) + top - at
		if grad == nil {
			continue
		}
		out := grad[i*classes : (i+1)*classes]
		for j, v := range row {
			p := math.Exp(float64(v)-top) / total
			if j == int(label) {
				p--
			}
			out[j] = float32(float64(scale) * p)
		}
	}
	return float32(sum), float32(correct), nil
}
