package offload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"offload/device"
	"offload/messages"
)

// ErrStepOrder is returned for a forward or backward that is not the next one
// in the declared order of its step.
var ErrStepOrder = errors.New("not next in the order of the step")

// Turn is the forward or the backward of one micro-batch.
type Turn struct {
	MicroBatch int // from zero
	Backward   bool
}

// String returns for example "F0" or "B2".
func (t Turn) String() string {
	if t.Backward {
		return fmt.Sprintf("B%d", t.MicroBatch)
	}
	return fmt.Sprintf("F%d", t.MicroBatch)
}

// Turns reads an order such as "F0 F1 B0 B1".
func Turns(order string) ([]Turn, error) {
	var turns []Turn
	for _, word := range strings.Fields(order) {
		t := Turn{Backward: word[0] == 'B'}
		if _, err := fmt.Sscanf(word[1:], "%d", &t.MicroBatch); err != nil || word != t.String() || t.MicroBatch < 0 {
			return nil, fmt.Errorf("order of a step: %q is no turn; one is F or B and the number of the micro-batch, such as F0", word)
		}
		turns = append(turns, t)
	}
	return turns, nil
}

// Step is the passes between two updates of the weights, in a declared order.
// A loop that leaves the order gets [ErrStepOrder] and not another micro-batch's
// bytes at another time than it planned for. Passes of a step may be in flight
// together; each of them follows the engine's plan.
type Step struct {
	engine *Engine
	ctx    context.Context
	stream device.Stream
	turns  []Turn

	mu     sync.Mutex
	next   int // index of the turn that is running, -1 before the first
	passes map[int]*Pass
}

// BeginStep starts a step with the given order: each micro-batch has one
// forward and, behind it, one backward. Its passes are training passes on
// stream; see Begin.
func (e *Engine) BeginStep(ctx context.Context, stream device.Stream, order ...Turn) (*Step, error) {
	if err := checkOrder(order); err != nil {
		return nil, err
	}
	return &Step{engine: e, ctx: ctx, stream: stream, turns: order, next: -1, passes: make(map[int]*Pass)}, nil
}

func checkOrder(order []Turn) error {
	if len(order) == 0 {
		return errors.New("order of a step: it has no turns; one micro-batch is F0 B0")
	}
	var errs []error
	seen := make(map[Turn]bool)
	for i, t := range order {
		switch {
		case t.MicroBatch < 0:
			errs = append(errs, fmt.Errorf("turn %d (%v): micro-batches count from zero", i, t))
		case seen[t]:
			errs = append(errs, fmt.Errorf("turn %d (%v): it is there twice", i, t))
		case t.Backward && !seen[Turn{MicroBatch: t.MicroBatch}]:
			errs = append(errs, fmt.Errorf("turn %d (%v): its forward has to come before", i, t))
		}
		seen[t] = true
	}
	for i, t := range order {
		if !t.Backward && !seen[Turn{t.MicroBatch, true}] {
			errs = append(errs, fmt.Errorf("turn %d (%v): it has no backward", i, t))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("order of a step: %w", errors.Join(errs...))
	}
	return nil
}

// Forward begins the pass of a micro-batch, whose forward is the next turn.
func (s *Step) Forward(microBatch int) (*Pass, error) {
	t := Turn{MicroBatch: microBatch}
	if err := s.lock(t.String()); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if err := s.expect(t); err != nil {
		return nil, err
	}
	p, err := s.engine.Begin(s.ctx, Train, s.stream)
	if err != nil {
		return nil, err
	}
	s.next++
	s.passes[microBatch] = p
	return p, nil
}

// Backward returns the pass of a micro-batch, whose backward is the next turn.
func (s *Step) Backward(microBatch int) (*Pass, error) {
	t := Turn{microBatch, true}
	if err := s.lock(t.String()); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if err := s.expect(t); err != nil {
		return nil, err
	}
	s.next++
	return s.passes[microBatch], nil
}

// lock begins a call on the step. The caller unlocks unless there is an error.
func (s *Step) lock(what string) error {
	if s.engine.notifier.reentrant() {
		return fmt.Errorf("%s: %w", what, ErrReentrant)
	}
	s.mu.Lock()
	return nil
}

func (s *Step) expect(t Turn) error {
	if s.next+1 >= len(s.turns) {
		return fmt.Errorf("%v: %w: every turn has run; begin another step", t, ErrStepOrder)
	}
	if want := s.turns[s.next+1]; want != t {
		return fmt.Errorf("%v: %w: %v comes next in %v", t, ErrStepOrder, want, s.turns)
	}
	return nil
}

// End ends the passes of the step that are not over. It refuses to while turns
// are left.
func (s *Step) End() error {
	back, err := s.finish(false)
	back.Run()
	return err
}

// Abort aborts the passes of the step that are not over; nothing else can run
// in it.
func (s *Step) Abort() error {
	back, err := s.finish(true)
	back.Run()
	return err
}

// finish ends the passes. The caller tells the owners of what was given back
// when it holds no lock.
func (s *Step) finish(abort bool) (back messages.GiveBacks, err error) {
	what := "end of step"
	if abort {
		what = "abort of step"
	}
	if err := s.lock(what); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if !abort && s.next+1 < len(s.turns) {
		return nil, fmt.Errorf("end of step: %w: %v comes next; call Abort to give up", ErrStepOrder, s.turns[s.next+1])
	}
	s.next = len(s.turns) - 1
	var errs []error
	for _, t := range s.turns { // in order, so that what is reported is, too
		p := s.passes[t.MicroBatch]
		if p == nil || t.Backward || p.Ended() {
			continue
		}
		returned, err := p.finish(abort, p.ending(abort))
		back = append(back, returned...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return back, errors.Join(errs...)
}
