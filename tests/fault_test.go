package tests

import (
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"offload"
	"offload/device"
	"offload/device/fault"
	"offload/device/sim"
)

// points returns how many operations the program asks the device for.
func points(t *testing.T, p program, d offload.Dispatch) int {
	t.Helper()
	f := newFaulty(t, p, d)
	if errs := f.run(p); len(errs) > 0 {
		t.Fatalf("without faults: %v", errs)
	}
	n := f.faults.Counts()
	if n[device.CopyOut] == 0 || n[device.Free] == 0 || n[device.Wait] == 0 {
		t.Fatalf("the program moves nothing: %v", n)
	}
	f.close("without faults")
	return n.Total()
}

// Every operation of every program fails once, in every way in which the device
// can go on. The error is that of one part and names the operation; the others
// come out right. After an abort nothing is held, and the same program gives the
// same bytes.
func TestEveryFault(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				ways := []fault.How{fault.Refuse, fault.RefuseBatch, fault.PanicBefore, fault.PanicMidway}
				if d == offload.Goroutines {
					ways = ways[:1] // the others make no difference to the way of a message
				}
				n := points(t, p, d)
				for nth := 1; nth <= n; nth += stride() {
					for _, how := range ways {
						strike(t, p, d, fault.Fault{Nth: nth, How: how})
						if t.Failed() {
							return
						}
					}
				}
			})
		})
	}
}

// strike runs the program twice, the first time with the fault.
func strike(t *testing.T, p program, d offload.Dispatch, x fault.Fault) {
	t.Helper()
	f := newFaulty(t, p, d)
	f.faults.Arm(fault.Plan{x})
	errs := f.run(p)
	struck := f.faults.Struck()
	if len(struck) != 1 {
		t.Fatalf("%v: %d operations were struck, want one", x, len(struck))
	}
	when := fmt.Sprintf("%v: %v", x, struck[0])
	switch {
	case struck[0].Op.Kind == device.Pin: // is tried again with less memory
		if len(errs) > 0 {
			t.Errorf("%s: got %v, want the engine to do with less host memory", when, errs)
		}
	case len(errs) != 1:
		t.Errorf("%s: got %d errors, want one:\n%v", when, len(errs), errors.Join(errs...))
	default:
		named(t, when, x.How, struck[0], errs[0])
	}
	f.held(when)
	f.faults.Arm(nil)
	if again := f.run(p); len(again) > 0 {
		t.Errorf("%s: the next run: %v", when, errors.Join(again...))
	}
	f.close(when)
}

// named reports whether err says which operation was struck, as far as the
// device said so.
func named(t *testing.T, when string, how fault.How, struck *device.Error, err error) {
	t.Helper()
	var failed *device.Error
	var panicked *offload.PanicError
	if !errors.Is(err, fault.ErrInjected) {
		t.Errorf("%s: got %v, want the device's error", when, err)
	}
	if want := how == fault.PanicBefore || how == fault.PanicMidway; errors.As(err, &panicked) != want {
		t.Errorf("%s: got %v, want a *PanicError: %v", when, err, want)
	}
	errors.As(err, &failed)
	switch how {
	case fault.PanicBefore:
		if failed != nil {
			t.Errorf("%s: got %v, want no operation to be named", when, err)
		}
	case fault.RefuseBatch:
		if failed == nil || failed.Index != 0 || failed.Origin != struck.Origin {
			t.Errorf("%s: got %v, want the first operation of the batch to be named", when, err)
		}
	default:
		if failed != struck {
			t.Errorf("%s: got %v, want the operation to be named", when, err)
		}
	}
}

// As long as all operations of one kind fail, nothing hangs; when they do not
// any more, the passes can be aborted and the engine is as good as new.
func TestEveryKindFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				f := newFaulty(t, p, d)
				if errs := f.run(p); len(errs) > 0 {
					t.Fatal(errs)
				}
				counts := f.faults.Counts()
				f.close("without faults")
				for k, n := range counts {
					if n == 0 {
						continue
					}
					for _, how := range []fault.How{fault.Refuse, fault.PanicMidway} {
						broken(t, p, d, fault.Fault{Kind: device.Kind(k), Times: -1, How: how})
					}
				}
			})
		})
	}
}

