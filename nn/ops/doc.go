// Package ops holds the building blocks of the models in package nn: the named
// kernels as data, and the arena from which a model gets its memory.
//
// # Terms
//
// A kernel constructor such as [MatMul] takes tensors and returns a
// [device.Kernel]: a name, the arguments and the bytes read and written. It
// checks types and shapes first, so that a kernel that is launched fits its
// operands. Which code runs under the name is the device's business: package
// nn/ops/sim registers it with the simulated device.
//
// An [Arena] queues operations for one compute stream and hands them to the
// device in few batches: everything between two calls of [Arena.Flush] is one
// Submit. Like a bufio.Writer it keeps the first error and returns it from
// Flush, which then submits nothing. A [Scope] is a set of tensors that are freed
// together unless they are freed before. A [Host] is pinned host memory for
// moving data to and from the device.
//
// # Rounding
//
// All arithmetic is float32, sums over a whole tensor excepted, and a kernel's
// result depends only on the values of its operands: not on where they lie, on
// how many processors there are, or on what ran before. That is what makes a
// run with offloading comparable bit for bit with one without.
//
// # Concurrency
//
// An Arena, its scopes and its host buffers belong to one goroutine.
//
// # Ownership
//
// A scope holds the tensors that it allocated. To hand one over, give it to
// somebody who becomes a holder, as Push of package offload does, and free it
// in the scope: the last holder frees the memory. Kernels are plain data and
// hold no memory.
//
// # Use
//
//	a := ops.NewArena(dev, stream)
//	s := a.Scope()
//	y := s.Alloc("y", device.Activation, device.Float32, 64, 10)
//	a.Launch(ops.MatMul(y, x, w, ops.Product{}))
//	if err := a.Flush(device.Origin{Action: "project"}); err != nil { ... }
package ops
