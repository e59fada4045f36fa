package offload_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"offload"
	"offload/device"
	"offload/fsm"
	"offload/tests/rig"
)

// list is the simplest composite.
type list []device.Tensor

func (l list) Components() []device.Tensor { return slices.Clone(l) }

func (l list) WithComponents(cs []device.Tensor) (offload.Composite, error) {
	if len(cs) != len(l) {
		return nil, fmt.Errorf("%w: %d tensors for a list of %d", offload.ErrComposite, len(cs), len(l))
	}
	return list(slices.Clone(cs)), nil
}

// limit is the size limit of the engines of the composite tests; large components
// are above it, small ones below.
const (
	limit = 1024
	large = 4096
	small = 64
)

// part makes a tensor that fills a storage of its own.
func (b *bench) part(name string, class device.Class, dt device.DType, shape ...int) device.Tensor {
	b.t.Helper()
	t := device.Tensor{DType: dt, Shape: shape}
	x := b.TensorOf(b.Compute, name, class, t.Bytes())
	t.Storage = x.Storage
	return t
}

func (b *bench) payload(name string) device.Tensor {
	return b.part(name, device.Activation, device.Float8E4M3, 64, large/64)
}

func (b *bench) scales(name string) device.Tensor {
	return b.part(name, device.Activation, device.Scale8E0M0, small)
}

func (b *bench) amax(name string) device.Tensor {
	return b.part(name, device.Activation, device.Float32, 1)
}

func (b *bench) control(name string) device.Tensor {
	return b.part(name, device.Index, device.Int64, 2)
}

// mx returns a value of which the given directions are there.
func (b *bench) mx(name string, row, column bool) *offload.Quantized {
	q := &offload.Quantized{Format: offload.MXFP8, DType: device.BFloat16, Shape: []int{64, large / 64}, Swizzled: true}
	if row {
		q.RowData, q.RowInverseScale = b.payload(name+" row"), b.scales(name+" row scale")
	}
	if column {
		q.ColumnData, q.ColumnInverseScale = b.payload(name+" column"), b.scales(name+" column scale")
	}
	return q
}

func (b *bench) nv(name string) *offload.Quantized {
	q := b.mx(name, true, true)
	q.Format, q.RowAmax, q.ColumnAmax = offload.NVFP4, b.amax(name+" row amax"), b.amax(name+" column amax")
	return q
}

// grouped returns two members in one group, of which every component is there.
func (b *bench) grouped(name string) *offload.Grouped {
	return &offload.Grouped{
		RowData: b.payload(name + " row"), ColumnData: b.payload(name + " column"),
		RowInverseScale: b.scales(name + " row scale"), ColumnInverseScale: b.scales(name + " column scale"),
		RowAmax:    b.part(name+" row amax", device.Activation, device.Float32, 2),
		ColumnAmax: b.part(name+" column amax", device.Activation, device.Float32, 2),
		Scale:      b.part(name+" scale", device.Activation, device.Float32, 2),
		FirstDims:  b.control(name + " first dims"), LastDims: b.control(name + " last dims"), Offsets: b.control(name + " offsets"),
		Layout: &offload.GroupLayout{
			Format: offload.MXFP8, DType: device.BFloat16, Members: 2, Shape: [2]int{64, 64}, Shapes: [][]int{{16, 64}, {48, 64}},
			RowScaleOffsets: []int64{0, 16, 64}, ColumnScaleOffsets: []int64{0, 16, 64}, Quantizer: "the caller's",
		},
	}
}

// see has the bytes of all components checked.
func (b *bench) see(c offload.Composite) {
	b.t.Helper()
	for _, t := range c.Components() {
		if !t.IsNil() {
			b.Check(b.Compute, t, t.Storage.Name())
		}
	}
}

// drop gives back the components of c that an engine never takes over.
func (b *bench) drop(c offload.Composite) {
	b.t.Helper()
	for _, t := range c.Components() {
		if !t.IsNil() && t.Storage.Class() == device.Index {
			b.Drop(b.Compute, t)
		}
	}
}

// A compound of 8 MiB data, 4 KiB scales and an absent part under the default
// limits, whose original is used right after it was saved.
func TestCompositeOfDefaultSize(t *testing.T) {
	b := open(t, offload.Options{Layers: 1})
	defer b.close()
	const data, scales = 8 << 20, 4 << 10
	c := list{b.part("data", device.Activation, device.Float8E4M3, 2048, data/2048), {}, b.part("scales", device.Activation, device.Float32, scales/4)}
	p := b.begin()
	slot := b.forward(p, 0)
	saved, err := slot.PushComposite(c)
	b.must(err)
	b.see(c)
	b.reach(slot, fsm.Offloaded)
	if got := b.Sim.Usage().InUse; got != scales {
		t.Errorf("%d bytes on the device, want the %d of the scales", got, scales)
	}
	b.must(slot.Reload())
	got, err := slot.PopComposite(saved)
	b.must(err)
	b.see(got)
	if !reflect.DeepEqual(got, c) {
		t.Errorf("got %v, want %v", got, c)
	}
	b.must(p.End())
	if m := b.engine.Metrics(); m.CopiesOut != 1 || m.BytesOut != data || m.BytesIn != data {
		t.Errorf("got %+v, want one copy of %d bytes each way", m, data)
	}
}

