package offload_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// Close gives everything back, whatever state the slots of passes in flight are
// in, and what is called afterwards is refused.
func TestCloseInEveryState(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for state := range fsm.State(fsm.States) {
			t.Run(state.String(), func(t *testing.T) {
				b := manual(t, d)
				p, other := b.begin(), b.begin()
				slot := b.forward(p, 0)
				saved := b.push(slot, "x")
				b.push(b.forward(other, 1), "y")
				b.reach(slot, state)
				b.must(b.engine.Close())
				for name, call := range map[string]func() error{
					"begin":   func() error { _, err := b.engine.Begin(context.Background(), offload.Train, b.Compute); return err },
					"forward": func() error { _, err := p.Forward(1); return err },
					"pop":     func() error { _, err := slot.Pop(saved); return err },
					"reload":  slot.Reload,
					"end":     p.End,
				} {
					if err := b.unchanged(name, slot, call); !errors.Is(err, offload.ErrClosed) {
						t.Errorf("%s: got %v, want ErrClosed", name, err)
					}
				}
				b.must(p.Abort()) // there is nothing left to abort
				b.must(b.engine.Close())
				if m := b.engine.Metrics(); m.PassesAborted != 2 || m.PassesOpen != 0 || m.Unused != 2 {
					t.Errorf("got %+v", m)
				}
				b.close()
			})
		}
	})
}

// Goroutines train on an engine of their own streams until it is closed under
// them. Every call returns, and after that nothing is held.
func TestCloseWhileOthersTrain(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		const loops, layers, before = 8, 4, 3
		b := window(t, d, layers, 2)
		var ready, all sync.WaitGroup
		ready.Add(loops)
		for loop := range loops {
			stream := b.Stream()
			all.Go(func() {
				for pass := 0; ; pass++ {
					if pass == before {
						ready.Done()
					}
					err := train(b, stream, layers, fmt.Sprintf("loop %d", loop))
					if errors.Is(err, offload.ErrClosed) && pass >= before {
						return
					}
					if err != nil {
						t.Errorf("loop %d, pass %d: %v", loop, pass, err)
						if pass < before {
							ready.Done()
						}
						return
					}
					_ = b.engine.Metrics()
				}
			})
		}
		ready.Wait()
		var closing sync.WaitGroup
		for range 2 {
			closing.Go(func() {
				if err := b.engine.Close(); err != nil {
					t.Error(err)
				}
				if m := b.engine.Metrics(); m.StoragesHeld != 0 || m.EventsLive != 0 || m.PassesOpen != 0 {
					t.Errorf("held when Close returned: %+v", m)
				}
			})
		}
		closing.Wait()
		all.Wait()
		b.close()
	})
}

// train runs one pass on a stream, and returns the first error.
func train(b *bench, stream device.Stream, layers int, name string) error {
	p, err := b.engine.Begin(context.Background(), offload.Train, stream)
	if err != nil {
		return err
	}
	saved := make([][]offload.Saved, layers)
	for i := range layers {
		s, err := p.Forward(i)
		if err != nil {
			return err
		}
		x := b.Tensor(stream, fmt.Sprint(name, i), 4096)
		if saved[i], err = s.Push(x); err != nil {
			b.Drop(stream, x)
			return err
		}
	}
	for i := layers - 1; i >= 0; i-- {
		s, err := p.Backward(i)
		if err != nil {
			return err
		}
		// What is popped may be given back by Close at once, so that no work is
		// enqueued on it here.
		if _, err := s.Pop(saved[i]...); err != nil {
			return err
		}
	}
	return p.End()
}

// Goroutines that share an engine, each with passes of its own.
func TestConcurrentPasses(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		const loops, layers, passes = 8, 4, 20
		b := window(t, d, layers, 2)
		defer b.close()
		var all sync.WaitGroup
		for loop := range loops {
			stream := b.Stream()
			all.Go(func() {
				for range passes {
					if err := train(b, stream, layers, fmt.Sprint(loop)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if m := b.engine.Metrics(); m.PassesEnded != loops*passes || m.CopiesOut != 2*loops*passes || m.CopiesIn != 2*loops*passes || m.Failures != 0 {
			t.Errorf("got %+v", m)
		}
	})
}
