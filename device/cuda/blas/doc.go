// Package blas multiplies matrices on an NVIDIA GPU with cuBLAS.
//
// The library is looked for when a [Multiplier] is opened, by its name alone
// (libcublasLt.so.13, else .so.12), so that a program is built and started
// without it. Only the build tag cuda has code; without it [Open] returns an
// error that wraps errors.ErrUnsupported.
//
// # Terms
//
// A [Product] is d = a·b, or a·b + c, for row-major matrices without gaps. It is
// a comparable value: for each one the library is asked once for an algorithm,
// which then stays. A product costs the host one call after that.
//
// # Same bits
//
// The result of a product depends on its operands alone as long as they are
// aligned alike: the algorithm is fixed, each stream has a workspace of fixed
// size to itself, and sums are float32 (never TF32, which has fewer bits). Give
// every matrix the alignment of device memory, 256 bytes.
//
// # Concurrency
//
// A Multiplier belongs to one device and is used by its launchers, which the
// device calls one at a time.
//
// # Ownership
//
// The workspaces are the Multiplier's until Close, which must come before that
// of the device.
package blas
