package ops

import (
	"slices"

	"offload/device"
)

// The first parts of the names of kernels that exist for several element types.
// The whole name is that of [Typed]. Package nn/ops/cuda registers them for
// float32 and bfloat16; the simulated device has none of them.
const (
	// ProductName is the name of [AddProduct].
	ProductName = "nn/product"
	// GELUName is the name of [GELU].
	GELUName = "nn/gelu"
	// GELUGradName is the name of [GELUGrad].
	GELUGradName = "nn/gelu-grad"
	// AddBiasName is the name of [AddBias].
	AddBiasName = "nn/add-bias"
	// BiasGradName is the name of [BiasGrad].
	BiasGradName = "nn/bias-grad"
	// CastName is the name of [Cast], with the type of the source.
	CastName = "nn/cast"
	// NoiseName is the name of [Noise].
	NoiseName = "nn/noise"
	// ZeroName is the name of [Zero].
	ZeroName = "nn/zero"
	// DifferName is the name of [Differ], which has no type.
	DifferName = "nn/differ"
)

// Typed returns the name of a kernel for elements of type t, such as
// "nn/gelu/bfloat16".
func Typed(name string, t device.DType) string {
	if known, ok := typedNames[typedName{name, t}]; ok {
		return known
	}
	return name + "/" + t.String()
}

type typedName struct {
	name string
	t    device.DType
}

// typedNames are the names of the kernels there are, so that a launch makes none.
var typedNames = func() map[typedName]string {
	names := make(map[typedName]string)
	for _, n := range []string{ProductName, GELUName, GELUGradName, AddBiasName, BiasGradName, CastName, NoiseName, ZeroName} {
		for _, t := range []device.DType{device.Float32, device.BFloat16} {
			names[typedName{n, t}] = n + "/" + t.String()
		}
	}
	return names
}()

// typed begins the check of a kernel for the type of t, float32 or bfloat16.
func typed(name, role string, t device.Tensor) *checker {
	k := check(Typed(name, t.DType))
	if t.DType != device.BFloat16 {
		k.tensor(role, t, device.Float32)
	} else {
		k.tensor(role, t, device.BFloat16)
	}
	return k
}

// AddProduct writes a·b + c to d, or a·b if c is absent. a is [m k], b is [k n],
// c and d are [m n], all of one type, float32 or bfloat16; sums are float32 and
// are rounded once. c may be d. d shares no bytes with a or b. Accumulate of p is
// not used: give d as c.
//
// Arguments of the kernel: d with the integer m, a with n, b with k, and c (d if
// absent) with the sum of 1 if a is transposed, 2 if b is, and 4 if c is added.
func AddProduct(d, a, b, c device.Tensor, p Product) (device.Kernel, error) {
	k := typed(ProductName, "d", d)
	k.matrix("d", d, d.DType)
	k.matrix("a", a, d.DType)
	k.matrix("b", b, d.DType)
	k.apart("d", d, "a", a)
	k.apart("d", d, "b", b)
	add, reads := !c.IsNil(), []device.Tensor{a, b, c}
	if add {
		k.matrix("c", c, d.DType)
	} else {
		c, reads = d, reads[:2]
	}
	if k.err != nil {
		return device.Kernel{}, k.err
	}
	m, inner := sides(a, p.TransposeA)
	inner2, n := sides(b, p.TransposeB)
	if inner != inner2 {
		k.fail("a is %v and b is %v (transposed: %t, %t): the inner dimensions %d and %d differ",
			a, b, p.TransposeA, p.TransposeB, inner, inner2)
	} else if d.Shape[0] != m || d.Shape[1] != n || c.Shape[0] != m || c.Shape[1] != n {
		k.fail("d is %v and c is %v; the product of %v and %v is [%d %d]", d, c, a, b, m, n)
	} else if c.Range() != d.Range() {
		k.apart("d", d, "c", c)
	}
	flags := flag(p.TransposeA).Int + 2*flag(p.TransposeB).Int + 4*flag(add).Int
	return k.kernel([]device.Arg{{Range: d.Range(), Int: int64(m)}, {Range: a.Range(), Int: int64(n)},
		{Range: b.Range(), Int: int64(inner)}, {Range: c.Range(), Int: flags}}, reads, d)
}

// GELU writes x·Φ(x) to y, where Φ is the distribution function of the standard
// normal distribution. Both are of one type and shape; they may be the same.
//
// Arguments of the kernel: y, x.
func GELU(y, x device.Tensor) (device.Kernel, error) {
	k := typed(GELUName, "y", y)
	k.alike("y", y, "x", x)
	return k.kernel([]device.Arg{ref(y), ref(x)}, []device.Tensor{x}, y)
}

