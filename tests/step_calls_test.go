package tests

import (
	"context"
	"errors"
	"testing"

	"offload"
)

// A pass of a step is refused what is another turn's; nothing has changed then,
// and the step goes on.
func TestCallsOutOfTurn(t *testing.T) {
	eachLoop(t, window(t, 3, 1), offload.Options{}, func(l *loop) {
		order, err := offload.Turns("F0 F1 B0 B1")
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.engine.BeginStep(context.Background(), l.Compute, order...)
		if err != nil {
			t.Fatal(err)
		}
		order[1], order[2] = order[2], order[1] // the step has a copy
		forward := func(n int) *offload.Pass {
			t.Helper()
			p, err := s.Forward(n)
			if err != nil {
				t.Fatal(err)
			}
			l.batch++
			f := &flight{pass: p, batch: l.batch, saved: make([][]offload.Saved, l.layers)}
			l.flight[n] = f
			for layer := range l.layers {
				if err := l.save(f, layer); err != nil {
					t.Fatal(err)
				}
			}
			return p
		}
		refused := func(what string, p *offload.Pass, call func(*offload.Pass, int) (*offload.Slot, error)) {
			t.Helper()
			before, metrics := l.Sim.Stats(), l.engine.Metrics()
			if _, err := call(p, 2); !errors.Is(err, offload.ErrStepOrder) {
				t.Errorf("%s: got %v, want ErrStepOrder", what, err)
			}
			if l.Sim.Stats() != before || l.engine.Metrics() != metrics {
				t.Errorf("%s: the refusal changed something", what)
			}
		}
		first := forward(0)
		refused("backward of 0 in F0", first, (*offload.Pass).Backward)
		second := forward(1)
		refused("backward of 0 in F1", first, (*offload.Pass).Backward)
		refused("forward of 0 in F1", first, (*offload.Pass).Forward)
		if _, err := s.Backward(0); err != nil {
			t.Fatal(err)
		}
		refused("backward of 1 in B0", second, (*offload.Pass).Backward)
		refused("forward of 1 in B0", second, (*offload.Pass).Forward)
		again, err := first.Forward(2) // a recomputation within the backward
		if err != nil {
			t.Fatal(err)
		}
		if again.Occurrence() != 1 {
			t.Errorf("the recomputation is run %d of its layer, want 1", again.Occurrence())
		}
		if _, err := first.Backward(2); err != nil { // of the recomputation
			t.Fatal(err)
		}
		if err := l.backward(0); err != nil {
			t.Fatal(err)
		}
		refusedEnd := s.End()
		if !errors.Is(refusedEnd, offload.ErrStepOrder) {
			t.Errorf("end before the last turn: got %v, want ErrStepOrder", refusedEnd)
		}
		if _, err := s.Backward(1); err != nil {
			t.Fatal(err)
		}
		if err := l.backward(1); err != nil {
			t.Fatal(err)
		}
		if err := s.End(); err != nil {
			t.Error(err)
		}
		l.idle("after the step")
	})
}

// A step of an engine that is closed, or whose context is cancelled, begins no
// pass; one that is under way is given up by Abort.
func TestStepOfACancelledContext(t *testing.T) {
	why := errors.New("the loop was told to stop")
	eachLoop(t, window(t, 3, 2), offload.Options{}, func(l *loop) {
		order, err := offload.Turns("F0 F1 B1 B0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		s, err := l.engine.BeginStep(ctx, l.Compute, order...)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Forward(0)
		if err != nil {
			t.Fatal(err)
		}
		f := &flight{pass: p, saved: make([][]offload.Saved, l.layers)}
		for layer := range l.layers {
			if err := l.save(f, layer); err != nil {
				t.Fatal(err)
			}
		}
		cancel(why)
		if _, err := s.Forward(1); !errors.Is(err, why) {
			t.Errorf("forward: got %v, want the cause of the cancellation", err)
		}
		if err := s.Abort(); err != nil {
			t.Error(err)
		}
		if !p.Ended() {
			t.Error("the pass of an aborted step has not ended")
		}
		l.idle("after the abort")
		if m := l.engine.Metrics(); m.PassesAborted != 1 || m.PassesBegun != 1 {
			t.Errorf("%d passes of %d were aborted, want 1 of 1", m.PassesAborted, m.PassesBegun)
		}
		late, err := l.engine.BeginStep(context.Background(), l.Compute, order...)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.engine.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := late.Forward(0); !errors.Is(err, offload.ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
		if err := late.Abort(); err != nil {
			t.Error(err)
		}
	})
}
