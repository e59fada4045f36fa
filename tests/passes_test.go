package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"offload"
	"offload/device/sim"
	"offload/fsm"
	"offload/tests/rig"
)

// Several micro-batches in flight, in every usual order: each gets its own bytes
// (S11, A3-03, I-02).
func TestOrdersOfMicroBatches(t *testing.T) {
	for _, order := range []string{
		"F0 F1 B0 B1", "F0 F1 B1 B0", "F0 B0 F1 B1", "F0 F1 F2 B2 B1 B0", "F0 F1 F2 B0 B1 B2",
		"F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 F3 B1 B2 B3",
	} {
		for _, offloaded := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s with %d of 4 layers", order, offloaded), func(t *testing.T) {
				eachLoop(t, window(t, 4, offloaded), offload.Options{}, func(l *loop) {
					for step := range 2 {
						if err := l.turns(context.Background(), order); err != nil {
							t.Fatal(err)
						}
						l.idle(fmt.Sprintf("after step %d", step))
					}
				})
			})
		}
	}
}

// oneForwardOneBackward is the order of stage s of p, with m micro-batches.
func oneForwardOneBackward(s, p, m int) string {
	var order []string
	forward, backward := 0, 0
	for backward < m {
		if forward < m && forward-backward < p-s {
			order = append(order, fmt.Sprintf("F%d", forward))
			forward++
			continue
		}
		order = append(order, fmt.Sprintf("B%d", backward))
		backward++
	}
	return strings.Join(order, " ")
}

