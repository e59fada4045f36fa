package device

import (
	"errors"
	"fmt"
)

// Device executes batches. See the package comment for the rules.
type Device interface {
	// Info describes the device. It never changes.
	Info() Info
	// NewSpace opens an id space and returns its number; use [NewIDs].
	NewSpace() uint16
	// Submit enqueues the operations of b in order. When one is refused, the
	// ones before it stay enqueued, the ones after it are not looked at, and
	// the error is an *[Error] that names the operation.
	Submit(b *Batch) error
	// Lookup returns where a buffer is. The answer is valid until the buffer
	// is freed or unpinned.
	Lookup(b Buffer) (Memory, error)
	// Usage returns the device memory in use, as the allocator counts it.
	Usage() Usage
	// ResetPeak sets the peak of [Usage] to what is in use now.
	ResetPeak()
	// Close waits for all work, then gives everything back. Later calls
	// return [ErrClosed].
	Close() error
}

// Info describes a device.
type Info struct {
	ID    ID
	Name  string // for people, such as "sim" or "NVIDIA H200"
	Align int64  // start and size of every buffer are multiples of this many bytes
}

// Memory is where a buffer is.
type Memory struct {
	Address uintptr // zero on a device whose memory has no addresses
	Size    int64   // bytes
	Host    []byte  // the bytes of pinned host memory; nil for device memory
}

// Usage counts bytes of device memory.
type Usage struct {
	InUse int64
	Peak  int64 // highest InUse since the start or the last ResetPeak
	Limit int64 // zero: no limit of its own
}

var (
	// ErrOutOfMemory is returned by Submit when [Alloc] or [Pin] finds no memory.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrLost is returned by every call once the device's context is lost. It
	// lasts until Close.
	ErrLost = errors.New("device lost")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("device closed")
	// ErrUnknown is returned for an id that does not exist, or no longer does.
	ErrUnknown = errors.New("unknown id")
	// ErrForeign is returned for an id of another device.
	ErrForeign = errors.New("id of another device")
	// ErrUnrecorded is returned by Submit for a wait on an event that is not recorded.
	ErrUnrecorded = errors.New("event not recorded")
	// ErrInvalid is returned by Submit for an operation whose fields do not fit its kind.
	ErrInvalid = errors.New("invalid operation")
)

// Error says which operation of a batch was not enqueued, and why.
type Error struct {
	Origin Origin
	Index  int // of the operation within the batch; the ones before it are enqueued
	Op     Op
	Err    error
}

// Error names the batch, the operation and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("%v: operation %d (%v): %v", e.Origin, e.Index, e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
