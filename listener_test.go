package offload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// A listener with any of its functions, or none, changes nothing.
func TestListenerNilFunctions(t *testing.T) {
	var calls []string
	note := func(what string) { calls = append(calls, what) }
	for _, tc := range []struct {
		name     string
		listener *offload.EventListener
		want     string
	}{
		{"nil", nil, ""},
		{"none", &offload.EventListener{}, ""},
		{"begun", &offload.EventListener{PassBegun: func(offload.PassInfo) { note("begun") }}, "begun"},
		{"ended", &offload.EventListener{PassEnded: func(offload.PassInfo) { note("ended") }}, "ended"},
		{"transition", &offload.EventListener{Transition: func(i offload.TransitionInfo) { note(i.Event.String()) }},
			"push start-offload reset"},
		{"batch", &offload.EventListener{Batch: func(i offload.BatchInfo) { note(i.Batch.Origin.Action) }},
			"open push pin start-offload reset close close close"},
		{"panic", &offload.EventListener{Panic: func(err *offload.PanicError) { note(err.Error()) }}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls = nil
			b := open(t, offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10, Listener: tc.listener})
			p := b.begin()
			slot := b.forward(p, 0)
			b.push(slot, "x")
			b.must(slot.StartOffload())
			b.must(p.End())
			b.close()
			if got := strings.Join(calls, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// A listener that calls the engine is told so, and nothing waits for itself.
func TestReentrantListener(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		var b *bench
		var pass *offload.Pass
		var slot *offload.Slot
		var saved offload.Saved
		var step *offload.Step
		other := manual(t, d)
		defer other.close()
		tried := make(map[string]bool)
		try := func(where string) {
			if b == nil {
				return // Open has not returned
			}
			tried[where] = true
			_, _ = b.engine.Metrics(), b.engine.Plan()
			calls := map[string]func() error{
				"begin": func() error { _, err := b.engine.Begin(context.Background(), offload.Train, b.Compute); return err },
				"close": b.engine.Close,
				"trim":  b.engine.Trim,
				"begin of another engine": func() error {
					_, err := other.engine.Begin(context.Background(), offload.Train, other.Compute)
					return err
				},
				"forward of a step":  func() error { _, err := step.Forward(0); return err },
				"backward of a step": func() error { _, err := step.Backward(0); return err },
				"end of a step":      step.End,
				"abort of a step":    step.Abort,
			}
			if pass != nil {
				_, _ = pass.Ended(), pass.Explain()
				calls["mark"] = func() error { return pass.MarkReady(b.Compute) }
				calls["forward"] = func() error { _, err := pass.Forward(0); return err }
				calls["backward"] = func() error { _, err := pass.Backward(0); return err }
				calls["end"], calls["abort"] = pass.End, pass.Abort
			}
			if slot != nil {
				_ = slot.State()
				calls["push"] = func() error { _, err := slot.Push(); return err }
				calls["pop"] = func() error { _, err := slot.Pop(saved); return err }
				calls["start-offload"], calls["release"] = slot.StartOffload, slot.Release
				calls["reload"], calls["revive"], calls["reset"] = slot.Reload, slot.Revive, slot.Reset
			}
			for name, call := range calls {
				if err := call(); !errors.Is(err, offload.ErrReentrant) {
					t.Errorf("%s within %s: got %v, want ErrReentrant", name, where, err)
				}
			}
		}
		opts := offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10, Dispatch: d, Listener: &offload.EventListener{
			PassBegun:  func(offload.PassInfo) { try("begun") },
			PassEnded:  func(offload.PassInfo) { try("ended") },
			Transition: func(offload.TransitionInfo) { try("transition") },
			Batch:      func(offload.BatchInfo) { try("batch") },
		}}
		opened := open(t, opts)
		var err error
		step, err = opened.engine.BeginStep(context.Background(), opened.Compute, offload.Turn{}, offload.Turn{Backward: true})
		opened.must(err)
		b = opened // from here on it is tried
		pass, err = step.Forward(0)
		b.must(err)
		slot = b.forward(pass, 0)
		saved = b.push(slot, "x")
		b.reach(slot, fsm.Reloading)
		_, err = step.Backward(0)
		b.must(err)
		b.pop(slot, saved, "x")
		b.must(step.End())
		b.close()
		if len(tried) != 4 {
			t.Errorf("tried within %v, want all four", tried)
		}
	})
}

// While a listener of one engine runs, others may call it, and another engine.
func TestListenerDoesNotDisturbOthers(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	first := open(t, offload.Options{Layers: 1, Listener: &offload.EventListener{PassBegun: func(offload.PassInfo) {
		once.Do(func() { close(inside); <-leave })
	}}})
	second := manual(t, offload.Inline)
	running := first.begin
	done := make(chan *offload.Pass)
	go func() { done <- running() }()
	<-inside
	p := second.begin()
	second.push(second.forward(p, 0), "x")
	second.must(p.End())
	close(leave)
	first.must((<-done).End())
	first.close()
	second.close()
}

