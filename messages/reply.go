package messages

import "sync/atomic"

// Reply is the slot in which an answer is awaited. It is used for one request
// after the other; Arm makes it ready for the next one.
type Reply struct {
	state atomic.Int32
	ready chan struct{}
}

const (
	open     = iota // nobody has answered and nobody waits
	awaited         // the caller is blocked on ready
	answered        // the answer is there
)

// Arm makes the slot ready for a new request. The previous one must have been awaited.
func (r *Reply) Arm() {
	if r.ready == nil {
		r.ready = make(chan struct{}, 1)
	}
	r.state.Store(open)
}

// Done says that the answer is there. The caller owns the request from then on.
func (r *Reply) Done() {
	if r.state.Swap(answered) == awaited {
		r.ready <- struct{}{}
	}
}

// Wait blocks until Done was called. It does not block if it was called already,
// which is the usual case when actors run on the caller's goroutine.
func (r *Reply) Wait() {
	if r.state.CompareAndSwap(open, awaited) {
		<-r.ready
	}
}
