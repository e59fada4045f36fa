// Package sim implements the kernels of package nn/ops for the simulated
// device, in float32 over its memory.
//
// [Register] makes them known to a device, once, before the first launch.
//
// # Rounding
//
// The products are made by gonum, as sums of scaled rows in the order of the
// inner dimension. Nothing is ever reduced across lanes or workers, so the bits
// of a result depend neither on addresses nor on the number of processors.
//
// # Concurrency
//
// A kernel may use all processors while it runs, and has ended when it returns.
// Kernels keep nothing between calls except scratch memory, which is shared
// safely between devices.
//
// # Ownership
//
// A kernel has the memory of its launch until it returns, and keeps no part of it.
package sim
