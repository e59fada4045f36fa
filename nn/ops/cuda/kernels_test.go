//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"offload/device"
	"offload/nn/ops"
)

// sizes have whole packs, rests, and less than one pack.
var sizes = []int{1, 7, 256, 1000, 1 << 20, 1<<20 + 5}

func gelu(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 }

func geluSlope(x float64) float64 {
	return math.Erfc(-x/math.Sqrt2)/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}

func TestElementwise(t *testing.T) {
	b := newBench(t)
	apply := func(x []float64, f func(float64) float64) []float64 {
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = f(v)
		}
		return y
	}
	for _, typ := range types {
		u := unit(typ)
		for _, n := range sizes {
			name := func(s string) string { return fmt.Sprintf("%s of %d %v", s, n, typ) }
			x, xs := b.upload(typ, b.normal(n, 2), n)
			y, _ := b.upload(typ, poison(n), n)
			b.arena.Launch(ops.GELU(y, x))
			b.close(name("gelu"), b.download(y), apply(xs, gelu), u/2+1e-5, 1e-30)
			g, gs := b.upload(typ, b.normal(n, 1), n)
			b.arena.Launch(ops.GELUGrad(g, x))
			want := make([]float64, n)
			for i := range want {
				want[i] = gs[i] * geluSlope(xs[i])
			}
			b.close(name("gelu gradient"), b.download(g), want, u/2+3e-6, 1e-6) // the slope has a zero
			b.arena.Launch(ops.Zero(y))
			b.close(name("zero"), b.download(y), make([]float64, n), 0, 0)
			b.arena.Launch(ops.Noise(y, 5, 0.5))
			noise := b.download(y)
			if lo, hi := slices.Min(noise), slices.Max(noise); lo < -0.5 || hi > 0.5 || n > 1000 && (lo > -0.49 || hi < 0.49) {
				t.Errorf("%s: between %v and %v, want -0.5 and 0.5", name("noise"), lo, hi)
			}
			other := device.BFloat16
			if typ == other {
				other = device.Float32
			}
			z, _ := b.upload(other, poison(n), n)
			b.arena.Launch(ops.Cast(z, x))
			down := apply(xs, func(v float64) float64 { return v })
			if other == device.BFloat16 {
				down = apply(xs, func(v float64) float64 { return fromBFloat16(toBFloat16(float32(v))) })
			}
			b.close(name("cast"), b.download(z), down, 0, 0)
			if typ != device.Float32 {
				continue
			}
			y, _ = b.upload(typ, poison(n), n)
			b.arena.Launch(ops.SquaredReLU(y, x))
			b.close(name("squared relu"), b.download(y), apply(xs, func(v float64) float64 { return max(v, 0) * max(v, 0) }), u, 0)
			g, gs = b.upload(typ, b.normal(n, 1), n)
			b.arena.Launch(ops.SquaredReLUGrad(g, x))
			for i := range want {
				want[i] = gs[i] * 2 * max(xs[i], 0)
			}
			b.close(name("squared relu gradient"), b.download(g), want, u, 0)
			b.arena.Launch(ops.AddScaled(x, g, 0.3))
			g32 := b.download(g)
			for i := range want { // rounded as the simulated device does
				want[i] = float64(float32(xs[i]) + float32(float32(0.3)*float32(g32[i])))
			}
			b.close(name("add scaled"), b.download(x), want, 0, 0)
			b.arena.Launch(ops.Fill(y, 1.25))
			b.close(name("fill"), b.download(y), apply(xs, func(float64) float64 { return 1.25 }), 0, 0)
		}
	}
}

// TestTail looks at gelu where it is small, and at its ends.
func TestTail(t *testing.T) {
	b := newBench(t)
	xs := []float64{0, math.Copysign(0, -1), -30, 30, -1e30, 1e30, 1e-30, -1e-30}
	for x := -12.0; x < 12; x += 1.0 / 64 {
		xs = append(xs, x)
	}
	for _, typ := range types {
		x, in := b.upload(typ, xs, len(xs))
		y, _ := b.upload(typ, poison(len(xs)), len(xs))
		b.arena.Launch(ops.GELU(y, x))
		want := make([]float64, len(in))
		for i, v := range in {
			want[i] = gelu(v)
		}
		b.close(fmt.Sprintf("gelu of %v", typ), b.download(y), want, unit(typ)/2+1e-5, 1e-37)
	}
}

