package sim_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"offload/device"
	"offload/device/sim"
	"offload/nn/ops"
	opssim "offload/nn/ops/sim"
)

// lab is a simulated device with an arena for one test.
type lab struct {
	*testing.T
	rng    *rand.Rand
	dev    *sim.Device
	arena  *ops.Arena
	scope  *ops.Scope
	stream device.Stream
}

// newLab opens a device with fresh random data. When the test ends, nothing
// may be left on the device and the checker must have found nothing.
func newLab(t *testing.T) *lab {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &lab{T: t, rng: rand.New(rand.NewPCG(seed, 0)), dev: sim.New(sim.Config{Seed: seed})}
	opssim.Register(l.dev)
	ids := device.NewIDs(l.dev)
	l.stream = ids.Stream()
	l.submit(device.Op{Kind: device.OpenStream, Stream: l.stream})
	l.arena = ops.NewArena(l.dev, l.stream)
	l.scope = l.arena.Scope()
	t.Cleanup(func() {
		l.must(l.arena.Close())
		l.submit(device.Op{Kind: device.CloseStream, Stream: l.stream})
		for _, f := range l.dev.Leaks() {
			t.Errorf("left on the device: %v", f)
		}
		l.must(l.dev.Close())
		for _, f := range l.dev.Findings() {
			t.Error(f)
		}
	})
	return l
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) submit(o ...device.Op) {
	l.Helper()
	l.must(l.dev.Submit(&device.Batch{Origin: device.Origin{Action: "test"}, Ops: o}))
}

// normal returns n random numbers, some of them zero.
func (l *lab) normal(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		if l.rng.IntN(8) > 0 {
			x[i] = float32(l.rng.NormFloat64())
		}
	}
	return x
}

// up uploads values as a tensor that is a view within a larger storage.
func (l *lab) up(values []float32, shape ...int) device.Tensor {
	l.Helper()
	offset := int64(l.rng.IntN(3)) * 64
	t := l.scope.Alloc("operand", device.Activation, device.Float32, len(values)+int(offset))
	h, err := l.arena.Pin("operand", t.Bytes())
	l.must(err)
	clear(h.Bytes())
	for i, x := range values {
		binary.NativeEndian.PutUint32(h.Bytes()[4*(int(offset)+i):], math.Float32bits(x))
	}
	h.CopyIn(t, 0)
	l.must(l.arena.Flush(device.Origin{Action: "up"}))
	l.must(l.arena.Sync())
	l.must(h.Close())
	return device.Tensor{Storage: t.Storage, DType: device.Float32, Shape: shape, Offset: offset}
}

// labels uploads int32 values.
func (l *lab) labels(values []int32) device.Tensor {
	l.Helper()
	f := make([]float32, len(values))
	for i, x := range values {
		f[i] = math.Float32frombits(uint32(x))
	}
	t := l.up(f, len(values))
	t.DType = device.Int32
	return t
}

// down runs what is queued and reads a tensor back.
func (l *lab) down(t device.Tensor) []float32 {
	l.Helper()
	h, err := l.arena.Pin("result", t.Bytes())
	l.must(err)
	h.CopyOut(0, t)
	l.must(l.arena.Flush(device.Origin{Action: "down"}))
	l.must(l.arena.Sync())
	b, err := h.Read(0, t.Bytes())
	l.must(err)
	x := make([]float32, t.Elements())
	for i := range x {
		x[i] = math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:]))
	}
	l.must(h.Close())
	return x
}

