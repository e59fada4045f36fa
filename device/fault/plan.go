package fault

import (
	"errors"
	"fmt"

	"offload/device"
)

// ErrInjected is the cause of a fault that names no other.
var ErrInjected = errors.New("injected fault")

// How says what a device does about a fault.
type How uint8

const (
	// Refuse enqueues what is ahead of the operation in its batch and returns the error.
	Refuse How = iota
	// RefuseBatch enqueues nothing of the batch. The error names the first
	// operation of the batch, as it does where a device cannot begin at all.
	RefuseBatch
	// PanicBefore panics with an error before anything of the batch is enqueued.
	PanicBefore
	// PanicMidway enqueues what is ahead and panics with the *device.Error.
	PanicMidway
	// Lose enqueues what is ahead and loses the device: the cause is
	// device.ErrLost, for every later call as well, until Close.
	Lose
	// LoseLate enqueues the whole batch, as if all was well, and loses the device
	// after that. Later calls fail with an error that names the operation they
	// are about and, as the cause of the loss, the struck one.
	LoseLate

	// Hows is the number of ways.
	Hows = int(LoseLate) + 1
)

var howNames = [Hows]string{"refuse", "refuse the batch", "panic before", "panic midway", "lose", "lose late"}

// String returns the way in words, such as "panic midway".
func (h How) String() string {
	if int(h) < Hows {
		return howNames[h]
	}
	return fmt.Sprintf("how(%d)", h)
}

// A Fault strikes operations. The zero value refuses the first one of any kind.
type Fault struct {
	// Kind is that of the operations that are counted; device.None: any.
	Kind device.Kind
	// Nth of them, from 1, is the first one that is struck. Zero: the first.
	Nth int
	// Times is how many of them are struck, from that one on. Zero: one;
	// negative: all.
	Times int
	How   How
	// Err is the cause. Nil: ErrInjected.
	Err error
}

// strikes reports whether the fault strikes the nth operation of its kind.
func (f *Fault) strikes(nth int) bool {
	first := max(f.Nth, 1)
	return nth >= first && (f.Times < 0 || nth < first+max(f.Times, 1))
}

// String describes the fault, for example "refuse copy-out 3".
func (f Fault) String() string {
	what := f.Kind.String()
	if f.Kind == device.None {
		what = "operation"
	}
	first := max(f.Nth, 1)
	switch {
	case f.Times < 0:
		return fmt.Sprintf("%v %s %d and all after it", f.How, what, first)
	case f.Times > 1:
		return fmt.Sprintf("%v %s %d to %d", f.How, what, first, first+f.Times-1)
	}
	return fmt.Sprintf("%v %s %d", f.How, what, first)
}

// A Plan is the faults of a device. Where two strike one operation, the first
// in the list counts.
type Plan []Fault