// Four stages with eight micro-batches, two chunks each, on one device (S12): an
// engine for every chunk. No stage holds more passes than its place asks for.
func TestPipeline(t *testing.T) {
	const stages, chunks, batches, layers = 4, 2, 8, 2
	plan := window(t, layers, 1)
	for seed := range uint64(4) {
		r := rig.New(t, sim.Config{Seed: seed})
		type chunk struct {
			loop  *loop
			turns []offload.Turn
			most  int
		}
		var all []*chunk
		longest := 0
		for s := range stages {
			for c := range chunks {
				e := r.Open(offload.Options{Plan: plan, MinElements: 1, SlabBytes: 32 << 10})
				order := oneForwardOneBackward(s+c*stages, stages*chunks, batches)
				turns, err := offload.Turns(order)
				if err != nil {
					t.Fatal(err)
				}
				l := newLoop(r, e, layers)
				l.batch = 1000 * len(all)
				all = append(all, &chunk{loop: l, turns: turns, most: stages*chunks - (s + c*stages)})
				longest = max(longest, len(turns))
			}
		}
		for i := range longest { // every chunk takes its turn
			for _, c := range all {
				if i >= len(c.turns) {
					continue
				}
				var err error
				if turn := c.turns[i]; turn.Backward {
					err = c.loop.backward(turn.MicroBatch)
				} else {
					err = c.loop.forward(context.Background(), turn.MicroBatch)
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := len(c.loop.flight); n > c.most {
					t.Errorf("%d passes in flight, want at most %d", n, c.most)
				}
				if m := c.loop.engine.Metrics(); m.HostInUse > int64(c.most)*2*4096 {
					t.Errorf("%d bytes of host memory in use for %d passes", m.HostInUse, c.most)
				}
			}
		}
		for _, c := range all {
			if m := c.loop.engine.Metrics(); m.PassesEnded != batches || m.SlotsHeld != 0 {
				t.Errorf("%d passes have ended and %d slots are held, want %d and 0", m.PassesEnded, m.SlotsHeld, batches)
			}
			if err := c.loop.engine.Close(); err != nil {
				t.Error(err)
			}
		}
		r.Close()
	}
}

// A layer that is left out, and one that runs twice.
func TestSkippedLayers(t *testing.T) {
	for layer := range 5 {
		t.Run(fmt.Sprintf("layer %d", layer), func(t *testing.T) {
			eachLoop(t, window(t, 5, 3), offload.Options{}, func(l *loop) {
				for _, skip := range []map[int]bool{nil, {layer: true}, nil} {
					l.skip = skip
					if err := l.turns(context.Background(), "F0 B0"); err != nil {
						t.Fatal(err)
					}
					l.idle("after a pass")
				}
			})
		})
	}
}

// Evaluation between the forward and the backward of a training pass, as the
// very first pass, and several times in a row (S08, A3-04): it costs the device
// nothing and teaches the plan nothing.
func TestInferenceBetween(t *testing.T) {
	eachLoop(t, window(t, 5, 2), offload.Options{}, func(l *loop) {
		infer := func() {
			before := l.Sim.Stats().Total()
			p, err := l.engine.Begin(context.Background(), offload.Inference, l.Compute)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if _, err := p.Forward(i); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.End(); err != nil {
				t.Fatal(err)
			}
			if got := l.Sim.Stats().Total() - before; got != 0 {
				t.Errorf("the inference cost %d operations", got)
			}
		}
		ctx := context.Background()
		infer()
		for range 3 {
			if err := l.forward(ctx, 0); err != nil {
				t.Fatal(err)
			}
			infer()
			infer()
			if err := l.backward(0); err != nil {
				t.Fatal(err)
			}
			infer()
			l.idle("after a pass")
		}
	})
}

// A forward whose backward never comes gives everything back at its end (S16),
// and what was saved and not used is counted (A3-01).
func TestUnused(t *testing.T) {
	eachLoop(t, window(t, 5, 2), offload.Options{}, func(l *loop) {
		for range 3 {
			if err := l.forward(context.Background(), 0); err != nil {
				t.Fatal(err)
			}
			if err := l.flight[0].pass.End(); err != nil {
				t.Fatal(err)
			}
			l.idle("after a forward")
		}
		if m := l.engine.Metrics(); m.Unused != 3*10 {
			t.Errorf("%d are unused, want 30", m.Unused)
		}
	})
}

// One handle of ten is never used, for 200 steps: what is held does not grow.
func TestUnusedForManySteps(t *testing.T) {
	r := rig.New(t, sim.Config{})
	l := newLoop(r, r.Open(offload.Options{Plan: window(t, 5, 3), MinElements: 1, SlabBytes: 32 << 10}), 5)
	l.unused = func(name string) bool { return strings.HasSuffix(name, "layer 1 tensor 1") }
	var held int64
	for step := range 200 {
		if err := l.turns(context.Background(), "F0 B0"); err != nil {
			t.Fatal(err)
		}
		l.idle(fmt.Sprintf("after step %d", step))
		m := l.engine.Metrics()
		if step == 1 {
			held = m.HostHeld
		}
		if step > 1 && (m.HostHeld != held || hostBytes(r.Sim) != held) {
			t.Fatalf("after step %d: %d bytes are pinned (the device says %d), want %d as after step 1", step, m.HostHeld, hostBytes(r.Sim), held)
		}
	}
	if m := l.engine.Metrics(); m.Unused != 200 {
		t.Errorf("%d are unused, want 200", m.Unused)
	}
	if err := l.engine.Close(); err != nil {
		t.Error(err)
	}
	r.Close()
}

var errStop = errors.New("the loop fails here")

// The loop fails at every call in turn, by an error, by a panic and by a
// cancelled context, with copies in flight: nothing is held after the abort, and
// the next pass gives the bytes that it would have given (A3-05, I-03, I-08).
func TestStopAtEveryCall(t *testing.T) {
	const order = "F0 F1 B1 F2 B0 B2"
	count := func() int {
		r := rig.New(t, sim.Config{})
		l := newLoop(r, r.Open(offload.Options{Plan: window(t, 4, 2), MinElements: 1}), 4)
		if err := l.turns(context.Background(), order); err != nil {
			t.Fatal(err)
		}
		if err := l.engine.Close(); err != nil {
			t.Error(err)
		}
		r.Close()
		return l.calls
	}()
	for _, how := range []string{"error", "panic", "cancel"} {
		t.Run(how, func(t *testing.T) {
			for at := 1; at <= count; at++ {
				r := rig.New(t, sim.Config{Seed: uint64(at)})
				l := newLoop(r, r.Open(offload.Options{Plan: window(t, 4, 2), MinElements: 1, SlabBytes: 32 << 10}), 4)
				ctx, cancel := context.WithCancel(context.Background())
				l.stop = func() error {
					if l.calls != at {
						return nil
					}
					switch how {
					case "error":
						return errStop
					case "panic":
						panic(errStop)
					}
					cancel()
					return nil
				}
				err := func() (err error) {
					defer func() {
						if v := recover(); v != nil {
							err = v.(error)
						}
					}()
					return l.turns(ctx, order)
				}()
				if want := map[string]error{"error": errStop, "panic": errStop, "cancel": context.Canceled}[how]; !errors.Is(err, want) {
					t.Fatalf("call %d: got %v, want %v", at, err, want)
				}
				if err := l.abort(); err != nil {
					t.Fatalf("call %d: %v", at, err)
				}
				cancel()
				l.idle(fmt.Sprintf("after the abort at call %d", at))
				l.stop = nil
				if err := l.turns(context.Background(), order); err != nil {
					t.Fatalf("after the abort at call %d: %v", at, err)
				}
				l.idle("after a clean step")
				if err := l.engine.Close(); err != nil {
					t.Error(err)
				}
				r.Close()
				if t.Failed() {
					t.Fatalf("stopped at call %d of %d", at, count)
				}
			}
		})
	}
}

// At every boundary of the backward the layers on the device are those of the
// plan (A3-06): a reload does not run ahead.
func TestWhatIsOnTheDevice(t *testing.T) {
	const layers, offloaded = 8, 5
	eachLoop(t, window(t, layers, offloaded), offload.Options{}, func(l *loop) {
		sets := func() int64 { return l.Sim.Usage().InUse / (2 * l.bytes) }
		p, err := l.engine.Begin(context.Background(), offload.Train, l.Compute)
		if err != nil {
			t.Fatal(err)
		}
		f := &flight{pass: p, batch: 1, saved: make([][]offload.Saved, layers)}
		for i := range layers {
			if err := l.save(f, i); err != nil {
				t.Fatal(err)
			}
			if got, want := sets(), int64(min(i+1, layers-offloaded)); got != want {
				t.Errorf("forward %d: %d sets on the device, want %d", i, got, want)
			}
		}
		for i := layers - 1; i >= 0; i-- {
			slot, err := p.Backward(i)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := sets(), int64(min(i+1, layers-offloaded)); got != want {
				t.Errorf("backward %d: %d sets on the device, want %d", i, got, want)
			}
			if _, err := slot.Pop(f.saved[i]...); err != nil {
				t.Fatal(err)
			}
			if at := slot.State(); at != fsm.Resident && at != fsm.Reloading {
				t.Errorf("backward %d: its slot is %v", i, at)
			}
		}
		if err := p.End(); err != nil {
			t.Fatal(err)
		}
		l.idle("at the end")
	})
}
