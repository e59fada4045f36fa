package device

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Class says what a storage is for; it decides whether offloading may touch it.
type Class uint8

const (
	// Activation is saved in forward and read in backward. Only activations move.
	Activation Class = iota
	// Weight is a parameter or a gradient; it stays where it is and with its owner.
	Weight
	// Index is control data such as offsets and sizes; it stays where it is and with its owner.
	Index
	// Workspace is scratch memory; it stays on the device, and whoever it was
	// given to frees it.
	Workspace
)

// String returns the class in lower case.
func (c Class) String() string {
	switch c {
	case Activation:
		return "activation"
	case Weight:
		return "weight"
	case Index:
		return "index"
	case Workspace:
		return "workspace"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Storage is the memory behind one or more tensors. Its identity is the
// pointer: two tensors share memory exactly if they share a *Storage. The
// buffer behind it changes when the bytes leave the device and come back.
//
// A storage counts its holders. NewStorage makes the caller the first one,
// whose place is given up with Release; Retain and Drop are for others, by name.
// Whoever takes the last one away frees the buffer.
type Storage struct {
	name    string
	class   Class
	bytes   int64
	home    Stream
	buffer  Buffer
	ids     *IDs // minted the buffer; nil if its id is put back by other means
	owner   owner
	version atomic.Uint64

	mu    sync.Mutex
	refs  int
	taken bool     // Take has been called
	names []string // of the holders that have one
}

// NewStorage describes the buffer b of the given size. home is the stream in
// whose order b was allocated; its Free is ordered after that stream. The name
// is for messages and may be empty.
func NewStorage(name string, class Class, b Buffer, bytes int64, home Stream) *Storage {
	return &Storage{name: name, class: class, bytes: bytes, home: home, buffer: b, refs: 1}
}

// Name returns the name given to NewStorage.
func (s *Storage) Name() string { return s.name }

// Class returns what the storage is for.
func (s *Storage) Class() Class { return s.class }

// Bytes returns the size in bytes.
func (s *Storage) Bytes() int64 { return s.bytes }

// Home returns the stream in whose order the buffer is allocated.
func (s *Storage) Home() Stream { return s.home }

// Buffer returns the buffer that holds the bytes now; the zero Buffer while
// the bytes are not on the device. It may be called by the holder of the
// bytes: before they are pushed, and after they were popped.
func (s *Storage) Buffer() Buffer { return s.buffer }

// Move says that the bytes are now in b, which ids minted and which is
// allocated in the order of home. Only the engine that took the storage over
// calls it.
func (s *Storage) Move(b Buffer, ids *IDs, home Stream) { s.buffer, s.ids, s.home = b, ids, home }

// FreeOn returns the operation that gives the buffer back in the order of
// stream: a Free, or a Disown if the memory is adopted.
func (s *Storage) FreeOn(stream Stream) Op {
	op := Op{Kind: Free, Stream: stream, Dst: Range{Buffer: s.buffer, Bytes: s.bytes}}
	if s.Adopted() {
		op.Kind = Disown
	}
	return op
}

// Freed says that the operation of [Storage.FreeOn] is submitted. Whoever
// submits it calls Freed. For adopted memory it returns the function that tells
// the owner, which has to be called with the stream of the operation; otherwise
// nil.
func (s *Storage) Freed() (giveBack func(Stream)) {
	if s.ids != nil {
		s.ids.PutBuffer(s.buffer)
	}
	giveBack = s.owner.giveBack
	s.buffer, s.ids, s.owner = Buffer{}, nil, owner{}
	return giveBack
}

// Touch says that the bytes have been changed. A change between Push and the
// copy out is reported as an error instead of copying an undefined version.
func (s *Storage) Touch() { s.version.Add(1) }

// Version returns how often the bytes have been changed.
func (s *Storage) Version() uint64 { return s.version.Load() }

// Retain adds a holder with a name, for reports: the buffer stays on the device
// until Drop is called with the same name.
func (s *Storage) Retain(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, who)
	s.refs++
}

// Drop takes the named holder away and reports whether it was the last one,
// who has to free the buffer.
func (s *Storage) Drop(who string) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.names, who)
	if i < 0 {
		panic(fmt.Sprintf("device: storage %q is not held by %q", s.name, who))
	}
	s.names = slices.Delete(s.names, i, i+1)
	s.refs--
	return s.refs == 0
}

// Release takes away the creator, or the one who took its place, and reports
// whether it was the last holder, who has to free the buffer.
func (s *Storage) Release() (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs < len(s.names) {
		panic(fmt.Sprintf("device: storage %q released more often than held", s.name))
	}
	return s.refs == 0
}

// Holders returns the number of holders.
func (s *Storage) Holders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refs
}

// HeldBy returns the names of the holders that have one.
func (s *Storage) HeldBy() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

