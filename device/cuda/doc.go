// Package cuda is the device of package device on an NVIDIA GPU.
//
// Only the build tag cuda links the driver. Without it the package compiles
// everywhere, and [Open] returns an error that wraps errors.ErrUnsupported. A
// program built with the tag ends at its start where there is no GPU, because
// gorgonia.org/cu does.
//
//	d, err := cuda.Open(0, cuda.Options{})
//	...
//	ids := device.NewIDs(d)
//	s := ids.Stream()
//	err = d.Submit(&device.Batch{Ops: []device.Op{{Kind: device.OpenStream, Stream: s}}})
//
// # Building
//
// `make cuda` builds everything with the tag, without a GPU, a driver or the
// CUDA toolkit: device/cuda/build says how. It leaves the tests of this package
// as bin/cuda.test, one file that runs on a machine with nothing but the driver.
//
// # Terms
//
// A batch is translated first: ids become handles and addresses, what must be
// refused is refused, and what is left is a list of commands. The commands then
// run in one call into C, which enqueues them one after the other. When the
// driver refuses one, the tables go back to what they were before it, so that
// what the device knows is what was enqueued. Streams, pinned memory, launches
// and synchronisations are no commands: whatever is translated before them is
// enqueued first.
//
// The driver is a small interface inside the package. On a GPU it is
// gorgonia.org/cu with a supplement in C for what that lacks (pinned memory,
// stream-ordered memory); the tests of the default build put one there that
// works on Go memory.
//
// # Streams and events
//
// OpenStream makes a non-blocking stream, which is not ordered with the legacy
// default stream. A stream that the caller made is taken in with
// [Device.AdoptStream], and [Device.Handle] gives the handle of any stream to
// code that launches work by other means. Events carry no time. An event whose
// index is used again takes the driver's event of the generation before, which
// does not disturb waits that are enqueued already. A wait for an event of the
// same stream, or for one that the host has seen pass, costs no call.
//
// # Memory
//
// Device memory comes from a pool of the device's own that never gives memory
// back to the driver before Close. The first allocation of a size may take
// 0.4 ms, later ones less than a microsecond. [Options].MemoryLimit bounds the
// memory in use in the order of submission, where a Free counts at once on
// whatever stream it is; the pool may hold more than that. Without it only the
// GPU is the bound.
//
// Pinned memory takes 0.4 s per GiB to make, and no other batch is enqueued
// meanwhile: pin in advance, in large pieces.
//
// # Kernels
//
// A [device.Launch] calls the [Launcher] that was registered under the kernel's
// name ([Device.Register]) with addresses and the handle of the stream.
//
// The two kernels that every device has, gather and scatter, are copies of rows.
// LoadModule (with the tag cuda) and [Device.Do] are for launchers that bring code of their own,
// and package blas multiplies matrices.
//
// # Verification
//
// [Verify] wraps any device and compares the bytes of every copy on both sides.
//
// # Errors
//
// What the driver answers is a [*DriverError] within the *[device.Error] of the
// operation that got the answer. The driver reports the failure of work that
// was enqueued long ago at any later call. After such a failure the context is
// of no use: every call returns [device.ErrLost] and the first failure, until
// Close.
//
// # Concurrency
//
// A Device is safe for use by several goroutines and starts none of its own.
// SyncStream and SyncEvent let other batches through while they block, so that
// only what stands between two of them is enqueued together. The GPU's primary
// context is made current for each call and the one that the calling thread had
// is put back: callers need to lock no thread. Several devices can be open in
// one process, also on one GPU.
//
// # Ownership
//
// The device keeps nothing of a batch. Streams that were adopted stay the
// caller's; they must live until CloseStream or Close. The bytes of pinned
// memory belong to the caller until Unpin, and are never moved.
package cuda
