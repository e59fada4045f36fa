package actors

import (
	"fmt"
	"slices"

	"offload/device"
	"offload/fsm"
	"offload/messages"
)

// layerActor owns the slots of one layer.
type layerActor struct {
	index  int
	slots  *slot // those that are open, the last one first
	limits *Limits
	hooks  *Hooks
	idle   []place // tensors whose move freed nothing in an earlier pass
}

// place is where a tensor is saved, pass after pass.
type place struct {
	occurrence, index int
	holder            string
	outside           bool // the holder is not a slot of the engine
}

func (p place) same(o place) bool { return p.occurrence == o.occurrence && p.index == o.index }

// slot is one run of the layer within one pass. Its tensors move together, so
// it has one group and one machine.
type slot struct {
	id      messages.SlotID
	next    *slot // of the same layer
	device  int
	mode    messages.Mode
	machine fsm.Machine
	ticket  messages.Ticket
	moving  int // saved tensors that may move
	explain bool
	saved   []saved
}

// saved is one pushed tensor.
type saved struct {
	tensor  device.Tensor
	verdict messages.Verdict
	stream  device.Stream
	popped  bool
	moved   int64  // bytes that were copied out for it
	holder  string // who kept the storage on the device, if moving it gained nothing
	outside bool   // the holder is no slot of the engine

	// Of slots that are explained.
	away bool             // it is on the host since the offload started
	kept messages.Verdict // why it is not, if it was to go
}

// next says who has to act after a layer has looked at a request.
type next uint8

const (
	answer next = iota // the request is done
	ask                // the device has to act; its command is filled in
)

// step looks at a request: it answers it, or fills in the command for the device.
func (l *layerActor) step(r *messages.Request) next {
	if r.Verb == messages.Open {
		r.Err = l.open(r)
		return answer
	}
	s := l.find(r.Slot)
	if s == nil {
		r.Err = fmt.Errorf("%v layer %d: %w: the slot is not open", r.Event, l.index, ErrStale)
		return answer
	}
	r.State, r.Device = s.machine.State(), s.device
	if err := s.machine.Check(r.Event); err != nil {
		r.Err = err
		return answer
	}
	c := r.Command()
	c.Ticket = s.ticket
	switch r.Event {
	case fsm.Push:
		r.Err = l.judge(s, r, c)
	case fsm.Pop:
		r.Err = s.read(r, c)
	}
	if r.Err != nil {
		return answer
	}
	if !s.needsDevice(r.Event, c) {
		r.Short = true
		from := s.machine.State()
		s.machine.Advance(r.Event)
		l.moved(s, r, from, 0)
		return answer
	}
	return ask
}

// resume takes up a request that the device has acted on.
func (l *layerActor) resume(a *messages.Answer) {
	r, c := a.Request, a.Command()
	s := l.find(r.Slot)
	if s == nil {
		r.Err = fmt.Errorf("%v layer %d: %w: the slot is not open", r.Event, l.index, ErrStale)
		return
	}
	s.ticket = c.Ticket
	s.note(c)
	switch {
	case c.Failed:
		l.fail(s, r)
	case r.Err == nil:
		r.Short = c.Ops == 0
		from := s.machine.State()
		if r.Err = s.machine.Fire(r.Event); r.Err == nil {
			l.moved(s, r, from, c.Ops)
			return
		}
	}
	if r.Event == fsm.Push {
		s.saved = s.saved[:r.First]
	}
}

// moved does what follows when the machine has moved along the event of the request.
func (l *layerActor) moved(s *slot, r *messages.Request, from fsm.State, ops int) {
	switch r.Event {
	case fsm.Push:
		for _, v := range s.saved[r.First:] {
			if l.mayMove(s, v.verdict) {
				s.moving++
			}
		}
	case fsm.Pop:
		for _, i := range r.Indices {
			s.saved[i].popped = true
		}
	case fsm.Reset:
		r.Unused = s.unused()
		l.learn(s, r)
		s.clear()
	}
	r.State = s.machine.State()
	l.hooks.transition(Transition{Layer: l.index, Slot: r.Slot, Event: r.Event, From: from, To: r.State, Ops: ops})
	if r.Verb == messages.Close {
		l.forget(s) // last: another layer may have it at once
	}
}

// fail notes that the batch of the request was not enqueued whole. The error
// of the request stays what it is.
func (l *layerActor) fail(s *slot, r *messages.Request) {
	from := s.machine.State()
	if err := s.machine.Fire(fsm.Fail); err != nil {
		return
	}
	r.State = s.machine.State()
	l.hooks.transition(Transition{Layer: l.index, Slot: r.Slot, Event: fsm.Fail, From: from, To: r.State})
}

