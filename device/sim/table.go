package sim

import (
	"fmt"

	"offload/device"
)

// A space holds what the ids of one id space stand for, by index. Indices are
// used again, so that tables stay as small as what is alive at one time.
type space struct {
	streams []*stream
	events  []event
	buffers [device.OnHost + 1][]slot
}

// An event is what the table keeps of one index: its newest generation that was recorded.
type event struct {
	gen     uint32
	retired bool
	at      point
	clock   clock // of the stream at the record
	site    Site  // zero: never recorded
	mark    *mark // on the virtual clock
}

// maxIndex bounds the tables. Ids are minted one after the other, so that a
// larger index is not an id but a mistake.
const maxIndex = 1 << 24

// tombstone stands for every stream that was closed and has nothing queued.
var tombstone = &stream{closed: true}

// space returns the id space with the given number, or nil.
func (d *Device) space(n uint16) *space {
	if n == 0 || int(n) >= len(d.spaces) {
		return nil
	}
	return &d.spaces[n]
}

// own refuses ids of other devices, and id spaces and indices that do not exist.
// It is generic so that an id is not boxed on the way that has no error.
func own[T fmt.Stringer](r *request, id T, dev device.ID, sp uint16, index uint32) error {
	d := r.dev
	switch {
	case dev == 0:
		return fmt.Errorf("%w: %v names %v", device.ErrInvalid, r.op.Kind, id)
	case dev != d.info.ID:
		d.report(Finding{Rule: ForeignDevice, Second: r.site, Subject: id.String(),
			Missing: fmt.Sprintf("an id of device %d", d.info.ID)})
		return fmt.Errorf("%w: %v on device %d", device.ErrForeign, id, d.info.ID)
	case d.space(sp) == nil || index >= maxIndex:
		return fmt.Errorf("%w: %v is not of an id space of this device", device.ErrUnknown, id)
	}
	return nil
}

// stream returns the open stream that the operation names.
func (r *request) stream() (*stream, error) {
	id := r.op.Stream
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	sp := r.dev.space(id.Space)
	if int(id.Index) >= len(sp.streams) || sp.streams[id.Index] == nil {
		return nil, fmt.Errorf("%w: stream %v was not opened", device.ErrUnknown, id)
	}
	s := sp.streams[id.Index]
	if s.closed {
		return nil, fmt.Errorf("%w: stream %v was closed", device.ErrUnknown, id)
	}
	r.on = s
	return s, nil
}

// recorded returns the event that the operation names and waits for.
func (r *request) recorded() (*event, error) {
	id := r.op.Event
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	f := Finding{Rule: UnrecordedEvent, Second: r.site, Subject: id.String(), Missing: "a record of this event, submitted before"}
	sp := r.dev.space(id.Space)
	if int(id.Index) < len(sp.events) {
		switch e := &sp.events[id.Index]; {
		case e.gen == id.Gen && e.retired:
			f.Missing = "a wait before the event is retired"
		case e.gen == id.Gen && !e.site.IsZero():
			return e, nil
		case e.gen > id.Gen:
			f.First = e.site
			f.Missing = fmt.Sprintf("a wait before generation %d of the event is recorded", e.gen)
		}
	}
	r.dev.report(f)
	return nil, fmt.Errorf("%w: %v; missing: %s", device.ErrUnrecorded, id, f.Missing)
}

// unrecorded returns the table entry for an event that is about to be recorded.
func (r *request) unrecorded() (*event, error) {
	id := r.op.Event
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	sp := r.dev.space(id.Space)
	for int(id.Index) >= len(sp.events) {
		sp.events = append(sp.events, event{})
	}
	e := &sp.events[id.Index]
	if e.site.IsZero() || e.gen < id.Gen {
		return e, nil
	}
	r.dev.report(Finding{Rule: RecordedTwice, First: e.site, Second: r.site, Subject: id.String(),
		Missing: fmt.Sprintf("a generation above %d of the event", e.gen)})
	if e.gen > id.Gen || e.retired {
		return nil, fmt.Errorf("%w: event %v is out of date; generation %d was recorded by %v", device.ErrUnknown, id, e.gen, e.site)
	}
	return nil, fmt.Errorf("%w: event %v was recorded by %v", device.ErrInvalid, id, e.site)
}