// Members of other types, and absent ones, do not shift what comes after them,
// in a composite or pushed as they are.
func TestMembersOfManyTypes(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := open(t, offload.Options{Layers: 1, Dispatch: d, MinElements: limit, SlabBytes: 64 << 10})
		defer b.close()
		c := list{
			b.part("first", device.Activation, device.Float32, limit),
			{},
			b.part("second", device.Activation, device.Int64, limit),
			b.part("third", device.Activation, device.Bool, limit),
			b.part("fourth", device.Activation, device.Float32, 2, limit/2),
		}
		p := b.begin()
		slot := b.forward(p, 0)
		together, err := slot.PushComposite(c)
		b.must(err)
		alone, err := slot.Push(c...)
		b.must(err)
		b.reach(slot, fsm.Reloading)
		got, err := slot.PopComposite(together)
		b.must(err)
		b.see(got)
		if !reflect.DeepEqual(got, c) {
			t.Errorf("got %v, want %v", got, c)
		}
		for i, v := range alone {
			ts, err := slot.Pop(v)
			b.must(err)
			if !reflect.DeepEqual(ts[0], c[i]) {
				t.Errorf("tensor %d: got %v, want %v", i, ts[0], c[i])
			}
		}
		b.must(p.End())
		if m := b.engine.Metrics(); m.CopiesOut != 4 || m.BytesOut != limit*(4+8+1+4) {
			t.Errorf("%d copies of %d bytes, want 4 of %d", m.CopiesOut, m.BytesOut, limit*(4+8+1+4))
		}
	})
}

// One composite pushed three times is copied once, and every pop gives an object
// of its own with the same buffers.
func TestCompositePushedThrice(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := open(t, offload.Options{Layers: 1, Dispatch: d, MinElements: limit, SlabBytes: 64 << 10})
		defer b.close()
		c := b.nv("x")
		p := b.begin()
		slot := b.forward(p, 0)
		var saved []offload.SavedComposite
		for range 3 {
			v, err := slot.PushComposite(c)
			b.must(err)
			saved = append(saved, v)
		}
		if saved[0] == saved[1] || saved[1] == saved[2] {
			t.Error("pushes of one composite gave the same SavedComposite")
		}
		b.reach(slot, fsm.Reloading)
		seen := map[offload.Composite]bool{c: true}
		for _, v := range append(saved, saved[0]) {
			got, err := slot.PopComposite(v)
			b.must(err)
			b.see(got)
			if seen[got] {
				t.Errorf("two of the caller's and the popped objects are the same one")
			}
			seen[got] = true
			if !reflect.DeepEqual(got, c) {
				t.Errorf("got %+v, want %+v", got, c)
			}
		}
		b.must(p.End())
		if m := b.engine.Metrics(); m.CopiesOut != 2 || m.CopiesIn != 2 {
			t.Errorf("%d copies out and %d in, want the 2 of its data", m.CopiesOut, m.CopiesIn)
		}
	})
}

// A composite that two layers save is copied once, and its scales, which stay,
// are there for one layer when the other is done.
func TestCompositeOfTwoLayers(t *testing.T) {
	rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
		b := open(t, offload.Options{Layers: 2, Dispatch: d, MinElements: limit, SlabBytes: 64 << 10})
		defer b.close()
		c := b.mx("x", true, true)
		p := b.begin()
		first, second := b.forward(p, 0), b.forward(p, 1)
		v0, err := first.PushComposite(c)
		b.must(err)
		v1, err := second.PushComposite(c)
		b.must(err)
		b.reach(first, fsm.Offloaded)
		got, err := second.PopComposite(v1)
		b.must(err)
		b.see(got)
		b.must(second.Reset())
		b.must(first.Reload())
		got, err = first.PopComposite(v0)
		b.must(err)
		b.see(got)
		b.must(p.End())
		if m := b.engine.Metrics(); m.CopiesOut != 2 || m.CopiesIn != 2 {
			t.Errorf("%d copies out and %d in, want the 2 of its data", m.CopiesOut, m.CopiesIn)
		}
	})
}

// What the caller does to its object after the push does not change what is
// popped, and what it does to a popped one does not change the next.
func TestCompositeIsSavedAsItWas(t *testing.T) {
	b := open(t, offload.Options{Layers: 1, MinElements: limit, SlabBytes: 64 << 10})
	defer b.close()
	c := b.mx("x", true, true)
	want := *c
	p := b.begin()
	slot := b.forward(p, 0)
	saved, err := slot.PushComposite(c)
	b.must(err)
	c.Take()
	c.Format, c.Swizzled = offload.NVFP4, false
	b.reach(slot, fsm.Reloading)
	for range 2 {
		got, err := slot.PopComposite(saved)
		b.must(err)
		q := got.(*offload.Quantized)
		if !reflect.DeepEqual(*q, want) {
			t.Errorf("got %+v, want %+v", *q, want)
		}
		b.see(q)
		q.Take()
		q.Shape = nil
	}
	b.must(p.End())
}

// An inference pass keeps nothing of a composite, and takes nothing over.
func TestCompositeInInference(t *testing.T) {
	b := open(t, offload.Options{Layers: 1, MinElements: limit, SlabBytes: 64 << 10})
	defer b.close()
	c := b.mx("x", true, false)
	p, err := b.engine.Begin(context.Background(), offload.Inference, b.Compute)
	b.must(err)
	slot := b.forward(p, 0)
	saved, err := slot.PushComposite(c)
	b.must(err)
	if _, err := slot.PopComposite(saved); !errors.Is(err, offload.ErrStale) {
		t.Errorf("pop: got %v, want ErrStale", err)
	}
	b.must(p.End())
	b.see(c)
	b.Drop(b.Compute, c.RowData)
	b.Drop(b.Compute, c.RowInverseScale)
}
