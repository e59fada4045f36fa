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
	layer   layerActor
	devices []*actor.PID
}

// Receive implements actor.Actor.
func (a *layerShell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *messages.Request:
		defer a.guard(m)
		if a.layer.step(m) == ask {
			ctx.Send(a.devices[m.Device], m.Command())
			return
		}
		m.Reply.Done()
	case *messages.Answer:
		defer a.guard(m.Request)
		a.layer.resume(m)
		m.Request.Reply.Done()
	}
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
	device *deviceActor
	layers []*actor.PID
}

// Receive implements actor.Actor.
func (a *deviceShell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *messages.Command:
		defer a.guardCommand(ctx, m)
		a.device.command(m)
	case *messages.Control:
		defer a.guardControl(m)
		a.device.control(m)
	}
}

// guardCommand answers the layer on every path. After a panic the ledger may be
// wrong, so that nothing can be trusted to be given back: the device is lost.
func (a *deviceShell) guardCommand(ctx actor.Context, c *messages.Command) {
	if v := recover(); v != nil {
		c.Request.Err, c.Failed = a.panicked(v), true
	}
	ctx.Send(a.layers[c.Request.Layer], c.Request.Answer())
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
