package offload_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/schedule"
	"offload/tests/rig"
)

// drawing makes random composites out of the halves of a few storages, so that
// they share memory among each other and within themselves.
type drawing struct {
	*rapid.T
	storages []device.Tensor // each with a pattern in either half
}

func draw(t *rapid.T, r *rig.Rig, layer int) *drawing {
	d := &drawing{T: t}
	for i := range rapid.IntRange(1, 6).Draw(t, "storages") {
		class := rapid.SampledFrom([]device.Class{device.Activation, device.Activation, device.Activation, device.Weight, device.Workspace, device.Index}).Draw(t, "class")
		half := rapid.SampledFrom([]int64{1, 100, limit - 1, limit, 3000}).Draw(t, "bytes of a half")
		x := r.TensorOf(r.Compute, fmt.Sprintf("storage %d of layer %d", i, layer), class, 2*half)
		x.Keep = rapid.IntRange(0, 9).Draw(t, "keep") == 0
		d.storages = append(d.storages, x)
		for h := range 2 {
			v := halfOf(x, h)
			r.Fill(r.Compute, v, halfName(v))
		}
	}
	return d
}

// halfOf returns one half of a tensor.
func halfOf(x device.Tensor, h int) device.Tensor {
	n := x.Shape[0] / 2
	x.Shape, x.Offset = []int{n}, int64(h*n)
	return x
}

func halfName(v device.Tensor) string {
	return fmt.Sprintf("%s from %d", v.Storage.Name(), v.Offset)
}

// component draws a half of a storage of one of the classes, or an absent tensor.
func (d *drawing) component(classes ...device.Class) device.Tensor {
	i := rapid.IntRange(-1, len(d.storages)-1).Draw(d.T, "storage (-1: absent)")
	if i < 0 || !slices.Contains(classes, d.storages[i].Storage.Class()) {
		return device.Tensor{}
	}
	v := halfOf(d.storages[i], rapid.IntRange(0, 1).Draw(d.T, "half"))
	return v
}

// components draws n tensors of any class.
func (d *drawing) components(n int) []device.Tensor {
	cs := make([]device.Tensor, n)
	for i := range cs {
		cs[i] = d.component(device.Activation, device.Weight, device.Workspace, device.Index)
	}
	return cs
}

func (d *drawing) composite(depth int) offload.Composite {
	kinds := []string{"list", "quantised", "grouped", "absent"}
	if depth > 0 {
		kinds = append(kinds, "hybrid", "hybrid")
	}
	switch rapid.SampledFrom(kinds).Draw(d.T, "kind") {
	case "list":
		return list(d.components(rapid.IntRange(0, 5).Draw(d.T, "length")))
	case "quantised":
		format := rapid.SampledFrom([]offload.Format{offload.Unquantized, offload.PerTensorFP8, offload.BlockFP8, offload.MXFP8, offload.NVFP4}).Draw(d.T, "format")
		q := &offload.Quantized{Format: format}
		if _, err := q.Restore(d.components(6)); err != nil {
			d.Fatal(err)
		}
		if q.Check() != nil { // a data tensor without its scale, or the other way round
			q.Format = offload.Unquantized
			q.RowInverseScale, q.ColumnInverseScale = device.Tensor{}, device.Tensor{}
		}
		return q
	case "grouped":
		g := &offload.Grouped{FirstDims: d.component(device.Index), LastDims: d.component(device.Index), Offsets: d.component(device.Index)}
		if _, err := g.Restore(append(d.components(7), g.Components()[7:]...)); err != nil {
			d.Fatal(err)
		}
		return g
	case "hybrid":
		return &offload.Hybrid{Row: d.composite(depth - 1), Column: d.composite(depth - 1)}
	}
	return (*offload.Quantized)(nil)
}

// see has the bytes of all components checked.
func see(r *rig.Rig, c offload.Composite) {
	for _, t := range c.Components() {
		if !t.IsNil() {
			r.Check(r.Compute, t, halfName(t))
		}
	}
}

