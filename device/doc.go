// Package device says, as data, what a device can be asked to do.
//
// A [Device] executes a [Batch]: an ordered list of [Op] values. An operation
// names its stream, its events and its buffers by id; it never carries a
// driver handle. Everything that watches or alters device work (tracing,
// fault injection, simulation, capture, timing) is therefore a wrapper of one
// method, [Device.Submit].
//
// # Terms
//
// A [Stream] is a queue of operations that run in order. Two streams are not
// ordered with each other unless an [Event] says so: [Record] marks the point
// that a stream has reached, [Wait] holds another stream until that point has
// passed. A [Buffer] is a piece of device memory or of pinned host memory; a
// [Range] is some bytes of it. A [Storage] is the memory behind one or more
// tensors, and a [Tensor] is a view of a storage.
//
// # Identity
//
// Ids are minted by callers, each from an id space of its own ([NewIDs]), and
// carry the device they belong to, so that an id of another device is refused
// and never looked up. Index and generation together are unique: an index is
// used again only with a higher generation, and an operation that names an old
// generation is an error.
//
// # Events
//
// An event is recorded at most once in each generation. A wait binds to the
// record that was submitted before it. Waiting on an event that was never
// recorded does nothing in CUDA; here it is an error.
//
// # Memory
//
// [Alloc] and [Free] are ordered on their stream: freed memory may be handed
// out again at once to work that is ordered after the free. [Pin] and [Unpin]
// act at once on the calling goroutine. Copies between device and host take
// pinned buffers only.
//
// Device memory that the program has from elsewhere is used through a buffer
// that [Adopt] makes and [Disown] ends. It stays its owner's: the device never
// allocates from it. [IDs.AdoptStorage] makes a storage of it.
//
// # Concurrency
//
// A Device and an [IDs] are safe for use by several goroutines; operations of
// one batch are enqueued together.
//
// # Ownership
//
// Submit keeps no reference to the batch, its operations or its kernels after
// it has returned.
//
// # Use
//
//	ids := device.NewIDs(dev)
//	stream := ids.Stream()
//	s := ids.NewStorage("x", device.Activation, 4096, stream)
//	x := device.Tensor{Storage: s, DType: device.Float32, Shape: []int{1024}}
//	err := dev.Submit(&device.Batch{Ops: []device.Op{
//		{Kind: device.OpenStream, Stream: stream},
//		{Kind: device.Alloc, Stream: stream, Dst: x.Range()},
//	}})
package device
