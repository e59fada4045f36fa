package offload_test

import (
	"errors"
	"testing"

	"offload"
	"offload/device"
)

// A SavedComposite is good for its slot only, and until that is reset.
func TestSavedCompositeOfAnother(t *testing.T) {
	b := manual(t, offload.Inline)
	defer b.close()
	p := b.begin()
	slot, other := b.forward(p, 0), b.forward(p, 1)
	saved, err := slot.PushComposite(b.mx("x", true, true))
	b.must(err)
	pop := func(s *offload.Slot, v offload.SavedComposite) func() error {
		return func() error { _, err := s.PopComposite(v); return err }
	}
	if err := b.unchanged("pop nothing", slot, pop(slot, offload.SavedComposite{})); !errors.Is(err, offload.ErrForeign) {
		t.Errorf("pop of the zero value: got %v, want ErrForeign", err)
	}
	if err := b.unchanged("pop elsewhere", other, pop(other, saved)); !errors.Is(err, offload.ErrForeign) {
		t.Errorf("pop from another slot: got %v, want ErrForeign", err)
	}
	b.must(slot.Reset())
	if err := b.unchanged("pop late", slot, pop(slot, saved)); !errors.Is(err, offload.ErrStale) {
		t.Errorf("pop after the reset: got %v, want ErrStale", err)
	}
	b.must(p.End())
	for v, want := range map[offload.SavedComposite]string{
		{}:    "nothing saved",
		saved: "composite of 6: pass 1 layer 0 tensor 0",
	} {
		if got := v.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// broken is a composite that breaks the contract in a way of its own.
type broken struct {
	list
	with func(cs []device.Tensor) (offload.Composite, error)
}

func (c broken) WithComponents(cs []device.Tensor) (offload.Composite, error) { return c.with(cs) }

// A composite that could not come back is refused, and nothing of it is saved.
func TestCompositeRefused(t *testing.T) {
	b := manual(t, offload.Inline)
	defer b.close()
	x, index := b.part("x", device.Activation, device.Float32, limit), b.control("index")
	outside := x
	outside.Offset = 1
	stubborn := errors.New("stubborn")
	p := b.begin()
	slot := b.forward(p, 0)
	for _, tc := range []struct {
		name string
		c    offload.Composite
		want error
	}{
		{"no composite", nil, offload.ErrComposite},
		{"without components it is nothing", broken{list{x}, func([]device.Tensor) (offload.Composite, error) { return nil, nil }}, offload.ErrComposite},
		{"without components it cannot be", broken{list{x}, func([]device.Tensor) (offload.Composite, error) { return nil, stubborn }}, stubborn},
		{"absent components are left out", broken{list{x}, func([]device.Tensor) (offload.Composite, error) { return list{}, nil }}, offload.ErrComposite},
		{"elements outside their storage", &offload.Quantized{RowData: outside}, offload.ErrComposite},
		{"scales of what is not quantised", &offload.Quantized{RowData: x, RowInverseScale: x}, offload.ErrComposite},
		{"column scales of what is not quantised", &offload.Quantized{RowData: x, ColumnInverseScale: x}, offload.ErrComposite},
		{"per-tensor FP8 without a scale", &offload.Quantized{Format: offload.PerTensorFP8, ColumnData: x}, offload.ErrComposite},
		{"per-tensor FP8 with nothing but a scale", &offload.Quantized{Format: offload.PerTensorFP8, RowInverseScale: x}, offload.ErrComposite},
		{"per-tensor FP8 with a scale for columns", &offload.Quantized{Format: offload.PerTensorFP8, RowData: x, RowInverseScale: x, ColumnInverseScale: x}, offload.ErrComposite},
		{"block FP8 rows without scales", &offload.Quantized{Format: offload.BlockFP8, RowData: x}, offload.ErrComposite},
		{"NVFP4 scales without columns", &offload.Quantized{Format: offload.NVFP4, ColumnInverseScale: x}, offload.ErrComposite},
		{"a format that is none", &offload.Quantized{Format: 99}, offload.ErrComposite},
		{"rows of a hybrid", &offload.Hybrid{Row: &offload.Quantized{Format: 99}}, offload.ErrComposite},
		{"columns of a hybrid", &offload.Hybrid{Row: list{x}, Column: &offload.Quantized{Format: 99}}, offload.ErrComposite},
		{"first dims that may move", &offload.Grouped{RowData: x, FirstDims: x}, offload.ErrComposite},
		{"last dims that may move", &offload.Grouped{RowData: x, LastDims: x}, offload.ErrComposite},
		{"offsets that may move", &offload.Grouped{RowData: x, FirstDims: index, LastDims: index, Offsets: x}, offload.ErrComposite},
		{"a group of a format that is none", &offload.Grouped{Layout: &offload.GroupLayout{Format: 99}}, offload.ErrComposite},
		{"fewer than no members", &offload.Grouped{Layout: &offload.GroupLayout{Members: -1}}, offload.ErrComposite},
		{"shapes of other members", &offload.Grouped{Layout: &offload.GroupLayout{Members: 2, Shapes: [][]int{{1}}}}, offload.ErrComposite},
		{"a negative dimension", &offload.Grouped{Layout: &offload.GroupLayout{Members: 1, Shapes: [][]int{{3, -1}}}}, offload.ErrComposite},
		{"offsets without an end", &offload.Grouped{Layout: &offload.GroupLayout{Members: 1, DataOffsets: []int64{0}}}, offload.ErrComposite},
		{"offsets that descend", &offload.Grouped{Layout: &offload.GroupLayout{Members: 1, RowScaleOffsets: []int64{2, 1}}}, offload.ErrComposite},
		{"offsets before the start", &offload.Grouped{Layout: &offload.GroupLayout{Members: 1, ColumnScaleOffsets: []int64{-1, 1}}}, offload.ErrComposite},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := b.unchanged("push", slot, func() error { _, err := slot.PushComposite(tc.c); return err })
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	// Its storage was not taken over by any of them.
	b.must(p.End())
	b.see(list{x, index})
	b.Drop(b.Compute, x)
	b.Drop(b.Compute, index)
}