// GELUGrad multiplies grad by the derivative of x·Φ(x) in place. Both are of one
// type and shape.
//
// Arguments of the kernel: grad, x.
func GELUGrad(grad, x device.Tensor) (device.Kernel, error) {
	k := typed(GELUGradName, "grad", grad)
	k.alike("grad", grad, "x", x)
	return k.kernel([]device.Arg{ref(grad), ref(x)}, []device.Tensor{grad, x}, grad)
}

// AddBias adds the vector b [n] to each row of y [m n], of the same type.
//
// Arguments of the kernel: y, b, m, n.
func AddBias(y, b device.Tensor) (device.Kernel, error) {
	return biased(AddBiasName, "y", y, "b", b, false)
}

// BiasGrad adds to b [n] the sum of the rows of grad [m n], of the same type. The
// sum is float32 and is rounded once.
//
// Arguments of the kernel: b, grad, m, n.
func BiasGrad(b, grad device.Tensor) (device.Kernel, error) {
	return biased(BiasGradName, "grad", grad, "b", b, true)
}

func biased(name, role string, matrix device.Tensor, roleB string, b device.Tensor, toB bool) (device.Kernel, error) {
	k := typed(name, role, matrix)
	k.matrix(role, matrix, matrix.DType)
	if k.err != nil {
		return device.Kernel{}, k.err
	}
	m, n := matrix.Shape[0], matrix.Shape[1]
	k.vector(roleB, b, matrix.DType, n)
	k.apart(role, matrix, roleB, b)
	to, from := matrix, b
	if toB {
		to, from = b, matrix
	}
	return k.kernel([]device.Arg{ref(to), ref(from), integer(m), integer(n)}, []device.Tensor{to, from}, to)
}

// Cast writes the elements of from to to, rounded to the nearest, ties to even.
// One is float32 and the other bfloat16, of the same number of elements.
//
// Arguments of the kernel: to, from.
func Cast(to, from device.Tensor) (device.Kernel, error) {
	k := typed(CastName, "from", from)
	other := device.BFloat16
	if from.DType == device.BFloat16 {
		other = device.Float32
	}
	k.tensor("to", to, other)
	k.apart("to", to, "from", from)
	if k.err == nil && to.Elements() != from.Elements() {
		k.fail("to is %v and from is %v; the numbers of elements must be equal", to, from)
	}
	return k.kernel([]device.Arg{ref(to), ref(from)}, []device.Tensor{from}, to)
}

// Noise fills x, float32 or bfloat16, with numbers between -limit and limit. Each
// depends on seed and on its place in x alone.
//
// Arguments of the kernel: x, seed, limit.
func Noise(x device.Tensor, seed int64, limit float32) (device.Kernel, error) {
	k := typed(NoiseName, "x", x)
	return k.kernel([]device.Arg{ref(x), {Int: seed}, float(limit)}, nil, x)
}

// Zero clears x, float32 or bfloat16.
//
// Arguments of the kernel: x.
func Zero(x device.Tensor) (device.Kernel, error) {
	k := typed(ZeroName, "x", x)
	return k.kernel([]device.Arg{ref(x)}, nil, x)
}

// Differ adds to count, an int64 of one element, how many words of 4 bytes
// differ between a and b, which have the same number of bytes, a multiple of 4.
//
// Arguments of the kernel: count, a, b.
func Differ(count, a, b device.Tensor) (device.Kernel, error) {
	k := check(DifferName)
	k.vector("count", count, device.Int64, 1)
	k.tensor("a", a, a.DType)
	k.tensor("b", b, b.DType)
	k.apart("count", count, "a", a)
	k.apart("count", count, "b", b)
	if k.err == nil && (a.Bytes() != b.Bytes() || a.Bytes()%4 != 0) {
		k.fail("a is %v and b is %v; they must have the same number of bytes, a multiple of 4", a, b)
	}
	return k.kernel([]device.Arg{ref(count), ref(a), ref(b)}, []device.Tensor{count, a, b}, count)
}

// alike wants two tensors of one type and shape that are the same bytes or share
// none. The first has been checked.
func (k *checker) alike(role1 string, t1 device.Tensor, role2 string, t2 device.Tensor) {
	k.tensor(role2, t2, t1.DType)
	if k.err != nil {
		return
	}
	if !slices.Equal(t1.Shape, t2.Shape) {
		k.fail("%s is %v and %s is %v; the shapes must be equal", role1, t1, role2, t2)
	} else if t1.Range() != t2.Range() {
		k.apart(role1, t1, role2, t2)
	}
}
