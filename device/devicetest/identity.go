package devicetest

import (
	"errors"

	"offload/device"
)

var identity = []check{
	{"a device has an identity", Options{}, hasIdentity},
	{"id spaces have numbers of their own", Options{}, spacesDiffer},
	{"streams are opened once and closed once", Options{Unclean: true}, streamsOpenOnce},
	{"an index used again has a new stream, event and buffer", Options{Unclean: true}, staleIDs},
	{"ids of another device are refused", Options{Unclean: true}, foreignIDs},
	{"ids that no operation made are refused", Options{Unclean: true}, unknownIDs},
	{"the zero id is refused", Options{Unclean: true}, zeroIDs},
	{"kinds that do not exist are refused", Options{Unclean: true}, unknownKinds},
}

func hasIdentity(r *rig) {
	o := r.another()
	a, b := r.dev.Info(), o.dev.Info()
	if a.ID == 0 || a.Name == "" || a.Align < 1 || a.Align&(a.Align-1) != 0 {
		r.Errorf("got %+v, want an id, a name, and an alignment that is a power of two", a)
	}
	if a.ID == b.ID {
		r.Errorf("got id %d for two devices that are open, want two", a.ID)
	}
	if again := r.dev.Info(); again != a {
		r.Errorf("got %+v, then %+v, want no change", a, again)
	}
	o.finish()
}

func spacesDiffer(r *rig) {
	seen := map[uint16]bool{0: true}
	for range 100 {
		n := r.dev.NewSpace()
		if seen[n] {
			r.Fatalf("got id space %d twice, want a number of its own, above 0", n)
		}
		seen[n] = true
	}
	// The same index in two spaces is two streams.
	other := device.NewIDs(r.dev)
	a, b := r.ids.Stream(), other.Stream()
	r.must(openStream(a), openStream(b), syncStream(a), closeStream(a), syncStream(b))
}

func streamsOpenOnce(r *rig) {
	s := r.ids.Stream()
	r.refused(device.ErrUnknown, 0, syncStream(s))
	r.refused(device.ErrUnknown, 0, closeStream(s))
	r.must(openStream(s), syncStream(s))
	r.refused(device.ErrInvalid, 0, openStream(s))
	r.must(closeStream(s))
	r.refused(device.ErrUnknown, 0, closeStream(s))
	r.refused(device.ErrUnknown, 0, record(s, r.ids.Event()))
	r.refused(device.ErrInvalid, 0, openStream(s))
}

func staleIDs(r *rig) {
	s := r.stream()
	old := r.buffer(s, 100)
	r.must(free(s, old))
	r.ids.PutBuffer(old.Buffer)
	r.refused(device.ErrUnknown, 0, alloc(s, old))
	r.refused(device.ErrUnknown, 0, free(s, old))
	b := r.buffer(s, 300)
	if b.Buffer.Index != old.Buffer.Index || b.Buffer.Gen <= old.Buffer.Gen {
		r.Fatalf("got %v after %v was put back, want its index with a higher generation", b.Buffer, old.Buffer)
	}
	h := r.pinned(100)
	r.refused(device.ErrUnknown, 0, copyOut(s, h, old))
	r.refused(device.ErrUnknown, 0, copyIn(s, old, h))
	r.refused(device.ErrUnknown, 0, free(s, old))
	if m, err := r.dev.Lookup(old.Buffer); !errors.Is(err, device.ErrUnknown) {
		r.Errorf("Lookup of %v: got %+v and %v, want ErrUnknown", old.Buffer, m, err)
	}
	r.must(unpin(h))
	r.ids.PutBuffer(h.Buffer)
	r.refused(device.ErrUnknown, 0, pin(h))
	r.refused(device.ErrUnknown, 0, unpin(h))
	r.refused(device.ErrUnknown, 0, hostRead(h))

	e := r.ids.Event()
	r.must(record(s, e))
	r.ids.PutEvent(e)
	f := r.ids.Event()
	r.must(record(s, f))
	r.refused(device.ErrUnknown, 0, record(s, e))
	r.refused(device.ErrUnrecorded, 0, wait(s, e))
	r.refused(device.ErrUnrecorded, 0, syncEvent(e))
	r.refused(device.ErrUnknown, 0, retire(e))
	r.must(wait(s, f), syncEvent(f), wait(s, f))
}

