package device

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// ID is the identity of a device, unique within the process. Zero is no device.
type ID uint16

var lastID atomic.Uint32

// NextID returns an identity that it has not returned before. It panics after
// 65,535 devices.
func NextID() ID {
	n := lastID.Add(1)
	if n > 1<<16-1 {
		panic("device: no more than 65535 devices in one process")
	}
	return ID(n)
}

// Place says where the memory of a buffer is.
type Place uint8

const (
	// Nowhere is the place of the zero Buffer.
	Nowhere Place = iota
	// OnDevice is the device's own memory.
	OnDevice
	// OnHost is pinned host memory, which the device can copy from and to.
	OnHost
)

// String returns "nowhere", "device" or "host".
func (p Place) String() string {
	switch p {
	case OnDevice:
		return "device"
	case OnHost:
		return "host"
	}
	return "nowhere"
}

// Stream names a queue of operations on one device. The zero value names none.
type Stream struct {
	Device ID
	Space  uint16
	Index  uint32
}

// IsZero reports whether s names no stream.
func (s Stream) IsZero() bool { return s == Stream{} }

// String returns a name such as "d1/s2.0": device, id space, index.
func (s Stream) String() string {
	if s.IsZero() {
		return "no stream"
	}
	return fmt.Sprintf("d%d/s%d.%d", s.Device, s.Space, s.Index)
}

// Event names one generation of an event of one device. The zero value names none.
type Event struct {
	Device ID
	Space  uint16
	Index  uint32
	Gen    uint32
}

// IsZero reports whether e names no event.
func (e Event) IsZero() bool { return e == Event{} }

// String returns a name such as "d1/e2.0#3": device, id space, index, generation.
func (e Event) String() string {
	if e.IsZero() {
		return "no event"
	}
	return fmt.Sprintf("d%d/e%d.%d#%d", e.Device, e.Space, e.Index, e.Gen)
}

// Buffer names one generation of a piece of memory. The place is part of the
// identity: a host buffer never equals a device buffer. The zero value names none.
type Buffer struct {
	Device ID
	Space  uint16
	Index  uint32
	Gen    uint32
	Place  Place
}

// IsZero reports whether b names no buffer.
func (b Buffer) IsZero() bool { return b == Buffer{} }

// String returns a name such as "d1/b2.0#3" for device memory and "d1/h2.0#3"
// for host memory: device, id space, index, generation.
func (b Buffer) String() string {
	letter := 'b'
	switch b.Place {
	case Nowhere:
		return "no buffer"
	case OnHost:
		letter = 'h'
	}
	return fmt.Sprintf("d%d/%c%d.%d#%d", b.Device, letter, b.Space, b.Index, b.Gen)
}

// Range is some bytes of a buffer.
type Range struct {
	Buffer Buffer
	Offset int64 // bytes from the start of the buffer
	Bytes  int64
}

// Sub returns the n bytes of r that start at offset off within it.
func (r Range) Sub(off, n int64) Range {
	return Range{Buffer: r.Buffer, Offset: r.Offset + off, Bytes: n}
}

// Overlaps reports whether r and o share at least one byte.
func (r Range) Overlaps(o Range) bool {
	return r.Buffer == o.Buffer && r.Offset < o.Offset+o.Bytes && o.Offset < r.Offset+r.Bytes
}

// Contains reports whether every byte of o is a byte of r.
func (r Range) Contains(o Range) bool {
	return r.Buffer == o.Buffer && r.Offset <= o.Offset && o.Offset+o.Bytes <= r.Offset+r.Bytes
}

// String returns a name such as "d1/b2.0#3[0:4096]".
func (r Range) String() string {
	return fmt.Sprintf("%v[%d:%d]", r.Buffer, r.Offset, r.Offset+r.Bytes)
}

// IDs mints the ids of one client of a device. An index that was put back is
// handed out again with the next generation, so that devices can keep tables
// instead of maps. It is safe for concurrent use, because whoever frees a
// buffer puts back its id, wherever it was minted.
type IDs struct {
	mu      sync.Mutex
	device  ID
	space   uint16
	streams uint32
	events  pool
	buffers [OnHost + 1]pool
}

// NewIDs opens an id space of its own on d.
func NewIDs(d Device) *IDs {
	return &IDs{device: d.Info().ID, space: d.NewSpace()}
}

// Device returns the device whose ids are minted.
func (m *IDs) Device() ID { return m.device }

// Space returns the number of the id space.
func (m *IDs) Space() uint16 { return m.space }

// Stream mints the id of a stream. It exists on the device after [OpenStream].
func (m *IDs) Stream() Stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams++
	return Stream{m.device, m.space, m.streams - 1}
}

// Event mints the id of an event that has not been recorded.
func (m *IDs) Event() Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, g := m.events.take()
	return Event{m.device, m.space, i, g}
}

// PutEvent takes back e, on which no wait will be submitted any more.
func (m *IDs) PutEvent(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.events.put(e.Index, e.Gen) {
		panic(fmt.Sprintf("device: %v put back, but it is not in use", e))
	}
}

// Buffer mints the id of a buffer. It exists on the device after [Alloc] or [Pin].
func (m *IDs) Buffer(p Place) Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, g := m.buffers[p].take()
	return Buffer{m.device, m.space, i, g, p}
}

// PutBuffer takes back b, which no operation will name any more.
func (m *IDs) PutBuffer(b Buffer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.buffers[b.Place].put(b.Index, b.Gen) {
		panic(fmt.Sprintf("device: %v put back, but it is not in use", b))
	}
}

// NewStorage mints a device buffer and describes it as [NewStorage] does. The
// buffer exists after [Alloc]; [Storage.Freed] puts its id back.
func (m *IDs) NewStorage(name string, class Class, bytes int64, home Stream) *Storage {
	s := NewStorage(name, class, m.Buffer(OnDevice), bytes, home)
	s.ids = m
	return s
}

// Out returns how many events and buffers (on both places) are minted and not put back.
func (m *IDs) Out() (events, buffers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.events.out(), m.buffers[OnDevice].out() + m.buffers[OnHost].out()
}

// pool hands out (index, generation) pairs. The generations start at 1.
type pool struct {
	gens []uint32 // by index: the generation that is or was last in use
	free []uint32
}

func (p *pool) take() (index, gen uint32) {
	if n := len(p.free); n > 0 {
		i := p.free[n-1]
		p.free = p.free[:n-1]
		p.gens[i]++
		return i, p.gens[i]
	}
	p.gens = append(p.gens, 1)
	return uint32(len(p.gens) - 1), 1
}

// put reports whether the id was in use. One that was not is a defect of the
// caller: putting an id back twice would give it to two owners, which is wrong
// bytes later on.
func (p *pool) put(index, gen uint32) bool {
	if int(index) >= len(p.gens) || p.gens[index] != gen {
		return false
	}
	p.gens[index]++ // a second put of the same generation is noticed
	if p.gens[index] < 1<<32-2 {
		p.free = append(p.free, index) // else the index is retired: its generations are used up
	}
	return true
}

func (p *pool) out() int {
	n := 0
	for _, g := range p.gens {
		n += int(g & 1) // odd: in use; even: put back
	}
	return n
}
