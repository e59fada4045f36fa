package device

import "fmt"

// DType is the type of a tensor's elements.
type DType uint8

const (
	// Invalid is the type of the zero Tensor.
	Invalid DType = iota
	// Float32 is IEEE 754 binary32.
	Float32
	// Float64 is IEEE 754 binary64.
	Float64
	// Float16 is IEEE 754 binary16.
	Float16
	// BFloat16 is the upper half of a binary32.
	BFloat16
	// Float8E4M3 is the 8-bit format with 4 exponent and 3 mantissa bits (OCP FP8).
	Float8E4M3
	// Float8E5M2 is the 8-bit format with 5 exponent and 2 mantissa bits (OCP FP8).
	Float8E5M2
	// Scale8E0M0 is the 8-bit power-of-two block scale (OCP MX).
	Scale8E0M0
	// Int8 is a signed byte.
	Int8
	// Uint8 is a byte.
	Uint8
	// Int32 is a 32-bit signed integer.
	Int32
	// Int64 is a 64-bit signed integer.
	Int64
	// Bool is a byte that is 0 or 1.
	Bool

	dtypes = int(Bool) + 1
)

var (
	dtypeNames = [dtypes]string{"invalid", "float32", "float64", "float16", "bfloat16", "float8e4m3", "float8e5m2",
		"scale8e0m0", "int8", "uint8", "int32", "int64", "bool"}
	dtypeSizes = [dtypes]int64{0, 4, 8, 2, 2, 1, 1, 1, 1, 1, 4, 8, 1}
)

// Size returns the bytes of one element.
func (t DType) Size() int64 {
	if int(t) < dtypes {
		return dtypeSizes[t]
	}
	return 0
}

// String returns a name such as "bfloat16".
func (t DType) String() string {
	if int(t) < dtypes {
		return dtypeNames[t]
	}
	return fmt.Sprintf("dtype(%d)", t)
}
