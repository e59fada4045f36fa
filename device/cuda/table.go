package cuda

import (
	"fmt"

	"offload/device"
)

// A space holds what the ids of one id space stand for, by index. Indices are
// used again, so that tables stay as small as what is alive at one time.
type space struct {
	streams []*stream
	events  []event
	buffers [device.OnHost + 1][]buffer
}

// maxIndex bounds the tables. Ids are minted one after the other, so that a
// larger index is not an id but a mistake.
const maxIndex = 1 << 24

// A stream is a stream of the driver. It outlives CloseStream while something
// waits for it or events that were recorded on it are known.
type stream struct {
	handle  uintptr
	adopted bool // the handle is the caller's
	closed  bool
	waiters int    // calls that block until it has ended
	records uint64 // events recorded so far
	passed  uint64 // of these, how many the host has seen pass
}

// An event is what the table keeps of one index: its newest generation that was recorded.
type event struct {
	gen     uint32
	retired bool
	on      *stream // nil: never recorded
	number  uint64  // which record of the stream it is
	mark    *mark
}

// passed reports whether the host has seen the event pass.
func (e *event) passed() bool { return e.number <= e.on.passed }

// A mark is an event of the driver. One that something blocks on is not
// recorded again, because the wait would then end with the later record.
type mark struct {
	handle  uintptr
	waiters int
	dropped bool // goes to the spares when nobody waits for it any more
}

// A buffer is what the table keeps of one index: its newest generation.
type buffer struct {
	gen     uint32
	live    bool
	adopted bool  // the memory is the caller's
	from    int32 // while its batch is translated: the command that allocates it, or none
	bytes   int64 // as asked for; what is accessed is checked against these
	address uintptr
	host    []byte // the bytes of pinned memory
}

// space returns the id space with the given number, or nil.
func (d *Device) space(n uint16) *space {
	if n == 0 || int(n) >= len(d.spaces) {
		return nil
	}
	return &d.spaces[n]
}

// own refuses ids of other devices, and id spaces and indices that do not exist.
// It is generic so that an id is not boxed on the way that has no error.
func own[T fmt.Stringer](d *Device, id T, of device.ID, space uint16, index uint32) error {
	switch {
	case of == 0:
		return fmt.Errorf("%w: an id is needed, and this is %v", device.ErrInvalid, id)
	case of != d.info.ID:
		return fmt.Errorf("%w: %v on device %d", device.ErrForeign, id, d.info.ID)
	case d.space(space) == nil || index >= maxIndex:
		return fmt.Errorf("%w: %v is not of an id space of this device", device.ErrUnknown, id)
	}
	return nil
}

