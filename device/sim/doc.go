// Package sim is a device that exists only in memory. It executes batches on
// real bytes, in any order that the streams and events allow, and proves while
// doing so that the caller asked for enough order.
//
// # Terms
//
// An operation is submitted, which puts it in the queue of its stream, and
// later it runs, which moves the bytes. Between the two lies a choice: of all
// streams whose first queued operation may run, [Config.Seed] picks one. A
// program that is ordered well gives the same bytes under every seed; one that
// is not gives wrong bytes under some.
//
// The checker does not depend on that luck. Every stream, and the host, has a
// vector clock, which is advanced when operations are submitted. An access
// happens before another one if the clock of the later one covers it, and two
// accesses that need an order and have none are a [Finding], whether or not
// their bytes came out right this time. A [Site] is an operation as a finding
// names it.
//
// The edges are those of CUDA: operations of one stream run in order; a wait is
// ordered after the record that was submitted before it; everything that is
// submitted is ordered after what the host had seen by then. The host sees the
// end of work by [device.SyncStream] and [device.SyncEvent] alone, and counts as
// one thread however many goroutines submit.
//
// # Rules
//
// The checker keeps these rules. A finding names the rule that was broken.
//
//	HB1   A read is ordered after the write of what it reads.
//	HB2   A write is ordered after the reads of what it overwrites.
//	HB3   A write is ordered after the write of what it overwrites.
//	HB4   A use of device memory is ordered after its allocation.
//	HB5   A free or disown is ordered after the allocation and every use of the memory.
//	HB6   Nothing names a buffer once its free, disown or unpin has been submitted.
//	HB7   A buffer is freed, disowned or unpinned once.
//	HB8   Bytes are written before they are read.
//	HB9   An event is waited for only after it was recorded, in its own generation.
//	HB10  An event is recorded once in each generation.
//	HB11  Host memory is unpinned only after the host has seen the end of all its uses.
//	HB12  The host reads or writes pinned memory only after it has seen the end of
//	      the device's uses of it.
//	HB13  An access lies within its buffer.
//	HB14  A kernel accesses only what it declares.
//	HB15  A kernel that is launched is registered.
//	HB16  An id belongs to the device that it is given to.
//	HB17  What was made or adopted is given back before Close.
//	HB18  Memory is adopted by one buffer at a time.
//
// An operation that breaks HB6, HB7, HB9, HB10, HB13, HB15, HB16 or HB18 is refused as well, since
// it cannot be executed; the others are executed, with the bytes that the order
// of this run gives. Where CUDA is silent the simulator is not: it refuses to
// wait for an event that was never recorded.
//
// # Every order
//
// [Explore] runs a small program under all orders that there are, or under one
// of each kind where operations do not touch each other. A [Schedule] is an order
// as a text that replays; [Shrink] makes a simpler one of it, and [Batches.Drop]
// a shorter program.
//
// # Time
//
// With [Config.Profile] a device has a virtual clock, which works out when each
// operation would run on hardware like that: streams and events are as above,
// each direction of the link moves one copy at a time, kernels of different
// streams do not slow each other, and the host is busy with what it submits.
// [Device.Lap] ends a step and says where its time went. Time has nothing to do
// with the order in which operations run here. [H200] is a profile that was
// measured; [Config.Phantom] leaves out the bytes.
//
// # Memory
//
// Every buffer has memory of its own, rounded up to [Align] bytes. New memory,
// and memory whose free has run, is filled with [Poison] bytes: a not-a-number
// in every floating-point type of package device. The limit on device memory is
// the allocator's own and hard. It counts in the order of submission: bytes
// freed on one stream are there for an allocation of another stream only if the
// free is ordered before it. A real allocator would have to grow or to insert a
// wait that nobody asked for; the simulator does neither and returns
// [device.ErrOutOfMemory]. Fragmentation is not simulated.
//
// [Device.External] makes memory that belongs to the program, with an address
// that is good for nothing but to be adopted. Its bytes are the program's own:
// they are not poisoned when they are disowned, but the host, and other streams,
// must not use them before they are ordered after that (HB1 to HB3, HB12).
//
// # Kernels
//
// A [device.Launch] runs the function that was registered under the kernel's
// name ([Device.Register]). A function that returns an error or panics loses the
// device, as on real hardware: nothing that is queued runs any more, and every
// later Submit fails with [device.ErrLost] and the name of the operation that
// caused it, until Close.
//
// # Concurrency
//
// A Device is safe for use by several goroutines and starts none of its own:
// operations run on the goroutines that call Submit and Close. Kernel functions
// and [Config.OnFinding] run inside these calls and must not call the device.
//
// # Ownership
//
// The device keeps nothing of a batch. The bytes of pinned memory, as Lookup
// returns them, belong to the caller between a synchronisation and the next
// operation that names them, which HostRead and HostWrite operations declare.
package sim
