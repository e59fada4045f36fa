package actors

import (
	"fmt"
	"slices"
	"strings"

	"offload/device"
	"offload/fsm"
	"offload/messages"
)

// explain fills in what the batch of the command copied out and, when an offload
// has started, what is on the host and what was to go there and did not.
func (d *deviceActor) explain(c *messages.Command, g *group) {
	for i := range d.work.effects {
		if fx := &d.work.effects[i]; fx.bytes > 0 {
			c.Copied = append(c.Copied, messages.Copied{Storage: fx.entry.storage, Bytes: fx.bytes})
		}
	}
	if c.Request.Event != fsm.StartOffload {
		return
	}
	for _, e := range g.entries {
		switch {
		case !e.moves:
		case e.stays:
			c.Kept = append(c.Kept, messages.Kept{Storage: e.storage, Why: messages.SharesStorage})
		case d.backed(e):
			c.Copied = append(c.Copied, messages.Copied{Storage: e.storage})
		case !e.small || e.committed > 0 || d.together:
			c.Kept = append(c.Kept, messages.Kept{Storage: e.storage, Why: messages.NoHostMemory})
		}
	}
}

// holders says who keeps e on the device although g has released it.
func (e *entry) holders(g *group) (names string, outside bool) {
	list := e.storage.HeldBy()
	if e.storage.Holders() > len(list)+1 {
		list = append(list, "another engine")
	}
	outside = len(list) > 0
	for _, o := range e.groups {
		if o != g && !o.away {
			list = append(list, fmt.Sprintf("layer %d", o.origin.Layer))
		}
	}
	return strings.Join(list, ", "), outside
}

// gain notes which storages of g are no longer on the device, for whoever is away.
func (g *group) gain() {
	for _, e := range g.entries {
		e.gained = e.gained || !e.onDevice
	}
}

// gainless appends the storages of the group whose move gained nothing: they
// were copied and released, and the device never got their memory back.
func gainless(list []messages.Gainless, g *group) []messages.Gainless {
	if !g.released || g.away {
		return list
	}
	for _, e := range g.entries {
		if e.holder != "" && !e.gained {
			list = append(list, messages.Gainless{Storage: e.storage, Holder: e.holder, Outside: e.outside})
		}
	}
	return list
}

// note notes what the device says that it has copied for the slot's tensors, what
// it has kept, and what it has copied for nothing. The first tensor of a storage
// gets the bytes.
func (s *slot) note(c *messages.Command) {
	started := c.Request.Event == fsm.StartOffload
	if s.explain && (started || len(c.Copied) > 0) {
		first := s.firsts()
		for _, x := range c.Copied {
			if i, ok := first[x.Storage]; ok {
				s.saved[i].moved += x.Bytes
			}
		}
		if started {
			s.fared(c)
		}
	}
	if len(c.Gainless) > 0 {
		lost := make(map[*device.Storage]messages.Gainless, len(c.Gainless))
		for _, x := range c.Gainless {
			lost[x.Storage] = x
		}
		for i := range s.saved {
			if v := &s.saved[i]; v.verdict == messages.Moves || v.verdict == messages.TooSmall {
				x := lost[v.tensor.Storage]
				v.holder, v.outside = x.Holder, x.Outside
			}
		}
	}
}

// fared notes what became of each tensor when the offload started.
func (s *slot) fared(c *messages.Command) {
	away, kept := make(map[*device.Storage]bool, len(c.Copied)), make(map[*device.Storage]messages.Verdict, len(c.Kept))
	for _, x := range c.Copied {
		away[x.Storage] = true
	}
	for _, x := range c.Kept {
		kept[x.Storage] = x.Why
		delete(away, x.Storage) // some of it was copied
	}
	for i := range s.saved {
		if v := &s.saved[i]; v.verdict == messages.Moves || v.verdict == messages.TooSmall {
			v.away, v.kept = away[v.tensor.Storage], kept[v.tensor.Storage]
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
		v := &s.saved[i]
		if v.verdict != messages.Moves || v.holder == "" {
			continue
		}
		p := place{occurrence: s.id.Occurrence, index: i, holder: v.holder, outside: v.outside}
		if !slices.ContainsFunc(l.idle, p.same) { // another pass may have found out, too
			l.idle = append(l.idle, p)
		}
	}
	if !s.explain || r.Event != fsm.Reset {
		return
	}
	for i := range s.saved {
		v := &s.saved[i]
		x := messages.Record{Tensor: v.tensor, Verdict: v.verdict, Away: v.away, Moved: v.moved, Holder: v.holder}
		if v.kept != messages.Moves {
			x.Verdict = v.kept
		}
		r.Records = append(r.Records, x)
	}
}
