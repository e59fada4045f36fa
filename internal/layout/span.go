package layout

import (
	"slices"

	"offload/device"
)

// Span is the bytes from Lo up to, but not including, Hi.
type Span struct{ Lo, Hi int64 }

// Bytes returns the length of the span.
func (s Span) Bytes() int64 { return s.Hi - s.Lo }

// Total returns the bytes of a set.
func Total(set []Span) int64 {
	n := int64(0)
	for _, s := range set {
		n += s.Bytes()
	}
	return n
}

// Of appends to dst the bytes that t touches, and reports whether they are at
// most limit spans; if not, the result is the one span from the first byte to
// the last. Dimensions with stride zero touch the same bytes again, and
// negative strides run backwards; both are bytes like any other.
func Of(dst []Span, t device.Tensor, limit int) (set []Span, ok bool) {
	first := len(dst)
	size := t.DType.Size()
	if t.Elements() == 0 {
		return dst, true
	}
	lo := t.Offset * size
	if t.Contiguous() {
		return append(dst, Span{lo, lo + t.Bytes()}), true
	}
	type dim struct {
		n      int64
		stride int64 // in bytes, positive
	}
	var dims []dim
	for i, n := range t.Shape {
		stride := int64(t.Strides[i]) * size
		if n == 1 || stride == 0 {
			continue
		}
		if stride < 0 {
			lo += int64(n-1) * stride
			stride = -stride
		}
		dims = append(dims, dim{int64(n), stride})
	}
	slices.SortFunc(dims, func(a, b dim) int { return int(min(max(a.stride-b.stride, -1), 1)) })
	run := size
	for len(dims) > 0 && dims[0].stride <= run { // the innermost runs touch or overlap
		run += (dims[0].n - 1) * dims[0].stride
		dims = dims[1:]
	}
	count, hi := int64(1), lo+run
	for _, d := range dims {
		hi += (d.n - 1) * d.stride
		count *= d.n
	}
	if count > int64(limit) {
		return append(dst, Span{lo, hi}), false
	}
	dst = append(dst, Span{lo, lo + run})
	for _, d := range dims {
		n := len(dst)
		for k := int64(1); k < d.n; k++ {
			for _, s := range dst[first:n] {
				dst = append(dst, Span{s.Lo + k*d.stride, s.Hi + k*d.stride})
			}
		}
	}
	return dst[:first+normalize(dst[first:])], true
}

// Elements returns how many elements of memory t has: a dimension with stride
// zero repeats the same ones.
func Elements(t device.Tensor) int64 {
	n := t.Elements()
	for i, stride := range t.Strides {
		if stride == 0 && t.Shape[i] > 1 {
			n /= int64(t.Shape[i])
		}
	}
	return n
}

// Union appends to dst the bytes that are in a or in b.
func Union(dst, a, b []Span) []Span {
	first := len(dst)
	dst = append(append(dst, a...), b...)
	return dst[:first+normalize(dst[first:])]
}

// normalize turns spans into a set in place and returns its length.
func normalize(spans []Span) int {
	slices.SortFunc(spans, func(a, b Span) int { return int(min(max(a.Lo-b.Lo, -1), 1)) })
	n := 0
	for _, s := range spans {
		switch {
		case s.Lo >= s.Hi:
		case n > 0 && s.Lo <= spans[n-1].Hi:
			spans[n-1].Hi = max(spans[n-1].Hi, s.Hi)
		default:
			spans[n] = s
			n++
		}
	}
	return n
}

// Minus appends to dst the bytes of the set a that are not in the set b.
func Minus(dst, a, b []Span) []Span {
	for _, s := range a {
		for len(b) > 0 && b[0].Hi <= s.Lo {
			b = b[1:]
		}
		rest := b
		for len(rest) > 0 && rest[0].Lo < s.Hi {
			if rest[0].Lo > s.Lo {
				dst = append(dst, Span{s.Lo, rest[0].Lo})
			}
			s.Lo = max(s.Lo, rest[0].Hi)
			rest = rest[1:]
		}
		if s.Lo < s.Hi {
			dst = append(dst, s)
		}
	}
	return dst
}

// Comb is Count spans of equal length, the first of which is Span, each Stride
// bytes behind the one before. Stride is zero for a single span.
type Comb struct {
	Span
	Stride int64
	Count  int64
}

// Bytes returns the bytes of all spans of the comb.
func (c Comb) Bytes() int64 { return c.Span.Bytes() * c.Count }

// Each calls use for every span of the comb, in order.
func (c Comb) Each(use func(Span)) {
	for i := range c.Count {
		use(Span{c.Lo + i*c.Stride, c.Hi + i*c.Stride})
	}
}

// Combs appends to dst the set as combs, in order.
func Combs(dst []Comb, set []Span) []Comb {
	for i := 0; i < len(set); {
		c := Comb{Span: set[i], Count: 1}
		if i+1 < len(set) && set[i+1].Bytes() == c.Span.Bytes() {
			c.Stride = set[i+1].Lo - c.Lo
			for i+int(c.Count) < len(set) {
				next := set[i+int(c.Count)]
				if next.Lo != c.Lo+c.Count*c.Stride || next.Bytes() != c.Span.Bytes() {
					break
				}
				c.Count++
			}
		}
		i += int(c.Count)
		dst = append(dst, c)
	}
	return dst
}