// stream returns the open stream with the given id.
func (d *Device) stream(id device.Stream) (*stream, error) {
	if err := own(d, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	sp := d.space(id.Space)
	if int(id.Index) >= len(sp.streams) || sp.streams[id.Index] == nil {
		return nil, fmt.Errorf("%w: stream %v was not opened", device.ErrUnknown, id)
	}
	s := sp.streams[id.Index]
	if s.closed {
		return nil, fmt.Errorf("%w: stream %v was closed", device.ErrUnknown, id)
	}
	return s, nil
}

// recorded returns the event with the given id, for something that waits for it.
func (d *Device) recorded(id device.Event) (*event, error) {
	if err := own(d, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	sp := d.space(id.Space)
	if int(id.Index) < len(sp.events) {
		switch e := &sp.events[id.Index]; {
		case e.on == nil || e.gen < id.Gen: // the newest generation is older
		case e.gen > id.Gen:
			return nil, fmt.Errorf("%w: %v is out of date, generation %d is recorded", device.ErrUnrecorded, id, e.gen)
		case e.retired:
			return nil, fmt.Errorf("%w: %v was retired", device.ErrUnrecorded, id)
		default:
			return e, nil
		}
	}
	return nil, fmt.Errorf("%w: %v must be recorded by an operation submitted before", device.ErrUnrecorded, id)
}

// unrecorded returns the table entry for an event that is about to be recorded.
func (d *Device) unrecorded(id device.Event) (*event, error) {
	if err := own(d, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	sp := d.space(id.Space)
	for int(id.Index) >= len(sp.events) {
		sp.events = append(sp.events, event{})
	}
	e := &sp.events[id.Index]
	switch {
	case e.on == nil || e.gen < id.Gen:
		return e, nil
	case e.gen > id.Gen || e.retired:
		return nil, fmt.Errorf("%w: event %v is out of date, generation %d was recorded", device.ErrUnknown, id, e.gen)
	}
	return nil, fmt.Errorf("%w: event %v is recorded, and is so once in each generation", device.ErrInvalid, id)
}

// entry returns the table entry of a buffer, or nil if there is none.
func (d *Device) entry(id device.Buffer) *buffer {
	sp := d.space(id.Space)
	if sp == nil || id.Place > device.OnHost || int(id.Index) >= len(sp.buffers[id.Place]) {
		return nil
	}
	return &sp.buffers[id.Place][id.Index]
}

// live returns the buffer with the given id, which must be at the given place;
// any place will do if it is Nowhere.
func (d *Device) live(id device.Buffer, place device.Place) (*buffer, error) {
	if err := own(d, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	if id.Place != place && place != device.Nowhere {
		return nil, fmt.Errorf("%w: memory on the %v is needed, and %v is on the %v", device.ErrInvalid, place, id, id.Place)
	}
	b := d.entry(id)
	switch {
	case b == nil || id.Gen > b.gen:
		return nil, fmt.Errorf("%w: buffer %v was not made", device.ErrUnknown, id)
	case id.Gen < b.gen || !b.live:
		return nil, fmt.Errorf("%w: buffer %v was given back", device.ErrUnknown, id)
	}
	return b, nil
}

// unmade returns the table entry for a buffer that is about to be made.
func (d *Device) unmade(r device.Range, place device.Place) (*buffer, error) {
	id := r.Buffer
	if err := own(d, id, id.Device, id.Space, id.Index); err != nil {
		return nil, err
	}
	if id.Place != place {
		return nil, fmt.Errorf("%w: the memory made is on the %v, and %v is on the %v", device.ErrInvalid, place, id, id.Place)
	}
	if r.Offset != 0 || r.Bytes <= 0 || r.Bytes > 1<<48 {
		return nil, fmt.Errorf("%w: a new buffer starts at 0 and has at least one byte, not %v", device.ErrInvalid, r)
	}
	sp := d.space(id.Space)
	for int(id.Index) >= len(sp.buffers[place]) {
		sp.buffers[place] = append(sp.buffers[place], buffer{from: none})
	}
	b := &sp.buffers[place][id.Index]
	switch {
	case b.live:
		return nil, fmt.Errorf("%w: buffer %v cannot be made, generation %d of it is in use", device.ErrInvalid, id, b.gen)
	case id.Gen <= b.gen:
		return nil, fmt.Errorf("%w: buffer %v is out of date, generation %d was given back", device.ErrUnknown, id, b.gen)
	}
	return b, nil
}

// within returns the buffer of a range, which must lie within it.
func (d *Device) within(r device.Range, place device.Place) (*buffer, error) {
	b, err := d.live(r.Buffer, place)
	if err != nil {
		return nil, err
	}
	if r.Offset < 0 || r.Bytes < 0 || r.Bytes > b.bytes || r.Offset > b.bytes-r.Bytes {
		return nil, fmt.Errorf("%w: %v is not within the %d bytes of the buffer", device.ErrInvalid, r, b.bytes)
	}
	return b, nil
}

// takeMark returns an event of the driver that nothing uses.
func (d *Device) takeMark() (*mark, error) {
	if n := len(d.spare); n > 0 {
		m := d.spare[n-1]
		d.spare = d.spare[:n-1]
		return m, nil
	}
	h, err := d.drv.createEvent()
	if err != nil {
		return nil, d.answered(err)
	}
	return &mark{handle: h}, nil
}

// dropMark keeps m for another event.
func (d *Device) dropMark(m *mark) {
	if m.waiters > 0 {
		m.dropped = true
		return
	}
	m.dropped = false
	d.spare = append(d.spare, m)
}
