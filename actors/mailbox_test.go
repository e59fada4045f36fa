package actors

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

// invoker is an actor as its mailbox sees it: what runs is what the test says.
type invoker struct {
	user     func(any)
	system   func(any)
	escalate func(reason, message any)
}

func (v *invoker) InvokeUserMessage(m any)   { v.user(m) }
func (v *invoker) InvokeSystemMessage(m any) { v.system(m) }
func (v *invoker) EscalateFailure(r, m any)  { v.escalate(r, m) }

func mailbox(v *invoker) *inlineMailbox {
	m := new(inlineMailbox)
	m.RegisterHandlers(v, nil)
	m.Start()
	return m
}

func TestMailboxRunsOnTheSender(t *testing.T) {
	ran := 0
	m := mailbox(&invoker{user: func(any) { ran++ }})
	for want := 1; want <= 3; want++ {
		m.PostUserMessage(want)
		if ran != want {
			t.Fatalf("%d messages had run when the post of message %d returned", ran, want)
		}
	}
}

// A message that the actor sends to itself runs after the one that sent it,
// not inside it.
func TestMailboxSelfSend(t *testing.T) {
	var m *inlineMailbox
	var log []string
	m = mailbox(&invoker{user: func(message any) {
		n := message.(int)
		log = append(log, fmt.Sprint("begin ", n))
		if n < 3 {
			m.PostUserMessage(n + 1)
			if got := m.UserMessageCount(); got != 1 {
				t.Errorf("%d messages wait inside message %d, want 1", got, n)
			}
		}
		log = append(log, fmt.Sprint("end ", n))
	}})
	m.PostUserMessage(1)
	want := []string{"begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"}
	if !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

// Every goroutine waits for its message before it sends the next one, so that
// one lost message stops the test. Goroutines meet at the moment at which one
// of them leaves, which is where MB1 matters.
func TestMailboxLosesNothing(t *testing.T) {
	const senders, rounds = 8, 20000
	type mail struct {
		sender, round int
		done          chan struct{}
	}
	var inside atomic.Int32
	last := make([]int, senders) // touched inside only
	m := mailbox(&invoker{user: func(message any) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d goroutines are inside", n)
		}
		v := message.(*mail)
		if v.round != last[v.sender]+1 {
			t.Errorf("sender %d: message %d came after message %d", v.sender, v.round, last[v.sender])
		}
		last[v.sender] = v.round
		inside.Add(-1)
		v.done <- struct{}{}
	}})
	var all sync.WaitGroup
	for sender := range senders {
		all.Go(func() {
			v := &mail{sender: sender, done: make(chan struct{}, 1)}
			for v.round < rounds {
				v.round++
				m.PostUserMessage(v)
				<-v.done
			}
		})
	}
	all.Wait()
}

// A drainer that found nothing, because the message of another sender was
// counted and not queued yet, must look again after it has left: the sender
// found it inside and relies on it.
func TestMailboxLooksAgain(t *testing.T) {
	ran := 0
	m := mailbox(&invoker{user: func(any) { ran++ }})
	m.pending.Add(1)              // the sender counts ...
	m.busy.Store(true)            // ... the drainer enters ...
	if _, _, ok := m.next(); ok { // ... and finds nothing ...
		t.Fatal("an empty mailbox gave a message")
	}
	m.user.push("message") // ... the sender queues, and finds the drainer inside ...
	m.busy.Store(false)    // ... who leaves ...
	if m.blocked() {       // ... and must not believe that there is nothing to do.
		t.Error("a message that can run is called blocked")
	}
	m.drain()
	if ran != 1 {
		t.Errorf("%d messages ran, want 1", ran)
	}
}

func TestMailboxSuspend(t *testing.T) {
	var log []string
	m := mailbox(&invoker{
		user:   func(message any) { log = append(log, fmt.Sprint("user ", message)) },
		system: func(message any) { log = append(log, fmt.Sprint("system ", message)) },
	})
	m.PostUserMessage(1)
	m.PostSystemMessage(new(actor.SuspendMailbox))
	m.PostUserMessage(2)
	m.PostUserMessage(3)
	m.PostSystemMessage(4)
	if got := m.UserMessageCount(); got != 2 {
		t.Errorf("%d messages wait while suspended, want 2", got)
	}
	m.PostSystemMessage(new(actor.ResumeMailbox))
	m.PostUserMessage(5)
	want := []string{"user 1", "system 4", "user 2", "user 3", "user 5"}
	if !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

// Suspending and resuming while others send must neither lose nor reorder.
func TestMailboxSuspendWhileOthersSend(t *testing.T) {
	const senders, rounds = 4, 5000
	last := make([]int, senders)
	total := 0
	m := mailbox(&invoker{user: func(message any) {
		v := message.([2]int)
		if v[1] != last[v[0]]+1 {
			t.Errorf("sender %d: message %d came after message %d", v[0], v[1], last[v[0]])
		}
		last[v[0]] = v[1]
		total++
	}})
	var all sync.WaitGroup
	for sender := range senders {
		all.Go(func() {
			for round := 1; round <= rounds; round++ {
				m.PostUserMessage([2]int{sender, round})
			}
		})
	}
	all.Go(func() {
		for range rounds {
			m.PostSystemMessage(new(actor.SuspendMailbox))
			m.PostSystemMessage(new(actor.ResumeMailbox))
		}
	})
	all.Wait()
	if total != senders*rounds {
		t.Errorf("%d messages ran, want %d", total, senders*rounds)
	}
	if n := m.pending.Load(); n != 0 {
		t.Errorf("%d messages are counted at rest", n)
	}
}

func TestMailboxPanic(t *testing.T) {
	var escalated, ran []any
	m := mailbox(&invoker{
		user: func(message any) {
			if message == "bad" {
				panic("broken")
			}
			ran = append(ran, message)
		},
		system:   func(any) { panic("system broken") },
		escalate: func(reason, message any) { escalated = append(escalated, reason, message) },
	})
	m.PostUserMessage("bad")
	m.PostUserMessage("good")
	m.PostSystemMessage("stop")
	m.PostUserMessage("good again")
	if want := []any{"broken", "bad", "system broken", "stop"}; !slices.Equal(escalated, want) {
		t.Errorf("escalated %q, want %q", escalated, want)
	}
	if want := []any{"good", "good again"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

func TestQueueKeepsItsMemory(t *testing.T) {
	var q queue
	for range 3 {
		for i := range 4 {
			q.push(i)
		}
		for want := range 4 {
			if got := q.pop(); got != want {
				t.Fatalf("got %v, want %d", got, want)
			}
		}
	}
	if got := cap(q.items); got > 4 {
		t.Errorf("the queue grew to %d places for 4 messages at a time", got)
	}
}
