package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

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
// A loop that leaves the order gets [ErrStepOrder], from the step or from the
// pass whose turn it is not: Pass.Forward needs a turn of its micro-batch, and
// Pass.Backward its backward turn. Passes of a step may be in flight together;
// each of them follows the engine's plan.
type Step struct {
	engine *Engine
	ctx    context.Context
	stream device.Stream
	turns  []Turn

	mu      sync.Mutex
	passes  map[int]*Pass
	running atomic.Int64 // index of the turn that is running, -1 before the first; written under mu
}

// BeginStep starts a step with the given order: each micro-batch has one
// forward and, behind it, one backward. Its passes are training passes on
// stream; see Begin, which each Forward calls.
func (e *Engine) BeginStep(ctx context.Context, stream device.Stream, order ...Turn) (*Step, error) {
	if err := checkOrder(order); err != nil {
		return nil, err
	}
	s := &Step{engine: e, ctx: ctx, stream: stream, turns: slices.Clone(order), passes: make(map[int]*Pass)}
	s.running.Store(-1)
	return s, nil
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
	p.step, p.microBatch = s, microBatch
	s.passes[microBatch] = p
	s.running.Add(1)
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
	s.running.Add(1)
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
	next := s.next()
	if next == len(s.turns) {
		return fmt.Errorf("%v: %w: every turn has run; begin another step", t, ErrStepOrder)
	}
	if want := s.turns[next]; want != t {
		return fmt.Errorf("%v: %w: %v comes next in %v", t, ErrStepOrder, want, s.turns)
	}
	return nil
}

// next returns the index of the turn that comes next.
func (s *Step) next() int { return int(s.running.Load()) + 1 }

// inTurn refuses a forward or backward of a pass of a step while another turn is
// running. A forward within the backward of its own micro-batch is one that is
// computed again.
func (p *Pass) inTurn(backward bool) error {
	if p.step == nil {
		return nil
	}
	now := p.step.turns[p.step.running.Load()]
	if now.MicroBatch == p.microBatch && (now.Backward || !backward) {
		return nil
	}
	own := Turn{p.microBatch, backward}
	return fmt.Errorf("%w: %v is running in %v and this belongs to %v; call the step for that turn first", ErrStepOrder, now, p.step.turns, own)
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
	if next := s.next(); !abort && next < len(s.turns) {
		return nil, fmt.Errorf("end of step: %w: %v comes next; call Abort to give up", ErrStepOrder, s.turns[next])
	}
	s.running.Store(int64(len(s.turns) - 1))
	var errs []error
	for _, t := range s.turns { // in order, so that what is reported is, too
		p := s.passes[t.MicroBatch]
		if p == nil || t.Backward || p.Ended() && !abort { // aborting what has ended tries again what its End could not
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
