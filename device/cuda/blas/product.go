package blas

import "offload/device"

// Product says which product is made. All matrices are of one type, float32 or
// bfloat16; sums are made in float32.
type Product struct {
	Type       device.DType
	M, N, K    int  // a is [M K], b is [K N], c and d are [M N]
	TransposeA bool // a is given as [K M]
	TransposeB bool // b is given as [N K]
	Add        bool // c is added; it may be d
}

// Operands are the addresses of the matrices of a product. C is that of D if
// nothing is added.
type Operands struct{ A, B, C, D uintptr }

// alignment returns the largest power of two up to 256 that divides all addresses.
func (o Operands) alignment() uint32 {
	all := o.A | o.B | o.C | o.D | 256
	return uint32(all & -all)
}
