package cuda

import "unsafe"

// A verb says what a command does. The numbers are those of batch.h.
type verb int32

const (
	verbRecord verb = iota + 1
	verbWait
	verbAlloc
	verbFree
	verbCopyOut
	verbCopyIn
	verbCopyWithin
	verbCopyRows
)

var verbCalls = map[verb]string{
	verbRecord:     "cuEventRecord",
	verbWait:       "cuStreamWaitEvent",
	verbAlloc:      "cuMemAllocFromPoolAsync",
	verbFree:       "cuMemFreeAsync",
	verbCopyOut:    "cuMemcpyDtoHAsync",
	verbCopyIn:     "cuMemcpyHtoDAsync",
	verbCopyWithin: "cuMemcpyDtoDAsync",
	verbCopyRows:   "cuMemcpy2DAsync",
}

// A command is an operation that one call of the driver enqueues. C sees the
// same bytes as a struct, so the fields have fixed sizes and no Go pointers.
//
// The address of memory that is allocated in the same list is not known before
// the list runs. Such an operand names the command that allocates, and the
// address is the offset from there.
type command struct {
	verb    verb
	op      int32 // index of the operation in its batch
	dstFrom int32 // command that allocates the destination, or none
	srcFrom int32 // likewise the source
	stream  uintptr
	event   uintptr
	dst     uintptr // address, or offset; of verbAlloc, what the driver answered
	src     uintptr
	bytes   uintptr // of verbCopyRows, those of a row
	rows    uintptr // of verbCopyRows
	// Of verbCopyRows: the bytes between the starts of two rows.
	dstPitch, srcPitch uintptr
}

// none is the operand that is an address.
const none int32 = -1

// A driver does what a device needs of CUDA, for one context. Except for
// bind and unbind its methods may be called on any thread. Errors are
// DriverErrors.
type driver interface {
	createStream() (uintptr, error)
	destroyStream(stream uintptr) error
	createEvent() (uintptr, error)
	destroyEvent(event uintptr) error
	// enqueue runs commands in order until one fails, and returns how many did not fail.
	enqueue(list []command) (int, error)
	// syncStream and syncEvent block until the work has ended.
	syncStream(stream uintptr) error
	syncEvent(event uintptr) error
	// queryStream returns the failure of the context, if there is one; it does not block.
	queryStream(stream uintptr) error
	// pin returns pinned host memory.
	pin(bytes int64) ([]byte, error)
	unpin(mem []byte) error
	// free gives device memory back when all work has ended.
	free(address uintptr) error
	// memory returns the bytes of device memory that are free, and all.
	memory() (free, total int64, err error)
	// bind locks the calling goroutine to its thread and makes the context
	// current there; unbind undoes it, given what bind returned.
	bind() (previous uintptr, err error)
	unbind(previous uintptr)
	// wait blocks until all work of the context has ended.
	wait() error
	// close gives back the pool and the context.
	close() error
}

// address returns where pinned memory starts.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
