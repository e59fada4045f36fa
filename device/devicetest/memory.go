package devicetest

import (
	"errors"

	"offload/device"
)

const limit = 1 << 20

var memory = []check{
	{"memory has a size and a place", Options{}, lookups},
	{"sizes that are no sizes are refused", Options{Unclean: true}, badSizes},
	{"a buffer is made and given back once", Options{Unclean: true}, buffersOnce},
	{"usage counts whole units, in the order of submission", Options{MemoryLimit: 16 << 20}, usage},
	{"memory that is freed can be allocated again without a synchronisation", Options{MemoryLimit: limit}, reuse},
	{"memory that another stream freed can be allocated after a wait", Options{MemoryLimit: limit}, reuseAcross},
	{"an allocation that finds no memory is refused and nothing else", Options{MemoryLimit: limit, Unclean: true}, outOfMemory},
	{"accesses outside the buffer are refused", Options{Unclean: true}, outOfBounds},
}

func lookups(r *rig) {
	s := r.stream()
	for _, n := range []int64{1, 255, 256, 4097, 1 << 20} {
		b, h := r.buffer(s, n), r.pinned(n)
		m, err := r.dev.Lookup(b.Buffer)
		if err != nil || m.Size != n || m.Host != nil {
			r.Errorf("device memory: got %d bytes, %d of them for the host, %v; want %d, none, no error", m.Size, len(m.Host), err, n)
		}
		if align := uintptr(r.dev.Info().Align); m.Address%align != 0 {
			r.Errorf("device memory: got address %#x, want a multiple of %d", m.Address, align)
		}
		m, err = r.dev.Lookup(h.Buffer)
		if err != nil || m.Size != n || int64(len(m.Host)) != n || int64(cap(m.Host)) != n {
			r.Errorf("host memory: got %d bytes, %d (%d) for the host, %v; want %d, no error", m.Size, len(m.Host), cap(m.Host), err, n)
		}
		want := pattern(uint64(n), n)
		r.write(h, want)
		r.holds(h, want)
	}
}

func badSizes(r *rig) {
	s := r.stream()
	for _, g := range []device.Range{{Bytes: 0}, {Bytes: -1}, {Bytes: 64, Offset: 64}, {Bytes: 64, Offset: -64}, {Bytes: 1 << 62}} {
		g.Buffer = r.ids.Buffer(device.OnDevice)
		r.refused(device.ErrInvalid, 0, alloc(s, g))
		g.Buffer = r.ids.Buffer(device.OnHost)
		r.refused(device.ErrInvalid, 0, pin(g))
	}
}

func buffersOnce(r *rig) {
	s := r.stream()
	b, h := r.buffer(s, 64), r.pinned(64)
	r.refused(device.ErrInvalid, 0, alloc(s, b))
	r.refused(device.ErrInvalid, 0, pin(h))
	r.refused(device.ErrInvalid, 0, alloc(s, device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 64}))
	r.refused(device.ErrInvalid, 0, pin(device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 64}))
	r.refused(device.ErrInvalid, 0, free(s, h))
	r.refused(device.ErrInvalid, 0, unpin(b))
	r.must(free(s, b), unpin(h))
	r.refused(device.ErrUnknown, 0, free(s, b))
	r.refused(device.ErrUnknown, 0, unpin(h))
	r.refused(device.ErrUnknown, 1, free(s, r.buffer(s, 64)), free(s, b))
}

func (r *rig) uses(inUse, peak int64) {
	r.Helper()
	want := device.Usage{InUse: inUse, Peak: peak, Limit: r.options.MemoryLimit}
	if got := r.dev.Usage(); got != want {
		r.Errorf("got usage %+v, want %+v", got, want)
	}
}

func usage(r *rig) {
	unit := r.dev.Info().Align
	s := r.stream()
	r.uses(0, 0)
	a, b := r.buffer(s, 1), r.buffer(s, unit+1)
	r.uses(3*unit, 3*unit)
	r.pinned(1 << 20)
	r.uses(3*unit, 3*unit) // host memory does not count
	r.must(free(s, b))
	r.uses(unit, 3*unit)
	c := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: unit}
	r.must(alloc(s, c), free(s, c))
	r.uses(unit, 3*unit)
	r.dev.ResetPeak()
	r.uses(unit, unit)
	r.must(free(s, a))
	r.uses(0, unit)
}

