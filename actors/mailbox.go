package actors

import (
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// inlineMailbox runs its actor on the goroutine that sends: at once when the
// actor is idle, otherwise the message is queued and whoever is inside runs it
// before leaving. One goroutine is inside at a time, and messages of one sender
// keep their order.
//
// MB1: a sender that finds the mailbox busy counts its message before it queues
// it and queues it before it tries to enter, and whoever leaves looks at the
// count and the queues after leaving. So one of the two sees the message,
// whichever comes first.
type inlineMailbox struct {
	pending   atomic.Int64 // messages queued or being queued
	busy      atomic.Bool
	suspended bool // written by the goroutine inside only
	invoker   actor.MessageInvoker

	mu     sync.Mutex
	system queue
	user   queue
}

// RegisterHandlers implements actor.Mailbox. There is no use for the dispatcher.
func (m *inlineMailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start implements actor.Mailbox.
func (m *inlineMailbox) Start() {}

// UserMessageCount implements actor.Mailbox.
func (m *inlineMailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.len()
}

// PostUserMessage implements actor.Mailbox.
func (m *inlineMailbox) PostUserMessage(message any) {
	if m.enter() {
		m.runUser(message)
		m.leave()
		return
	}
	m.post(&m.user, message)
}

// PostSystemMessage implements actor.Mailbox.
func (m *inlineMailbox) PostSystemMessage(message any) { m.post(&m.system, message) }

func (m *inlineMailbox) post(q *queue, message any) {
	m.pending.Add(1) // MB1
	m.mu.Lock()
	q.push(message)
	m.mu.Unlock()
	m.drain()
}

// enter reports whether the caller is now inside and may run a message at once,
// which it may not when others are queued before it.
func (m *inlineMailbox) enter() bool {
	if m.pending.Load() != 0 || !m.busy.CompareAndSwap(false, true) {
		return false
	}
	if m.pending.Load() != 0 || m.suspended {
		m.leave()
		return false
	}
	return true
}

func (m *inlineMailbox) leave() {
	m.busy.Store(false)
	if m.pending.Load() != 0 { // MB1
		m.drain()
	}
}

// drain runs what is queued until nothing that can run is left, or somebody
// else is inside, who will do so.
func (m *inlineMailbox) drain() {
	for m.pending.Load() != 0 && m.busy.CompareAndSwap(false, true) {
		ran := false
		for {
			message, system, ok := m.next()
			if !ok {
				break
			}
			ran = true
			if system {
				m.runSystem(message)
			} else {
				m.runUser(message)
			}
		}
		m.busy.Store(false)
		if !ran && m.blocked() {
			return
		}
	}
}

// next takes the message to run now. System messages come first, and a
// suspended actor gets no others.
func (m *inlineMailbox) next() (message any, system, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.system.len() > 0 {
		m.pending.Add(-1)
		return m.system.pop(), true, true
	}
	if m.user.len() > 0 && !m.suspended {
		m.pending.Add(-1)
		return m.user.pop(), false, true
	}
	return nil, false, false
}

// blocked reports whether nothing that is queued can run. It is asked by the
// one who has left: a message that was counted and not yet queued when it looked
// from inside may be in the queue now, and its sender may have found it inside.
// One that is not in the queue even now is drained by its sender.
func (m *inlineMailbox) blocked() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.system.len() == 0 && (m.user.len() == 0 || m.suspended)
}

func (m *inlineMailbox) runUser(message any) {
	defer m.escalate(message)
	m.invoker.InvokeUserMessage(message)
}

func (m *inlineMailbox) runSystem(message any) {
	defer m.escalate(message)
	switch message.(type) {
	case *actor.SuspendMailbox:
		m.suspend(true)
	case *actor.ResumeMailbox:
		m.suspend(false)
	default:
		m.invoker.InvokeSystemMessage(message)
	}
}

func (m *inlineMailbox) suspend(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspended = yes
}

// escalate hands a panic of the actor to its supervisor.
func (m *inlineMailbox) escalate(message any) {
	if r := recover(); r != nil {
		m.invoker.EscalateFailure(r, message)
	}
}

// queue is a first-in first-out list that keeps its memory.
type queue struct {
	items []any
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(x any) { q.items = append(q.items, x) }

func (q *queue) pop() any {
	x := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return x
}
