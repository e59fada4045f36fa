// Package rig is what tests of the engine run on: a simulated device, streams,
// and tensors whose bytes are known and checked.
//
// # Terms
//
// A [Rig] has a device, an id space of its own and a compute stream. A tensor of
// the rig is filled with a pattern that its seed determines ([Pattern]). What
// comes back from the engine is checked by a kernel in the order of a stream,
// not by the host: a host that waits for the device would order what the engine
// forgot to order.
//
// # Concurrency
//
// A Rig may be used by several goroutines. Methods that end the test on an
// error must be called on the goroutine of the test; those that only report
// may be called on others.
//
// # Ownership
//
// Tensors belong to the test until it hands them over. [Rig.Close] takes what
// the rig made itself and reports whatever is left on the device besides, the
// findings of the simulator, and every byte that was wrong.
//
// # Use
//
//	r := rig.New(t, sim.Config{})
//	defer r.Close()
//	engine := r.Open(offload.Options{MinElements: 1})
//	x := r.Tensor(r.Compute, "x", 4096)
//	...
//	r.Check(r.Compute, back, "x")
package rig