// reuse allocates and frees far more than the limit without waiting, and every
// buffer must hold its own bytes for as long as it lives.
func reuse(r *rig) {
	const n, rounds = limit / 2, 64
	s := r.stream()
	from, to := r.pinned(n), r.pinned(n*rounds)
	want := pattern(7, n)
	r.write(from, want)
	for i := range int64(rounds) {
		x := r.buffer(s, n)
		y := r.buffer(s, n)
		r.must(copyIn(s, x, from), copyWithin(s, y, x), free(s, x), copyOut(s, to.Sub(i*n, n), y), free(s, y))
	}
	r.uses(0, limit)
	r.must(syncStream(s))
	for i := range int64(rounds) {
		r.holds(to.Sub(i*n, n), want)
	}
}

func reuseAcross(r *rig) {
	const rounds = 16
	a, b := r.stream(), r.stream()
	from, to := r.pinned(limit*2), r.pinned(limit)
	r.write(from, pattern(8, limit*2))
	for i := range int64(rounds) {
		x := r.buffer(a, limit)
		freed := r.ids.Event()
		r.must(copyIn(a, x, from.Sub(0, limit)), free(a, x), record(a, freed), wait(b, freed))
		y := r.buffer(b, limit)
		done := r.ids.Event()
		r.must(copyIn(b, y, from.Sub(i, limit)), copyOut(b, to, y), free(b, y), record(b, done), syncEvent(done), wait(a, done))
		r.holds(to, pattern(8, limit*2)[i:i+limit])
	}
}

func outOfMemory(r *rig) {
	s, t := r.stream(), r.stream()
	most := r.buffer(s, limit*3/4)
	e, f := r.ids.Event(), r.ids.Event()
	large := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: limit / 2}
	r.refused(device.ErrOutOfMemory, 1, record(s, e), alloc(s, large), record(s, f))
	r.uses(limit*3/4, limit*3/4)
	r.must(wait(t, e))
	r.refused(device.ErrUnrecorded, 0, wait(t, f))
	r.refused(device.ErrUnknown, 0, free(s, large))
	if m, err := r.dev.Lookup(large.Buffer); !errors.Is(err, device.ErrUnknown) {
		r.Errorf("got %+v and %v for memory that was refused, want ErrUnknown", m, err)
	}
	r.refused(device.ErrOutOfMemory, 0, alloc(s, device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: limit/4 + 1}))

	// Exactly what is left fits, and the same id works once there is room.
	rest := r.buffer(s, limit/4)
	r.uses(limit, limit)
	r.must(free(s, rest), free(s, most), alloc(s, large), record(s, f), wait(t, f))
	r.uses(limit/2, limit)
}

func outOfBounds(r *rig) {
	const n = 1000 // not a multiple of the unit: the bytes up to it are nobody's
	s := r.stream()
	b, c, h := r.buffer(s, n), r.buffer(s, 2*n), r.pinned(n)
	for _, part := range []struct{ off, n int64 }{{0, n + 1}, {1, n}, {n, 1}, {-1, 2}, {1, -1}, {1 << 62, 1 << 62}} {
		good, far := c.Sub(0, part.n), b.Sub(part.off, part.n)
		r.refused(device.ErrInvalid, 0, copyWithin(s, good, far))
		r.refused(device.ErrInvalid, 0, copyWithin(s, far, good))
		r.refused(device.ErrInvalid, 0, copyOut(s, h.Sub(part.off, part.n), good))
		r.refused(device.ErrInvalid, 0, copyIn(s, good, h.Sub(part.off, part.n)))
		r.refused(device.ErrInvalid, 0, hostRead(h.Sub(part.off, part.n)))
		r.refused(device.ErrInvalid, 0, hostWrite(h.Sub(part.off, part.n)))
		r.refused(device.ErrInvalid, 0, access(s, device.Kernel{Name: "k", Writes: []device.Range{far}}))
	}
	r.refused(device.ErrInvalid, 0, copyIn(s, b.Sub(0, 10), h.Sub(0, 11)))
	r.refused(device.ErrInvalid, 0, copyWithin(s, b.Sub(0, 10), b.Sub(9, 10)))
	// A copy goes where its kind says.
	r.refused(device.ErrInvalid, 0, copyIn(s, b, b))
	r.refused(device.ErrInvalid, 0, copyOut(s, b, c.Sub(0, n)))
	r.refused(device.ErrInvalid, 0, copyWithin(s, h, b))
	r.refused(device.ErrInvalid, 0, copyIn(s, h, b))
	r.must(access(s, device.Kernel{Name: "k", Writes: []device.Range{b, c}}), access(s, device.Kernel{Name: "k", Reads: []device.Range{b}}))
}
