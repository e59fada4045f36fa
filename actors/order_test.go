package actors

import (
	"testing"

	"offload/device"
	"offload/device/sim"
)

func newOrder(t *testing.T, streams int) *order {
	t.Helper()
	dev := sim.New(sim.Config{})
	t.Cleanup(func() { _ = dev.Close() })
	o := &order{ids: device.NewIDs(dev)}
	for i := range streams {
		if got := o.index(o.ids.Stream()); got != i {
			t.Fatalf("stream %d has number %d", i, got)
		}
	}
	return o
}

// Events are named after their stream and the order of their records. Each row
// does its steps and says what is ordered before stream 2, and what is not.
func TestOrderCovered(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps func(o *order) (yes, no []*event)
	}{
		{"nothing is known of another stream", func(o *order) (yes, no []*event) {
			return nil, []*event{o.record(0), o.record(1)}
		}},
		{"a stream is ordered with itself", func(o *order) (yes, no []*event) {
			return []*event{o.record(2), o.record(2)}, nil
		}},
		{"a wait covers its event and those before it", func(o *order) (yes, no []*event) {
			a, b, c := o.record(0), o.record(0), o.record(0)
			o.join(2, b)
			return []*event{a, b}, []*event{c}
		}},
		{"a wait covers what its event's stream had waited for", func(o *order) (yes, no []*event) {
			a := o.record(0)
			o.join(1, a)
			b := o.record(1)
			o.join(2, b)
			return []*event{a, b}, nil
		}},
		{"what the event's stream waited for later is not covered", func(o *order) (yes, no []*event) {
			a := o.record(0)
			b := o.record(1)
			o.join(1, a)
			o.join(2, b)
			return []*event{b}, []*event{a}
		}},
		{"an older wait takes nothing back", func(o *order) (yes, no []*event) {
			a, b := o.record(0), o.record(0)
			o.join(2, b)
			o.join(2, a)
			return []*event{a, b}, nil
		}},
		{"waits on two streams add up", func(o *order) (yes, no []*event) {
			a, b := o.record(0), o.record(1)
			o.join(2, a)
			o.join(2, b)
			return []*event{a, b}, nil
		}},
		{"an undone wait covers nothing, an earlier one still does", func(o *order) (yes, no []*event) {
			a, b := o.record(0), o.record(1)
			o.join(2, a)
			o.save()
			o.join(2, b)
			o.undo()
			return []*event{a}, []*event{b}
		}},
		{"a record whose batch failed does not make a later one look earlier", func(o *order) (yes, no []*event) {
			o.save()
			lost := o.record(0)
			o.undo()
			kept := o.record(0)
			o.join(2, lost)
			return []*event{lost}, []*event{kept}
		}},
		{"a stream that is new since the save is undone too", func(o *order) (yes, no []*event) {
			o.save()
			late := o.index(o.ids.Stream())
			e := o.record(0)
			o.join(late, e)
			o.undo()
			if o.covered(late, e) {
				return nil, []*event{o.record(2)} // it would be covered: the row fails
			}
			return nil, []*event{e}
		}},
		{"a clock of an event that was used again is not the old one", func(o *order) (yes, no []*event) {
			a := o.record(0)
			o.join(1, a)
			old := o.record(1) // has a before it
			o.drop(old)
			o.drop(a)
			b := o.record(0) // the memory of one of the two
			c := o.record(1)
			o.join(2, b)
			return []*event{b}, []*event{c}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOrder(t, 3)
			yes, no := tc.steps(o)
			for i, e := range yes {
				if !o.covered(2, e) {
					t.Errorf("event %d of those that are ordered before stream 2 is not", i)
				}
			}
			for i, e := range no {
				if o.covered(2, e) {
					t.Errorf("event %d of those that are not ordered before stream 2 is", i)
				}
			}
		})
	}
}

// An event is given back by its last holder, once, and its id is used again with
// another generation.
func TestOrderRecycling(t *testing.T) {
	o := newOrder(t, 1)
	e := o.record(0)
	first := e.id
	e.refs++
	o.drop(e)
	if o.live != 1 || len(o.spare) != 0 {
		t.Errorf("%d events live and %d spare while one is held, want 1 and 0", o.live, len(o.spare))
	}
	o.drop(e)
	o.drop(nil)
	if events, _ := o.ids.Out(); o.live != 0 || len(o.spare) != 1 || events != 0 {
		t.Errorf("%d events live, %d spare and %d ids out, want 0, 1 and 0", o.live, len(o.spare), events)
	}
	again := o.record(0)
	if again != e {
		t.Error("a spare event was not used again")
	}
	if again.id == first || again.id.Index != first.Index {
		t.Errorf("the id went from %v to %v; want another generation of the same index", first, again.id)
	}
	if again.seq != 2 {
		t.Errorf("the second record of the stream has position %d, want 2", again.seq)
	}
}

// A batch holds its events until it is finished, and the device has those whose
// records were enqueued.
func TestWorkFinish(t *testing.T) {
	for _, tc := range []struct {
		name     string
		enqueued int
		kept     [2]bool
		covered  bool
	}{
		{"whole", 3, [2]bool{true, true}, true},
		{"up to the second record", 2, [2]bool{true, false}, false},
		{"up to the wait", 1, [2]bool{true, false}, false},
		{"nothing", 0, [2]bool{false, false}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOrder(t, 3)
			w := work{order: o}
			w.begin(device.Origin{Action: "test"})
			w.follow(2, 0, device.AfterConsumer) // record, wait
			w.follow(2, 0, device.AfterConsumer) // the same record, and no second wait
			w.follow(2, 2, device.AfterConsumer) // nothing
			late, _ := w.record(1)
			w.wait(2, nil, device.AfterCopyIn) // nothing
			if len(w.batch.Ops) != 3 || w.elided != 1 {
				t.Fatalf("%d operations and %d waits left out, want 3 and 1: %v", len(w.batch.Ops), w.elided, w.batch.Ops)
			}
			fork := w.forks[0]
			fork.refs++ // to look at it afterwards
			late.refs++
			w.finish(tc.enqueued)
			for i, e := range []*event{fork, late} {
				if got := e.kept == e.id; got != tc.kept[i] {
					t.Errorf("the device has event %d: %v, want %v", i, got, tc.kept[i])
				}
			}
			if got := o.covered(2, fork); got != tc.covered {
				t.Errorf("stream 2 is ordered after the fork: %v, want %v", got, tc.covered)
			}
			o.drop(fork)
			o.drop(late)
			if o.live != 0 {
				t.Errorf("%d events are held by nobody", o.live)
			}
		})
	}
}
