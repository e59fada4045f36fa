package sim

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// TestProductBits holds what the package comment promises: the bits depend
// neither on the addresses of the operands nor on the number of processors.
func TestProductBits(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const m, n, k = 67, 201, 129
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	a, b, c := random(m*k), random(k*n), random(m*n)
	// at returns a copy of x that starts off floats behind some address.
	at := func(x []float32, off int) []float32 {
		return append(make([]float32, off, off+len(x)), x...)[off:]
	}
	for bits := range 8 {
		var want []float32
		for _, processors := range []int{1, 2, 5} {
			for off := range 4 {
				p := product{c: at(c, off), a: at(a, (off+1)%4), b: at(b, (off+2)%4), m: m, n: n, k: k,
					transposeA: bits&1 != 0, transposeB: bits&2 != 0, accumulate: bits&4 != 0}
				before := runtime.GOMAXPROCS(processors)
				p.run()
				runtime.GOMAXPROCS(before)
				if want == nil {
					want = p.c
				} else if !slices.Equal(p.c, want) {
					t.Fatalf("flags %03b: %d processors, %d floats off: other bits", bits, processors, off)
				}
			}
		}
	}
}

func TestTranspose(t *testing.T) {
	const rows, columns = 37, 50
	src := make([]float32, rows*columns)
	for i := range src {
		src[i] = float32(i)
	}
	for _, r := range [][2]int{{0, columns}, {0, 1}, {7, 43}} {
		lo, hi := r[0], r[1]
		dst := make([]float32, (hi-lo)*(rows+3))
		transpose(dst, rows+3, src, rows, columns, lo, hi)
		for j := lo; j < hi; j++ {
			for i := range rows {
				if got, want := dst[(j-lo)*(rows+3)+i], src[i*columns+j]; got != want {
					t.Fatalf("columns %d to %d: [%d %d] is %v, want %v", lo, hi, j, i, got, want)
				}
			}
		}
	}
}

func TestCrossEntropyRefusesLabels(t *testing.T) {
	logits := []float32{1, 2, 3, 4}
	for _, label := range []int32{-1, 2, math.MaxInt32} {
		if _, _, err := crossEntropy(nil, logits, []int32{0, label}, 2, 1); err == nil {
			t.Errorf("label %d of 2 classes: no error", label)
		}
	}
}

func TestCrossEntropyTies(t *testing.T) {
	for label, want := range []float32{1, 0} {
		_, hits, err := crossEntropy(nil, []float32{5, 5}, []int32{int32(label)}, 2, 1)
		if err != nil || hits != want {
			t.Errorf("equal logits, label %d: %v hits, %v; want %v: the first of equals counts", label, hits, err, want)
		}
	}
}

func BenchmarkProduct(b *testing.B) {
	for _, row := range []struct {
		name    string
		m, n, k int
		ta, tb  bool
	}{
		{"forward", 2048, 128, 128, false, false},
		{"input gradient", 2048, 128, 128, false, true},
		{"weight gradient", 128, 128, 2048, true, false},
	} {
		b.Run(row.name, func(b *testing.B) {
			random := func(n int) []float32 {
				x := make([]float32, n)
				for i := range x {
					x[i] = rand.Float32()
				}
				return x
			}
			p := product{c: make([]float32, row.m*row.n), a: random(row.m * row.k), b: random(row.k * row.n),
				m: row.m, n: row.n, k: row.k, transposeA: row.ta, transposeB: row.tb}
			for b.Loop() {
				p.run()
			}
			flops := 2 * float64(row.m) * float64(row.n) * float64(row.k)
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