func foreignIDs(r *rig) {
	o := r.another()
	s, e, b, h := o.stream(), o.ids.Event(), o.ids.Buffer(device.OnDevice), o.pinned(64)
	x := device.Range{Buffer: b, Bytes: 64}
	o.must(alloc(s, x), record(s, e))

	mine, fresh, unmade := r.stream(), r.ids.Event(), device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 64}
	y, k := r.buffer(mine, 64), r.pinned(64)
	for _, op := range []device.Op{
		openStream(s), closeStream(s), syncStream(s), syncEvent(e), retire(e), unpin(h), hostRead(h), hostWrite(h),
		record(s, fresh), record(mine, e), wait(mine, e), alloc(s, unmade), alloc(mine, x), free(s, y), free(mine, x),
		copyOut(mine, k, x), copyOut(mine, h, y), copyIn(mine, x, k), copyIn(mine, y, h), copyWithin(mine, y, x), copyWithin(mine, x, y),
		access(mine, device.Kernel{Name: "k", Reads: []device.Range{x}}),
	} {
		r.refused(device.ErrForeign, 0, op)
	}
	for _, g := range []device.Range{x, h} {
		if m, err := r.dev.Lookup(g.Buffer); !errors.Is(err, device.ErrForeign) {
			r.Errorf("Lookup of %v: got %+v and %v, want ErrForeign", g.Buffer, m, err)
		}
	}
	o.finish()
}

func unknownIDs(r *rig) {
	s := r.stream()
	b, h := r.buffer(s, 64), r.pinned(64)
	never := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 64}
	// Host memory has no name until it is pinned, and there is no other way to
	// name it: a copy from or to pageable memory cannot be asked for.
	pageable := device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 64}
	for _, op := range []device.Op{
		free(s, never), copyOut(s, h, never), copyWithin(s, b, never), copyWithin(s, never, b), copyIn(s, never, h),
		copyOut(s, pageable, b), copyIn(s, b, pageable), hostRead(pageable), hostWrite(pageable), unpin(pageable),
		retire(r.ids.Event()),
	} {
		r.refused(device.ErrUnknown, 0, op)
	}
	far := s
	far.Space = 1 << 15
	r.refused(device.ErrUnknown, 0, openStream(far))
	for _, g := range []device.Range{never, pageable, {}} {
		if m, err := r.dev.Lookup(g.Buffer); !errors.Is(err, device.ErrUnknown) {
			r.Errorf("Lookup of %v: got %+v and %v, want ErrUnknown", g.Buffer, m, err)
		}
	}
}

func zeroIDs(r *rig) {
	s := r.stream()
	b, h := r.buffer(s, 64), r.pinned(64)
	var (
		noStream device.Stream
		noEvent  device.Event
		nowhere  = device.Range{Bytes: 64}
	)
	for _, op := range []device.Op{
		openStream(noStream), closeStream(noStream), syncStream(noStream), record(noStream, r.ids.Event()), wait(noStream, noEvent),
		record(s, noEvent), wait(s, noEvent), syncEvent(noEvent), retire(noEvent),
		alloc(noStream, b), alloc(s, nowhere), free(s, nowhere), pin(nowhere), unpin(nowhere),
		copyOut(s, nowhere, b), copyOut(s, h, nowhere), copyIn(s, nowhere, h), copyIn(s, b, nowhere), copyIn(noStream, b, h),
		hostRead(nowhere), hostWrite(nowhere),
	} {
		r.refused(device.ErrInvalid, 0, op)
	}
}

func unknownKinds(r *rig) {
	s := r.stream()
	for _, k := range []device.Kind{device.None, device.Kind(device.Kinds), 255} {
		r.refused(device.ErrInvalid, 0, device.Op{Kind: k, Stream: s})
	}
	r.refused(device.ErrInvalid, 0, launch(s, device.Kernel{Name: "a kernel that nobody registered"}))
	r.refused(device.ErrInvalid, 0, device.Op{Kind: device.Launch, Stream: s})
	r.refused(device.ErrInvalid, 0, device.Op{Kind: device.Access, Stream: s})
}
