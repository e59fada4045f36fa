package ops

import (
	"offload/device"
)

// The names under which the kernels are registered with a device.
const (
	// MatMulName is the name of [MatMul].
	MatMulName = "nn/matmul"
	// SquaredReLUName is the name of [SquaredReLU].
	SquaredReLUName = "nn/squared-relu"
	// SquaredReLUGradName is the name of [SquaredReLUGrad].
	SquaredReLUGradName = "nn/squared-relu-grad"
	// AddScaledName is the name of [AddScaled].
	AddScaledName = "nn/add-scaled"
	// FillName is the name of [Fill].
	FillName = "nn/fill"
	// CrossEntropyName is the name of [CrossEntropy].
	CrossEntropyName = "nn/cross-entropy"
	// SumSquaresName is the name of [SumSquares].
	SumSquaresName = "nn/sum-squares"
	// SGDName is the name of [SGD].
	SGDName = "nn/sgd"
)

// Product says which product [MatMul] makes. The zero value is c = a·b.
type Product struct {
	TransposeA bool // a is used transposed: it is given as [k m]
	TransposeB bool // b is used transposed: it is given as [n k]
	Accumulate bool // c = c + a·b instead of c = a·b
}

// MatMul writes the product of a [m k] and b [k n] to c [m n], all float32.
// c shares no bytes with a or b.
//
// Arguments of the kernel: c, a, b, m, n, k, and three flags that are 0 or 1:
// transpose a, transpose b, accumulate.
func MatMul(c, a, b device.Tensor, p Product) (device.Kernel, error) {
	k := check(MatMulName)
	k.matrix("c", c, device.Float32)
	k.matrix("a", a, device.Float32)
	k.matrix("b", b, device.Float32)
	k.apart("c", c, "a", a)
	k.apart("c", c, "b", b)
	if k.err != nil {
		return device.Kernel{}, k.err
	}
	m, inner := sides(a, p.TransposeA)
	inner2, n := sides(b, p.TransposeB)
	if inner != inner2 {
		k.fail("a is %v and b is %v (transposed: %t, %t): the inner dimensions %d and %d differ",
			a, b, p.TransposeA, p.TransposeB, inner, inner2)
	} else if c.Shape[0] != m || c.Shape[1] != n {
		k.fail("c is %v; the product of %v and %v is [%d %d]", c, a, b, m, n)
	}
	reads := []device.Tensor{a, b}
	if p.Accumulate {
		reads = append(reads, c)
	}
	return k.kernel(
		[]device.Arg{ref(c), ref(a), ref(b), integer(m), integer(n), integer(inner),
			flag(p.TransposeA), flag(p.TransposeB), flag(p.Accumulate)},
		reads, c)
}

// SquaredReLU writes max(x, 0)² to y. Both are float32 of the same shape; they
// may be the same tensor.
//
// Arguments of the kernel: y, x.
func SquaredReLU(y, x device.Tensor) (device.Kernel, error) {
	k := check(SquaredReLUName)
	k.same("y", y, "x", x)
	return k.kernel([]device.Arg{ref(y), ref(x)}, []device.Tensor{x}, y)
}

// SquaredReLUGrad multiplies grad, the gradient of max(x, 0)², by 2·max(x, 0)
// in place, which makes it the gradient of x. Both are float32 of the same shape.
//
// Arguments of the kernel: grad, x.
func SquaredReLUGrad(grad, x device.Tensor) (device.Kernel, error) {
	k := check(SquaredReLUGradName)
	k.same("grad", grad, "x", x)
	return k.kernel([]device.Arg{ref(grad), ref(x)}, []device.Tensor{grad, x}, grad)
}

// AddScaled adds scale·x to y. Both are float32 of the same shape. It is the
// residual connection of a block, with scale 1.
//
// Arguments of the kernel: y, x, scale.
func AddScaled(y, x device.Tensor, scale float32) (device.Kernel, error) {
	k := check(AddScaledName)
	k.same("y", y, "x", x)
	return k.kernel([]device.Arg{ref(y), ref(x), float(scale)}, []device.Tensor{y, x}, y)
}

