package tests

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"offload"
	"offload/device"
	"offload/device/sim"
	"offload/fsm"
	"offload/schedule"
	"offload/tests/rig"
)

// drawView draws any view of a storage: a type, up to three dimensions, strides
// of any sign, zero included, and an offset.
func drawView(t *rapid.T, base device.Tensor) device.Tensor {
	x := device.Tensor{Storage: base.Storage, DType: rapid.SampledFrom([]device.DType{device.Uint8, device.BFloat16, device.Float32}).Draw(t, "type")}
	room := int(base.Storage.Bytes()/x.DType.Size()) - 1 // elements beside the first one
	if room < 0 {
		return device.Tensor{Storage: base.Storage, DType: device.Uint8, Shape: []int{1}, Strides: []int{1}}
	}
	lo, hi := 0, 0 // reach of the dimensions so far
	for range rapid.IntRange(0, 3).Draw(t, "dimensions") {
		n := rapid.IntRange(1, 12).Draw(t, "length")
		stride := rapid.IntRange(-20, 20).Draw(t, "stride")
		for n > 1 && hi-lo+abs(stride)*(n-1) > room {
			n--
		}
		x.Shape, x.Strides = append(x.Shape, n), append(x.Strides, stride)
		lo, hi = lo+min(stride*(n-1), 0), hi+max(stride*(n-1), 0)
	}
	x.Offset = int64(rapid.IntRange(-lo, room-hi).Draw(t, "offset"))
	x.Keep = rapid.IntRange(0, 9).Draw(t, "keep") == 0
	return x
}

func abs(n int) int { return max(n, -n) }

// viewModel says what has to move, by looking at one byte after the other.
type viewModel struct {
	union map[*device.Storage][]bool // bytes of views that are saved in slots that move
	moves map[*device.Storage]bool   // one of them is reason enough
	stays map[*device.Storage]bool   // one of them was asked to stay
}

func (m *viewModel) save(x device.Tensor, minElements int64) {
	if m.union[x.Storage] == nil {
		m.union[x.Storage] = make([]bool, x.Storage.Bytes())
	}
	memory := int64(1) // elements that there are
	for i, n := range x.Shape {
		if n > 1 && x.Strides[i] != 0 {
			memory *= int64(n)
		}
	}
	switch {
	case x.Keep:
		m.stays[x.Storage] = true
	case memory >= minElements:
		m.moves[x.Storage] = true
	}
	for _, r := range rig.Touched(x) {
		for i := range r.Bytes {
			m.union[x.Storage][r.Offset+i] = true
		}
	}
}

// bytes returns what is moved of all storages together: at least, and at most if
// copies begin before it is known that a storage has to stay.
func (m *viewModel) bytes() (least, most int64) {
	for st, union := range m.union {
		n := int64(0)
		for _, is := range union {
			if is {
				n++
			}
		}
		if 2*n >= st.Bytes() {
			n = st.Bytes()
		}
		if m.moves[st] {
			most += n
		}
		if m.moves[st] && !m.stays[st] {
			least += n
		}
	}
	return least, most
}

