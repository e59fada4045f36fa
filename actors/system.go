package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"offload/device"
	"offload/internal/hostmem"
	"offload/messages"
)

// Dispatch says on which goroutine an actor runs.
type Dispatch uint8

const (
	// Inline runs an idle actor on the goroutine that sends to it.
	Inline Dispatch = iota
	// Goroutines uses protoactor's own mailbox, which runs an actor on a
	// goroutine of its own while it has messages.
	Goroutines
)

// String returns "inline" or "goroutines".
func (d Dispatch) String() string {
	switch d {
	case Inline:
		return "inline"
	case Goroutines:
		return "goroutines"
	}
	return fmt.Sprintf("dispatch(%d)", uint8(d))
}

// Config says what a system is made of.
type Config struct {
	Devices  []device.Device
	Layers   int
	Dispatch Dispatch
	Limits   Limits
	Host     hostmem.Config // of each device
	Hooks    Hooks

	EarlyCopies  bool       // begin to copy out when a tensor is pushed
	RetainHost   bool       // a layer uses the same host memory in every pass
	HostPolicy   HostPolicy // when the host budget has no memory
	DeviceBudget int64      // device memory in use above which nothing is reloaded; zero: the device's limit
}

// System is the actors of one engine. Systems are independent of each other.
type System struct {
	root    *actor.RootContext
	parent  *actor.PID
	layers  []layerShell // together, since a pass goes from one to the next
	devices []*deviceShell
	hooks   Hooks
	limits  Limits

	gate    sync.RWMutex // held for reading by every call that may be queued
	stopped bool
}

// enter begins a call and reports false after Stop. An actor that stops forgets
// what is queued, and nobody would answer it: so Stop waits for calls that are
// under way, and no other call reaches the actors.
func (s *System) enter() bool {
	s.gate.RLock()
	if s.stopped {
		s.gate.RUnlock()
		return false
	}
	return true
}

func (s *System) leave() { s.gate.RUnlock() }

// runtime is protoactor's actor system, which costs 15 ms and 3 MB to make and
// holds no state of ours but the addresses of actors; so there is one for the
// process, made when it is first needed.
var runtime = sync.OnceValue(func() *actor.ActorSystem {
	quiet := func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }
	// The count of dead letters is reset by a goroutine that sleeps for the
	// interval; programs that look for leaked goroutines should not find it.
	system := actor.NewActorSystem(actor.WithLoggerFactory(quiet), actor.WithDeadLetterThrottleInterval(time.Millisecond))
	system.EventStream.Subscribe(func(event any) {
		if letter, ok := event.(*actor.DeadLetterEvent); ok {
			undeliverable(letter.Message)
		}
	})
	return system
})

// undeliverable answers what was sent to an actor that has stopped.
func undeliverable(message any) {
	switch m := message.(type) {
	case *messages.Request:
		m.Err = ErrStopped
		m.Reply.Done()
	case *messages.Command:
		m.Request.Err = ErrStopped
		m.Request.Reply.Done()
	case *messages.Answer:
		m.Request.Err = ErrStopped
		m.Request.Reply.Done()
	case *messages.Control:
		m.Err = ErrStopped
		m.Reply.Done()
	}
}

// New starts the actors and opens the transfer streams of every device.
func New(cfg Config) (*System, error) {
	system := runtime()
	s := &System{root: system.Root, hooks: cfg.Hooks, limits: cfg.Limits, layers: make([]layerShell, cfg.Layers)}
	p := &parent{system: s, cfg: cfg}
	p.spawned.Arm()
	s.parent = newSpawner(s.root, cfg.Dispatch, actor.WithGuardian(stop)).spawn(p, new(inlineMailbox))
	p.spawned.Wait()
	if err := s.each(messages.Start, nil); err != nil {
		_, _, failed := s.Stop() // nothing was pushed
		return nil, errors.Join(err, failed)
	}
	return s, nil
}

// stop is the supervision of all actors: a failure stops the actor and restarts
// nothing, because the one that owned tensors is gone. It is one value, since
// protoactor keeps a guardian for each.
var stop = actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })

// spawner starts actors under a parent. Their props are one value, because each
// would cost as much as the rest of an actor at rest; what differs is passed on
// the side, which is possible since Spawn makes actor and mailbox before it
// returns.
type spawner struct {
	context actor.SpawnerContext
	props   *actor.Props
	next    actor.Actor
	mailbox *inlineMailbox
}

func newSpawner(context actor.SpawnerContext, d Dispatch, more ...actor.PropsOption) *spawner {
	s := &spawner{context: context}
	s.props = actor.PropsFromProducer(func() actor.Actor { return s.next }, actor.WithSupervisor(stop))
	s.props.Configure(more...)
	if d == Inline {
		s.props.Configure(actor.WithMailbox(func() actor.Mailbox { return s.mailbox }))
	}
	return s
}

