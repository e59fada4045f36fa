package device

import (
	"fmt"
	"strings"
)

// Kind says what an operation does.
type Kind uint8

const (
	// None does nothing; a device refuses it.
	None Kind = iota
	// OpenStream creates Stream, a stream that is not ordered with any other.
	OpenStream
	// CloseStream ends Stream after the work that is queued on it.
	CloseStream
	// Record marks in Event the point that Stream has reached.
	Record
	// Wait holds Stream until the point marked in Event has passed. An event
	// that is not recorded is an error.
	Wait
	// Retire gives back what the device keeps for Event. It is only needed
	// when its id space is closed: an index used again replaces the old event.
	Retire
	// Alloc makes device memory of Dst.Bytes for Dst.Buffer, in the order of Stream.
	Alloc
	// Free gives back Dst.Buffer in the order of Stream: work that is ordered
	// after it may get the same memory. All uses must be ordered before it.
	Free
	// Adopt makes Dst.Buffer name the Dst.Bytes of device memory at Address,
	// which belong to the caller. It acts at once. Adopted memory counts neither
	// as used nor against a limit, and Free refuses it.
	Adopt
	// Disown ends the adoption of Dst.Buffer in the order of Stream: work that
	// is ordered after it may use the memory, which is its owner's again. All
	// uses must be ordered before it.
	Disown
	// Pin makes pinned host memory of Dst.Bytes for Dst.Buffer. It acts at once.
	Pin
	// Unpin gives back Dst.Buffer at once. All uses must have passed for the host.
	Unpin
	// CopyOut copies Src on the device to Dst on the host, in the order of Stream.
	CopyOut
	// CopyIn copies Src on the host to Dst on the device, in the order of Stream.
	CopyIn
	// CopyWithin copies Src to Dst, both on the device, in the order of Stream.
	CopyWithin
	// Launch runs Kernel in the order of Stream.
	Launch
	// Access says that work submitted by other means in the order of Stream
	// makes the accesses of Kernel, so that checkers and capture see them.
	Access
	// HostRead says that the host reads Src now; HostWrite that it writes Dst now.
	HostRead
	// HostWrite says that the host writes Dst now.
	HostWrite
	// SyncStream blocks the caller until all work of Stream has ended.
	SyncStream
	// SyncEvent blocks the caller until the point marked in Event has passed.
	SyncEvent

	// Kinds is the number of kinds.
	Kinds = int(SyncEvent) + 1
)

var kindNames = [Kinds]string{
	"none", "open-stream", "close-stream", "record", "wait", "retire", "alloc", "free", "adopt", "disown", "pin", "unpin",
	"copy-out", "copy-in", "copy-within", "launch", "access", "host-read", "host-write", "sync-stream", "sync-event",
}

// String returns the name of the kind, such as "copy-out".
func (k Kind) String() string {
	if int(k) < Kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", k)
}

// Reason says why an operation is needed; every wait has one.
type Reason uint8

const (
	// Unspecified is the reason of operations that need none.
	Unspecified Reason = iota
	// AfterProducer: the bytes must have been written before they are copied or read.
	AfterProducer
	// AfterCopyOut: the copy out must have ended before its source is freed.
	AfterCopyOut
	// AfterCopyIn: the bytes must be back before they are read.
	AfterCopyIn
	// AfterConsumer: every stream that uses a buffer must be done before it is freed.
	AfterConsumer
	// AfterAlloc: the buffer must exist before it is written from another stream.
	AfterAlloc
	// AfterHostReader: a host buffer must have been read before it is used again.
	AfterHostReader
	// AfterHostWriter: a host buffer must have been written before it is read or used again.
	AfterHostWriter
	// AfterAllocStream: a buffer is freed after the stream that allocated it.
	AfterAllocStream

	reasons = int(AfterAllocStream) + 1
)

var reasonNames = [reasons]string{
	"", "after producer", "after copy out", "after copy in", "after consumer", "after alloc",
	"after host reader", "after host writer", "after alloc stream",
}

// String returns a phrase such as "after producer"; empty for Unspecified.
func (r Reason) String() string {
	if int(r) < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", r)
}

// Op is one operation. Which fields it uses is said by its kind.
type Op struct {
	Kind    Kind
	Reason  Reason
	Stream  Stream
	Event   Event
	Dst     Range
	Src     Range
	Address uintptr // of Adopt
	Kernel  *Kernel
}

// String describes the operation on one line, for example
// "wait d1/s0.1 d1/e0.4#1 (after producer)".
func (o Op) String() string {
	var b strings.Builder
	b.WriteString(o.Kind.String())
	if !o.Stream.IsZero() {
		fmt.Fprintf(&b, " %v", o.Stream)
	}
	if !o.Event.IsZero() {
		fmt.Fprintf(&b, " %v", o.Event)
	}
	if o.Kernel != nil {
		fmt.Fprintf(&b, " %s", o.Kernel.Name)
	}
	if !o.Dst.Buffer.IsZero() {
		fmt.Fprintf(&b, " %v", o.Dst)
	}
	if !o.Src.Buffer.IsZero() {
		fmt.Fprintf(&b, " <- %v", o.Src)
	}
	if o.Reason != Unspecified {
		fmt.Fprintf(&b, " (%v)", o.Reason)
	}
	return b.String()
}

// Kernel is a named computation together with the accesses that it makes.
// An implementation is registered with the device under the name.
type Kernel struct {
	Name   string
	Args   []Arg
	Reads  []Range
	Writes []Range
}

// Arg is an argument of a kernel: a range, an integer or a floating-point number.
type Arg struct {
	Range Range
	Int   int64
	Float float64
}

// Origin says on whose behalf a batch was made. It is formatted only when
// something has to be reported.
type Origin struct {
	Action     string // a constant, such as "start-offload"
	Pass       uint64
	Layer      int
	Occurrence int
}

// String returns for example "layer 3 start-offload (pass 7)".
func (o Origin) String() string {
	if o.Action == "" {
		return "unnamed batch"
	}
	if o.Pass == 0 {
		return o.Action
	}
	if o.Occurrence > 0 {
		return fmt.Sprintf("layer %d (run %d) %s (pass %d)", o.Layer, o.Occurrence, o.Action, o.Pass)
	}
	return fmt.Sprintf("layer %d %s (pass %d)", o.Layer, o.Action, o.Pass)
}

// Batch is a list of operations that are submitted together, in order.
type Batch struct {
	Origin Origin
	Ops    []Op
}

// Reset empties b and keeps its memory.
func (b *Batch) Reset(o Origin) { b.Origin, b.Ops = o, b.Ops[:0] }
