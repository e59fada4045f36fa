// Package offload moves the activations of a neural network between the memory
// of a device and pinned host memory, layer by layer, while the device computes.
//
// # Terms
//
// An [Engine] serves one training loop. A [Pass] is one forward and its
// backward of one micro-batch, or the forward of an inference; it is begun, and
// ended or aborted. A [Slot] is one run of one layer within one pass. What is
// pushed to a slot in forward is popped from it in backward; a [Saved] value
// stands for it in between. A plan (package schedule) says when the tensors of
// which slot leave the device and come back; under a manual plan the caller
// says so. A [Step] is several passes in a declared order. A [Composite] is a
// value of several tensors that is saved as one.
//
// # States
//
// The tensors of a slot are Resident, Offloading, Offloaded, Reloading or
// Failed, and the order push, start-offload, release, reload, pop is strict:
// package fsm has the table, docs/states.md the diagram. A call out of order is
// a typed error, and nothing has changed.
//
// # Ownership
//
// Push takes over the caller's hold on the storage of an activation, once per
// storage ([device.Storage.Take]); Retain it before if the loop goes on using
// it. The engine frees it: on the device after the copy out, and everything
// when the slot is reset. What Pop returns belongs to the engine. It is valid
// for work that is enqueued before the slot is reset: by the next Backward of
// the pass, by End or by Abort. Weights and index data are never taken over.
//
// Memory that belongs to the caller takes the same way as a storage of
// [device.IDs.AdoptStorage]: the engine moves its bytes like any others, and
// where it would free the memory, it gives it back. The owner's function runs
// once, on the goroutine of the call that gave it back and after that call's
// work is done, and may call the engine. Work on the stream that it is told may
// use the memory at once. What is reloaded later is memory of the device.
//
// # Streams
//
// Work of the caller belongs to the compute stream that Begin was given, or to
// the one of a view made by [Slot.On]. No other stream is assumed, and none is
// looked up.
//
// # Failures
//
// A wrong call is refused: a typed error, and nothing has changed. When the
// device does not enqueue a batch whole, the slot whose batch it was has
// Failed, others go on, and Abort drains and resets. A lost device fails every
// slot until Close.
//
// # Concurrency
//
// Everything here may be used by several goroutines. Calls on one pass wait for
// each other. Functions of an [EventListener] run inside and must not call the
// engine.
//
// # Use
//
//	pass, err := engine.Begin(ctx, offload.Train, stream)
//	for i := range layers { // forward
//		slot, err := pass.Forward(i)
//		saved[i], err = slot.Push(x) // x is complete on stream
//	}
//	for i := layers - 1; i >= 0; i-- { // backward
//		slot, err := pass.Backward(i)
//		x, err := slot.Pop(saved[i]...)
//	}
//	err = pass.End()
package offload
