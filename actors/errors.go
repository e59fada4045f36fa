package actors

import (
	"errors"
	"fmt"
)

var (
	// ErrChanged is returned by start-offload when a tensor was changed between
	// its push and its copy. Nothing has been copied.
	ErrChanged = errors.New("changed since it was saved")
	// ErrMoved is returned by push for a storage whose bytes have left the device.
	ErrMoved = errors.New("not on the device")
	// ErrStale is returned for a slot that was reset or never opened, and for
	// what was saved in it.
	ErrStale = errors.New("stale")
	// ErrForeign is returned for a tensor, stream or saved value of another
	// device, engine, pass or layer.
	ErrForeign = errors.New("foreign")
	// ErrStopped is returned for a message to an actor that has stopped.
	ErrStopped = errors.New("stopped")
)

// PanicError is a panic inside an actor. The slot it was about has failed.
type PanicError struct {
	Actor string
	Value any
	Stack []byte
}

// Error names the actor and the value; Stack has the rest.
func (e *PanicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.Actor, e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