// spawn starts an actor. The mailbox is used with Inline dispatch.
func (s *spawner) spawn(a actor.Actor, m *inlineMailbox) *actor.PID {
	s.next, s.mailbox = a, m
	return s.context.Spawn(s.props)
}

// parent is the parent of all actors of a system. Children are stopped in the
// reverse of the order in which they were spawned: the devices last.
type parent struct {
	system  *System
	cfg     Config
	spawned messages.Reply
}

// Receive implements actor.Actor.
func (p *parent) Receive(ctx actor.Context) {
	if _, ok := ctx.Message().(*actor.Started); !ok {
		return
	}
	s := p.system
	inline := p.cfg.Dispatch == Inline
	children := newSpawner(ctx, p.cfg.Dispatch)
	for _, dev := range p.cfg.Devices {
		a := &deviceShell{device: newDeviceActor(dev, &p.cfg, &s.hooks), layers: s.layers, root: s.root, inline: inline}
		a.pid = children.spawn(a, &a.mailbox)
		s.devices = append(s.devices, a)
	}
	for i := range s.layers {
		a := &s.layers[i]
		*a = layerShell{layer: layerActor{index: i, limits: &s.limits, hooks: &s.hooks}, system: s, inline: inline}
		a.pid = children.spawn(a, &a.mailbox)
	}
	p.spawned.Done()
}

// Call has the request handled by its layer and blocks until it is answered.
// After Stop the answer is ErrStopped.
func (s *System) Call(r *messages.Request) {
	l := &s.layers[r.Layer]
	if l.enter() { // the gate is for what is queued: a layer that is entered does not stop meanwhile
		l.run(r)
	} else {
		if !s.enter() {
			r.Err = ErrStopped
			return
		}
		defer s.leave()
		s.root.Send(l.pid, r)
	}
	r.Reply.Wait()
}

// Stats returns the counters of all devices together.
func (s *System) Stats() (messages.Stats, error) {
	var sum messages.Stats
	err := s.each(messages.Query, func(c *messages.Control) { sum.Add(c.Stats) })
	return sum, err
}

// Flush gives back what was put off until the next batch of a device, and
// returns whose owners have to be told of it.
func (s *System) Flush(device int, pass uint64) (messages.GiveBacks, error) {
	c := messages.Control{Action: messages.Flush, Pass: pass}
	s.control(device, &c)
	return c.GiveBacks, c.Err
}

// Trim gives back pinned host memory that is not in use. It waits for the copies.
func (s *System) Trim() error { return s.each(messages.Trim, nil) }

// Mark says that the tensors are complete at the present point of the stream,
// for the pass.
func (s *System) Mark(device int, pass uint64, stream device.Stream, tensors []device.Tensor) error {
	c := messages.Control{Action: messages.Mark, Pass: pass, Stream: stream, Tensors: tensors}
	s.control(device, &c)
	return c.Err
}

// Stop drains the devices, gives everything back and ends the actors. The
// devices themselves stay open. It returns the counters at the end, and whose
// owners have to be told that their memory was given back. Calls that are under
// way are answered first. It is called once.
func (s *System) Stop() (messages.Stats, messages.GiveBacks, error) {
	s.gate.Lock()
	s.stopped = true
	s.gate.Unlock()
	var final messages.Stats
	var back messages.GiveBacks
	var errs []error
	for i := range s.devices {
		c := messages.Control{Action: messages.Stop}
		s.send(i, &c)
		back = append(back, c.GiveBacks...)
		final.Add(c.Stats)
		if c.Err != nil {
			errs = append(errs, c.Err)
		}
	}
	err := errors.Join(errs...)
	if failed := s.root.PoisonFuture(s.parent).Wait(); failed != nil {
		err = errors.Join(err, fmt.Errorf("stop the actors: %w", failed))
	}
	return final, back, err
}

// each asks every device actor for the action, and gives the answers to use.
func (s *System) each(a messages.Action, use func(*messages.Control)) error {
	var errs []error
	for i := range s.devices {
		c := messages.Control{Action: a}
		s.control(i, &c)
		if c.Err != nil {
			errs = append(errs, c.Err)
		}
		if use != nil {
			use(&c)
		}
	}
	return errors.Join(errs...)
}

func (s *System) control(device int, c *messages.Control) {
	if !s.enter() {
		c.Err = ErrStopped
		return
	}
	defer s.leave()
	s.send(device, c)
}

// send sends a control message to a device and blocks until it is answered.
func (s *System) send(device int, c *messages.Control) {
	c.Reply.Arm()
	s.root.Send(s.devices[device].pid, c)
	c.Reply.Wait()
}
