package tests

import (
	"context"
	"errors"
	"testing"

	"offload"
	"offload/device"
	"offload/device/null"
	"offload/fsm"
)

// events are what a caller can ask of a slot.
var events = []fsm.Event{fsm.Push, fsm.StartOffload, fsm.Release, fsm.Reload, fsm.Pop, fsm.Revive, fsm.Reset}

// lifecycle is what a slot is for those who do not know how it works: where it is,
// and where each of its tensors is.
type lifecycle struct {
	state   fsm.State
	tensors []where
}

type where struct{ onDevice, onHost bool }

// work is the operations that count.
type work struct{ out, in, freed, allocated int64 }

// do says whether the event is legal, and what it costs the device.
func (m *lifecycle) do(e fsm.Event) (legal bool, w work) {
	switch {
	case e == fsm.Push && m.state == fsm.Resident:
		m.tensors = append(m.tensors, where{onDevice: true})
	case e == fsm.StartOffload && m.state == fsm.Resident:
		m.state = fsm.Offloading
		for i := range m.tensors {
			if !m.tensors[i].onHost {
				m.tensors[i].onHost = true
				w.out++
			}
		}
	case e == fsm.Release && m.state == fsm.Offloading:
		m.state = fsm.Offloaded
		for i := range m.tensors {
			m.tensors[i].onDevice = false
			w.freed++
		}
	case e == fsm.Reload && m.state == fsm.Offloaded:
		m.state = fsm.Reloading
		for i := range m.tensors {
			m.tensors[i] = where{onDevice: true}
			w.in++
			w.allocated++
		}
	case e == fsm.Revive && m.state == fsm.Offloading:
		m.state = fsm.Resident
		for i := range m.tensors {
			m.tensors[i].onHost = false
		}
	case e == fsm.Pop && (m.state == fsm.Resident || m.state == fsm.Reloading):
	case e == fsm.Reset:
		m.state = fsm.Resident
		for _, t := range m.tensors {
			if t.onDevice {
				w.freed++
			}
		}
		m.tensors = nil
	default:
		return false, work{}
	}
	return true, w
}

// subject is the slot that is compared with the model.
type subject struct {
	dev    *null.Device
	ids    *device.IDs
	stream device.Stream
	slot   *offload.Slot
	saved  []offload.Saved
}

func (s *subject) do(e fsm.Event) error {
	switch e {
	case fsm.Push:
		x := s.ids.NewStorage("x", device.Activation, 4096, s.stream)
		saved, err := s.slot.Push(device.Tensor{Storage: x, DType: device.Uint8, Shape: []int{4096}})
		s.saved = append(s.saved, saved...)
		return err
	case fsm.StartOffload:
		return s.slot.StartOffload()
	case fsm.Release:
		return s.slot.Release()
	case fsm.Reload:
		return s.slot.Reload()
	case fsm.Pop:
		_, err := s.slot.Pop(s.saved...)
		return err
	case fsm.Revive:
		return s.slot.Revive()
	}
	s.saved = s.saved[:0]
	return s.slot.Reset()
}

func (s *subject) work() work {
	c := s.dev.Counts()
	return work{out: c.Ops[device.CopyOut], in: c.Ops[device.CopyIn], freed: c.Ops[device.Free], allocated: c.Ops[device.Alloc]}
}

// TestEverySequence plays every sequence of up to 7 events, 5 in a short run,
// on a slot and on the model: the same answers, states and operations.
func TestEverySequence(t *testing.T) {
	length := 7
	if testing.Short() {
		length = 5
	}
	s := &subject{dev: null.New()}
	s.ids = device.NewIDs(s.dev)
	s.stream = s.ids.Stream()
	engine, err := offload.Open(s.dev, offload.Options{Layers: 1, MinElements: 1, SlabBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	pass, err := engine.Begin(context.Background(), offload.Train, s.stream)
	if err != nil {
		t.Fatal(err)
	}
	if s.slot, err = pass.Forward(0); err != nil {
		t.Fatal(err)
	}
	played := 0
	sequence := make([]fsm.Event, length)
	var extend func(depth int)
	extend = func(depth int) {
		if depth == length {
			played++
			s.play(t, sequence)
			return
		}
		for _, e := range events {
			sequence[depth] = e
			extend(depth + 1)
		}
	}
	extend(0)
	if err := engine.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d sequences of %d events", played, length)
}

// play plays one sequence, of which every beginning is one, too, and resets.
func (s *subject) play(t *testing.T, sequence []fsm.Event) {
	t.Helper()
	var m lifecycle
	for i, e := range sequence {
		before := s.work()
		err := s.do(e)
		after := s.work()
		legal, want := m.do(e)
		got := work{after.out - before.out, after.in - before.in, after.freed - before.freed, after.allocated - before.allocated}
		if (err == nil) != legal || err != nil && !errors.Is(err, offload.ErrOrder) {
			t.Fatalf("%v: event %d: got %v, want legal %v", sequence, i, err, legal)
		}
		if at := s.slot.State(); at != m.state || got != want {
			t.Fatalf("%v: after event %d: %v and %+v, want %v and %+v", sequence, i, at, got, m.state, want)
		}
	}
	s.saved = s.saved[:0]
	if err := s.slot.Reset(); err != nil {
		t.Fatal(err)
	}
}
