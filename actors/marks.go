package actors

import (
	"cmp"
	"fmt"
	"slices"

	"offload/device"
	"offload/internal/layout"
	"offload/messages"
)

// mark says that bytes of a storage are complete at a set of points, one for each
// stream that wrote some. It is valid for the pass in which it was made, and for
// the bytes as they were then.
type mark struct {
	number  uint64 // counts the marks
	pass    uint64
	version uint64
	buffer  device.Buffer
	events  []*event
	spans   []layout.Span // what was marked, on whatever stream
}

// mark records that the tensors are complete at the present point of the stream.
func (d *deviceActor) mark(c *messages.Control) error {
	if d.lost != nil {
		return d.lost
	}
	s := d.order.index(c.Stream)
	for _, t := range c.Tensors {
		st := t.Storage
		if e := d.ledger.entries[st]; e != nil && !e.onDevice {
			return markError(st, "its bytes are on the host")
		}
		if st.Buffer().IsZero() {
			return markError(st, "it has no buffer")
		}
	}
	d.work.begin(device.Origin{Action: "mark", Pass: c.Pass})
	for _, t := range c.Tensors {
		d.arrived(t.Storage, s)
	}
	ev, _ := d.work.record(s)
	ev.refs++
	defer d.order.drop(ev)
	if err := d.submit(nil); err != nil {
		return err
	}
	for _, t := range c.Tensors {
		st := t.Storage
		m := d.marks[st]
		if m == nil || !d.valid(m, st, c.Pass) {
			d.unmark(st)
			d.lastMark++
			m = &mark{number: d.lastMark, pass: c.Pass, version: d.version(st), buffer: st.Buffer()}
			d.marks[st] = m
		}
		if spans, ok := layout.Of(nil, t, maxPieces); ok { // else its push is the point
			m.spans = layout.Union(m.spans, spans, nil)
		}
		// A later point of the same stream includes the earlier one.
		m.events = slices.DeleteFunc(m.events, func(o *event) bool {
			if o.stream == ev.stream {
				d.order.drop(o)
				return true
			}
			return false
		})
		ev.refs++
		m.events = append(m.events, ev)
	}
	return nil
}

func (d *deviceActor) valid(m *mark, s *device.Storage, pass uint64) bool {
	return m.pass == pass && m.version == d.version(s) && m.buffer == s.Buffer()
}

// marked makes e ready at the points at which it was marked, and reports whether
// no other is needed for t on stream s: one of them is there, and every byte of t
// was marked somewhere.
func (d *deviceActor) marked(e *entry, g *group, t device.Tensor, s int) bool {
	m := d.marks[e.storage]
	if m == nil || !d.valid(m, e.storage, g.origin.Pass) {
		return false
	}
	here := false
	for _, ev := range m.events {
		here = here || ev.stream == s
		e.producers = note(e.producers, ev.stream)
		if !slices.Contains(e.ready, ev) {
			ev.refs++
			e.ready = append(e.ready, ev)
		}
	}
	if !here {
		return false
	}
	spans, _ := layout.Of(nil, t, maxPieces)
	return len(layout.Minus(nil, spans, m.spans)) == 0
}

func (d *deviceActor) unmark(s *device.Storage) {
	if m := d.marks[s]; m != nil {
		for _, ev := range m.events {
			d.order.drop(ev)
		}
		delete(d.marks, s)
	}
}

// endMarks forgets the marks of a pass, in the order in which they were made, so
// that the same program is given the same ids.
func (d *deviceActor) endMarks(pass uint64) {
	var ended []*device.Storage
	for s, m := range d.marks {
		if m.pass == pass || pass == 0 {
			ended = append(ended, s)
		}
	}
	slices.SortFunc(ended, func(a, b *device.Storage) int { return cmp.Compare(d.marks[a].number, d.marks[b].number) })
	for _, s := range ended {
		d.unmark(s)
	}
}

func markError(s *device.Storage, found string) error {
	return fmt.Errorf("mark: storage %q: %w: %s; mark a tensor after it was written and before it is saved", s.Name(), ErrMoved, found)
}
