package actors

import (
	"offload/device"
	"offload/fsm"
	"offload/messages"
)

// Hooks are called from inside the actors. They must not call the system, and
// what they are given is valid during the call only. Nil ones are left out.
type Hooks struct {
	// Transition is called after the machine of a slot has moved.
	Transition func(Transition)
	// Batch is called after a batch was submitted; err is nil if it was enqueued whole.
	Batch func(b *device.Batch, err error)
	// Panic is called when an actor panicked.
	Panic func(*PanicError)
}

// Transition is one step of the machine of a slot.
type Transition struct {
	Layer    int
	Slot     messages.SlotID
	Event    fsm.Event
	From, To fsm.State
	Ops      int // operations submitted for it
}

func (h *Hooks) transition(t Transition) {
	if h.Transition != nil {
		h.Transition(t)
	}
}

func (h *Hooks) batch(b *device.Batch, err error) {
	if h.Batch != nil {
		h.Batch(b, err)
	}
}

// panicked reports a panic. The hook may be what panicked, and may do so again:
// that ends here, because a panic that left Receive would stop the actor, and
// nobody would answer what is queued behind.
func (h *Hooks) panicked(err *PanicError) {
	defer func() { _ = recover() }()
	if h.Panic != nil {
		h.Panic(err)
	}
}