func (l *layerActor) open(r *messages.Request) error {
	if l.find(r.Slot) != nil {
		return fmt.Errorf("open layer %d: run %d of pass %d is open already", l.index, r.Slot.Occurrence, r.Slot.Pass)
	}
	s := slots.Get().(*slot)
	s.id, s.device, s.mode, s.explain = r.Slot, r.Device, r.Mode, r.Explain
	s.machine.Init(l.index)
	s.next = l.slots
	l.slots = s
	return nil
}

func (l *layerActor) find(id messages.SlotID) *slot {
	for s := l.slots; s != nil; s = s.next {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (l *layerActor) forget(s *slot) {
	for at := &l.slots; *at != nil; at = &(*at).next {
		if *at == s {
			*at, s.next = s.next, nil
			break
		}
	}
	slots.Put(s)
}

// judge refuses tensors that cannot be right, notes the others behind what the
// slot has saved, and tells the device which storages the group is to hold.
func (l *layerActor) judge(s *slot, r *messages.Request, c *messages.Command) error {
	r.First = len(s.saved)
	for _, t := range r.Tensors {
		if err := t.Check(); err != nil {
			s.saved = s.saved[:r.First]
			return fmt.Errorf("push layer %d: %w", l.index, err)
		}
		v, holder := l.verdict(s, t)
		if v == messages.NoBackward {
			t = device.Tensor{}
		}
		if v.Owned() {
			c.Items = append(c.Items, messages.Item{Storage: t.Storage, Index: len(s.saved) - r.First,
				Fate: l.fate(s, v), Small: v == messages.TooSmall})
		}
		s.saved = append(s.saved, saved{tensor: t, verdict: v, stream: r.Stream, holder: holder})
	}
	return nil
}

// verdict decides what becomes of t as the next tensor of the slot.
func (l *layerActor) verdict(s *slot, t device.Tensor) (v messages.Verdict, holder string) {
	if s.mode == messages.Forget && !t.IsNil() {
		return messages.NoBackward, ""
	}
	v = l.limits.judge(t, s.mode == messages.Stay)
	if v != messages.Moves {
		return v, ""
	}
	for i, p := range l.idle {
		if p.occurrence != s.id.Occurrence || p.index != len(s.saved) {
			continue
		}
		if p.outside && t.Storage.Holders() == 1 {
			l.idle = slices.Delete(l.idle, i, i+1) // it may be worth it now
			return v, ""
		}
		return messages.NoGain, p.holder
	}
	return v, ""
}

// fate returns what a verdict means for the storage of a tensor in the slot.
func (l *layerActor) fate(s *slot, v messages.Verdict) messages.Fate {
	switch {
	case s.mode != messages.Offload:
		return messages.Held
	case l.mayMove(s, v):
		return messages.Goes
	case v == messages.TooSmall:
		return messages.Joins
	}
	return messages.Stays
}

// mayMove reports whether tensors with the verdict are moved by the slot: small
// ones are if together they are worth it.
func (l *layerActor) mayMove(s *slot, v messages.Verdict) bool {
	return v == messages.Moves || v == messages.TooSmall && l.limits.Coalesce > 0 && s.mode == messages.Offload
}

// read answers a pop with the tensors, and tells the device which of them have
// to be waited for.
func (s *slot) read(r *messages.Request, c *messages.Command) error {
	r.Tensors = r.Tensors[:0]
	for _, i := range r.Indices {
		if i < 0 || i >= len(s.saved) {
			return fmt.Errorf("pop layer %d: %w: tensor %d was asked for and %d were saved", r.Layer, ErrStale, i, len(s.saved))
		}
		v := &s.saved[i]
		if v.verdict == messages.NoBackward {
			return fmt.Errorf("pop layer %d: %w: an inference pass keeps nothing; begin a training pass", r.Layer, ErrStale)
		}
		r.Tensors = append(r.Tensors, v.tensor)
		away := s.moving > 0 && s.machine.State() == fsm.Reloading
		if v.verdict.Owned() && (away || r.Stream != v.stream) {
			c.Items = append(c.Items, messages.Item{Storage: v.tensor.Storage})
		}
	}
	return nil
}

// needsDevice reports whether the device has anything to do with the event.
// What it has not heard of costs it nothing.
func (s *slot) needsDevice(e fsm.Event, c *messages.Command) bool {
	switch e {
	case fsm.Push, fsm.Pop:
		return len(c.Items) > 0
	case fsm.Reset:
		return s.ticket != 0
	}
	return s.moving > 0
}

// unused returns how many tensors were saved and never popped.
func (s *slot) unused() int {
	n := 0
	for i := range s.saved {
		if v := &s.saved[i]; !v.popped && v.verdict != messages.Absent && v.verdict != messages.NoBackward {
			n++
		}
	}
	return n
}

func (s *slot) clear() {
	clear(s.saved)
	s.saved, s.moving, s.ticket = s.saved[:0], 0, 0
}
