package device

// Addressed is device memory that the program has from elsewhere, such as a
// tensor of gorgonia.org/tensor.
type Addressed interface {
	Uintptr() uintptr // the address of the first byte
	MemSize() uintptr // bytes
}

// owner is whom the memory of a storage belongs to, if it is adopted.
type owner struct {
	memory   Addressed // kept, so that it is not collected before it is given back
	giveBack func(Stream)
}

// AdoptStorage mints a device buffer for memory that belongs to the caller and
// describes it as [NewStorage] does. The buffer exists once the operation that
// is returned, an [Adopt], is submitted. home is a stream in whose order the
// bytes are in use, or may be.
//
// From then on the memory is the storage's, and so that of an engine that takes
// the storage over. When it is not needed any more, it is given back by
// [Disown], once, and giveBack is called with the stream of this operation:
// what is enqueued there, or ordered after it, may use the memory again. It
// does not mean that the host may. A nil giveBack is not called.
//
// An engine calls giveBack on the goroutine of the call that gave the memory
// back, when that call is done inside: the function may call the engine. If the
// batch failed, it is called after the drain that follows. A storage that
// somebody outside holds ([Storage.Retain]) is given back by them.
func (m *IDs) AdoptStorage(name string, class Class, mem Addressed, home Stream, giveBack func(Stream)) (*Storage, Op) {
	if giveBack == nil {
		giveBack = func(Stream) {}
	}
	s := m.NewStorage(name, class, int64(mem.MemSize()), home)
	s.owner = owner{mem, giveBack}
	return s, Op{Kind: Adopt, Dst: Range{Buffer: s.buffer, Bytes: s.bytes}, Address: mem.Uintptr()}
}

// Adopted reports whether the buffer is memory that belongs to somebody else. A
// storage whose bytes have left the device and come back is not adopted any more.
func (s *Storage) Adopted() bool { return s.owner.giveBack != nil }
