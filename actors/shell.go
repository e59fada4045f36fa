package actors

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"offload/fsm"
	"offload/messages"
)

// slots keeps slots between passes, so that a layer at rest holds none.
var slots = sync.Pool{New: func() any { return new(slot) }}

// layerShell is the actor around a layerActor.
type layerShell struct {
	mailbox inlineMailbox // used with Inline dispatch
	inline  bool
	stopped bool
	layer   layerActor
	pid     *actor.PID
	system  *System
}

// Receive implements actor.Actor.
func (a *layerShell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *messages.Request:
		a.request(m)
	case *messages.Answer:
		a.answer(m)
	case *actor.Stopping:
		a.stopped = true
	}
}

// enter reports whether the caller is now inside the actor, which was idle, and
// may run a request at once.
//
// MB2: an idle inline actor is entered as by a sender and run without a
// message. Exclusion, order and what happens on a panic are the same as with
// one; what is spared is protoactor's way from Send to Receive.
func (a *layerShell) enter() bool { return a.inline && a.mailbox.enter() }

// run handles a request inside (MB2).
func (a *layerShell) run(r *messages.Request) {
	defer a.mailbox.leave()
	if a.stopped {
		r.Err = ErrStopped
		r.Reply.Done()
		return
	}
	a.request(r)
}

func (a *layerShell) request(r *messages.Request) {
	defer a.guard(r)
	if a.layer.step(r) != ask {
		r.Reply.Done()
		return
	}
	d := a.system.devices[r.Device]
	if !d.inline || !d.mailbox.enter() { // MB2
		a.system.root.Send(d.pid, r.Command())
		return
	}
	d.run(r.Command())
	a.layer.resume(r.Answer())
	r.Reply.Done()
}

func (a *layerShell) answer(m *messages.Answer) {
	defer a.guard(m.Request)
	a.layer.resume(m)
	m.Request.Reply.Done()
}

// guard answers a request whose handling panicked. Its slot has failed.
func (a *layerShell) guard(r *messages.Request) {
	v := recover()
	if v == nil {
		return
	}
	err := &PanicError{Actor: fmt.Sprintf("layer %d", a.layer.index), Value: v, Stack: debug.Stack()}
	r.Err = err
	if s := a.layer.find(r.Slot); s != nil {
		if s.machine.Fire(fsm.Fail) == nil {
			r.State = fsm.Failed
		}
	}
	a.layer.hooks.panicked(err)
	r.Reply.Done()
}

// deviceShell is the actor around a deviceActor.
type deviceShell struct {
	mailbox inlineMailbox // used with Inline dispatch
	inline  bool
	device  *deviceActor
	pid     *actor.PID
	layers  []layerShell
	root    *actor.RootContext
}

// Receive implements actor.Actor.
func (a *deviceShell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *messages.Command:
		a.command(m)
		a.root.Send(a.layers[m.Request.Layer].pid, m.Request.Answer())
	case *messages.Control:
		defer a.guardControl(m)
		a.device.control(m)
	}
}

// run handles a command for a layer that has entered the mailbox (MB2).
func (a *deviceShell) run(c *messages.Command) {
	defer a.mailbox.leave()
	a.command(c)
}

// command answers the command on every path. After a panic the ledger may be
// wrong, so that nothing can be trusted to be given back: the device is lost.
func (a *deviceShell) command(c *messages.Command) {
	defer func() {
		if v := recover(); v != nil {
			c.Request.Err, c.Failed = a.panicked(v), true
		}
	}()
	a.device.command(c)
}

func (a *deviceShell) guardControl(c *messages.Control) {
	if v := recover(); v != nil {
		c.Err = a.panicked(v)
	}
	c.Reply.Done()
}

func (a *deviceShell) panicked(v any) error {
	err := &PanicError{Actor: fmt.Sprintf("device actor %d", a.device.id), Value: v, Stack: debug.Stack()}
	a.device.lost = err
	a.device.hooks.panicked(err)
	return err
}
