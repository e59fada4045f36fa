package cuda

import (
	"bytes"
	"errors"
	"testing"

	"offload/device"
)

func gather(s device.Stream, packed device.Range, combs ...device.Comb) device.Op {
	k := &device.Kernel{}
	k.Gather(packed, combs)
	return device.Op{Kind: device.Launch, Stream: s, Kernel: k}
}

func scatter(s device.Stream, combs []device.Comb, packed device.Range) device.Op {
	k := &device.Kernel{}
	k.Scatter(combs, packed)
	return device.Op{Kind: device.Launch, Stream: s, Kernel: k}
}

// comb is count pieces of n bytes of x, the first at off.
func comb(x device.Range, off, n, stride, count int64) device.Comb {
	return device.Comb{First: x.Sub(off, n), Stride: stride, Count: count}
}

var combTests = []struct {
	name  string
	combs func(x device.Range) []device.Comb
}{
	{"rows with gaps", func(x device.Range) []device.Comb { return []device.Comb{comb(x, 3, 5, 16, 7)} }},
	{"rows without gaps", func(x device.Range) []device.Comb { return []device.Comb{comb(x, 3, 8, 8, 7)} }},
	{"one piece", func(x device.Range) []device.Comb { return []device.Comb{comb(x, 100, 33, 1, 1)} }},
	{"backwards", func(x device.Range) []device.Comb { return []device.Comb{comb(x, 900, 5, -16, 7)} }},
	{"several, one empty", func(x device.Range) []device.Comb {
		return []device.Comb{comb(x, 500, 4, 4, 3), comb(x, 0, 4, 8, 0), comb(x, 0, 2, 10, 20), comb(x, 600, 0, 10, 5)}
	}},
}

// testPack gathers and scatters on a device and compares with the host.
func testPack(t *testing.T, d *Device) {
	r := newRig(t, d)
	s := r.stream()
	const size = 1000
	x, y, in, out := r.buffer(s, size), r.buffer(s, size), r.pinned(size), r.pinned(size)
	for i := range r.host(in) {
		r.host(in)[i] = byte(i*7 + i>>8)
	}
	for _, tc := range combTests {
		combs := tc.combs(x)
		var want, back []byte
		back = append(back, make([]byte, size)...)
		for _, c := range combs {
			for i := range c.Count {
				p := c.Piece(i)
				want = append(want, r.host(in)[p.Offset:p.Offset+p.Bytes]...)
				copy(back[p.Offset:], r.host(in)[p.Offset:p.Offset+p.Bytes])
			}
		}
		n := int64(len(want))
		packed := device.Range{Buffer: r.ids.Buffer(device.OnDevice), Bytes: n + 8} // allocated in the same batch
		clear(r.host(out))
		r.must(copyIn(s, x, in), alloc(s, packed), gather(s, packed.Sub(8, n), combs...), copyOut(s, out.Sub(0, n), packed.Sub(8, n)), join(s))
		if got := r.host(out)[:n]; !bytes.Equal(got, want) {
			t.Errorf("%s: gathered %v, want %v", tc.name, got, want)
		}
		clear(r.host(out))
		r.must(copyIn(s, x, out), scatter(s, combs, packed.Sub(8, n)), copyOut(s, out, x), free(s, packed), join(s))
		if got := r.host(out); !bytes.Equal(got, back) {
			t.Errorf("%s: scattered other bytes than the host", tc.name)
		}
		r.ids.PutBuffer(packed.Buffer)
	}
	for _, tc := range []struct {
		name string
		op   device.Op
	}{
		{"sizes differ", gather(s, y.Sub(0, 9), device.Comb{First: x.Sub(0, 5), Stride: 8, Count: 2})},
		{"the last piece is outside", gather(s, y.Sub(0, 10), device.Comb{First: x.Sub(0, 5), Stride: 996, Count: 2})},
		{"the first piece is outside", scatter(s, []device.Comb{comb(x, 998, 5, -100, 2)}, y.Sub(0, 10))},
		{"a negative count", gather(s, y.Sub(0, 0), device.Comb{First: x.Sub(0, 0), Stride: 8, Count: -1})},
		{"pieces share bytes with the packed range", gather(s, x.Sub(20, 10), device.Comb{First: x.Sub(0, 5), Stride: 16, Count: 2})},
		{"on the host", gather(s, out.Sub(0, 10), device.Comb{First: x.Sub(0, 5), Stride: 16, Count: 2})},
		{"arguments missing", launch(s, device.GatherKernel, device.Arg{Range: y}, device.Arg{Range: x})},
	} {
		if err := r.do(tc.op); !errors.Is(err, device.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", tc.name, err)
		}
	}
	r.close()
}

