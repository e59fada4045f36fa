package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"offload"
	"offload/device"
	"offload/device/fault"
	"offload/device/sim"
	"offload/tests/rig"
)

// An engine that cannot be opened leaves nothing running, and says why.
func TestOpenFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for how := range fault.Hows {
			for nth := 1; nth <= 2; nth++ { // the two transfer streams
				x := fault.Fault{Kind: device.OpenStream, Nth: nth, How: fault.How(how)}
				r := rig.New(t, sim.Config{})
				faults := fault.Wrap(r.Sim, fault.Plan{x})
				e, err := offload.Open(faults, offload.Options{Layers: 2, Dispatch: d})
				if x.How == fault.LoseLate { // is noticed by the next who asks
					must(t, err)
					if err = e.Close(); !errors.Is(err, device.ErrLost) {
						t.Errorf("%v: close: got %v, want ErrLost", x, err)
					}
				}
				if !errors.Is(err, fault.ErrInjected) {
					t.Errorf("%v: got %v, want the device's error", x, err)
				}
				if x.How == fault.Lose || x.How == fault.LoseLate {
					continue // nothing can be given back
				}
				r.Close()
			}
		}
	})
}

// Close names what failed, and does not hang. What it could not give back stays
// where it is; nothing is given back too early.
func TestCloseFails(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, p := range programs(t) {
		switch p.name { // those that leave different things to Close
		case "window", "host memory retained", "packed pieces":
		default:
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
				ways := fault.Hows
				if d == offload.Goroutines {
					ways = 1 // the others make no difference to the way of a message
				}
				for how := range ways {
					for nth := 1; ; nth++ {
						x := fault.Fault{Nth: nth, How: fault.How(how)}
						f := newFaulty(t, p, d)
						if errs := f.run(p); len(errs) > 0 {
							t.Fatal(errs)
						}
						f.faults.Arm(fault.Plan{x})
						err := f.engine.Close()
						struck := f.faults.Struck()
						if len(struck) == 0 {
							if nth == 1 {
								t.Error("Close asked the device for nothing")
							}
							must(t, err)
							f.Rig.Close()
							break
						}
						// A device that is lost by the very last batch is lost to nobody.
						last := x.How == fault.LoseLate && struck[0].Origin.Action == "close" && err == nil
						if !last && !errors.Is(err, fault.ErrInjected) {
							t.Errorf("%v: %v: got %v, want the device's error", x, struck[0], err)
						}
						if again := f.engine.Close(); again != nil {
							t.Errorf("%v: closing again: %v", x, again)
						}
						if _, err := f.engine.Begin(t.Context(), offload.Train, f.Compute); !errors.Is(err, offload.ErrClosed) {
							t.Errorf("%v: begin: got %v, want ErrClosed", x, err)
						}
						for _, found := range f.Sim.Findings() {
							t.Errorf("%v: %v: %v", x, struck[0], found)
						}
					}
				}
			})
		})
	}
}

// A caller may stop after any of its calls, or have the context cancelled: the
// abort, or the end, gives everything back, and the next pass is as any other.
func TestStopAfterEveryCall(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, cancelled := range []bool{false, true} {
		for _, p := range programs(t) {
			t.Run(fmt.Sprintf("%s, cancelled: %v", p.name, cancelled), func(t *testing.T) {
				eachDispatch(t, func(t *testing.T, d offload.Dispatch) {
					f := newFaulty(t, p, d)
					batches := int64(1)
					for stop := int64(1); stop <= batches; stop++ {
						stopAfter(t, f, p, stop, cancelled)
						f.held(fmt.Sprint("stopped after batch ", stop))
						before := f.engine.Metrics().Batches
						if errs := f.run(p); len(errs) > 0 {
							t.Fatalf("stopped after batch %d: the next run: %v", stop, errors.Join(errs...))
						}
						batches = f.engine.Metrics().Batches - before
					}
					if batches < 5 {
						t.Errorf("the program had %d batches only", batches)
					}
					f.close("at the end")
				})
			})
		}
	}
}

// stopAfter runs the program until its passes have sent so many batches; the call
// that sends the last of them is the last that goes on.
func stopAfter(t *testing.T, f *faulty, p program, stop int64, cancelled bool) {
	t.Helper()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	from := f.engine.Metrics().Batches
	var passes []*offload.Pass
	f.enough = func() bool {
		if f.engine.Metrics().Batches-from < stop {
			return false
		}
		if cancelled {
			cancel(cause)
		}
		return !cancelled
	}
	errs := p.run(f, func() *offload.Pass {
		pass, err := f.engine.Begin(ctx, offload.Train, f.Compute)
		must(t, err)
		passes = append(passes, pass)
		return pass
	})
	f.enough = nil
	for _, err := range errs {
		if err != nil && !errors.Is(err, cause) && !errors.Is(err, errEnough) {
			t.Errorf("stopped after batch %d: %v", stop, err)
		}
	}
	for _, pass := range passes {
		if err := pass.End(); err != nil && !errors.Is(err, cause) && !errors.Is(err, offload.ErrStale) {
			t.Errorf("stopped after batch %d: end: %v", stop, err)
		}
		must(t, pass.Abort())
	}
}
