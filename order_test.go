package offload_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// legal is the table of design once more, written down apart from package fsm,
// for what callers can ask.
var legal = map[fsm.Event]map[fsm.State]fsm.State{
	fsm.Push:         {fsm.Resident: fsm.Resident},
	fsm.StartOffload: {fsm.Resident: fsm.Offloading},
	fsm.Release:      {fsm.Offloading: fsm.Offloaded},
	fsm.Reload:       {fsm.Offloaded: fsm.Reloading},
	fsm.Revive:       {fsm.Offloading: fsm.Resident},
	fsm.Pop:          {fsm.Resident: fsm.Resident, fsm.Reloading: fsm.Reloading},
	fsm.Reset: {fsm.Resident: fsm.Resident, fsm.Offloading: fsm.Resident, fsm.Offloaded: fsm.Resident,
		fsm.Reloading: fsm.Resident, fsm.Failed: fsm.Resident},
}

// Every event in every state: it moves the slot as the table says, or it is
// refused by name and nothing has changed.
func TestEveryCell(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		for state := range fsm.State(fsm.States) {
			for _, event := range []fsm.Event{fsm.Push, fsm.StartOffload, fsm.Release, fsm.Reload, fsm.Pop, fsm.Revive, fsm.Reset} {
				t.Run(fmt.Sprintf("%v when %v", event, state), func(t *testing.T) { cell(t, d, event, state) })
			}
		}
	})
}

func cell(t *testing.T, d offload.Dispatch, event fsm.Event, state fsm.State) {
	b := manual(t, d)
	defer b.close()
	p := b.begin()
	slot := b.forward(p, 1)
	saved := b.push(slot, "x")
	b.reach(slot, state)
	if got := slot.State(); got != state {
		t.Fatalf("the slot is %v, want %v", got, state)
	}
	extra := b.Tensor(b.Compute, "extra", 4096)
	mine := true // extra is
	call := func() error {
		switch event {
		case fsm.Push:
			_, err := slot.Push(extra)
			mine = err != nil
			return err
		case fsm.StartOffload:
			return slot.StartOffload()
		case fsm.Release:
			return slot.Release()
		case fsm.Reload:
			return slot.Reload()
		case fsm.Revive:
			return slot.Revive()
		case fsm.Reset:
			return slot.Reset()
		}
		ts, err := slot.Pop(saved)
		if err == nil {
			b.Check(b.Compute, ts[0], "x")
		}
		return err
	}
	if to, ok := legal[event][state]; ok {
		b.must(call())
		if got := slot.State(); got != to {
			t.Errorf("got %v, want %v", got, to)
		}
	} else {
		err := b.unchanged(event.String(), slot, call)
		var refused *offload.OrderError
		if !errors.Is(err, offload.ErrOrder) || !errors.As(err, &refused) {
			t.Fatalf("got %v, want an OrderError", err)
		}
		if refused.Layer != 1 || refused.Event != event || refused.State != state {
			t.Errorf("got layer %d, event %v, state %v; want 1, %v, %v", refused.Layer, refused.Event, refused.State, event, state)
		}
		for e, row := range legal {
			if _, ok := row[state]; ok != slices.Contains(refused.Allowed, e) {
				t.Errorf("%v is among the allowed %v: %v, want %v", e, refused.Allowed, !ok, ok)
			}
		}
	}
	if mine {
		b.Drop(b.Compute, extra)
	}
	b.must(p.Abort())
}

// reach moves a slot with one tensor to a state.
func (b *bench) reach(s *offload.Slot, state fsm.State) {
	b.t.Helper()
	switch state {
	case fsm.Offloading:
		b.must(s.StartOffload())
	case fsm.Offloaded:
		b.must(s.StartOffload())
		b.must(s.Release())
	case fsm.Reloading:
		b.must(s.StartOffload())
		b.must(s.Release())
		b.must(s.Reload())
	case fsm.Failed:
		b.Gate.Before(refuse(fsm.StartOffload))
		if err := s.StartOffload(); err == nil {
			b.t.Fatal("the device refused the batch and nobody says so")
		}
		b.Gate.Before(nil)
	}
}

var errRefused = errors.New("refused by the test")

// refuse lets no batch of an event through.
func refuse(e fsm.Event) func(*device.Batch) error {
	return func(batch *device.Batch) error {
		if batch.Origin.Action == e.String() {
			return errRefused
		}
		return nil
	}
}

// The plan decides, in every state that it leads to.
func TestManualCallsUnderAWindow(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := window(t, d, 3, 1)
		defer b.close()
		p := b.begin()
		slot := b.forward(p, 0)
		saved := b.push(slot, "x")
		refused := func() {
			for name, call := range map[string]func() error{
				"start-offload": slot.StartOffload, "release": slot.Release, "reload": slot.Reload,
				"revive": slot.Revive, "reset": slot.Reset,
			} {
				if err := b.unchanged(name, slot, call); !errors.Is(err, offload.ErrPlanned) {
					t.Errorf("%s when %v: got %v, want ErrPlanned", name, slot.State(), err)
				}
			}
		}
		refused()
		b.forward(p, 1)
		refused()
		b.forward(p, 2)
		refused()
		b.backward(p, 2)
		b.backward(p, 1)
		refused()
		b.pop(b.backward(p, 0), saved, "x")
		b.must(p.End())
	})
}
