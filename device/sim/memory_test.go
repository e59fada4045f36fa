package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"offload/device"
)

// TestLimit: freed bytes are there for an allocation that is ordered after the
// free, and for no other.
func TestLimit(t *testing.T) {
	const limit = 4 * Align
	tests := []struct {
		name string
		fits bool
		run  func(r *rig) error // its error is that of the last allocation
	}{
		{"up to the limit", true, func(r *rig) error { return r.try(r.a, limit) }},
		{"one byte more", false, func(r *rig) error { return r.try(r.a, limit+1) }},
		{"sizes are rounded up", false, func(r *rig) error {
			for range 4 {
				r.buffer(r.a, 1)
			}
			return r.try(r.a, 1)
		}},
		{"freed on the same stream", true, func(r *rig) error {
			x := r.buffer(r.a, limit)
			r.must(free(r.a, x))
			return r.try(r.a, limit)
		}},
		{"freed on another stream", false, func(r *rig) error {
			x := r.buffer(r.a, limit)
			r.must(free(r.a, x))
			return r.try(r.b, limit)
		}},
		{"freed on another stream, with a wait", true, func(r *rig) error {
			x, e := r.buffer(r.a, limit), r.ids.Event()
			r.must(free(r.a, x), record(r.a, e), wait(r.b, e))
			return r.try(r.b, limit)
		}},
		{"freed on another stream after the record", false, func(r *rig) error {
			x, e := r.buffer(r.a, limit), r.ids.Event()
			r.must(record(r.a, e), free(r.a, x), wait(r.b, e))
			return r.try(r.b, limit)
		}},
		{"freed on another stream, seen by the host", true, func(r *rig) error {
			x := r.buffer(r.a, limit)
			r.must(free(r.a, x), join(r.a))
			return r.try(r.b, limit)
		}},
		{"part of it fresh and part of it ordered", true, func(r *rig) error {
			x, y, e := r.buffer(r.a, Align), r.buffer(r.a, Align), r.ids.Event()
			r.must(free(r.a, x), record(r.a, e), free(r.a, y), wait(r.b, e))
			return r.try(r.b, 3*Align)
		}},
		{"part of it fresh, and part of it not ordered", false, func(r *rig) error {
			x, y, e := r.buffer(r.a, Align), r.buffer(r.a, Align), r.ids.Event()
			r.must(free(r.a, x), record(r.a, e), free(r.a, y), wait(r.b, e))
			return r.try(r.b, 4*Align)
		}},
		{"freed bytes are used once", false, func(r *rig) error {
			x, e := r.buffer(r.a, limit), r.ids.Event()
			r.must(free(r.a, x), record(r.a, e), wait(r.b, e))
			r.buffer(r.b, limit)
			return r.try(r.a, Align)
		}},
		{"own bytes are used before those that others may use", true, func(r *rig) error {
			x, y, e := r.buffer(r.a, 2*Align), r.buffer(r.a, 2*Align), r.ids.Event()
			r.must(free(r.a, x), record(r.a, e), free(r.a, y), wait(r.b, e))
			r.buffer(r.a, 2*Align)
			return r.try(r.b, 2*Align)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{MemoryLimit: limit})
			err := tt.run(r)
			if tt.fits && err != nil || !tt.fits && !errors.Is(err, device.ErrOutOfMemory) {
				t.Fatalf("got %v, want that it fits: %v", err, tt.fits)
			}
			if u := r.dev.Usage(); u.InUse > limit || u.Peak > limit || u.Limit != limit {
				t.Errorf("got %+v, want at most %d in use", u, limit)
			}
			if got := r.dev.Findings(); len(got) > 0 {
				t.Errorf("got findings %v, want none", got)
			}
		})
	}
}

// try allocates n bytes in the order of s.
func (r *rig) try(s device.Stream, n int64) error {
	return r.do(alloc(s, device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n}))
}

