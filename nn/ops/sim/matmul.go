package sim

import (
	"runtime"
	"sync"
	"sync/atomic"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// A product is cut into panels of c that gonum multiplies on one processor:
// from four blocks of 64x64 on, it would hand out the blocks by itself, with
// rows so short that the loop around them costs as much as the arithmetic.
const (
	panelRows    = 16
	panelColumns = 192
	// gap lies between the rows of a transposed panel: without it rows whose
	// length is a power of two would fall on the same few lines of the cache.
	gap = 16
)

// product is c = a·b, or c += a·b; a is [m k], b is [k n], row-major without gaps.
type product struct {
	c, a, b                []float32
	m, n, k                int
	transposeA, transposeB bool // a is given as [k m], b as [n k]
	accumulate             bool
}

// run makes the product. Transposed operands are copied first: gonum's plain
// product is several times faster than the transposed-left one, and it adds up
// in an order that does not depend on addresses.
func (p product) run() {
	if p.transposeB {
		b := scratch(p.k * p.n)
		defer recycle(b)
		transpose(*b, p.n, p.b, p.n, p.k, 0, p.k)
		p.b = *b
	}
	panels := (p.m + panelRows - 1) / panelRows
	var next atomic.Int64
	work := func() {
		var rows []float32
		if p.transposeA {
			s := scratch(panelRows * (p.k + gap))
			defer recycle(s)
			rows = *s
		}
		for i := int(next.Add(1)) - 1; i < panels; i = int(next.Add(1)) - 1 {
			p.panel(i*panelRows, min((i+1)*panelRows, p.m), rows)
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), panels) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// panel makes the rows lo to hi of c. rows is memory for the transposed rows of a.
func (p product) panel(lo, hi int, rows []float32) {
	a, stride := p.a[lo*p.k:hi*p.k], p.k
	if p.transposeA {
		a, stride = rows, p.k+gap
		transpose(a, stride, p.a, p.k, p.m, lo, hi)
	}
	beta := float32(0)
	if p.accumulate {
		beta = 1
	}
	for j := 0; j < p.n; j += panelColumns {
		n := min(panelColumns, p.n-j)
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, hi-lo, n, p.k,
			1, a, stride, p.b[j:], p.n, beta, p.c[lo*p.n+j:hi*p.n], p.n)
	}
}

// transpose writes the columns lo to hi of src [rows columns] to dst as rows
// that start stride elements apart.
func transpose(dst []float32, stride int, src []float32, rows, columns, lo, hi int) {
	j := lo
	for ; j+4 <= hi; j += 4 { // four at a time: src is read from memory less often
		at := (j - lo) * stride
		d0, d1, d2, d3 := dst[at:][:rows], dst[at+stride:][:rows], dst[at+2*stride:][:rows], dst[at+3*stride:][:rows]
		for i := range rows {
			s := src[i*columns+j:][:4]
			d0[i], d1[i], d2[i], d3[i] = s[0], s[1], s[2], s[3]
		}
	}
	for ; j < hi; j++ {
		d := dst[(j-lo)*stride:][:rows]
		for i := range d {
			d[i] = src[i*columns+j]
		}
	}
}

var pool sync.Pool // of *[]float32

// scratch returns n floats of any content; recycle takes them back.
func scratch(n int) *[]float32 {
	s, _ := pool.Get().(*[]float32)
	if s == nil || cap(*s) < n {
		s = new([]float32)
		*s = make([]float32, n)
	}
	*s = (*s)[:n]
	return s
}

func recycle(s *[]float32) { pool.Put(s) }