// near fails unless got is within tolerance of want, relative to scale.
func (l *lab) near(what string, got []float32, want []float64, tolerance float64) {
	l.Helper()
	if len(got) != len(want) {
		l.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= tolerance*(1+math.Abs(want[i]))) {
			l.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func TestMatMul(t *testing.T) {
	sizes := [][3]int{{1, 1, 1}, {3, 5, 7}, {16, 192, 4}, {17, 193, 33}, {130, 10, 70}, {40, 400, 1}}
	for _, size := range sizes {
		for bits := range 8 {
			p := ops.Product{TransposeA: bits&1 != 0, TransposeB: bits&2 != 0, Accumulate: bits&4 != 0}
			m, n, k := size[0], size[1], size[2]
			t.Run(fmt.Sprintf("%dx%dx%d %+v", m, n, k, p), func(t *testing.T) {
				l := newLab(t)
				av, bv, cv := l.normal(m*k), l.normal(k*n), l.normal(m*n)
				want := make([]float64, m*n)
				for i := range m {
					for j := range n {
						sum := 0.0
						for x := range k {
							a, b := av[i*k+x], bv[x*n+j]
							if p.TransposeA {
								a = av[x*m+i]
							}
							if p.TransposeB {
								b = bv[j*k+x]
							}
							sum += float64(a) * float64(b)
						}
						if p.Accumulate {
							sum += float64(cv[i*n+j])
						}
						want[i*n+j] = sum
					}
				}
				shapeA, shapeB := []int{m, k}, []int{k, n}
				if p.TransposeA {
					slices.Reverse(shapeA)
				}
				if p.TransposeB {
					slices.Reverse(shapeB)
				}
				a, b, c := l.up(av, shapeA...), l.up(bv, shapeB...), l.up(cv, m, n)
				l.arena.Launch(ops.MatMul(c, a, b, p))
				l.near("product", l.down(c), want, 1e-5*math.Sqrt(float64(k)))
			})
		}
	}
}

func TestSquaredReLU(t *testing.T) {
	l := newLab(t)
	x := l.normal(1000)
	value, grad := make([]float64, len(x)), make([]float64, len(x))
	g := l.normal(len(x))
	for i, v := range wide(x) {
		value[i] = math.Pow(max(v, 0), 2)
		grad[i] = float64(g[i]) * 2 * max(v, 0)
	}
	tx, ty, tg := l.up(x, 20, 50), l.scope.Alloc("y", device.Activation, device.Float32, 20, 50), l.up(g, 20, 50)
	l.arena.Launch(ops.SquaredReLU(ty, tx))
	l.arena.Launch(ops.SquaredReLUGrad(tg, tx))
	l.near("value", l.down(ty), value, 1e-6)
	l.near("gradient", l.down(tg), grad, 1e-6)
	l.near("operand", l.down(tx), wide(x), 0)
	l.arena.Launch(ops.SquaredReLU(tx, tx))
	l.near("value in place", l.down(tx), value, 1e-6)
}

func TestAddScaledAndFill(t *testing.T) {
	l := newLab(t)
	x, y := l.normal(777), l.normal(777)
	want := wide(y)
	for i, v := range x {
		want[i] -= 0.75 * float64(v)
	}
	tx, ty := l.up(x, 777), l.up(y, 777)
	l.arena.Launch(ops.AddScaled(ty, tx, -0.75))
	l.near("sum", l.down(ty), want, 1e-6)
	l.arena.Launch(ops.Fill(ty, 1.5))
	for i := range want {
		want[i] = 1.5
	}
	l.near("filled", l.down(ty), want, 0)
}

func TestCrossEntropy(t *testing.T) {
	const n, classes, scale = 50, 7, 0.125
	for _, inPlace := range []bool{false, true} {
		t.Run(fmt.Sprintf("in place %t", inPlace), func(t *testing.T) {
			l := newLab(t)
			x := l.normal(n * classes)
			for i := range x {
				x[i] *= 30 // exp of it overflows float32
			}
			labels := make([]int32, n)
			var loss, hits float64
			grad := make([]float64, len(x))
			for i := range labels {
				labels[i] = int32(l.rng.IntN(classes))
				row := wide(x[i*classes : (i+1)*classes])
				total := 0.0
				for _, v := range row {
					total += math.Exp(v)
				}
				for j, v := range row {
					grad[i*classes+j] = scale * math.Exp(v) / total
				}
				loss += math.Log(total) - row[labels[i]]
				grad[i*classes+int(labels[i])] -= scale
				if slices.Index(row, slices.Max(row)) == int(labels[i]) {
					hits++
				}
			}
			tx, tl := l.up(x, n, classes), l.labels(labels)
			tr, tg := l.scope.Alloc("result", device.Workspace, device.Float32, 2), tx
			if !inPlace {
				tg = l.scope.Alloc("grad", device.Activation, device.Float32, n, classes)
			}
			l.arena.Launch(ops.CrossEntropy(tr, device.Tensor{}, tx, tl, 0))
			l.near("result without gradient", l.down(tr), []float64{loss, hits}, 1e-5)
			l.near("logits", l.down(tx), wide(x), 0)
			l.arena.Launch(ops.CrossEntropy(tr, tg, tx, tl, scale))
			l.near("result", l.down(tr), []float64{loss, hits}, 1e-5)
			l.near("gradient", l.down(tg), grad, 1e-6)
		})
	}
}

func TestSGD(t *testing.T) {
	const n, rate = 5000, 0.3
	for _, row := range []struct {
		name string
		clip float32
	}{
		{"norm above the clip", 0.5}, {"norm below the clip", 1e6}, {"no clip", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLab(t)
			w, g := l.normal(n), l.normal(n)
			sum := 0.0
			for _, v := range wide(g) {
				sum += v * v
			}
			step := float64(rate)
			if row.clip > 0 && math.Sqrt(sum) > float64(row.clip) {
				step *= float64(row.clip) / math.Sqrt(sum)
			}
			want := wide(w)
			for i, v := range wide(g) {
				want[i] -= step * v
			}
			tw, tg := l.up(w, n), l.up(g, n)
			ts := l.scope.Alloc("sum", device.Workspace, device.Float32, 1)
			l.arena.Launch(ops.SumSquares(ts, tg))
			l.arena.Launch(ops.SGD(tw, tg, ts, rate, row.clip))
			l.near("sum of squares", l.down(ts), []float64{sum}, 1e-6)
			l.near("weights", l.down(tw), want, 1e-6)
		})
	}
}