func TestOutOfMemoryText(t *testing.T) {
	r := newRig(t, Config{ID: 9, MemoryLimit: 1024, HostLimit: 512})
	x := r.buffer(r.a, 700)
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"in use", r.try(r.a, 300), "test: operation 0 (alloc d9/s1.0 d9/b1.1#1[0:300]): out of memory: 512 bytes asked for, 768 in use, limit 1024"},
		{"not ordered", errors.Join(r.do(free(r.a, x)), r.try(r.b, 512)), "test: operation 0 (alloc d9/s1.1 d9/b1.2#1[0:512]): out of memory: " +
			"512 bytes asked for, 0 in use, limit 1024; 1024 bytes are free, but not all of their frees are ordered before this allocation"},
		{"pinned", r.do(pin(device.Range{Buffer: r.ids.Buffer(device.OnHost), Bytes: 513})), "test: operation 0 (pin d9/h1.0#1[0:513]): out of memory: " +
			"768 bytes of pinned host memory asked for, 0 in use, limit 512"},
	}
	for _, tt := range tests {
		if tt.err == nil || tt.err.Error() != tt.want {
			t.Errorf("%s: got\n%v\nwant\n%s", tt.name, tt.err, tt.want)
		}
	}
}

func TestUsage(t *testing.T) {
	r := newRig(t, Config{HostLimit: 1024})
	x, y, h := r.buffer(r.a, 100), r.buffer(r.a, 300), r.pinned(1000)
	r.must(free(r.a, x))
	if got, want := r.dev.Usage(), (device.Usage{InUse: 512, Peak: 768}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := r.dev.HostUsage(), (device.Usage{InUse: 1024, Peak: 1024, Limit: 1024}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.must(free(r.a, y), unpin(h))
	r.dev.ResetPeak()
	if got, want := r.dev.Usage(), (device.Usage{}); got != want {
		t.Errorf("after ResetPeak: got %+v, want %+v", got, want)
	}
	r.pinned(1024) // the bytes are there again
}

// TestLimitHoldsInEveryOrder: whatever order the seed chooses, the memory that
// allocations have made and frees have not yet given back stays within the limit.
func TestLimitHoldsInEveryOrder(t *testing.T) {
	const limit = 16 * Align
	fitted, refused := 0, 0
	for seed := range uint64(200) {
		r := newRig(t, Config{Seed: seed, MemoryLimit: limit})
		rnd := rand.New(rand.NewPCG(seed, 2))
		type owned struct {
			b device.Range
			s device.Stream
		}
		var live []owned
		streams := []device.Stream{r.a, r.b}
		for range 200 {
			k := rnd.IntN(2)
			s, other := streams[k], streams[1-k]
			switch n := rnd.IntN(8); {
			case n == 0:
				e := r.ids.Event()
				r.must(record(s, e), wait(other, e))
			case n < 4 && len(live) > 0:
				i := rnd.IntN(len(live))
				r.must(free(live[i].s, live[i].b))
				live = append(live[:i], live[i+1:]...)
			default:
				x := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: 1 + rnd.Int64N(limit/3)}
				before := r.dev.Usage()
				err := r.do(alloc(s, x))
				switch {
				case err == nil:
					fitted++
					live = append(live, owned{x, s})
				case !errors.Is(err, device.ErrOutOfMemory):
					t.Fatal(err)
				case r.dev.Usage() != before:
					t.Fatalf("seed %d: got %+v after a refusal, want %+v", seed, r.dev.Usage(), before)
				default:
					refused++
				}
			}
			if got := r.dev.heap.peak; got > limit {
				t.Fatalf("seed %d: got %d bytes of real memory in use, want at most %d", seed, got, limit)
			}
		}
		// After the host has seen everything, what is free is free for all.
		r.must(join(r.a), join(r.b))
		rest := limit - r.dev.Usage().InUse
		if rest > 0 {
			if err := r.try(r.b, rest); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if got := r.dev.Findings(); len(got) > 0 {
			t.Fatalf("seed %d: got findings %v, want none", seed, got)
		}
	}
	if fitted == 0 || refused == 0 {
		t.Errorf("got %d allocations that fit and %d refused, want some of both", fitted, refused)
	}
}

// TestPoison: an access that should have been ordered sees poison, under some seeds.
func TestPoison(t *testing.T) {
	tests := []struct {
		name string
		rule Rule
		ops  func(r *rig, x, h device.Range) []device.Op
	}{
		{"copied out after the free has run", FreeInFlight, func(r *rig, x, h device.Range) []device.Op {
			return []device.Op{out(r.b, h, x), free(r.a, x)}
		}},
		{"copied out before the write has run", ReadAfterWrite, func(r *rig, x, h device.Range) []device.Op {
			y := r.buffer(r.a, 64)
			e := r.ids.Event()
			return []device.Op{record(r.a, e), wait(r.b, e), set(r.a, y, 1), out(r.b, h, y)}
		}},
	}
	for _, tt := range tests {
		old, poisoned := 0, 0
		for seed := range uint64(50) {
			r := newRig(t, Config{Seed: seed})
			x, h := r.shared(64), r.pinned(64)
			r.must(set(r.a, x, 1), join(r.a))
			r.must(tt.ops(r, x, h)...)
			r.must(join(r.b))
			switch got := r.host(h); {
			case bytes.Equal(got, bytes.Repeat([]byte{1}, 64)):
				old++
			case bytes.Equal(got, bytes.Repeat([]byte{Poison}, 64)):
				poisoned++
			default:
				t.Fatalf("%s, seed %d: got %v, want ones or poison", tt.name, seed, got)
			}
			if got := r.rules(); len(got) != 1 || got[0] != tt.rule {
				t.Fatalf("%s, seed %d: got findings %v, want %v", tt.name, seed, r.dev.Findings(), tt.rule)
			}
		}
		if old == 0 || poisoned == 0 {
			t.Errorf("%s: got the bytes %d times and poison %d times, want some of both", tt.name, old, poisoned)
		}
	}
}

func TestUnpinPoisons(t *testing.T) {
	r := newRig(t, Config{})
	h := r.pinned(64)
	m := r.host(h)
	if !bytes.Equal(m, bytes.Repeat([]byte{Poison}, 64)) {
		t.Errorf("got %v in new memory, want poison", m)
	}
	r.must(hostWrite(h))
	clear(m)
	r.must(unpin(h))
	if !bytes.Equal(m, bytes.Repeat([]byte{Poison}, 64)) {
		t.Errorf("got %v after Unpin, want poison", m)
	}
}

func TestLookup(t *testing.T) {
	r := newRig(t, Config{})
	x, h := r.buffer(r.a, 100), r.pinned(100)
	m, err := r.dev.Lookup(x.Buffer)
	if err != nil || m.Size != 100 || m.Host != nil {
		t.Errorf("device memory: got %d bytes, host %v, error %v, want 100, none, none", m.Size, m.Host, err)
	}
	m, err = r.dev.Lookup(h.Buffer)
	if err != nil || m.Size != 100 || len(m.Host) != 100 || cap(m.Host) != 100 {
		t.Errorf("host memory: got %d bytes, host %v, error %v, want 100, 100, none", m.Size, m.Host, err)
	}
	r.must(free(r.a, x), unpin(h))
	for _, tt := range []struct {
		b    device.Buffer
		want error
	}{
		{x.Buffer, device.ErrUnknown},
		{h.Buffer, device.ErrUnknown},
		{device.Buffer{}, device.ErrUnknown},
		{r.ids.Buffer(device.OnHost), device.ErrUnknown},
		{device.NewIDs(New(Config{})).Buffer(device.OnHost), device.ErrForeign},
	} {
		if _, err := r.dev.Lookup(tt.b); !errors.Is(err, tt.want) {
			t.Errorf("%v: got %v, want %v", tt.b, err, tt.want)
		}
	}
}

func TestHeap(t *testing.T) {
	var h heap
	for n := int64(Align); n < 1<<20; n = align(n + n/3) {
		m := h.get(n)
		if int64(len(m)) != n || uintptr(unsafe.Pointer(&m[0]))%Align != 0 {
			t.Fatalf("got %d bytes at %p, want %d at a multiple of %d", len(m), &m[0], n, Align)
		}
		for _, c := range m {
			if c != Poison {
				t.Fatalf("got %d in new memory, want poison", c)
			}
		}
		clear(m)
		h.put(m)
		again := h.get(n)
		if &again[0] != &m[0] || again[0] != Poison || again[n-1] != Poison {
			t.Fatalf("got other memory, or no poison, for a size that was given back")
		}
	}
	// Sizes that are not asked for again are not kept for ever.
	h = heap{}
	for n := int64(1); n <= 300; n++ {
		h.put(h.get(n * 4096))
		if got, limit := h.live+h.cached, 2*h.peak+heapSlack+n*4096; got > limit {
			t.Fatalf("got %d bytes held, want at most %d", got, limit)
		}
	}
}

func TestCall(t *testing.T) {
	r := newRig(t, Config{})
	x, y := r.shared(16), r.shared(16)
	ran := false
	r.dev.Register("probe", func(c *Call) error {
		ran = true
		if c.Name() != "probe" || c.Args() != 2 || c.Arg(0).Int != 7 || c.Arg(1).Float != 0.5 {
			return fmt.Errorf("got %q with %d arguments", c.Name(), c.Args())
		}
		for i, v := range c.ReadFloat32(x.Sub(4, 8)) {
			if v != float32(i) {
				return fmt.Errorf("got %v at %d", v, i)
			}
		}
		w := c.WriteFloat32(y)
		w[3] = 2.5
		if got := c.WriteFloat32(y.Sub(12, 4))[0]; got != 2.5 {
			return fmt.Errorf("got %v through a second view, want 2.5", got)
		}
		return nil
	})
	r.dev.Register("numbers", func(c *Call) error {
		copy(c.WriteFloat32(x), []float32{9, 0, 1, 9})
		return nil
	})
	r.must(call(r.a, "numbers", x, nil, []device.Range{x}), device.Op{Kind: device.Launch, Stream: r.a, Kernel: &device.Kernel{
		Name: "probe", Args: []device.Arg{{Int: 7}, {Float: 0.5}}, Reads: []device.Range{x}, Writes: []device.Range{y}}}, join(r.a))
	if !ran {
		t.Error("the kernel has not run")
	}
	if got := r.dev.Findings(); len(got) > 0 {
		t.Errorf("got findings %v, want none", got)
	}
}

// TestUndeclaredViews: what a kernel gets without having declared it can be used.
func TestUndeclaredViews(t *testing.T) {
	r := newRig(t, Config{})
	x := r.shared(16)
	gone := r.shared(16)
	r.must(free(r.a, gone))
	r.dev.Register("stray", func(c *Call) error {
		if got := c.Read(x); !bytes.Equal(got, make([]byte, 16)) {
			return fmt.Errorf("got %v, want the bytes of the buffer", got)
		}
		for _, bad := range []device.Range{gone, x.Sub(8, 16), x.Sub(-1, 4), {}, {Buffer: r.ids.Buffer(device.OnHost), Bytes: 16}} {
			if got := c.Read(bad); int64(len(got)) != bad.Bytes || len(got) > 0 && got[0] != Poison {
				return fmt.Errorf("got %v for %v, want poison", got, bad)
			}
			clear(c.Write(bad))
		}
		return nil
	})
	r.must(call(r.a, "stray", x, nil, nil), join(r.a))
	for _, f := range r.dev.Findings() {
		if f.Rule != UndeclaredAccess {
			t.Errorf("got %v, want %v alone", f, UndeclaredAccess)
		}
	}
	if got := r.dev.Stats().Findings; got != 11 {
		t.Errorf("got %d findings, want 11: one for each view", got)
	}
}

func TestFloatsAreWhole(t *testing.T) {
	r := newRig(t, Config{})
	x := r.shared(16)
	r.dev.Register("odd", func(c *Call) error { c.ReadFloat32(x.Sub(2, 8)); return nil })
	err := r.do(call(r.a, "odd", x, []device.Range{x}, nil), join(r.a))
	if !errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "whole float32") {
		t.Errorf("got %v, want a failure that says what is wrong with the range", err)
	}
}

// TestPoisonIsNotANumber: a read of memory that nobody has written shows in the results.
func TestPoisonIsNotANumber(t *testing.T) {
	r := newRig(t, Config{})
	x := r.buffer(r.a, 16)
	sum := float32(0)
	r.dev.Register("sum of floats", func(c *Call) error {
		for _, v := range c.ReadFloat32(x) {
			sum += v
		}
		return nil
	})
	r.must(call(r.a, "sum of floats", x, []device.Range{x}, nil), join(r.a))
	if !math.IsNaN(float64(sum)) {
		t.Errorf("got %v, want not a number", sum)
	}
	if got := r.rules(); len(got) != 1 || got[0] != UninitialisedRead {
		t.Errorf("got %v, want %v", r.dev.Findings(), UninitialisedRead)
	}
}

func TestRegister(t *testing.T) {
	tests := []struct {
		name string
		call func(d *Device)
	}{
		{"twice", func(d *Device) { d.Register("set", func(*Call) error { return nil }) }},
		{"no name", func(d *Device) { d.Register("", func(*Call) error { return nil }) }},
		{"no function", func(d *Device) { d.Register("new", nil) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{})
			defer func() {
				if recover() == nil {
					t.Error("got no panic, want one")
				}
				r.shared(8) // the device goes on
			}()
			tt.call(r.dev)
		})
	}
}
