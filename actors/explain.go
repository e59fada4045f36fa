package actors

import (
	"offload/device"
	"offload/fsm"
	"offload/messages"
)

// note notes what the device says that it has copied for the slot's tensors, and
// what it has copied for nothing. The first tensor of a storage gets the bytes.
func (s *slot) note(c *messages.Command) {
	if len(c.Copied) > 0 {
		first := s.firsts()
		for _, x := range c.Copied {
			if i, ok := first[x.Storage]; ok {
				s.saved[i].moved += x.Bytes
			}
		}
	}
	if len(c.Gainless) > 0 {
		holders := make(map[*device.Storage]string, len(c.Gainless))
		for _, x := range c.Gainless {
			holders[x.Storage] = x.Holder
		}
		for i := range s.saved {
			if v := &s.saved[i]; v.verdict == messages.Moves {
				v.holder = holders[v.tensor.Storage]
			}
		}
	}
}

// firsts returns for every storage that may move the index of the first tensor
// that was saved of it.
func (s *slot) firsts() map[*device.Storage]int {
	first := make(map[*device.Storage]int, len(s.saved))
	for i := range s.saved {
		v := &s.saved[i]
		if v.verdict != messages.Moves && v.verdict != messages.TooSmall {
			continue
		}
		if _, ok := first[v.tensor.Storage]; !ok {
			first[v.tensor.Storage] = i
		}
	}
	return first
}

// learn remembers which tensors were moved for nothing, and fills in the records
// of the request.
func (l *layerActor) learn(s *slot, r *messages.Request) {
	for i := range s.saved {
		if v := &s.saved[i]; v.verdict == messages.Moves && v.holder != "" {
			l.idle = append(l.idle, place{occurrence: s.id.Occurrence, index: i, holder: v.holder, outside: v.tensor.Storage.Retained()})
		}
	}
	if !s.explain || r.Event != fsm.Reset {
		return
	}
	for i := range s.saved {
		v := &s.saved[i]
		r.Records = append(r.Records, messages.Record{Tensor: v.tensor, Verdict: v.verdict, Moved: v.moved, Holder: v.holder})
	}
}