// Fill writes value to every element of the float32 tensor x.
//
// Arguments of the kernel: x, value.
func Fill(x device.Tensor, value float32) (device.Kernel, error) {
	k := check(FillName)
	k.tensor("x", x, device.Float32)
	return k.kernel([]device.Arg{ref(x), float(value)}, nil, x)
}

// CrossEntropy applies softmax to each row of logits [n classes] and compares
// it with labels [n]. It writes to result [2] the sum over the rows of
// -log(probability of the label), and the number of rows whose largest logit
// (the first one of equals) is at the label.
//
// If grad, of the shape of logits, is not absent, it gets scale times the
// gradient of the sum with respect to the logits. It may be the same tensor as
// logits. Labels are int32 and lie in [0, classes), the rest is float32; an
// implementation reports a label outside as an error, or where a kernel cannot
// return one, as a sum that is NaN.
//
// Arguments of the kernel: result, grad (the zero range if absent), logits,
// labels, n, classes, scale.
func CrossEntropy(result, grad, logits, labels device.Tensor, scale float32) (device.Kernel, error) {
	k := check(CrossEntropyName)
	k.vector("result", result, device.Float32, 2)
	k.matrix("logits", logits, device.Float32)
	if k.err != nil {
		return device.Kernel{}, k.err
	}
	k.vector("labels", labels, device.Int32, logits.Shape[0])
	k.apart("result", result, "logits", logits)
	writes := []device.Tensor{result}
	arg := device.Arg{}
	if !grad.IsNil() {
		k.same("grad", grad, "logits", logits)
		k.apart("result", result, "grad", grad)
		writes = append(writes, grad)
		arg = ref(grad)
	}
	return k.kernel(
		[]device.Arg{ref(result), arg, ref(logits), ref(labels), integer(logits.Shape[0]), integer(logits.Shape[1]), float(scale)},
		[]device.Tensor{logits, labels}, writes...)
}

// SumSquares writes the sum of the squares of x to sum, a float32 of one
// element. The sum is made in float64, in an order that depends on the number of
// elements alone.
//
// Arguments of the kernel: sum, x.
func SumSquares(sum, x device.Tensor) (device.Kernel, error) {
	k := check(SumSquaresName)
	k.vector("sum", sum, device.Float32, 1)
	k.tensor("x", x, device.Float32)
	k.apart("sum", sum, "x", x)
	return k.kernel([]device.Arg{ref(sum), ref(x)}, []device.Tensor{x}, sum)
}

// SGD moves w against its gradient: w -= rate·s·grad, where s = clip/norm if
// the norm exceeds clip and 1 otherwise. sum holds the square of the norm, as
// [SumSquares] makes it over all gradients. No host synchronisation is needed
// between the two. A clip of 0 means that nothing is clipped.
//
// Arguments of the kernel: w, grad, sum, rate, clip.
func SGD(w, grad, sum device.Tensor, rate, clip float32) (device.Kernel, error) {
	k := check(SGDName)
	k.same("w", w, "grad", grad)
	k.vector("sum", sum, device.Float32, 1)
	k.apart("w", w, "grad", grad)
	k.apart("w", w, "sum", sum)
	if k.err == nil && !(rate >= 0 && clip >= 0) {
		k.fail("rate %v and clip %v must not be negative", rate, clip)
	}
	return k.kernel([]device.Arg{ref(w), ref(grad), ref(sum), float(rate), float(clip)},
		[]device.Tensor{w, grad, sum}, w)
}

// sides returns the number of rows and columns of t as it is used.
func sides(t device.Tensor, transposed bool) (rows, columns int) {
	if transposed {
		return t.Shape[1], t.Shape[0]
	}
	return t.Shape[0], t.Shape[1]
}

func ref(t device.Tensor) device.Arg {
	if t.IsNil() {
		return device.Arg{} // a missing operand; the checks report it
	}
	return device.Arg{Range: t.Range()}
}

func integer(n int) device.Arg   { return device.Arg{Int: int64(n)} }
func float(x float32) device.Arg { return device.Arg{Float: float64(x)} }

func flag(b bool) device.Arg {
	if b {
		return device.Arg{Int: 1}
	}
	return device.Arg{}
}