// slot returns the table entry of b, or nil if there is none.
func (d *Device) slot(b device.Buffer) *slot {
	sp := d.space(b.Space)
	if sp == nil || b.Device != d.info.ID || b.Place > device.OnHost || int(b.Index) >= len(sp.buffers[b.Place]) {
		return nil
	}
	return &sp.buffers[b.Place][b.Index]
}

// live returns the buffer with the given id, which must be at the given place.
func (r *request) live(id device.Buffer, place device.Place) (*buffer, error) {
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	if id.Place != place && place != device.Nowhere {
		return nil, fmt.Errorf("%w: %v needs memory on the %v, and %v is on the %v", device.ErrInvalid, r.op.Kind, place, id, id.Place)
	}
	s := r.dev.slot(id)
	if s == nil || id.Gen > s.gen {
		return nil, fmt.Errorf("%w: buffer %v was not made", device.ErrUnknown, id)
	}
	if id.Gen == s.gen && s.live != nil {
		return s.live, nil
	}
	f := Finding{Rule: UseAfterFree, Second: r.site, Subject: id.String(), Missing: "a use that is submitted before the free"}
	if k := r.op.Kind; k == device.Free || k == device.Disown || k == device.Unpin {
		f.Rule, f.Missing = DoubleFree, "one owner who gives it back"
	}
	text := "long ago"
	if id.Gen == s.gen && s.gone != nil {
		f.First = *s.gone
		text = "by " + f.First.String()
	}
	r.dev.report(f)
	return nil, fmt.Errorf("%w: buffer %v was given back %s", device.ErrUnknown, id, text)
}

// unmade returns the table entry for a buffer that is about to be made.
func (r *request) unmade(rg device.Range, place device.Place) (*slot, error) {
	id := rg.Buffer
	if err := own(r, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	if id.Place != place {
		return nil, fmt.Errorf("%w: %v makes memory on the %v, and %v is on the %v", device.ErrInvalid, r.op.Kind, place, id, id.Place)
	}
	if rg.Offset != 0 || rg.Bytes <= 0 || rg.Bytes > 1<<48 {
		return nil, fmt.Errorf("%w: a new buffer starts at 0 and has at least one byte, not %v", device.ErrInvalid, rg)
	}
	sp := r.dev.space(id.Space)
	for int(id.Index) >= len(sp.buffers[place]) {
		sp.buffers[place] = append(sp.buffers[place], slot{})
	}
	s := &sp.buffers[place][id.Index]
	switch {
	case s.live != nil:
		return nil, fmt.Errorf("%w: buffer %v is in use, made by %v", device.ErrInvalid, s.live.id, *s.live.made.site)
	case s.gone != nil && id.Gen <= s.gen:
		return nil, fmt.Errorf("%w: buffer %v is out of date; generation %d was given back by %v", device.ErrUnknown, id, s.gen, *s.gone)
	}
	return s, nil
}

// span looks a range up and checks that it lies within its buffer.
func (r *request) span(rg device.Range, place device.Place) (span, error) {
	b, err := r.live(rg.Buffer, place)
	if err != nil {
		return span{}, err
	}
	if !within(rg, b) {
		r.dev.report(Finding{Rule: OutOfBounds, First: *b.made.site, Second: r.site, Subject: rg.String(),
			Missing: fmt.Sprintf("a range within its %d bytes", b.bytes)})
		return span{}, fmt.Errorf("%w: %v is not within the %d bytes of the buffer", device.ErrInvalid, rg, b.bytes)
	}
	return span{rg, b}, nil
}

func within(rg device.Range, b *buffer) bool {
	return rg.Offset >= 0 && rg.Bytes >= 0 && rg.Bytes <= b.bytes && rg.Offset <= b.bytes-rg.Bytes
}