func TestPack(t *testing.T) {
	r, _ := newFakeRig(t, Options{})
	testPack(t, r.dev)
}

// external is memory that the test has from elsewhere.
type external struct{ at, size uintptr }

func (e external) Uintptr() uintptr { return e.at }
func (e external) MemSize() uintptr { return e.size }

// testAdopt uses memory that does not come from the device.
func testAdopt(t *testing.T, d *Device, mem external) {
	r := newRig(t, d)
	s := r.stream()
	st, adopt := r.ids.AdoptStorage("mine", device.Activation, mem, s, nil)
	whole := device.Range{Buffer: st.Buffer(), Bytes: st.Bytes()}
	in, out := r.pinned(st.Bytes()), r.pinned(st.Bytes())
	for i := range r.host(in) {
		r.host(in)[i] = byte(i * 3)
	}
	before := d.Usage()
	r.must(adopt, copyIn(s, whole, in))
	if got := d.Usage(); got != before {
		t.Errorf("got usage %+v with adopted memory, want %+v", got, before)
	}
	if m, err := d.Lookup(whole.Buffer); err != nil || m.Address != mem.at {
		t.Errorf("got %+v, %v; want address %#x", m, err, mem.at)
	}
	again, second := r.ids.AdoptStorage("again", device.Activation, external{mem.at + mem.size - 1, 1}, s, nil)
	if err := r.do(second); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("adopted twice: got %v, want ErrInvalid", err)
	}
	again.Freed()
	if err := r.do(free(s, whole)); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("freed: got %v, want ErrInvalid", err)
	}
	r.must(copyOut(s, out, whole), st.FreeOn(s), join(s))
	if !bytes.Equal(r.host(in), r.host(out)) {
		t.Error("the bytes that were copied in and out differ")
	}
	if err := r.do(copyOut(s, out, whole)); !errors.Is(err, device.ErrUnknown) {
		t.Errorf("used after disown: got %v, want ErrUnknown", err)
	}
	x := r.buffer(s, 100)
	if err := r.do(device.Op{Kind: device.Disown, Stream: s, Dst: x}); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("disowned memory of the device: got %v, want ErrInvalid", err)
	}
	zero, third := r.ids.AdoptStorage("nowhere", device.Activation, external{0, 16}, s, nil)
	if err := r.do(third); !errors.Is(err, device.ErrInvalid) {
		t.Errorf("adopted at address 0: got %v, want ErrInvalid", err)
	}
	zero.Freed()
	left, adoptLeft := r.ids.AdoptStorage("left", device.Activation, mem, s, nil) // Close leaves it alone
	r.must(adoptLeft)
	_ = left
	r.close()
}

func TestAdopt(t *testing.T) {
	r, f := newFakeRig(t, Options{MemoryLimit: 4096})
	mem := make([]byte, 1000)
	at := address(mem)
	f.onGPU[at] = mem
	defer func() {
		if len(f.onGPU) != 1 {
			t.Errorf("got %d pieces of memory at the end, want the caller's alone", len(f.onGPU))
		}
	}()
	f.foreign = 1
	testAdopt(t, r.dev, external{at, 1000})
}
