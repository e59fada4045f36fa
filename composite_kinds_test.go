package offload_test

import (
	"reflect"
	"testing"

	"offload"
	"offload/device"
	"offload/schedule"
	"offload/tests/rig"
)

// away returns how many components of c move, and the device memory of those
// that stay.
func (b *bench) away(c offload.Composite) (moves, stays int64) {
	align := b.Sim.Info().Align
	for _, t := range c.Components() {
		switch {
		case t.IsNil():
		case t.Storage.Class() == device.Activation && t.Elements() >= limit:
			moves++
		default:
			stays += (t.Bytes() + align - 1) / align * align
		}
	}
	return moves, stays
}

// composites names one of each kind by what is true of it.
var composites = []struct {
	name string
	make func(b *bench) offload.Composite
}{
	{"per-tensor FP8, data, transpose and scale", func(b *bench) offload.Composite {
		return &offload.Quantized{Format: offload.PerTensorFP8, RowData: b.payload("data"), ColumnData: b.payload("transpose"), RowInverseScale: b.amax("scale")}
	}},
	{"per-tensor FP8 without data", func(b *bench) offload.Composite {
		return &offload.Quantized{Format: offload.PerTensorFP8, ColumnData: b.payload("transpose"), RowInverseScale: b.amax("scale")}
	}},
	{"MXFP8", func(b *bench) offload.Composite { return b.mx("x", true, true) }},
	{"MXFP8 without columns", func(b *bench) offload.Composite { return b.mx("x", true, false) }},
	{"MXFP8 without rows", func(b *bench) offload.Composite { return b.mx("x", false, true) }},
	{"MXFP8 without anything", func(b *bench) offload.Composite { return b.mx("x", false, false) }},
	{"NVFP4", func(b *bench) offload.Composite { return b.nv("x") }},
	{"hybrid", func(b *bench) offload.Composite {
		return &offload.Hybrid{Row: b.mx("r", true, false), Column: b.nv("c")}
	}},
	{"hybrid without rows", func(b *bench) offload.Composite { return &offload.Hybrid{Column: b.nv("c")} }},
	{"hybrid without columns", func(b *bench) offload.Composite { return &offload.Hybrid{Row: b.mx("r", false, true)} }},
	{"hybrid with an absent value for rows", func(b *bench) offload.Composite {
		return &offload.Hybrid{Row: (*offload.Quantized)(nil), Column: b.nv("c")}
	}},
	{"hybrid of a hybrid, a group and a list", func(b *bench) offload.Composite {
		return &offload.Hybrid{
			Row:    &offload.Hybrid{Row: b.grouped("g"), Column: b.mx("c", true, true)},
			Column: list{{}, b.payload("l"), {}},
		}
	}},
	{"grouped", func(b *bench) offload.Composite { return b.grouped("g") }},
	{"grouped without rows and of which the host knows nothing", func(b *bench) offload.Composite {
		return &offload.Grouped{ColumnData: b.payload("g column"), ColumnInverseScale: b.scales("g column scale"), Offsets: b.control("g offsets")}
	}},
	{"grouped whose members are known already", func(b *bench) offload.Composite {
		g := b.grouped("g")
		_, err := g.Members()
		b.must(err)
		return g
	}},
	{"absent", func(b *bench) offload.Composite { return (*offload.Quantized)(nil) }},
	{"absent hybrid", func(b *bench) offload.Composite { return (*offload.Hybrid)(nil) }},
	{"absent group", func(b *bench) offload.Composite { return (*offload.Grouped)(nil) }},
}

// Every kind comes back as it was, whoever drives the engine. Each component is
// moved or kept by its own size and class, absent ones stay absent in their
// places, and the caller's object is intact right after the push.
func TestCompositeRoundTrip(t *testing.T) {
	plan, err := schedule.Window(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []struct {
		name string
		plan *schedule.Plan
	}{{"manual", nil}, {"window", plan}} {
		for _, tc := range composites {
			t.Run(how.name+"/"+tc.name, func(t *testing.T) {
				rig.EachDispatch(t, func(t *testing.T, d offload.Dispatch) {
					b := open(t, offload.Options{Plan: how.plan, Layers: 2, Dispatch: d, MinElements: limit, SlabBytes: 64 << 10})
					defer b.close()
					c := tc.make(b)
					before := c.Components()
					moves, stays := b.away(c)
					p := b.begin()
					slot := b.forward(p, 0)
					saved, err := slot.PushComposite(c)
					b.must(err)
					b.see(c)
					if how.plan == nil {
						b.must(slot.StartOffload())
						b.see(c)
						b.must(slot.Release())
					}
					b.forward(p, 1)
					b.backward(p, 1)
					if m := b.engine.Metrics(); m.CopiesOut != moves {
						t.Errorf("%d copies out, want %d", m.CopiesOut, moves)
					}
					if how.plan == nil {
						if got := b.Sim.Usage().InUse; got != stays {
							t.Errorf("%d bytes on the device after the release, want the %d of what stays", got, stays)
						}
						b.must(slot.Reload())
					}
					got, err := b.backward(p, 0).PopComposite(saved)
					b.must(err)
					b.see(got)
					if !reflect.DeepEqual(got, c) {
						t.Errorf("popped\ngot  %+v\nwant %+v", got, c)
					}
					if after := c.Components(); !reflect.DeepEqual(after, before) {
						t.Errorf("the caller's object has changed:\ngot  %v\nwant %v", after, before)
					}
					b.must(p.End())
					if m := b.engine.Metrics(); m.CopiesIn != moves || m.Unused != 0 || m.StoragesHeld != 0 {
						t.Errorf("after the pass: %+v", m)
					}
					b.drop(c)
				})
			})
		}
	}
}
