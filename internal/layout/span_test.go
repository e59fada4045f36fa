package layout_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offload/device"
	"offload/internal/layout"
)

func storage(bytes int64) *device.Storage {
	return device.NewStorage("s", device.Activation, device.Buffer{Device: 1, Place: device.OnDevice}, bytes, device.Stream{Device: 1})
}

func TestOf(t *testing.T) {
	st := storage(1 << 20)
	tests := map[string]struct {
		tensor device.Tensor
		want   []layout.Span
	}{
		"contiguous slice": {
			device.Tensor{Shape: []int{2, 3}, Offset: 5}, []layout.Span{{20, 44}},
		},
		"columns of a matrix": {
			device.Tensor{Shape: []int{3, 2}, Strides: []int{4, 1}, Offset: 1}, []layout.Span{{4, 12}, {20, 28}, {36, 44}},
		},
		"channels last is dense": {
			device.Tensor{Shape: []int{2, 3, 4, 5}, Strides: []int{60, 1, 15, 3}}, []layout.Span{{0, 480}},
		},
		"expanded dimension touches the base once": {
			device.Tensor{Shape: []int{1000, 4}, Strides: []int{0, 1}}, []layout.Span{{0, 16}},
		},
		"negative stride runs backwards": {
			device.Tensor{Shape: []int{4}, Strides: []int{-1}, Offset: 3}, []layout.Span{{0, 16}},
		},
		"overlapping windows": {
			device.Tensor{Shape: []int{3, 4}, Strides: []int{2, 1}}, []layout.Span{{0, 32}},
		},
		"no elements": {
			device.Tensor{Shape: []int{0, 4}, Strides: []int{4, 1}}, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.tensor.Storage, test.tensor.DType = st, device.Float32
			got, ok := layout.Of(nil, test.tensor, 100)
			if !ok || !slices.Equal(got, test.want) {
				t.Errorf("got %v %v, want %v true", got, ok, test.want)
			}
		})
	}
	every := device.Tensor{Storage: st, DType: device.Float32, Shape: []int{1000}, Strides: []int{2}}
	if got, ok := layout.Of(nil, every, 999); ok || !slices.Equal(got, []layout.Span{{0, 7996}}) {
		t.Errorf("above the limit: got %v %v, want the one span 0 to 7996, false", got, ok)
	}
}

// TestAgainstBytes compares the set operations with a map of bytes.
func TestAgainstBytes(t *testing.T) {
	const size = 96
	draw := func(t *rapid.T, name string) device.Tensor {
		n := rapid.IntRange(0, 3).Draw(t, name+" dimensions")
		x := device.Tensor{Storage: storage(1 << 20), DType: device.Uint8, Offset: int64(rapid.IntRange(40, 50).Draw(t, name+" offset"))}
		for range n {
			x.Shape = append(x.Shape, rapid.IntRange(0, 4).Draw(t, name+" size"))
			x.Strides = append(x.Strides, rapid.IntRange(-4, 4).Draw(t, name+" stride"))
		}
		return x
	}
	touched := func(x device.Tensor) (set [size]bool) {
		var walk func(dim int, at int64)
		walk = func(dim int, at int64) {
			if dim == len(x.Shape) {
				set[at] = true
				return
			}
			for i := range x.Shape[dim] {
				walk(dim+1, at+int64(i*x.Strides[dim]))
			}
		}
		walk(0, x.Offset)
		return set
	}
	bytes := func(t *rapid.T, spans []layout.Span) (set [size]bool) {
		for i, s := range spans {
			if s.Lo >= s.Hi || i > 0 && s.Lo <= spans[i-1].Hi {
				t.Fatalf("%v is not a set", spans)
			}
			for b := s.Lo; b < s.Hi; b++ {
				set[b] = true
			}
		}
		return set
	}
	rapid.Check(t, func(t *rapid.T) {
		x, y := draw(t, "x"), draw(t, "y")
		a, _ := layout.Of(nil, x, size)
		b, _ := layout.Of(nil, y, size)
		wantA, wantB := touched(x), touched(y)
		if got := bytes(t, a); got != wantA {
			t.Fatalf("%v strides %v offset %d: got %v", x.Shape, x.Strides, x.Offset, a)
		}
		union, minus := bytes(t, layout.Union(nil, a, b)), bytes(t, layout.Minus(nil, a, b))
		for i := range size {
			if union[i] != (wantA[i] || wantB[i]) || minus[i] != (wantA[i] && !wantB[i]) {
				t.Fatalf("byte %d of %v and %v: union %v, minus %v", i, a, b, union[i], minus[i])
			}
		}
		var combed []layout.Span
		for _, c := range layout.Combs(nil, a) {
			for k := range c.Count {
				combed = append(combed, layout.Span{Lo: c.Lo + k*c.Stride, Hi: c.Hi + k*c.Stride})
			}
		}
		if !slices.Equal(combed, a) {
			t.Fatalf("combs of %v give %v", a, combed)
		}
	})
}
