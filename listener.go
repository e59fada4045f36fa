package offload

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"offload/actors"
	"offload/device"
	"offload/fsm"
)

// EventListener is told what happens in an engine. Nil functions are left out.
// They run inside the engine: they must not call it or another engine (they get
// [ErrReentrant]), should be quick, and may be called by several goroutines at
// once. What they are given is valid during the call only.
type EventListener struct {
	// PassBegun is called when a pass begins.
	PassBegun func(PassInfo)
	// PassEnded is called when a pass has ended or was aborted.
	PassEnded func(PassInfo)
	// Transition is called after the tensors of a slot have changed their state.
	Transition func(TransitionInfo)
	// Batch is called after operations were submitted to a device.
	Batch func(BatchInfo)
	// Panic is called when an actor panicked.
	Panic func(*PanicError)
}

// PassInfo describes a pass.
type PassInfo struct {
	Pass    uint64 // counts the passes of the engine, from 1
	Kind    PassKind
	Aborted bool
	Unused  int   // tensors that were saved and never popped
	Err     error // what went wrong in End or Abort
}

// String returns for example "pass 3 train: 2 unused".
func (i PassInfo) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pass %d %v", i.Pass, i.Kind)
	if i.Aborted {
		b.WriteString(" aborted")
	}
	if i.Unused > 0 {
		fmt.Fprintf(&b, ": %d unused", i.Unused)
	}
	if i.Err != nil {
		fmt.Fprintf(&b, ": %v", i.Err)
	}
	return b.String()
}

// TransitionInfo is one step in the life of a slot's tensors.
type TransitionInfo struct {
	Pass       uint64
	Layer      int
	Occurrence int
	Event      fsm.Event
	From, To   fsm.State
	Ops        int // operations submitted to the device for it
}

// String returns for example "layer 3 release: Offloading -> Offloaded, 2 ops".
func (i TransitionInfo) String() string {
	run := ""
	if i.Occurrence > 0 {
		run = fmt.Sprintf(" (run %d)", i.Occurrence)
	}
	ops := "1 op"
	if i.Ops != 1 {
		ops = fmt.Sprintf("%d ops", i.Ops)
	}
	return fmt.Sprintf("layer %d%s %v: %v -> %v, %s", i.Layer, run, i.Event, i.From, i.To, ops)
}

// BatchInfo is one batch as it was submitted.
type BatchInfo struct {
	Batch *device.Batch
	Err   error // nil if it was enqueued whole
}

// String returns the origin of the batch and its operations, one a line.
func (i BatchInfo) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", i.Batch.Origin)
	for _, op := range i.Batch.Ops {
		fmt.Fprintf(&b, "\n  %v", op)
	}
	if i.Err != nil {
		fmt.Fprintf(&b, "\n  %v", i.Err)
	}
	return b.String()
}

// notifier calls the listener and knows when a listener calls the engine.
type notifier struct{ listener EventListener }

// inside counts the listener functions that are running, of all engines: what
// is found on the stack does not tell whose they are.
var inside atomic.Int32

// notify runs f, a call of a listener function. Its name is looked for on the
// stack by reentrant, so it must stay a function of its own.
//
//go:noinline
func (n *notifier) notify(f func()) {
	inside.Add(1)
	defer inside.Add(-1)
	f()
}

// reentrant reports whether the calling goroutine is inside notify. The stack
// is walked only while some listener function is running.
func (*notifier) reentrant() bool {
	if inside.Load() == 0 {
		return false
	}
	pcs := make([]uintptr, 256)
	n := runtime.Callers(1, pcs)
	for n == len(pcs) { // a deep stack
		pcs = make([]uintptr, 4*len(pcs))
		n = runtime.Callers(1, pcs)
	}
	frames := runtime.CallersFrames(pcs[:n])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "(*notifier).notify") {
			return true
		}
		if !more {
			return false
		}
	}
}

func (n *notifier) passBegun(i PassInfo) {
	if f := n.listener.PassBegun; f != nil {
		n.notify(func() { f(i) })
	}
}

func (n *notifier) passEnded(i PassInfo) {
	if f := n.listener.PassEnded; f != nil {
		n.notify(func() { f(i) })
	}
}

// hooks are the listener's functions as the actors call them.
func (n *notifier) hooks() actors.Hooks {
	var h actors.Hooks
	if f := n.listener.Transition; f != nil {
		h.Transition = func(t actors.Transition) {
			n.notify(func() {
				f(TransitionInfo{Pass: t.Slot.Pass, Layer: t.Layer, Occurrence: t.Slot.Occurrence,
					Event: t.Event, From: t.From, To: t.To, Ops: t.Ops})
			})
		}
	}
	if f := n.listener.Batch; f != nil {
		h.Batch = func(b *device.Batch, err error) { n.notify(func() { f(BatchInfo{b, err}) }) }
	}
	if f := n.listener.Panic; f != nil {
		h.Panic = func(err *PanicError) { n.notify(func() { f(err) }) }
	}
	return h
}
