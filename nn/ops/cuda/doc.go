// Package cuda runs the kernels of package nn/ops on an NVIDIA GPU: products by
// cuBLAS, everything else by the code in kernels.cu, whose PTX is part of the
// program. The driver compiles it for the GPU that is there.
//
// Only the build tag cuda has code. Without it [Register] returns an error that
// wraps errors.ErrUnsupported.
//
//	d, err := cuda.Open(0, cuda.Options{})
//	k, err := kernels.Register(d) // package nn/ops/cuda
//	...
//	err = k.Close()
//	err = d.Close()
//
// # Same bits
//
// A kernel's result depends on its operands and the GPU alone, as package blas
// says for products; sums of other kernels have a fixed order. It is not bit for
// bit that of another device: products add up in another order.
//
// # Labels
//
// A label that is no class makes the loss of its batch NaN: a kernel cannot
// return an error.
//
// # Concurrency and ownership
//
// The kernels belong to one device, which calls them one at a time. Close them
// before the device, when no work is under way.
package cuda