func TestBias(t *testing.T) {
	b := newBench(t)
	for _, typ := range types {
		for _, s := range [][2]int{{1, 1}, {5, 33}, {1000, 64}, {333, 1000}} {
			m, n := s[0], s[1]
			name := fmt.Sprintf("bias [%d %d] %v", m, n, typ)
			y, ys := b.upload(typ, b.normal(m*n, 1), m, n)
			v, vs := b.upload(typ, b.normal(n, 1), n)
			b.arena.Launch(ops.BiasGrad(v, y))
			want := slices.Clone(vs)
			for i, g := range ys {
				want[i%n] += g
			}
			sums := b.download(v)
			b.close(name+" gradient", sums, want, unit(typ)/2+1e-5, 1e-4*math.Sqrt(float64(m)))
			b.arena.Launch(ops.AddBias(y, v))
			want = slices.Clone(ys)
			for i := range want {
				want[i] += sums[i%n]
			}
			b.close(name, b.download(y), want, unit(typ)/2+1e-6, 1e-6)
		}
	}
}

func TestSumSquaresAndSGD(t *testing.T) {
	b := newBench(t)
	for _, n := range sizes {
		w, ws := b.upload(device.Float32, b.normal(n, 1), n)
		g, gs := b.upload(device.Float32, b.normal(n, 1), n)
		sum, _ := b.upload(device.Float32, poison(1), 1)
		b.arena.Launch(ops.SumSquares(sum, g))
		want := 0.0
		for _, v := range gs {
			want += v * v
		}
		b.close(fmt.Sprintf("sum of %d squares", n), b.download(sum), []float64{want}, unit(device.Float32), 0)
		for _, clip := range []float32{0, 0.5, 1e6} {
			b.arena.Launch(ops.SGD(w, g, sum, 0.1, clip))
			scale := 0.1
			if norm := math.Sqrt(want); clip > 0 && norm > float64(clip) {
				scale *= float64(clip) / norm
			}
			for i := range ws {
				ws[i] -= scale * gs[i]
			}
			b.close(fmt.Sprintf("sgd of %d, clip %v", n, clip), b.download(w), ws, 1e-6, 1e-6)
		}
	}
}

func TestCrossEntropy(t *testing.T) {
	b := newBench(t)
	for _, s := range [][2]int{{1, 1}, {3, 10}, {2048, 10}, {1500, 129}} {
		n, classes := s[0], s[1]
		name := fmt.Sprintf("cross-entropy [%d %d]", n, classes)
		logits, ls := b.upload(device.Float32, b.normal(n*classes, 3), n, classes)
		ids := make([]float64, n)
		for i := range ids {
			ids[i] = float64(b.rng.IntN(classes))
		}
		labels, _ := b.upload(device.Int32, ids, n)
		result, _ := b.upload(device.Float32, poison(2), 2)
		grad, _ := b.upload(device.Float32, poison(n*classes), n, classes)
		var loss, hits float64
		want := make([]float64, n*classes)
		for i := range n {
			row := ls[i*classes:][:classes]
			total := 0.0
			for _, v := range row {
				total += math.Exp(v)
			}
			label := int(ids[i])
			loss += math.Log(total) - row[label]
			if slices.Index(row, slices.Max(row)) == label {
				hits++
			}
			for j, v := range row {
				want[i*classes+j] = math.Exp(v) / total / 8
			}
			want[i*classes+label] -= 1.0 / 8
		}
		for _, to := range []device.Tensor{{}, grad, logits} { // none, apart, in place
			b.arena.Launch(ops.CrossEntropy(result, to, logits, labels, 1.0/8))
			b.close(name, b.download(result), []float64{loss, hits}, 1e-6, 1e-7)
			if !to.IsNil() {
				b.close(name+" gradient", b.download(to), want, 1e-6, 1e-8)
			}
		}
	}
	logits, _ := b.upload(device.Float32, b.normal(20, 3), 2, 10)
	labels, _ := b.upload(device.Int32, []float64{3, 10}, 2)
	result, _ := b.upload(device.Float32, []float64{0, 0}, 2)
	b.arena.Launch(ops.CrossEntropy(result, device.Tensor{}, logits, labels, 1))
	if got := b.download(result); !math.IsNaN(got[0]) {
		t.Errorf("got loss %v with a label that is no class, want NaN", got[0])
	}
}

func TestDiffer(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{1, 100, 1<<20 + 1} {
		x, xs := b.upload(device.Float32, b.normal(n, 1), n)
		y, _ := b.upload(device.Float32, xs, n)
		count, _ := b.upload(device.Int64, []float64{0}, 1)
		b.arena.Launch(ops.Differ(count, x, y))
		xs[n-1]++
		xs[0]--
		z, _ := b.upload(device.Float32, xs, n)
		if got := b.download(count); got[0] != 0 {
			t.Errorf("%d equal words: got %v that differ", n, got[0])
		}
		b.arena.Launch(ops.Differ(count, x, z))
		want := 2.0
		if n == 1 {
			want = 0 // plus one, less one
		}
		if got := b.download(count); got[0] != want {
			t.Errorf("%d words: got %v that differ, want %v", n, got[0], want)
		}
	}
}
