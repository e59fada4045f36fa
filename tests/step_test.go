package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"offload"
	"offload/device/sim"
	"offload/fsm"
)

// A step has its passes in the declared order, and nothing else.
func TestStepOrder(t *testing.T) {
	eachLoop(t, window(t, 3, 1), offload.Options{}, func(l *loop) {
		order, err := offload.Turns("F0 F1 B0 F2 B1 B2")
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.engine.BeginStep(context.Background(), l.Compute, order...)
		if err != nil {
			t.Fatal(err)
		}
		out := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, offload.ErrStepOrder) {
				t.Errorf("%s: got %v, want ErrStepOrder", what, err)
			}
		}
		for i, turn := range order {
			for _, wrong := range order {
				if wrong == turn {
					continue
				}
				var err error
				if wrong.Backward {
					_, err = s.Backward(wrong.MicroBatch)
				} else {
					_, err = s.Forward(wrong.MicroBatch)
				}
				out(fmt.Sprintf("%v at turn %d", wrong, i), err)
			}
			out(fmt.Sprintf("end at turn %d", i), s.End())
			if !turn.Backward {
				p, err := s.Forward(turn.MicroBatch)
				if err != nil {
					t.Fatal(err)
				}
				l.batch++
				f := &flight{pass: p, batch: l.batch, saved: make([][]offload.Saved, l.layers)}
				l.flight[turn.MicroBatch] = f
				for layer := range l.layers {
					if err := l.save(f, layer); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			p, err := s.Backward(turn.MicroBatch)
			if err != nil {
				t.Fatal(err)
			}
			if p != l.flight[turn.MicroBatch].pass {
				t.Fatalf("%v has the pass of another micro-batch", turn)
			}
			if err := l.backward(turn.MicroBatch); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.End(); err != nil {
			t.Error(err)
		}
		_, err = s.Forward(0)
		out("forward after the end", err)
		l.idle("after the step")
	})
}

// A step that is given up in the middle gives everything back.
func TestStepAborted(t *testing.T) {
	for turns := range 4 {
		eachLoop(t, window(t, 3, 1), offload.Options{}, func(l *loop) {
			order, _ := offload.Turns("F0 F1 B1 B0")
			s, err := l.engine.BeginStep(context.Background(), l.Compute, order...)
			if err != nil {
				t.Fatal(err)
			}
			for _, turn := range order[:turns] {
				if turn.Backward {
					_, err = s.Backward(turn.MicroBatch)
				} else {
					var p *offload.Pass
					if p, err = s.Forward(turn.MicroBatch); err == nil {
						err = l.save(&flight{pass: p, saved: make([][]offload.Saved, l.layers)}, 0)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Abort(); err != nil {
				t.Error(err)
			}
			l.idle("after the abort")
			if _, err := s.Forward(0); !errors.Is(err, offload.ErrStepOrder) {
				t.Errorf("after the abort: got %v, want ErrStepOrder", err)
			}
		})
	}
}

func TestOrdersThatAreNone(t *testing.T) {
	for _, text := range []string{"", "F0", "B0 F0", "F0 F0 B0", "F0 B0 B0", "F0 F1 B0"} {
		order, err := offload.Turns(text)
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(t, offload.Options{}, sim.Config{})
		if _, err := s.engine.BeginStep(context.Background(), s.Compute, order...); err == nil {
			t.Errorf("%q was accepted", text)
		}
		s.close()
	}
	for _, text := range []string{"F", "G0", "f0", "F-1", "F0B0", "F00", "F0 x", "F99999999999999999999"} {
		if _, err := offload.Turns(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// An offload that is given up copies nothing back, and the plan's later
// directives for the slot are dropped; the engine does so by itself where a
// reload falls due before the release.
func TestRevived(t *testing.T) {
	eachOrder(t, offload.Options{}, func(s *stage) {
		x := s.Tensor(s.Compute, "x", 4096)
		slot := s.forward(0)
		saved := s.push(slot, x)
		s.reach(fsm.Offloading, slot)
		s.must(slot.Revive())
		s.pop(slot, s.Compute, saved, x)
		if m := s.engine.Metrics(); m.CopiesIn != 0 || m.HostInUse != 0 {
			t.Errorf("%d copies in and %d host bytes in use, want none", m.CopiesIn, m.HostInUse)
		}
	})
	// The forward of layer 0 alone has begun its offload when the backward comes.
	eachLoop(t, window(t, 4, 3), offload.Options{}, func(l *loop) {
		p, err := l.engine.Begin(context.Background(), offload.Train, l.Compute)
		if err != nil {
			t.Fatal(err)
		}
		f := &flight{pass: p, batch: 1, saved: make([][]offload.Saved, l.layers)}
		l.flight[0] = f
		for layer := range 2 {
			if err := l.save(f, layer); err != nil {
				t.Fatal(err)
			}
		}
		l.skip = map[int]bool{2: true, 3: true}
		started := l.engine.Metrics().CopiesOut
		if started == 0 {
			t.Fatal("nothing was copied out; the scenario shows nothing")
		}
		if err := l.backward(0); err != nil {
			t.Fatal(err)
		}
		if m := l.engine.Metrics(); m.CopiesIn > 2 {
			t.Errorf("%d copies in, want none for what was still on the device", m.CopiesIn)
		}
		l.idle("after the pass")
	})
}