// broken runs the program while the fault lasts, and again when it is gone.
func broken(t *testing.T, p program, d offload.Dispatch, x fault.Fault) {
	t.Helper()
	f := newFaulty(t, p, d)
	f.faults.Arm(fault.Plan{x})
	var passes []*offload.Pass
	errs := 0
	for _, err := range p.run(f, func() *offload.Pass {
		pass, err := f.engine.Begin(t.Context(), offload.Train, f.Compute)
		if err != nil {
			t.Fatal(err)
		}
		passes = append(passes, pass)
		return pass
	}) {
		if err != nil {
			errs++
			if !errors.Is(err, fault.ErrInjected) {
				t.Errorf("%v: got %v, want the device's error", x, err)
			}
		}
	}
	for _, pass := range passes {
		if err := pass.Abort(); err != nil {
			errs++
			if !errors.Is(err, fault.ErrInjected) {
				t.Errorf("%v: abort: got %v, want the device's error", x, err)
			}
		}
	}
	if n := len(f.faults.Struck()); n == 0 || (errs > 0) != (x.Kind != device.Pin) {
		t.Errorf("%v: %d operations were struck, and %d calls failed; only what cannot be pinned stays where it is", x, n, errs)
	}
	f.faults.Arm(nil)
	for _, pass := range passes {
		if err := pass.Abort(); err != nil {
			t.Errorf("%v: abort when the fault is gone: %v", x, err)
		}
	}
	f.held(x.String())
	if again := f.run(p); len(again) > 0 {
		t.Errorf("%v: the next run: %v", x, errors.Join(again...))
	}
	f.close(x.String())
}

// Memory that is not to be had for a reload is a refusal: the slot is as it was,
// and the same call works when there is memory.
func TestReloadWithoutMemory(t *testing.T) {
	eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for nth := 1; nth <= 2; nth++ {
			f := newFaulty(t, program{options: offload.Options{Layers: 1}}, d)
			pass, err := f.engine.Begin(t.Context(), offload.Train, f.Compute)
			must(t, err)
			slot, err := pass.Forward(0)
			must(t, err)
			k := kept{pieces: saveTwo(&model{f: f}, 0)}
			k.saved, err = push(f, slot, k.pieces)
			must(t, err)
			must(t, slot.StartOffload())
			must(t, slot.Release())
			state, use := slot.State(), f.Sim.Usage().InUse
			f.faults.Arm(fault.Plan{{Kind: device.Alloc, Nth: nth, Err: device.ErrOutOfMemory}})
			err = slot.Reload()
			var failed *device.Error
			if !errors.Is(err, offload.ErrBudget) || !errors.As(err, &failed) || failed != f.faults.Struck()[0] {
				t.Errorf("allocation %d: got %v, want ErrBudget and the allocation that failed", nth, err)
			}
			if got := slot.State(); got != state || f.Sim.Usage().InUse != use {
				t.Errorf("allocation %d: the slot is %v with %d bytes on the device, want %v with %d as before", nth, got, f.Sim.Usage().InUse, state, use)
			}
			must(t, slot.Reload())
			must(t, pop(f, slot, k))
			must(t, pass.End())
			f.close(fmt.Sprint("allocation ", nth))
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A device that is lost at any operation fails everything with that error until
// Close, which does not hang; no memory is counted as held.
func TestLostAtEveryOperation(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, p := range programs(t) {
		t.Run(p.name, func(t *testing.T) {
			eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				ways := []fault.How{fault.Lose, fault.LoseLate}
				if d == offload.Goroutines {
					ways = ways[:1]
				}
				n := points(t, p, d)
				for nth := 1; nth <= n; nth += stride() {
					for _, how := range ways {
						lose(t, p, d, fault.Fault{Nth: nth, How: how})
					}
				}
			})
		})
	}
}

func lose(t *testing.T, p program, d offload.Dispatch, x fault.Fault) {
	t.Helper()
	f := newFaulty(t, p, d)
	f.faults.Arm(fault.Plan{x})
	errs := f.run(p)
	struck := f.faults.Struck()[0]
	when := fmt.Sprintf("%v: %v", x, struck)
	if len(errs) == 0 && x.How == fault.Lose {
		t.Errorf("%s: got no error", when)
	}
	errs = append(errs, f.run(p)...) // for an engine that had no occasion to notice
	if len(errs) == 0 {
		t.Errorf("%s: a run on the lost device: got no error", when)
	}
	for _, err := range errs {
		if !errors.Is(err, device.ErrLost) || !errors.Is(err, fault.ErrInjected) {
			t.Errorf("%s: got %v, want ErrLost and what lost it", when, err)
		}
	}
	f.held(when)
	batches := f.engine.Metrics().Batches
	if more := f.run(p); len(more) == 0 || f.engine.Metrics().Batches != batches {
		t.Errorf("%s: %d batches were sent to a device that is known to be lost", when, f.engine.Metrics().Batches-batches)
	}
	if err := f.engine.Close(); !errors.Is(err, device.ErrLost) {
		t.Errorf("%s: close: got %v, want ErrLost", when, err)
	}
	if err := f.faults.Close(); !errors.Is(err, device.ErrLost) {
		t.Errorf("%s: close the device: got %v, want ErrLost", when, err)
	}
	for _, found := range f.Sim.Findings() {
		if found.Rule != sim.Leak { // nothing can be given back
			t.Errorf("%s: %v", when, found)
		}
	}
}
