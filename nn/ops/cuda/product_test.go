//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"offload/device"
	"offload/nn/ops"
)

// multiply returns a·b + c in float64.
func multiply(a, b, c []float64, m, n, k int, p ops.Product) []float64 {
	d := make([]float64, m*n)
	copy(d, c)
	for i := range m {
		for l := range k {
			x := 0.0
			if p.TransposeA {
				x = a[l*m+i]
			} else {
				x = a[i*k+l]
			}
			for j := range n {
				if p.TransposeB {
					d[i*n+j] += x * b[j*k+l]
				} else {
					d[i*n+j] += x * b[l*n+j]
				}
			}
		}
	}
	return d
}

func TestProducts(t *testing.T) {
	b := newBench(t)
	for _, s := range [][3]int{{1, 1, 1}, {64, 96, 80}, {100, 10, 784}, {33, 17, 9}, {256, 512, 128}} {
		m, n, k := s[0], s[1], s[2]
		for _, typ := range types {
			limit := 1e-5
			if typ == device.BFloat16 {
				limit = 5e-3
			}
			for bits := range 4 {
				p := ops.Product{TransposeA: bits&1 != 0, TransposeB: bits&2 != 0}
				name := fmt.Sprintf("[%d %d %d] %v %+v", m, n, k, typ, p)
				shape := func(rows, columns int, t bool) []int {
					if t {
						return []int{columns, rows}
					}
					return []int{rows, columns}
				}
				x, xs := b.upload(typ, b.normal(m*k, 1), shape(m, k, p.TransposeA)...)
				w, ws := b.upload(typ, b.normal(k*n, 1), shape(k, n, p.TransposeB)...)
				c, cs := b.upload(typ, b.normal(m*n, 1), m, n)
				d, _ := b.upload(typ, poison(m*n), m, n)
				b.arena.Launch(ops.AddProduct(d, x, w, device.Tensor{}, p))
				b.near(name, b.download(d), multiply(xs, ws, nil, m, n, k, p), limit)
				want := multiply(xs, ws, cs, m, n, k, p)
				b.arena.Launch(ops.AddProduct(d, x, w, c, p))
				first := b.download(d)
				b.near(name+" and c", first, want, limit)
				b.arena.Launch(ops.AddProduct(c, x, w, c, p))
				b.near(name+" in place", b.download(c), want, limit)

				// Other memory, the same bits.
				c2, _ := b.upload(typ, cs, m, n)
				x2, _ := b.upload(typ, xs, x.Shape...)
				d2, _ := b.upload(typ, poison(m*n), m, n)
				b.arena.Launch(ops.AddProduct(d2, x2, w, c2, p))
				if !slices.Equal(b.download(d2), first) {
					t.Errorf("%s: other bits in other memory", name)
				}
				if typ == device.Float32 {
					b.arena.Launch(ops.MatMul(d, x, w, p))
					b.near(name+" by MatMul", b.download(d), multiply(xs, ws, nil, m, n, k, p), limit)
					p.Accumulate = true
					b.arena.Launch(ops.MatMul(d2, x, w, p))
					b.near(name+" by MatMul, accumulated", b.download(d2), multiply(xs, ws, first, m, n, k, p), limit)
				}
				b.scope.Free(x, w, c, d, c2, x2, d2)
			}
		}
	}
}

// TestUnaligned multiplies matrices that begin in the middle of a buffer.
func TestUnaligned(t *testing.T) {
	b := newBench(t)
	const n = 32
	for _, typ := range types {
		for _, off := range []int64{1, 4, 8} {
			all, values := b.upload(typ, b.normal(n*n+8, 1), n*n+8)
			x := device.Tensor{Storage: all.Storage, DType: typ, Shape: []int{n, n}, Offset: off}
			d, _ := b.upload(typ, poison(n*n), n, n)
			b.arena.Launch(ops.AddProduct(d, x, x, device.Tensor{}, ops.Product{}))
			xs := values[off : off+n*n]
			b.near(fmt.Sprintf("%v from element %d on", typ, off), b.download(d), multiply(xs, xs, nil, n, n, n, ops.Product{}), 5e-3)
		}
	}
}