// A listener that panics fails the slot it was told of, or the device whose
// batch it was, and comes back as an error of the call.
func TestListenerPanics(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		bad := fsm.Event(fsm.Events)
		told := 0
		b := open(t, offload.Options{Layers: 2, MinElements: 1, SlabBytes: 64 << 10, Dispatch: d, Listener: &offload.EventListener{
			Transition: func(i offload.TransitionInfo) {
				if i.Event == bad {
					panic("a listener is broken")
				}
			},
			Panic: func(*offload.PanicError) { told++; panic("so is this one") },
		}})
		defer b.close()
		p := b.begin()
		slot, other := b.forward(p, 0), b.forward(p, 1)
		b.push(slot, "x")
		v := b.push(other, "y")
		bad = fsm.StartOffload
		var panicked *offload.PanicError
		if err := slot.StartOffload(); !errors.As(err, &panicked) || panicked.Actor != "layer 0" || len(panicked.Stack) == 0 {
			t.Errorf("got %v, want a panic of layer 0", err)
		}
		if got := slot.State(); got != fsm.Failed {
			t.Errorf("the slot is %v, want Failed", got)
		}
		if told != 1 {
			t.Errorf("the listener was told %d times, want once", told)
		}
		bad = fsm.Event(fsm.Events)
		b.pop(other, v, "y") // goes on
		bad = fsm.Reset      // of the slots that End closes
		if err := p.End(); !errors.As(err, &panicked) {
			t.Errorf("end: got %v, want the panics", err)
		}
		bad = fsm.Event(fsm.Events)
		b.must(p.Abort())
	})
}

func TestInfoStrings(t *testing.T) {
	for _, tc := range []struct {
		info fmt.Stringer
		want string
	}{
		{offload.PassInfo{Pass: 3}, "pass 3 train"},
		{offload.PassInfo{Pass: 4, Kind: offload.Inference}, "pass 4 inference"},
		{offload.PassInfo{Pass: 3, Unused: 2}, "pass 3 train: 2 unused"},
		{offload.PassInfo{Pass: 3, Aborted: true, Unused: 2, Err: errRefused}, "pass 3 train aborted: 2 unused: refused by the test"},
		{offload.TransitionInfo{Layer: 3, Event: fsm.Release, From: fsm.Offloading, To: fsm.Offloaded, Ops: 2},
			"layer 3 release: Offloading -> Offloaded, 2 ops"},
		{offload.TransitionInfo{Layer: 3, Occurrence: 1, Event: fsm.Pop, Ops: 1}, "layer 3 (run 1) pop: Resident -> Resident, 1 op"},
		{offload.BatchInfo{Batch: &device.Batch{Origin: device.Origin{Action: "open"}, Ops: []device.Op{
			{Kind: device.OpenStream, Stream: device.Stream{Device: 1, Space: 2, Index: 3}}}}, Err: errRefused},
			"open\n  open-stream d1/s2.3\n  refused by the test"},
		{offload.PassKind(9), "pass kind(9)"},
		{offload.Saved{}, "nothing saved"},
	} {
		if got := tc.info.String(); got != tc.want {
			t.Errorf("got  %q\nwant %q", got, tc.want)
		}
	}
}

func TestLogTo(t *testing.T) {
	var text bytes.Buffer
	b := open(t, offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10, Listener: offload.LogTo(zerolog.New(&text))})
	p := b.begin()
	slot := b.forward(p, 0)
	b.push(slot, "x")
	b.Gate.Before(refuse(fsm.StartOffload))
	if err := slot.StartOffload(); !errors.Is(err, errRefused) {
		t.Errorf("got %v, want the device's error", err)
	}
	b.Gate.Before(nil)
	b.must(p.Abort())
	b.close()
	for _, want := range []string{
		`{"level":"debug","pass":1,"kind":"train","message":"pass begun"}`,
		`{"level":"trace","origin":"layer 0 push (pass 1)","ops":1,"message":"batch"}`,
		`{"level":"trace","pass":1,"layer":0,"occurrence":0,"event":"push","from":"Resident","to":"Resident","ops":1,"message":"transition"}`,
		`{"level":"error","error":"refused by the test","origin":"layer 0 start-offload (pass 1)","ops":3,"message":"batch"}`,
		`{"level":"trace","pass":1,"layer":0,"occurrence":0,"event":"fail","from":"Resident","to":"Failed","ops":0,"message":"transition"}`,
		`{"level":"debug","pass":1,"kind":"train","aborted":true,"unused":1,"message":"pass ended"}`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("the log does not have\n%s", want)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}