// Whatever views of whatever storages are saved in whatever layers, once or more:
// what moves is what the model says, what comes back is what was pushed, and in
// the end nothing is held.
func TestAnyViews(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const minElements = 8
		layers := rapid.IntRange(1, 4).Draw(rt, "layers")
		offloaded := rapid.IntRange(-1, layers-1).Draw(rt, "offloaded (-1: a manual plan)")
		opts := offload.Options{Layers: layers, MinElements: minElements, SlabBytes: 16 << 10,
			CopyAtPush: rapid.Bool().Draw(rt, "copy at push"), CoalesceBytes: rapid.Int64Range(0, 1).Draw(rt, "coalesce"),
			Dispatch: rapid.SampledFrom([]offload.Dispatch{offload.Inline, offload.Goroutines}).Draw(rt, "dispatch")}
		if offloaded >= 0 {
			plan, err := schedule.Window(layers, offloaded)
			if err != nil {
				rt.Fatal(err)
			}
			opts.Plan = plan
		}
		s := &viewStage{stage: stage{Rig: rig.New(rt, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")})}, rt: rt}
		limit := int64(minElements)
		if opts.CoalesceBytes > 0 {
			limit = 1 // any number of small ones is worth a copy
		}
		s.run(opts, offloaded, layers, limit)
	})
}

type viewStage struct {
	stage
	rt *rapid.T
}

func (s *viewStage) must(err error) {
	s.rt.Helper()
	if err != nil {
		s.rt.Fatal(err)
	}
}

func (s *viewStage) run(opts offload.Options, offloaded, layers int, minElements int64) {
	rt := s.rt
	engine := s.Open(opts)
	pass, err := engine.Begin(rt.Context(), offload.Train, s.Compute)
	s.must(err)
	model := viewModel{make(map[*device.Storage][]bool), make(map[*device.Storage]bool), make(map[*device.Storage]bool)}
	side := s.Stream()
	slots, saved, pushed := make([]*offload.Slot, layers), make([][]offload.Saved, layers), make([][]device.Tensor, layers)
	taken := make(map[*device.Storage]bool)
	var all, bases []device.Tensor // all layers of a manual plan save views of the same storages
	for layer := range layers {
		if layer == 0 || offloaded >= 0 {
			bases = bases[:0]
			for i := range rapid.IntRange(1, 3).Draw(rt, "storages") {
				bases = append(bases, s.Tensor(s.Compute, fmt.Sprint(layer, ".", i), rapid.Int64Range(1, 600).Draw(rt, "bytes")))
			}
			s.Order(s.Compute, side)
			all = append(all, bases...)
		}
		slots[layer], err = pass.Forward(layer)
		s.must(err)
		for range rapid.IntRange(1, 4).Draw(rt, "pushes") {
			x := drawView(rt, rapid.SampledFrom(bases).Draw(rt, "storage"))
			on := rapid.SampledFrom([]device.Stream{s.Compute, side}).Draw(rt, "stream")
			v, err := slots[layer].On(on).Push(x)
			s.must(err)
			saved[layer], pushed[layer], taken[x.Storage] = append(saved[layer], v...), append(pushed[layer], x), true
			if offloaded < 0 || layer < offloaded {
				model.save(x, minElements)
			}
		}
	}
	if offloaded < 0 {
		for _, step := range []func(*offload.Slot) error{(*offload.Slot).StartOffload, (*offload.Slot).Release} {
			for _, slot := range slots {
				s.must(step(slot))
			}
		}
		for _, layer := range rapid.Permutation(seq(layers)).Draw(rt, "reloads") {
			s.must(slots[layer].Reload())
		}
	}
	least, most := model.bytes()
	if !opts.CopyAtPush {
		most = least
	}
	if got := engine.Metrics().BytesOut; got < least || got > most {
		rt.Errorf("%d bytes were moved, want %d to %d", got, least, most)
	}
	for layer := layers - 1; layer >= 0; layer-- {
		slot, err := pass.Backward(layer)
		s.must(err)
		if st := slot.State(); offloaded < 0 && st != fsm.Reloading {
			rt.Errorf("layer %d is %v in its backward", layer, st)
		}
		on := rapid.SampledFrom([]device.Stream{s.Compute, side}).Draw(rt, "stream of the pop")
		ts, err := slot.On(on).Pop(saved[layer]...)
		s.must(err)
		for i, x := range ts {
			if want := pushed[layer][i]; fmt.Sprint(x) != fmt.Sprint(want) || x.Storage != want.Storage || x.Keep != want.Keep {
				rt.Errorf("layer %d tensor %d came back as %v, want %v", layer, i, x, want)
			}
			s.CheckView(on, x, x.Storage.Name())
		}
	}
	s.must(pass.End())
	if m := engine.Metrics(); m.StoragesHeld != 0 || m.SlotsHeld != 0 || m.HostInUse != 0 {
		rt.Errorf("held after the pass: %+v", m)
	}
	s.must(engine.Close())
	for _, x := range all {
		if !taken[x.Storage] {
			s.Drop(s.Compute, x)
		}
	}
	s.Rig.Close()
}

func seq(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}