// Retained reports whether a named holder wants the buffer to stay on the device.
func (s *Storage) Retained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names) > 0
}

// Take makes the caller of Take a holder. The first time it takes the
// creator's place, so that a storage that is handed over once is freed when
// the one it was handed to is done; later it counts one more.
func (s *Storage) Take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		s.refs++
	}
	s.taken = true
}

// Tensor is a view of a storage. Shape and strides count elements and are
// shared between copies of the Tensor: they must not be changed. Nil strides
// mean contiguous in row-major order. The zero Tensor stands for an absent one.
type Tensor struct {
	Storage *Storage
	DType   DType
	Shape   []int
	Strides []int
	Offset  int64 // elements between the start of the storage and the first element
	Keep    bool  // never move this tensor, and so nothing of its storage
}

// IsNil reports whether t stands for an absent tensor.
func (t Tensor) IsNil() bool { return t.Storage == nil }

// Elements returns the number of elements; 1 for an empty shape.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Bytes returns the number of elements times their size.
func (t Tensor) Bytes() int64 { return t.Elements() * t.DType.Size() }

// Contiguous reports whether the elements lie one after the other in
// row-major order. A stride of a dimension of size 1 does not matter.
func (t Tensor) Contiguous() bool {
	if t.Strides == nil {
		return true
	}
	want := 1
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] != 1 && t.Strides[i] != want {
			return t.Elements() == 0
		}
		want *= t.Shape[i]
	}
	return true
}

// Range returns the bytes of a contiguous tensor within its buffer.
func (t Tensor) Range() Range {
	return Range{Buffer: t.Storage.buffer, Offset: t.Offset * t.DType.Size(), Bytes: t.Bytes()}
}

// Check reports what is wrong with the view: an unknown type, strides that do
// not fit the shape, or elements outside the storage.
func (t Tensor) Check() error {
	if t.IsNil() {
		return nil
	}
	if t.DType.Size() == 0 {
		return fmt.Errorf("tensor %v: element type %v has no size", t, t.DType)
	}
	if t.Strides != nil && len(t.Strides) != len(t.Shape) {
		return fmt.Errorf("tensor %v: %d strides for %d dimensions", t, len(t.Strides), len(t.Shape))
	}
	for _, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("tensor %v: dimension %d is negative", t, d)
		}
	}
	if !t.countable() {
		return fmt.Errorf("tensor %v: its size in bytes is beyond what can be counted, and its storage has %d", t, t.Storage.bytes)
	}
	if lo, hi := t.span(); lo < 0 || hi > t.Storage.bytes {
		return fmt.Errorf("tensor %v: bytes %d to %d are not within the %d of its storage", t, lo, hi, t.Storage.bytes)
	}
	return nil
}

// countable reports whether Elements, Bytes and span stay within an int64. No
// product of a view that fits into memory comes near.
func (t Tensor) countable() bool {
	const most = 1 << 60 // leaves room for the sum of what the dimensions reach
	within := func(a, b int64) bool { return a == 0 || b == 0 || max(a, -a) <= most/max(b, -b) }
	n, size := int64(1), t.DType.Size()
	for i, d := range t.Shape {
		if d == 0 {
			return within(t.Offset, size) // there are no elements
		}
		if !within(n, int64(d)) {
			return false
		}
		n *= int64(d)
		if t.Strides != nil && (int64(t.Strides[i]) == math.MinInt64 || !within(int64(d), int64(t.Strides[i])) ||
			!within(int64(d)*int64(t.Strides[i]), size*int64(len(t.Shape)))) {
			return false
		}
	}
	return within(n, size) && t.Offset != math.MinInt64 && within(t.Offset, size)
}

// span returns the first byte and the byte behind the last one that the view touches.
func (t Tensor) span() (lo, hi int64) {
	size := t.DType.Size()
	lo, hi = t.Offset*size, t.Offset*size
	if t.Elements() == 0 {
		return lo, lo
	}
	if t.Strides == nil {
		return lo, lo + t.Bytes()
	}
	for i, d := range t.Shape {
		reach := int64(d-1) * int64(t.Strides[i]) * size
		lo, hi = lo+min(reach, 0), hi+max(reach, 0)
	}
	return lo, hi + size
}

// String returns for example "float32[2048 128] of h3.x".
func (t Tensor) String() string {
	if t.IsNil() {
		return "absent tensor"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v%v", t.DType, t.Shape)
	if t.Strides != nil {
		fmt.Fprintf(&b, " strides %v", t.Strides)
	}
	if t.Offset != 0 {
		fmt.Fprintf(&b, " offset %d", t.Offset)
	}
	if t.Storage.name != "" {
		fmt.Fprintf(&b, " of %s", t.Storage.name)
	}
	return b.String()
}