// Whatever composites are saved, in whatever layers and however often, and
// whoever drives the engine: each comes back as it was, with the right bytes,
// what moves is copied once, the caller's objects do not change, and nothing is
// left behind.
func TestAnyComposite(t *testing.T) {
	const layers = 3
	plan, err := schedule.Window(layers, 2)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := rig.New(rt, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")})
		must := func(err error) {
			rt.Helper()
			if err != nil {
				rt.Fatal(err)
			}
		}
		opts := offload.Options{Layers: layers, MinElements: limit, SlabBytes: 64 << 10,
			Dispatch: rapid.SampledFrom([]offload.Dispatch{offload.Inline, offload.Goroutines}).Draw(rt, "dispatch")}
		manual := rapid.Bool().Draw(rt, "manual")
		if !manual {
			opts.Plan = plan
		}
		engine := r.Open(opts)
		pass, err := engine.Begin(context.Background(), offload.Train, r.Compute)
		must(err)

		type pushed struct {
			composite  offload.Composite
			components []device.Tensor
			saved      offload.SavedComposite
		}
		var all [layers][]pushed
		var slots [layers]*offload.Slot
		// What is saved in one layer and released may not be saved in the next. In a
		// manual plan nothing is released before the end of the forward, so that all
		// layers save the same; in a window they have storages of their own.
		var drawings []*drawing
		var pool []offload.Composite
		for layer := range layers {
			if layer == 0 || !manual {
				d := draw(rt, r, layer)
				drawings = append(drawings, d)
				pool = make([]offload.Composite, rapid.IntRange(1, 3).Draw(rt, "composites"))
				for i := range pool {
					pool[i] = d.composite(2)
				}
			}
			slots[layer], err = pass.Forward(layer)
			must(err)
			for range rapid.IntRange(0, 3).Draw(rt, "pushes") {
				c := rapid.SampledFrom(pool).Draw(rt, "composite")
				components := c.Components()
				saved, err := slots[layer].PushComposite(c)
				must(err)
				all[layer] = append(all[layer], pushed{c, components, saved})
				see(r, c) // it may be used right after the push
			}
		}
		if manual {
			for _, s := range slots {
				must(s.StartOffload())
			}
			for _, s := range slots {
				must(s.Release())
			}
		}
		for layer := layers - 1; layer >= 0; layer-- {
			if manual {
				must(slots[layer].Reload())
			}
			slot, err := pass.Backward(layer)
			must(err)
			for _, p := range all[layer] {
				got, err := slot.PopComposite(p.saved)
				must(err)
				if !reflect.DeepEqual(got, p.composite) {
					rt.Errorf("layer %d: popped\ngot  %+v\nwant %+v", layer, got, p.composite)
				}
				if now := p.composite.Components(); !reflect.DeepEqual(now, p.components) {
					rt.Errorf("layer %d: the caller's object has changed:\ngot  %v\nwant %v", layer, now, p.components)
				}
				see(r, got)
			}
		}
		must(pass.End())

		// A storage moves when one of its halves is reason enough, and then all of
		// it does, once. What layers share may come back for each of them, or stay.
		// What was asked to stay keeps the rest of its storage on the device, too.
		stays := make(map[*device.Storage]bool)
		for _, ps := range all {
			for _, p := range ps {
				for _, x := range p.components {
					stays[x.Storage] = stays[x.Storage] || x.Keep && x.Elements() > 0
				}
			}
		}
		var want int64
		taken := make(map[*device.Storage]bool)
		moved := make(map[*device.Storage]bool)
		for layer, ps := range all {
			for _, p := range ps {
				for _, x := range p.components {
					if x.IsNil() {
						continue
					}
					class := x.Storage.Class()
					taken[x.Storage] = class == device.Activation || class == device.Workspace
					moves := class == device.Activation && x.Elements() >= limit && !stays[x.Storage] && (manual || plan.Offloaded(layer))
					if moves && !moved[x.Storage] {
						moved[x.Storage] = true
						want += x.Storage.Bytes()
					}
				}
			}
		}
		m := engine.Metrics()
		if m.BytesOut != want || !manual && m.BytesIn != want || m.StoragesHeld != 0 || m.HostInUse != 0 || m.Unused != 0 {
			rt.Errorf("after the pass: %+v; %d bytes were to move", m, want)
		}
		must(engine.Close())
		for _, d := range drawings {
			for _, x := range d.storages {
				if !taken[x.Storage] {
					r.Drop(r.Compute, x)
				}
			}
		}
		r.Close()
	})
}
